/* block_list_backward_launch.h - the parameter of the Hopper kernels of gradients for
 * lists of kept blocks. Plain C: the run time fills it, and block_list_backward.cu reads
 * it. */
#ifndef DIL_TEMPLATES_HOPPER_BLOCK_LIST_BACKWARD_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_BLOCK_LIST_BACKWARD_LAUNCH_H

#include "templates/hopper/backward_launch.h"
#include "templates/hopper/block_list_launch.h"

enum { /* behind `back`; C and CUDA C both check it */
  BLOCK_LIST_BACKWARD_BYTES = (DIL_PARAMS_BYTES + 2 * 48 + 24 + 63) / 64 * 64
};

/* In `back` q and o have the maps of the rows that tiles hold (K and V for dK and dV),
 * k and v those of the rows that they stream. A *line* is a batch row and a head of the
 * held rows. */
typedef struct block_list_backward_launch {
  hopper_backward_launch back;
  dil_params params;
  hopper_block_list list;      /* by blocks of queries */
  hopper_block_list turned;    /* by blocks of keys: row 0 is the first, and bit 0 stands
                                  for query block list.low */
  int line_tiles, lines;
  int held_first, streamed_first; /* positions of rows 0 */
  int group;                   /* query heads of a key head */
} block_list_backward_launch;

#endif
