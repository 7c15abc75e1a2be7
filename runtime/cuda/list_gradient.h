/* list_gradient.h - launches of the Hopper kernels of gradients that walk lists of kept
 * blocks, templates/hopper/block_list_backward.cu. They share facts and space with the
 * other Hopper kernels of gradients. */
#ifndef DIL_RUNTIME_CUDA_LIST_GRADIENT_H
#define DIL_RUNTIME_CUDA_LIST_GRADIENT_H

#include "runtime/cuda/hopper/hopper_gradient.h"

/* No pass of a forward call takes this family. One code makes dQ, another dK and dV. */
extern const cuda_family cuda_list_gradient;

/* The bytes that a call needs for its lists. `code`: any of a call's. */
int64_t list_gradient_bytes(const cuda_run *r, const cuda_code *code);
/* Returns why these kernels cannot make the gradients of a call; NULL: they can. */
const char *list_gradient_refusal(const gradient_run *g, const cuda_code *code);
/* Makes the lists of a call, by queries and by keys. */
dil_status list_gradient_begin(const gradient_run *g,
                               const hopper_gradient_space *space,
                               const cuda_code *code);
/* The gradients that a code makes, where they are wanted. The facts are there. */
dil_status list_gradient_pass(const gradient_run *g, const hopper_gradient_space *space,
                              const cuda_code *code);

#endif
