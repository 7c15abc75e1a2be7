/* hopper_gradient.h - launches of the Hopper kernels of gradients
 * (templates/hopper/backward.cu). One code holds query rows and makes dQ, the
 * other holds keys and makes dK and dV. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_GRADIENT_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_GRADIENT_H

#include "runtime/cuda/launch/gradient_run.h"

/* The part of the workspace that these kernels use. */
typedef struct hopper_gradient_space {
  float *facts;            /* [B, H, N][DIL_FACTS] */
  unsigned *spoiled;       /* where a sum is not finite it becomes 1, and the
                              general kernels make all gradients again */
} hopper_gradient_space;

/* Returns why these kernels cannot make the gradients of a call; NULL: they
 * can. */
const char *hopper_gradient_refusal(const gradient_run *g);
/* The facts of all query rows. `code`: either of the two. */
dil_status hopper_gradient_facts(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code);
/* The gradients that a code makes of a pass, where they are wanted. Several
 * passes add to the sums of their targets. */
dil_status hopper_gradient_pass(const gradient_run *g, int32_t pass,
                                const hopper_gradient_space *space,
                                const cuda_code *code);

#endif
