/* cost_gradient.c - the cost of a call's gradients: operations by the
 * definition, bytes of its tensors, what a run needs beside them at most, and
 * how long a processor takes. */
#include "cost.h"
#include <math.h>

/* q k, dS k and dS q have D products each, dO v and P dO have Dv. */
double cost_gradient_flops(const pattern *p, double reached) {
  return 2.0 * (double)(3 * p->head_dim + 2 * p->value_dim) * reached;
}

static bool has_input_gradients(const pattern *p) {
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient) return true;
  return false;
}

/* Branches whose softmax is computed again, with a delta and an lse each. */
static double own_softmaxes(const pattern *p) {
  bool own = p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
  return own || p->detached ? p->branch_count : 0;
}

cost_gradients cost_gradients_of(const pattern *p, double pairs, int64_t B,
                                 int64_t N, int64_t M) {
  double rows = (double)B * (double)N * (double)p->heads;
  double keys = (double)B * (double)M * (double)p->kv_heads;
  double size = (double)dil_dtype_size(p->dtype), f32 = sizeof(float);
  double lse = pattern_has_lse(p) ? rows * f32 : 0;
  double q = rows * (double)p->head_dim, o = rows * (double)p->value_dim;
  double kv = keys * (double)(p->head_dim + p->value_dim);
  enum { INPUTS_MOST = 64 << 20 };
  return (cost_gradients){
      .flops = cost_gradient_flops(p, pairs),
      .read = (q + kv + 2 * o) * size + lse,
      .written = (q + kv) * size,
      .saved = o * size + lse,
      .workspace = (q + kv) * f32 + rows * f32 * (2 + 2 * own_softmaxes(p)) +
                   (has_input_gradients(p) ? INPUTS_MOST : 0)};
}

/* Rows of a vector, which a tile of fewer rows computes too. */
enum { VECTOR_ROWS = 16 };

double cost_gradient_seconds(const pattern *p, const cost_case *forward) {
  cost_case c = *forward;
  cover_count count = *c.count;
  double used =
      fmin(ceil((double)c.N / VECTOR_ROWS) * VECTOR_ROWS, COST_TILE_ROWS) /
      COST_TILE_ROWS;
  count.full *= used;
  count.partial *= used;
  count.together *= used;
  c.count = &count;
  c.rows = false;
  c.backward = true;
  double again = own_softmaxes(p) > 0 ? cost_seconds(p, forward) : 0;
  return again + cost_seconds(p, &c);
}
