/* exchange_masks.c - what a plan's masks make of boxes of positions, so that
 * rows which no query sees do not travel. In: a plan and sizes. Out: a
 * partition_mask. Masks that read `b` are not bounded where there are several
 * batch rows: what travels is the same for all of them. Inputs are not looked
 * at, for they may change from call to call. */
#include "exchange.h"

static dil_cover bounds(const void *context, int32_t predicate, int32_t head,
                        int64_t t0, int64_t t1, int64_t j0, int64_t j1) {
  const mask_bounds *k = context;
  expr_box box = {.point = {.h = head, .B = (int32_t)k->B, .N = (int32_t)k->N,
                            .M = (int32_t)k->M},
                  .i0 = (int32_t)t0, .i1 = (int32_t)t1,
                  .j0 = (int32_t)j0, .j1 = (int32_t)j1};
  interval truth = expr_bounds(k->plan->predicate[predicate], &box);
  if (truth.low == truth.high) return truth.low ? DIL_FULL : DIL_EMPTY;
  return DIL_PARTIAL;
}

partition_mask mask_bounds_of(mask_bounds *k) {
  partition_mask mask = {.context = k};
  for (int32_t p = 0; p < k->plan->table.predicate_count; p++) {
    const expr *e = k->plan->predicate[p];
    if (!e || (k->B > 1 && expr_uses(e, EXPR_B_))) continue;
    mask.bounds = bounds;
    mask.bounded |= (uint64_t)1 << p;
    if (!expr_uses(e, EXPR_INPUT)) mask.exact |= (uint64_t)1 << p;
    mask.by_head |= expr_uses(e, EXPR_H_);
  }
  return mask;
}
