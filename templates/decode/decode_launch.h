/* decode_launch.h - the parameter of the kernel for few rows. Plain C: the run
 * time fills it, and decode.cu reads it. */
#ifndef DIL_TEMPLATES_DECODE_DECODE_LAUNCH_H
#define DIL_TEMPLATES_DECODE_DECODE_LAUNCH_H

#include "templates/hopper/hopper_launch.h"
#include "templates/shared/splits.h"

enum { DECODE_LAUNCH_BYTES = 6016 }; /* C and CUDA C both check it */
enum {
  DECODE_TEAM_WARPS = 2, /* beside the producing one */
  DECODE_TEAM_THREADS = 32 * (1 + DECODE_TEAM_WARPS)
};
/* Floats of a row's part in memory: its sums, in whole sectors, then m and l. */
#define DECODE_PART(value_dim) (((value_dim) + 7) / 8 * 8 + 8)

typedef struct decode_launch {
  hopper_maps k, v;        /* by dilation */
  dil_params of;           /* with one split; `items` are of a batch row */
  int dilation[HOPPER_STRIDES]; /* of these maps */
  int tiles;               /* of a batch row */
  int splits;              /* the most that a row has */
  int again;               /* several tiles read the same keys */
  int box;                 /* keys of one copy, a power of two: a tile's, or those of
                            * a page if they are fewer */
  int unit_bits;           /* a unit has that power of two of splits, or what is left */
  unsigned *counters;      /* units taken, blocks that have ended; both 0 */
  unsigned *arrived;       /* [batches][tiles] bytes: splits that have ended; all 0
                            * before and after a launch */
} decode_launch;

#endif
