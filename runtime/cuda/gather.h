/* gather.h - launches of the Hopper kernel that gathers rows by the blocks of keys
 * that they chose, templates/hopper/gather.cu. */
#ifndef DIL_RUNTIME_CUDA_GATHER_H
#define DIL_RUNTIME_CUDA_GATHER_H

#include "runtime/cuda/launch/family.h"

extern const cuda_family cuda_hopper_gather;

#endif
