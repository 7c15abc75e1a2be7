/* grid_gradient.h - launches of the Hopper kernels of gradients for grids,
 * templates/hopper/grid_backward.cu. They share facts and space with the other Hopper
 * kernels of gradients. */
#ifndef DIL_RUNTIME_CUDA_GRID_GRADIENT_H
#define DIL_RUNTIME_CUDA_GRID_GRADIENT_H

#include "runtime/cuda/hopper/hopper_gradient.h"

/* No pass of a forward call takes this family. One code makes dQ, another dK and dV. */
extern const cuda_family cuda_grid_gradient;

/* Returns why these kernels cannot make the gradients of a call; NULL: they can.
 * `code`: any of a call's. */
const char *grid_gradient_refusal(const gradient_run *g, const cuda_code *code);
/* The gradients that a code makes, where they are wanted. The facts are there. */
dil_status grid_gradient_pass(const gradient_run *g, const hopper_gradient_space *space,
                              const cuda_code *code);

#endif
