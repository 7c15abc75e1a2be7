/* session_cuda.h - a call's tensors on a GPU, for `run` and `bench`. */
#ifndef DIL_COMPILER_CLI_SESSION_CUDA_H
#define DIL_COMPILER_CLI_SESSION_CUDA_H

#include "command.h"
#include "runtime/api/kernel.h"
#include "runtime/ring/ranks_gpu.h"

/* Of a call, and of its gradients. */
enum { SESSION_CUDA_BLOCKS = 8 + 5 + 2 * DIL_INPUT_MAX };

typedef struct session_cuda {
  dil_context *context;      /* the GPU's */
  dil_call call;             /* the host's call with device pointers */
  dil_tensor inputs[DIL_INPUT_MAX]; /* and behind them what call.made is */
  int32_t made_count;
  dil_backward_call backward; /* the same for gradients */
  void *memory[SESSION_CUDA_BLOCKS];
  int32_t memory_count;
  dil_cuda_code peak; /* cubin NULL until session_cuda_peak */
} session_cuda;

/* A context on the GPU that --device names. */
dil_status session_cuda_context(const options *o, dil_context **made);
/* Fills the plan's code in `gpu`, not its module and devices. `code`, which has
 * the code, and gpu->rows.cubin are the caller's to free. */
dil_status session_cuda_codes(compilation *c, dil_context *context,
                              kernel_code *code, rank_group_gpu *gpu);
/* Copies the row-major tensors of the pattern's call to the device of t->context,
 * which the caller has set. session_cuda_free is due in any case. */
dil_status session_cuda_open(session_cuda *t, const pattern *p,
                             const dil_call *call);
/* Takes memory of the device for the session. */
dil_status session_cuda_take(session_cuda *t, int64_t bytes, void **memory);
/* Replaces the data of a row-major tensor by a copy on the device; one without
 * data stays so. */
dil_status session_cuda_copy(session_cuda *t, dil_tensor *tensor);
/* The way back: the data of `from`, on the device, into `to`. */
dil_status session_cuda_copy_back(session_cuda *t, const dil_tensor *from,
                                  const dil_tensor *to);
void session_cuda_free(session_cuda *t);
/* The device's measured peak, operations a second, in the arithmetic of the
 * plan's dtype: an f32 product is three tf32 products, of `f32 fast` one. */
dil_status session_cuda_peak(session_cuda *t, const compilation *c,
                             double seconds, double *rate);
/* Copies o, lse and the lists of choices back into the tensors of the host's
 * call. */
dil_status session_cuda_fetch(session_cuda *t, const dil_call *call);

#endif
