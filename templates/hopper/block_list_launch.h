/* block_list_launch.h - the parameter of the Hopper kernel for lists of kept blocks.
 * Plain C: the run time fills it, and block_list.cu reads it. */
#ifndef DIL_TEMPLATES_HOPPER_BLOCK_LIST_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_BLOCK_LIST_LAUNCH_H

#include "templates/hopper/hopper_launch.h"

enum {
  BLOCK_LIST_ROWS = 64,     /* rows of a tile, and keys of a unit */
  BLOCK_LIST_MAP_BYTES = 3 * 128,
  /* C and CUDA C both check it */
  BLOCK_LIST_LAUNCH_BYTES = (BLOCK_LIST_MAP_BYTES + DIL_PARAMS_BYTES + 80 + 63) / 64 * 64
};

typedef struct block_list_launch {
  hopper_map q, k, v;      /* boxes of BLOCK_LIST_ROWS rows */
  dil_params of;
  hopper_block_list list;
  unsigned *counters;      /* of tiles that are taken, of warps that are done */
  int line_tiles;          /* of a batch row and head, at most */
  int group;               /* query heads of a key head */
  float scale;             /* softmax scale times log2 e; positive */
  float slack;             /* a row's peak moves when a score exceeds it by this */
} block_list_launch;

#endif
