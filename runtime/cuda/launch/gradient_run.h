/* gradient_run.h - a call that makes gradients, for the families that make
 * them. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_GRADIENT_RUN_H
#define DIL_RUNTIME_CUDA_LAUNCH_GRADIENT_RUN_H

#include "family.h"

/* One gradient of a call: its tensor, and how a pass leaves it. */
typedef struct gradient_target {
  const dil_tensor *to; /* data NULL: not wanted */
  float *sums;          /* f32 of several passes, rounded at the end; NULL: the
                           passes write into `to` */
  unsigned char *marks; /* on the device, of the rows [B, H, rows]: the fast kernels
                           mark those whose sums are not finite, which the
                           general ones then make; NULL: there are none */
  const unsigned *round_if; /* on the device: the sums are rounded only where it
                               is not 0; NULL: always */
} gradient_target;

typedef struct gradient_run {
  const cuda_run *of; /* its call's o is the gradient of o (dO) */
  dil_tensor o;       /* of the forward call, or f32 of one pass; data NULL:
                         delta has no part of it */
  const float *lse;   /* [B, N, H] by these strides */
  int64_t lse_stride[3];
  const dil_tensor *lse_gradient; /* [B, H, N]; data NULL: 0 */
  float *facts;                   /* [B, N, H][fact_states][DIL_FACTS] */
  int32_t fact_states;            /* of a row; `facts` points to one of them */
  gradient_target q, k, v;
  const unsigned *only_if;        /* on the device: the general kernels work only
                                     where it is not 0; NULL: always */
} gradient_run;

#endif
