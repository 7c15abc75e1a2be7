/* target.h - what fusion of passes asks of the device that a plan is for. A
 * target is facts and functions; fuse.c knows no device. */
#ifndef DIL_COMPILER_PLAN_TARGET_H
#define DIL_COMPILER_PLAN_TARGET_H

#include "compiler/pattern/pattern.h"
#include "runtime/tables/fast_classes.h"

typedef struct plan_target {
  int32_t tile_keys;     /* keys of a block */
  int32_t phases;        /* most branches where `phase each` becomes a branch of
                          * each phase */
  /* Rows of the tallest tile. */
  int32_t (*tile_rows)(const dil_table *table);
  /* The time for a block in a tile of `rows` rows, relative to one height. */
  double (*block_time)(int64_t rows);
  /* Bytes that the device moves in the time for a block. */
  double (*block_bytes)(const pattern *p);
  /* The classes of rows of a pass. False: no kernel takes the pass. */
  bool (*classes)(const dil_table *table, int32_t pass, int32_t tile_keys,
                  fast_class out[FAST_CLASSES], int32_t *count);
} plan_target;

/* GPUs with a fast family, or none: all of them so far. */
extern const plan_target plan_target_gpu;

#endif
