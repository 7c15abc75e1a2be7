/* cost_beside.c - a pattern beside dense attention of its shape. In: a pattern
 * and where its time goes. Out: the dense pattern, and why the pattern takes
 * longer than that, where it does. */
#include "cost.h"
#include <math.h>

/* Predictions are no more exact than this: a smaller difference means as
 * fast. */
static const double AS_FAST = 1.1;

const pattern *cost_beside(arena *a, const pattern *p, bool causal) {
  pattern *dense = ARENA_NEW(a, pattern);
  branch *all = ARENA_NEW(a, branch);
  *dense = *p;
  dense->combine = DIL_COMBINE_SOFTMAX;
  dense->input_count = 0;
  dense->grid = (grid){0};
  dense->branch_count = 1;
  dense->branch = all;
  *all = (branch){.dilation = 1,
                  .phase = ARENA_ARRAY(a, int32_t, p->heads),
                  .head_last = (int32_t)p->heads - 1,
                  .causal = causal,
                  .left = DIL_ENDLESS,
                  .right = DIL_ENDLESS};
  return dense;
}

static double parts_total(const cost_parts *x) {
  return x->products + x->masks + x->scores + x->bounds + x->rows;
}

cost_reason cost_slower(const cost_parts *own, const cost_parts *dense) {
  static const char sort[] =
      "sort tokens that see each other together, or keep whole blocks";
  static const cost_reason reasons[] = {
      {"tiles: keys that no row keeps are computed with others", sort},
      {"branches: a key is computed for each that reaches it", NULL},
      {"masks: they are tried on each pair of a partial tile", sort},
      {"scores: that of each pair is rewritten", NULL},
      {"inputs: elements of each pair come from memory",
       "an input indexed by i - j or by blocks stays in the cache"},
      {"bounds: masks and their inputs are bounded over each tile", sort},
      {"rows: keys and values are packed for each branch", NULL},
  };
  double repeated = fmax(own->kept - dense->kept, 0);
  const double excess[] = {
      own->products - dense->products - repeated,
      repeated,
      own->masks - dense->masks,
      own->scores - own->fetched,
      own->fetched,
      own->bounds,
      own->rows - dense->rows,
  };
  if (parts_total(own) <= AS_FAST * parts_total(dense))
    return (cost_reason){NULL, NULL};
  size_t most = 0;
  for (size_t i = 1; i < sizeof excess / sizeof *excess; i++)
    if (excess[i] > excess[most]) most = i;
  return reasons[most];
}
