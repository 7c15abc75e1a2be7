/* hopper_blocks.h - the lists of kept blocks of a launch. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_BLOCKS_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_BLOCKS_H

#include "runtime/cuda/launch/family.h"
#include "templates/hopper/hopper_launch.h"

/* Describes list number n of a code, over `keys` keys, and gives it a place in `memory`
 * unless it is a table of the call; NULL: none yet, of inputs likewise. Returns the bytes
 * that it takes there. */
int64_t hopper_list_fill(const cuda_run *r, const cuda_code *code, int32_t n,
                         int64_t keys, const dil_device_input *inputs, char *memory,
                         hopper_block_list *to);
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
