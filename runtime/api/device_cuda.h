/* device_cuda.h - dilrt-cuda.so, opened when somebody first asks for it. */
#ifndef DIL_RUNTIME_API_DEVICE_CUDA_H
#define DIL_RUNTIME_API_DEVICE_CUDA_H

#include "runtime/cuda.h"

/* Opens the module once and returns its table, or the reason of failure. */
DIL_API dil_status dil_cuda_module_open(const dil_cuda_module **module);
/* Runs module->peak on a context's device. */
DIL_API dil_status dil_cuda_peak(dil_context *context,
                                 const dil_cuda_code *code, double seconds,
                                 double *rate);

#endif
