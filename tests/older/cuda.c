/* cuda.c - the driver of an older chip: see older.h. */
#include "runtime/cuda/launch/nvidia.h"
#include "older.h"

/* A jump to each function of the real one, but for the one below. */
#define X(name, symbol, arguments)                                             \
  void *older_##name;                                                          \
  __asm__(".ifnc " #symbol ",cuDeviceGetAttribute\n"                           \
          ".pushsection .text\n.globl " #symbol "\n.type " #symbol             \
          ", @function\n" #symbol ": jmp *older_" #name "(%rip)\n"             \
          ".size " #symbol ", .-" #symbol "\n.popsection\n.endif\n");
#pragma GCC visibility push(hidden)
CUDA_FUNCTIONS(X)
#pragma GCC visibility pop
#undef X

static void *real;

__attribute__((constructor)) static void begin(void) {
  real = open_real("OLDER_CUDA");
#define X(name, symbol, arguments) older_##name = must_find(real, #symbol);
  CUDA_FUNCTIONS(X)
#undef X
}

/* NVRTC asks for this, and for nothing else of the driver. */
SHOWN cu_result cuGetExportTable(const void **table, const void *which);
cu_result cuGetExportTable(const void **table, const void *which) {
  enum { NOT_FOUND = 500 };
  cu_result (*ask)(const void **, const void *) =
      dlsym(real, "cuGetExportTable");
  return ask ? ask(table, which) : NOT_FOUND;
}

static int32_t chip(void) {
  const char *text = getenv("OLDER_CHIP");
  return text ? atoi(text) : 80;
}

/* Bytes of shared memory that a block may have: 163 KiB of an A100. */
static int shared(void) { return (chip() == 80 ? 163 : 99) * 1024; }

SHOWN cu_result cuDeviceGetAttribute(int *value, int attribute,
                                     cu_device device);
cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device) {
  enum { MAJOR = 75, MINOR = 76, SHARED = 97 };
  cu_result (*ask)(int *, int, cu_device) = older_attribute;
  cu_result result = ask(value, attribute, device);
  if (attribute == MAJOR) *value = chip() / 10;
  if (attribute == MINOR) *value = chip() % 10;
  if (attribute == SHARED) *value = shared();
  return result;
}
