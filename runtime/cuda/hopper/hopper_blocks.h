/* hopper_blocks.h - the lists of kept blocks of a launch. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_BLOCKS_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_BLOCKS_H

#include "runtime/cuda/launch/family.h"
#include "templates/hopper/hopper_launch.h"

/* Describes the lists of a code in a launch whose `keys` and inputs are set, and
 * gives those that are to be made places in `memory`. Returns the bytes that these
 * take; 0: there are none. */
int64_t hopper_blocks_fill(const cuda_run *r, const cuda_code *code,
                          char *memory, hopper_launch *l);
/* The same for the order of the tiles, which are set. 0: where each processor takes
 * one tile at most, they keep theirs. */
int64_t hopper_order_fill(const cuda_run *r, const cuda_code *code,
                          char *memory, hopper_launch *l);

#endif
