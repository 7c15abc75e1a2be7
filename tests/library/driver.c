/* driver.c - a CUDA driver without a GPU, for build.sh: a libcuda.so.1 whose
 * one device has the host's memory, is the chip that FAKE_CHIP says, takes
 * every cubin that is one, and says on standard error what is launched. What it
 * cannot do is compute. Built twice: with DEFAULTS, functions that only
 * succeed; without, those that do more. */
#include "../../runtime/cuda/nvidia.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DEFAULTS

#define X(name, symbol, arguments)                          \
  __attribute__((weak)) cu_result symbol arguments;         \
  __attribute__((weak)) cu_result symbol arguments { return 0; }
CUDA_FUNCTIONS(X)

#else

#define X(name, symbol, arguments) cu_result symbol arguments;
CUDA_FUNCTIONS(X)
#undef X

static int chip(void) {
  const char *wish = getenv("FAKE_CHIP");
  return wish ? atoi(wish) : 90;
}

cu_result cuDriverGetVersion(int *version) { return *version = 13000, 0; }
cu_result cuDeviceGetCount(int *count) { return *count = 1, 0; }
cu_result cuGetErrorString(cu_result result, const char **text) {
  (void)result;
  return *text = "a fault of the driver", 0;
}

cu_result cuDeviceGetName(char *name, int room, cu_device device) {
  snprintf(name, (size_t)room, "no device %d", device);
  return 0;
}

cu_result cuDeviceGetAttribute(int *value, int number, cu_device device) {
  (void)device;
  *value = number == 75   ? chip() / 10
           : number == 76 ? chip() % 10
           : number == 16 ? 132
                          : 1 << 20;
  return 0;
}

static cu_result take(cu_pointer *memory, size_t size) {
  void *block = aligned_alloc(256, (size + 255) / 256 * 256 + 256);
  *memory = (cu_pointer)(uintptr_t)block;
  return block ? 0 : 2;
}

cu_result cuMemAlloc_v2(cu_pointer *memory, size_t size) {
  return take(memory, size);
}
cu_result cuMemAllocAsync(cu_pointer *memory, size_t size, cu_stream stream) {
  (void)stream;
  return take(memory, size);
}
cu_result cuMemFree_v2(cu_pointer memory) {
  free((void *)(uintptr_t)memory);
  return 0;
}
cu_result cuMemFreeAsync(cu_pointer memory, cu_stream stream) {
  (void)stream;
  return cuMemFree_v2(memory);
}
cu_result cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t size) {
  memcpy((void *)(uintptr_t)to, from, size);
  return 0;
}
cu_result cuMemcpyDtoH_v2(void *to, cu_pointer from, size_t size) {
  memcpy(to, (const void *)(uintptr_t)from, size);
  return 0;
}
cu_result cuMemsetD8_v2(cu_pointer to, unsigned char byte, size_t size) {
  memset((void *)(uintptr_t)to, byte, size);
  return 0;
}

/* A cubin is an ELF file for machine 190. */
cu_result cuLibraryLoadData(cu_library *library, const void *bytes,
                            int *options, void **values, unsigned count,
                            int *more, void **others, unsigned rest) {
  const unsigned char *head = bytes;
  (void)options, (void)values, (void)count, (void)more, (void)others;
  (void)rest;
  *library = (cu_library)bytes;
  return memcmp(head, "\177ELF", 4) || head[18] != 190 ? 200 : 0;
}

cu_result cuLaunchKernel(cu_function function, unsigned x, unsigned y,
                         unsigned z, unsigned wide, unsigned high,
                         unsigned deep, unsigned shared, cu_stream stream,
                         void **parameters, void **rest) {
  (void)function, (void)shared, (void)stream, (void)parameters, (void)rest;
  fprintf(stderr, "launch of %u blocks of %u\n", x * y * z,
          wide * high * deep);
  return 0;
}

cu_result cuEventElapsedTime(float *milliseconds, cu_event start,
                             cu_event end) {
  (void)start, (void)end;
  return *milliseconds = 1, 0;
}

/* NVRTC looks for a driver, too, and makes do without. */
cu_result cuGetExportTable(const void **functions, const void *which);
cu_result cuGetExportTable(const void **functions, const void *which) {
  (void)which;
  return *functions = NULL, 500;
}

#endif
