/* grid.h - launches of the Hopper kernel for grids, templates/hopper/grid.cu. */
#ifndef DIL_RUNTIME_CUDA_GRID_H
#define DIL_RUNTIME_CUDA_GRID_H

#include "runtime/cuda/launch/family.h"

extern const cuda_family cuda_hopper_grid;

#endif
