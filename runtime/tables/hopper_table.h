/* hopper_table.h - the tables of the Hopper kernel: the facts of a pass that do
 * not depend on the call. They follow from the plan's table by arithmetic. The
 * compiler asks whether they exist, and the run time copies them into its
 * launches. templates/hopper/hopper_launch.h explains the terms. */
#ifndef DIL_RUNTIME_TABLES_HOPPER_TABLE_H
#define DIL_RUNTIME_TABLES_HOPPER_TABLE_H

#include "runtime/plan_table.h"
#include "templates/hopper/hopper_launch.h"

enum {
  HOPPER_DILATION = 4096, /* largest dilation of a branch that is alone in its
                             pass */
  HOPPER_PREDICATES = 32, /* most predicates of a pattern with `pairwise`
                             passes */
  HOPPER_PACKING_ROWS = 192
};

typedef struct hopper_table {
  hopper_class classes[HOPPER_CLASSES]; /* most key blocks first */
  double blocks[HOPPER_CLASSES]; /* key blocks that a tile of a class visits */
  double cell[HOPPER_CLASSES];   /* mean length of a class's cells, positions */
  hopper_key_range ranges[HOPPER_KEY_RANGES];
  hopper_instance instances[HOPPER_INSTANCES];
  hopper_shape shapes[HOPPER_SHAPES];
  short by_interval[HOPPER_INSTANCES];
  int32_t strides[HOPPER_STRIDES];
  int32_t class_count, range_count, instance_count, shape_count, stride_count;
  int32_t tile_keys;
  int64_t period, interval; /* positions; 0: all positions of the call */
  bool relative;            /* residues count from the interval's start */
  bool endless;           /* some branch has no segments */
  int32_t residues;       /* as in hopper_launch */
  bool bare;              /* some rows are bare: no branch selects them */
  int32_t segments[HOPPER_SEGMENTS], segment_count;
  bool causal;            /* some window has a right bound */
  bool pairwise;          /* masks or score chains: needs the kernel that
                             evaluates them for each pair */
  bool narrow;            /* zeros are stored HOPPER_BOX_ROWS rows at a time */
  bool packs;             /* the kernel supports packed rows (see hopper_class);
                             its tiles have HOPPER_PACKING_ROWS rows */
} hopper_table;

/* Fills the tables of a pass. False with `reason`: the general kernels must
 * take it. tile_keys is the kernel's key block, for which visits are
 * counted. */
bool hopper_table_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       hopper_table *out, char *reason, size_t size);
/* Returns whether masks decide over pairs of a pass, or windows that differ in
 * a union. Scores do not count. */
bool hopper_asks_pairs(const dil_table *table, int32_t pass);
/* Returns whether all segments of these branches divide one another. */
bool hopper_is_nested(const dil_table *table, uint64_t branches);

/* The relative time for a block of keys in a tile of `height` rows; 192 rows
 * take 1. Fewer warpgroups wait for the same latencies, so lower tiles gain
 * less than their height suggests. Measured with 64 columns
 * (tests/bench/NOTES.md). */
static inline double hopper_block_time(int64_t height) {
  static const double times[] = {0, 0.67, 0.85, 1, 1.3};
  return times[(height + 63) / 64];
}

#endif
