/* block_list.h - launches of the Hopper kernel for lists of kept blocks: block_list.c. */
#ifndef DIL_RUNTIME_CUDA_BLOCK_LIST_H
#define DIL_RUNTIME_CUDA_BLOCK_LIST_H

#include "runtime/cuda/launch/family.h"

extern const cuda_family cuda_hopper_block_list;

#endif
