/* fast_classes.c - see fast_classes.h. The tables are those of the Hopper
 * kernel, the only fast family so far. */
#include "fast_classes.h"
#include "hopper_table.h"

_Static_assert((int)FAST_CLASSES >= (int)HOPPER_CLASSES, "room for all classes");

bool fast_classes_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       fast_class out[FAST_CLASSES], int32_t *count) {
  hopper_table made;
  char reason[128];
  if (!hopper_table_fill(table, pass, tile_keys, &made, reason, sizeof reason))
    return false;
  double intervals =
      made.interval ? (double)made.period / (double)made.interval : 1;
  for (int32_t i = 0; i < made.class_count; i++) {
    const hopper_class *k = &made.classes[i];
    double heads = made.shapes[k->shape].instances / intervals;
    out[i] = (fast_class){.heads = heads * k->phases,
                          .stride = k->stride,
                          .cell = made.cell[i],
                          .blocks = made.blocks[i],
                          .is_crossed = k->crossing};
  }
  *count = made.class_count;
  return true;
}

double fast_block_time(int64_t height) { return hopper_block_time(height); }
