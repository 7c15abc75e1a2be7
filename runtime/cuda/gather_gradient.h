/* gather_gradient.h - launches of the Hopper kernels of gradients that gather rows by the
 * blocks of keys that they chose, templates/hopper/gather_backward.cu. They share facts
 * and space with the other Hopper kernels of gradients. */
#ifndef DIL_RUNTIME_CUDA_GATHER_GRADIENT_H
#define DIL_RUNTIME_CUDA_GATHER_GRADIENT_H

#include "runtime/cuda/hopper/hopper_gradient.h"

/* No pass of a forward call takes this family. One code makes dQ, another dK and dV. */
extern const cuda_family cuda_gather_gradient;

/* The bytes that a call needs for its sorted entries, and for parts of dQ. */
int64_t gather_gradient_bytes(const cuda_run *r, const cuda_code *code);
/* Returns why these kernels cannot make the gradients of a call; NULL: they can. */
const char *gather_gradient_refusal(const gradient_run *g, const cuda_code *code);
/* Sorts the entries of a call. `code`: any of a call's. */
dil_status gather_gradient_begin(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code);
/* The gradients that a code makes, where they are wanted. The facts are there. */
dil_status gather_gradient_pass(const gradient_run *g,
                                const hopper_gradient_space *space,
                                const cuda_code *code);

#endif
