/* grid_backward_launch.h - the parameter of the Hopper kernels of gradients for grids.
 * Plain C: the run time fills it, and grid_backward.cu reads it. */
#ifndef DIL_TEMPLATES_HOPPER_GRID_BACKWARD_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_GRID_BACKWARD_LAUNCH_H

#include "templates/hopper/backward_launch.h"
#include "templates/hopper/grid_launch.h"

/* Of shared memory for a tile's patch, with so many boxes along the last axis. */
#define GRID_PATCH_BYTES(boxes) (((boxes) + 1) * 64 * 4 + 4 * 16)

enum { GRID_BACKWARD_BYTES = GRID_LAUNCH_BYTES }; /* behind `back` */

/* In `grid` q and o have the maps of the rows that tiles hold (K and V for dK and dV), k
 * and v those of the rows that they stream. Its heads are those of the held rows. The
 * maps of `back` are not used. */
typedef struct grid_backward_launch {
  hopper_backward_launch back;
  grid_launch grid;
} grid_backward_launch;

#endif
