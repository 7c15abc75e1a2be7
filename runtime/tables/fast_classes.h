/* fast_classes.h - the classes of rows that a pass has in the tables of a fast
 * family, for planners. This room belongs to neither the compiler nor the run
 * time of a GPU: it is arithmetic on a plan's table, and both ask it.
 * Thread-safe; nothing is kept. */
#ifndef DIL_RUNTIME_TABLES_FAST_CLASSES_H
#define DIL_RUNTIME_TABLES_FAST_CLASSES_H

#include "runtime/plan_table.h"

enum { FAST_CLASSES = 64 };

/* Rows of a pass that read the same ranges of keys. */
typedef struct fast_class {
  double heads;    /* that have such rows, on average over the positions */
  int32_t stride;  /* positions from one of the rows to the next */
  double cell;     /* mean length of the cells that segments cut, positions */
  double blocks;   /* key blocks that a tile of such rows visits */
  bool is_crossed; /* several segments cut it: its cells are of all lengths */
} fast_class;

/* Fills the classes of a pass and *count. False: the fast kernels cannot take
 * the pass. */
bool fast_classes_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       fast_class out[FAST_CLASSES], int32_t *count);
/* The relative time for a block of keys in a tile of `height` rows, at most 256;
 * 192 rows take 1. */
double fast_block_time(int64_t height);

#endif
