/* hopper_fast.c - the fast family of sm_90a: what dil-gpu.so asks of it beyond
 * its strategies. Out: fast_hopper. */
#include "compiler/codegen/gpu/emit/strategy.h"
#include "runtime/tables/hopper_table.h"

/* Masks or score chains must be evaluated for each pair. */
static bool hopper_is_pairwise(const dil_table *t) {
  char unused[256];
  hopper_table made;
  hopper_table_fill(t, 0, t->tile_keys, &made, unused, sizeof unused);
  return made.pairwise;
}

/* By wgmma: see templates/peak.cu. */
static int32_t hopper_peak_operations(bool wide) {
  enum { PRODUCTS = 16 };
  return PRODUCTS * 2 * 64 * 256 * (wide ? 8 : 16);
}

const gpu_fast fast_hopper = {
    .family = "hopper",
    .plain = &strategy_hopper,
    .pairwise = &strategy_hopper_pair,
    .is_pairwise = hopper_is_pairwise,
    .peak_macro = "HOPPER",
    .peak_threads = 128,
    /* both operands have rows of 128 bytes */
    .peak_shared = (64 + 256) * 128,
    .peak_operations = hopper_peak_operations};
