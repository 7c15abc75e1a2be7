/* target.c - the devices that plans are made for: see target.h. */
#include "target.h"
#include "compiler/analysis/cost.h"

static int32_t target_tile_rows(const dil_table *t) {
  enum { WIDE = 64 };
  bool wide = t->head_dim > WIDE || t->value_dim > WIDE;
  return wide ? 128 : 192;
}

const plan_target plan_target_gpu = {.tile_keys = 128,
                                     .phases = 16,
                                     .tile_rows = target_tile_rows,
                                     .block_time = fast_block_time,
                                     .block_bytes = cost_gpu_block_bytes,
                                     .classes = fast_classes_fill};
