/* oracle.c - the definition in float64, with plain loops.
 *
 * In: a pattern and a call. Out: O and lse, one row at a time, straight from
 * the formulas of the language reference. It shares nothing with cover, plan
 * or a back end, so that it can judge them. */
#include "oracle.h"
#include "oracle_query.h"
#include <assert.h>
#include <math.h>
#include <string.h>

/* A softmax under way: the largest score so far, and the sums relative to
 * it. */
typedef struct oracle_softmax {
  double largest, weights;
  double *values; /* [value_dim] */
  bool spoiled;   /* a score was NaN or +inf */
} oracle_softmax;

static void add_value(oracle_query *r, oracle_softmax *state, int64_t j,
                      double weight) {
  query_read_key(r, &r->call->v, j);
  for (int64_t d = 0; d < r->pattern->value_dim; d++)
    state->values[d] += weight * r->key[d];
}

static void rescale_state(const oracle_query *r, oracle_softmax *state,
                          double largest) {
  double factor = exp(state->largest - largest);
  state->largest = largest;
  state->weights *= factor;
  for (int64_t d = 0; d < r->pattern->value_dim; d++)
    state->values[d] *= factor;
}

/* The weight of a score, which joins the denominator: 0 of -inf. */
static double add_weight(const oracle_query *r, oracle_softmax *state,
                         double s) {
  if (isnan(s) || s == INFINITY) state->spoiled = true;
  if (state->spoiled || s == -INFINITY) return 0;
  if (s > state->largest) rescale_state(r, state, s);
  double weight = exp(s - state->largest);
  state->weights += weight;
  return weight;
}

/* The value of a key with no weight is not read. */
static void visit_key(oracle_query *r, int32_t index, oracle_softmax *state,
                      int64_t j) {
  double s = query_score(r, index, j);
  double weight = add_weight(r, state, s);
  if (state->spoiled || s == -INFINITY || query_drops(r, j)) return;
  add_value(r, state, j, weight / (r->drops ? 1 - r->pattern->dropout : 1));
}

static void visit_branch_keys(oracle_query *r, int32_t index,
                              oracle_softmax *state) {
  oracle_range keys = query_range(r, index);
  for (int64_t j = keys.first; j <= keys.last; j += keys.step)
    if (query_keeps(r, index, j)) visit_key(r, index, state, j);
}

static void add_sinks(oracle_query *r, oracle_softmax *state,
                      expr *const *sink, int32_t count) {
  for (int32_t k = 0; k < count; k++) {
    value v = expr_eval(sink[k], &r->point, true);
    add_weight(r, state,
               query_counted(sink[k]->type == TYPE_F32 ? v.real
                                                       : (double)v.integer));
  }
}

/* ---- softmaxes ----------------------------------------------------------- */

static void state_clear(const oracle_query *r, oracle_softmax *state) {
  double *values = state->values;
  memset(values, 0, (size_t)r->pattern->value_dim * sizeof *values);
  *state = (oracle_softmax){-INFINITY, 0, values, false};
}

/* Sums become the output, and the logarithm of the denominator is returned. */
static double state_finish(const oracle_query *r, oracle_softmax *state) {
  for (int64_t d = 0; d < r->pattern->value_dim; d++) {
    if (state->spoiled) state->values[d] = NAN;
    if (state->weights > 0) state->values[d] /= state->weights;
  }
  if (state->spoiled) return NAN;
  return state->weights > 0 ? state->largest + log(state->weights) : -INFINITY;
}

double query_softmax(oracle_query *r, oracle_branches of, double *o) {
  oracle_softmax state = {.values = o};
  const pattern *p = r->pattern;
  state_clear(r, &state);
  if (of.pattern_sinks) add_sinks(r, &state, p->sink, p->sink_count);
  for (int32_t b = of.first; b < of.end; b++) {
    if (query_selects(r, b))
      add_sinks(r, &state, p->branch[b].sink, p->branch[b].sink_count);
    visit_branch_keys(r, b, &state);
  }
  return state_finish(r, &state);
}

/* Each branch's own softmax, and the sum of the outputs. */
static double own_softmaxes(oracle_query *r, double *o) {
  const pattern *p = r->pattern;
  double part[p->value_dim], lse = NAN;
  double share = p->combine == DIL_COMBINE_MEAN ? p->branch_count : 1;
  memset(o, 0, (size_t)p->value_dim * sizeof *o);
  for (int32_t b = 0; b < p->branch_count; b++) {
    if (!query_serves(r, b)) continue;
    lse = query_softmax(r, (oracle_branches){b, b + 1, true}, part);
    for (int64_t d = 0; d < p->value_dim; d++) o[d] += part[d] / share;
  }
  return pattern_has_lse(p) ? lse : NAN;
}

double query_output(oracle_query *r, double *o) {
  const pattern *p = r->pattern;
  if (r->of_nobody) {
    memset(o, 0, (size_t)p->value_dim * sizeof *o);
    return pattern_has_lse(p) ? -INFINITY : NAN;
  }
  if (p->combine != DIL_COMBINE_SOFTMAX && p->combine != DIL_COMBINE_UNION)
    return own_softmaxes(r, o);
  return query_softmax(r, (oracle_branches){0, p->branch_count, true}, o);
}

/* ---- one row of a call --------------------------------------------------- */

void oracle_take_subnormals(fenv_t *before) {
  fegetenv(before);
  fesetenv(FE_DFL_ENV);
}

void oracle_row(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                int64_t h, double *o, double *lse) {
  assert(oracle_refusal(p) == NULL);
  int64_t longest = p->head_dim > p->value_dim ? p->head_dim : p->value_dim;
  double q[p->head_dim], key[longest];
  fenv_t mode;
  oracle_take_subnormals(&mode);
  oracle_query r;
  query_open(&r, p, call, (const int64_t[3]){b, n, h}, q, key);
  *lse = query_output(&r, o);
  query_close(&r);
  fesetenv(&mode);
}

/* ---- all rows ------------------------------------------------------------ */

static void write_row(const pattern *p, const dil_call *call,
                      const int64_t at[3], const double *o, double lse) {
  const dil_tensor *x = &call->o;
  int64_t start =
      at[0] * x->stride[0] + at[1] * x->stride[1] + at[2] * x->stride[2];
  for (int64_t d = 0; d < p->value_dim; d++)
    dil_element_write(call->o.data, call->o.dtype, start + d, o[d]);
  if (call->lse.data == NULL) return;
  const dil_tensor *l = &call->lse;
  int64_t place =
      at[0] * l->stride[0] + at[2] * l->stride[1] + at[1] * l->stride[2];
  dil_element_write(l->data, l->dtype, place, lse);
}

void oracle_store(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                  int64_t h) {
  double o[p->value_dim], lse;
  const int64_t at[3] = {b, n, h};
  oracle_row(p, call, b, n, h, o, &lse);
  write_row(p, call, at, o, lse);
}

static void run_rows(const pattern *p, const dil_call *call) {
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t h = 0; h < p->heads; h++)
      for (int64_t n = 0; n < call->q.shape[1]; n++)
        oracle_store(p, call, b, n, h);
}

dil_status oracle_run(const pattern *p, const dil_call *call) {
  dil_status status = oracle_check(p, call);
  if (status != DIL_OK) return status;
  dil_call with = *call;
  oracle_lists lists = {0};
  status = oracle_lists_open(p, &with, &lists);
  if (!status && with.made)
    status = oracle_choose(p, &with, ORACLE_NUMBERS, with.made);
  if (!status) run_rows(p, &with);
  oracle_lists_free(&lists);
  return status;
}
