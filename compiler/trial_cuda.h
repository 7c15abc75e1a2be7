/* trial_cuda.h - a call's tensors on a GPU, for `run` and `bench`. */
#ifndef DIL_TRIAL_CUDA_H
#define DIL_TRIAL_CUDA_H

#include "command.h"
#include "gpu/gpu.h"
#include "../runtime/crew_gpu.h"

enum { TRIAL_CUDA_BLOCKS = 6 + DIL_INPUT_MAX };

typedef struct trial_cuda {
  dil_context *context;      /* the GPU's */
  dil_call call;             /* the host's, with the device's pointers */
  dil_tensor inputs[DIL_INPUT_MAX];
  void *memory[TRIAL_CUDA_BLOCKS];
  int32_t memory_count;
  dil_cuda_code peak;        /* cubin NULL until it is first wanted */
} trial_cuda;

/* A context on the GPU that --device names. */
dil_status trial_cuda_context(const options *o, dil_context **made);
/* What ranks on GPUs share of the plan's code, its module and devices apart; its
 * `rows.cubin` is the caller's to free, `from` goes on compiling what may come
 * late. */
dil_status trial_cuda_codes(compilation *c, dil_context *context,
                            dil_kernel_source *from, crew_gpu *gpu);
/* Copies the call's tensors, all of them row-major, to the device of
 * t->context, which is set. trial_cuda_free is due in any case. */
dil_status trial_cuda_open(trial_cuda *t, const dil_call *call);
void trial_cuda_free(trial_cuda *t);
/* Operations a second that the device reaches at most in the arithmetic of the
 * plan's dtype: an f32 product is three of tf32, unless it is `f32 fast`. */
dil_status trial_cuda_peak(trial_cuda *t, const compilation *c, double seconds,
                           double *rate);
/* o and lse back into the tensors of the host's call. */
dil_status trial_cuda_fetch(trial_cuda *t, const dil_call *call);

#endif
