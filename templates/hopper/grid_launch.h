/* grid_launch.h - the parameter of the Hopper kernel for grids. Plain C: the run
 * time fills it, and grid.cu reads it. */
#ifndef DIL_TEMPLATES_HOPPER_GRID_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_GRID_LAUNCH_H

#include "templates/hopper/hopper_launch.h"

enum {
  GRID_MAPS = 16,          /* residues of all axes, times batch_maps */
  GRID_ROW = 16,           /* cells of a warp, all along the last axis */
  GRID_MAP_BYTES = 4 * GRID_MAPS * 128,
  /* C and CUDA C both check it */
  GRID_LAUNCH_BYTES = (GRID_MAP_BYTES + DIL_PARAMS_BYTES + 16 + 63) / 64 * 64
};

/* A tensor map has the axes of the cells of one residue: columns, the grid's axes
 * from the last one on, then the head. With two axes the batch row follows. */
typedef struct grid_launch {
  hopper_map q[GRID_MAPS], k[GRID_MAPS], v[GRID_MAPS], o[GRID_MAPS];
  dil_params of;           /* `blocks` and `patch` describe tiles; `items`: tiles */
  int batch_maps;          /* maps of a residue: batch rows have their own, or 1 */
  int group;               /* query heads of a key head */
  float scale;             /* softmax scale times log2 e; positive */
  float slack;             /* a row's peak moves when a score exceeds it by this */
} grid_launch;

#endif
