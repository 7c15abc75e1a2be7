/* oracle_gradient_input.c - what pairs and sinks make of the gradients of
 * inputs.
 *
 * In: a row, a pair with its dS. Out: dS d score / d input, added to the
 * element that each read of the score reads. A sink is a pair with dP = 0 in the
 * softmax that it belongs to: d sink = - P delta. Under `gradient detached` the
 * mixing of branches stands still, so that a sink of the pattern moves lse
 * alone: its delta is -dlse. */
#include "oracle_gradient.h"
#include <math.h>

/* ---- reads --------------------------------------------------------------- */

/* The element that a read reads; -1: it lies outside. */
static int64_t read_element(const gradient_row *g, const expr *read,
                            const expr_point *point) {
  const dil_tensor *x = &g->call->forward.inputs[read->integer];
  int64_t element = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    int64_t at = expr_eval(read->arg[axis], point, true).integer;
    if (at < 0 || at >= x->shape[axis]) return -1;
    element = element * x->shape[axis] + at;
  }
  return element;
}

static void add_read_part(const gradient_row *g, const gradient_pair *pair,
                          const expr *read, const gradient_sums *to) {
  expr_point point = g->query.point;
  int64_t input = read->integer;
  point.j = (int32_t)pair->j;
  double slope = gradient_chain(g, pair, 0, read).slope;
  int64_t element = read_element(g, read, &point);
  if (element < 0) return;
  to->inputs[input][element] += dual_product(slope, pair->slope);
  if (!to->scatter || !to->scatter->inputs[input]) return;
  double bend = gradient_chain_bend(g, pair, 0, read);
  double error = fabs(dual_product(slope, pair->error.slope)) +
                 dual_product(fabs(pair->slope), bend);
  double shared = fabs(dual_product(slope, pair->error.shared));
  to->scatter->inputs[input][element] +=
      pair->copies * error * error +
      gradient_share(g, &to->scatter->shared[input][element], shared);
}

/* Nodes of a score; one that it holds twice counts once. */
typedef struct gradient_reads {
  const expr **read;
  int32_t count;
} gradient_reads;

static int32_t count_nodes(const expr *e) {
  int32_t count = 1;
  for (int32_t k = 0; k < e->count; k++) count += count_nodes(e->arg[k]);
  return count;
}

static void list_reads(const expr *e, double *const *inputs,
                       gradient_reads *to) {
  bool wanted = e->op == EXPR_INPUT && e->type == TYPE_F32 &&
                inputs[e->integer] != NULL;
  for (int32_t k = 0; k < to->count; k++) wanted &= to->read[k] != e;
  if (wanted) to->read[to->count++] = e;
  for (int32_t k = 0; k < e->count; k++) list_reads(e->arg[k], inputs, to);
}

void gradient_add_inputs(const gradient_row *g, const gradient_pair *pair,
                         const gradient_sums *to) {
  if (to->inputs == NULL) return;
  int32_t nodes = 1;
  for (int32_t n = 0; n < pair->steps; n++)
    nodes += count_nodes(pair->chain[n]);
  const expr *read[nodes];
  gradient_reads reads = {read, 0};
  for (int32_t n = 0; n < pair->steps; n++)
    list_reads(pair->chain[n], to->inputs, &reads);
  for (int32_t k = 0; k < reads.count; k++)
    add_read_part(g, pair, reads.read[k], to);
}

/* ---- sinks --------------------------------------------------------------- */

static void judge_sink(gradient_pair *sink, gradient_softmax of, double score,
                       const oracle_scatter *scatter) {
  const oracle_pair seen = {.score = score,
                            .chain = 1,
                            .below = score - of.lse,
                            .delta = of.delta,
                            .deltas = of.deltas,
                            .squares = of.squares,
                            .sink = true};
  sink->error = scatter->judge(scatter->context, &seen);
}

static void add_sink_list(const gradient_row *g, expr *const *sink,
                          int32_t count, gradient_softmax of,
                          const gradient_sums *to) {
  for (int32_t k = 0; k < count; k++) {
    gradient_pair pair = {.chain = &sink[k], .steps = 1};
    double score = gradient_chain(g, &pair, 0, NULL).value;
    if (score == -INFINITY) continue;
    double weight = exp(score - of.lse);
    pair.weight = weight > 1 ? 1 : weight;
    pair.slope = dual_product(pair.weight, -of.delta);
    pair.copies = 1;
    if (to->scatter) judge_sink(&pair, of, score, to->scatter);
    gradient_add_inputs(g, &pair, to);
  }
}

/* Once in each branch's own softmax, else once in the row's. */
static void add_pattern_sinks(gradient_row *g, const gradient_sums *to) {
  const pattern *p = g->query.pattern;
  if (!gradient_has_own_softmaxes(p)) {
    gradient_softmax of = *gradient_joint(g);
    if (p->detached) of.delta = -g->dlse;
    add_sink_list(g, p->sink, p->sink_count, of, to);
    return;
  }
  for (int32_t k = 0; k < p->branch_count; k++)
    if (query_serves(&g->query, k))
      add_sink_list(g, p->sink, p->sink_count, *gradient_of_branch(g, k), to);
}

void gradient_add_sinks(gradient_row *g, const gradient_sums *to) {
  const pattern *p = g->query.pattern;
  if (to->inputs == NULL || g->query.of_nobody) return;
  if (p->sink_count > 0) add_pattern_sinks(g, to);
  for (int32_t k = 0; k < p->branch_count; k++) {
    const branch *b = &p->branch[k];
    if (b->sink_count > 0 && query_selects(&g->query, k))
      add_sink_list(g, b->sink, b->sink_count, *gradient_of_branch(g, k), to);
  }
}
