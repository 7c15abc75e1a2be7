/* absent.c - what the run time looks for in a driver and the emulator does not
 * have: each says so when it is called. In: the list of runtime/cuda/launch/nvidia.h. */
#include "runtime/cuda/launch/nvidia.h"

enum { NOT_SUPPORTED = 801 };

#define X(name, symbol, arguments)                                          \
  __attribute__((weak, visibility("default"))) cu_result symbol arguments;  \
  __attribute__((weak, visibility("default"))) cu_result symbol arguments { \
    return NOT_SUPPORTED;                                                   \
  }
CUDA_FUNCTIONS(X)

/* NVRTC looks for a driver, too, and makes do without. */
cu_result cuGetExportTable(const void **functions, const void *which);
__attribute__((visibility("default"))) cu_result
cuGetExportTable(const void **functions, const void *which) {
  (void)which;
  return *functions = NULL, 500;
}
