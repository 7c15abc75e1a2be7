/* library.c - cubins and launches. A cubin of the emulated NVRTC (nvrtc.c) is a
 * shared object, and its kernels run on the processor. One for a real chip is
 * taken, too: what is launched of it is told on standard error, and computes
 * nothing. */
#include "block.h"
#include "driver.h"
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct emulated_library {
  void *object; /* NULL: for a real chip */
} emulated_library;

typedef struct function {
  char name[64];
  void (*entry)(const void *); /* NULL: of a real chip */
  size_t parameters;           /* bytes */
  int shared;                  /* that it was promised */
} function;

/* ---- loading ------------------------------------------------------------------- */

/* Under a name of its own: the loader takes the same name for the same. */
static void *open_object(const void *bytes, size_t size) {
  const char *folder = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/cubin-XXXXXX", folder ? folder : "/tmp");
  int file = mkstemp(path);
  if (file < 0) return NULL;
  void *object = write(file, bytes, size) == (ssize_t)size
                     ? dlopen(path, RTLD_NOW | RTLD_LOCAL)
                     : NULL;
  if (!object) driver_refuse(INVALID_IMAGE, dlerror());
  close(file);
  unlink(path);
  return object;
}

CUDA(cuLibraryLoadData, emulated_library **made, const void *bytes,
     int *options, void **values, unsigned count, int *more, void **others,
     unsigned rest) {
  const Elf64_Ehdr *head = bytes;
  (void)options, (void)values, (void)count, (void)more, (void)others;
  (void)rest;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG))
    return driver_refuse(INVALID_IMAGE, "a cubin is no ELF file");
  emulated_library l = {NULL};
  if (head->e_machine == EM_X86_64) {
    l.object = open_object(bytes, head->e_shoff +
                                      (size_t)head->e_shentsize * head->e_shnum);
    if (!l.object) return INVALID_IMAGE;
  } else if (head->e_machine != EM_CUDA)
    return driver_refuse(INVALID_IMAGE, "a cubin is for another machine");
  *made = malloc(sizeof **made);
  if (!*made) return OUT_OF_MEMORY;
  **made = l;
  return 0;
}

CUDA(cuLibraryUnload, emulated_library *l) {
  driver_lock();
  streams_finish(device_now());
  if (l->object) dlclose(l->object);
  free(l);
  driver_unlock();
  return 0;
}

/* Kernels are as functions, and live as long as the process. */
CUDA(cuLibraryGetKernel, function **made, emulated_library *l,
     const char *name) {
  char size_name[96];
  function *f = calloc(1, sizeof *f);
  if (!f) return OUT_OF_MEMORY;
  *made = f;
  snprintf(f->name, sizeof f->name, "%s", name);
  if (!l->object) return 0;
  snprintf(size_name, sizeof size_name, "%s_parameters", name);
  void *entry = dlsym(l->object, name);
  const unsigned long *size = dlsym(l->object, size_name);
  memcpy(&f->entry, &entry, sizeof entry);
  f->parameters = size ? *size : 0;
  return entry && size ? 0 : driver_refuse(NOT_FOUND, "no such kernel");
}

CUDA(cuKernelGetFunction, function **made, function *kernel) {
  return *made = kernel, 0;
}

CUDA(cuFuncSetAttribute, function *f, int attribute, int value) {
  enum { MAX_DYNAMIC_SHARED = 8 };
  if (attribute == MAX_DYNAMIC_SHARED) f->shared = value;
  return 0;
}

/* ---- launching -------------------------------------------------------------------- */

typedef struct launching {
  block_launch launch;
  function *function;
} launching;

static void run_launch(work *w) {
  launching *l = (launching *)(void *)w->data;
  if (!block_run(&l->launch)) driver_break(fault_text());
}

/* Blocks that run at once: of a processor as many as its memory holds. */
static int resident(unsigned shared) {
  long long each = shared ? 228 * 1024 / (shared + 1024) : 4;
  return (int)(wish("FAKE_PROCESSORS", 4) * (each < 1 ? 1 : each > 4 ? 4 : each));
}

/* Adds a line to the list of launches that EMULATED_LAUNCHES names. */
static void list_launch(const function *f, unsigned grid, unsigned threads) {
  const char *path = getenv("EMULATED_LAUNCHES");
  FILE *to = path ? fopen(path, "a") : NULL;
  if (path && !to) perror(path);
  if (!to) return;
  fprintf(to, "%s %u %u\n", f->name, grid, threads);
  fclose(to);
}

static cu_result put_launch(function *f, unsigned grid, unsigned threads,
                            unsigned shared, cu_stream stream,
                            void *const *parameters) {
  static uint32_t seed;
  const unsigned without_asking = 48 * 1024;
  if (!grid || !threads || threads > THREADS_MOST)
    return driver_refuse(INVALID_VALUE, "a launch of no blocks, or of too many "
                         "threads");
  if (shared > without_asking && (int)shared > f->shared)
    return driver_refuse(INVALID_VALUE, "more shared memory than the function "
                         "was promised");
  list_launch(f, grid, threads);
  size_t ahead = (sizeof(launching) + 63) / 64 * 64;
  work *w = work_new(ahead + f->parameters, run_launch);
  memcpy(w->data + ahead, parameters[0], f->parameters);
  *(launching *)(void *)w->data =
      (launching){.launch = {.entry = f->entry,
                             .name = f->name,
                             .parameters = w->data + ahead,
                             .parameter_bytes = f->parameters,
                             .grid = grid,
                             .threads = threads,
                             .shared = shared,
                             .resident = resident(shared),
                             .seed = (uint32_t)wish("EMULATED_SEED", 1) + seed++,
                             .device = device_now()},
                  .function = f};
  return work_put(stream, w);
}

CUDA(cuLaunchKernel, function *f, unsigned x, unsigned y, unsigned z,
     unsigned wide, unsigned high, unsigned deep, unsigned shared,
     cu_stream stream, void **parameters, void **rest) {
  (void)rest;
  if (!f->entry) {
    fprintf(stderr, "launch of %u blocks of %u\n", x * y * z,
            wide * high * deep);
    return 0;
  }
  if (y * z * high * deep != 1)
    return driver_refuse(NOT_SUPPORTED, "a grid of more than one dimension");
  LOCKED(put_launch(f, x, wide, shared, stream, parameters));
}
