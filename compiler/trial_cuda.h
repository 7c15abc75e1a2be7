/* trial_cuda.h - a call of a compiled plan on a GPU, for `run` and `bench`. */
#ifndef DIL_TRIAL_CUDA_H
#define DIL_TRIAL_CUDA_H

#include "gpu/gpu.h"

enum { TRIAL_CUDA_BLOCKS = 6 + DIL_INPUT_MAX };

typedef struct trial_cuda {
  const dil_cuda_module *module;
  const gpu_backend *compiler;
  const plan *plan;
  dil_cuda *device;
  dil_cuda_kernel *kernel;
  dil_call call;             /* the host's, with the device's pointers */
  dil_tensor inputs[DIL_INPUT_MAX];
  void *memory[TRIAL_CUDA_BLOCKS];
  int32_t memory_count;
  double compile_seconds;
  char arch[16], variant[160];
  dil_cuda_code peak;        /* cubin NULL until it is first wanted */
} trial_cuda;

/* The loadable parts, opened once, or the reason why not. */
dil_status gpu_compiler_open(const gpu_backend **backend);
dil_status gpu_module_open(const dil_cuda_module **module);
/* Compiles the plan for GPU `index` and copies the call's tensors there. All
 * tensors of the call are row-major. trial_cuda_free is due in any case. */
dil_status trial_cuda_open(trial_cuda *t, int32_t index, const plan *p,
                           const dil_call *call);
void trial_cuda_free(trial_cuda *t);
/* One run; seconds are the device's. */
dil_status trial_cuda_run(trial_cuda *t, double *seconds);
/* Operations a second that the device reaches at most in the arithmetic of the
 * plan's dtype: an f32 product is three of tf32, unless it is `f32 fast`. */
dil_status trial_cuda_peak(trial_cuda *t, double seconds, double *rate);
/* o and lse back into the tensors of the host's call. */
dil_status trial_cuda_fetch(trial_cuda *t, const dil_call *call);

#endif
