/* oracle_gradient.c - gradients by definition, pair by pair, in float64.
 *
 * In: a pattern, and a call that ran forward with the gradients of o and lse.
 * Out: dQ, dK, dV and the gradients of inputs. For each pair of a row and a key
 * with score s = chain(scale q . k), weight P = exp(s - lse) and what dropout
 * makes of it, W = 0 or 1 / (1 - p):
 *   delta = dO . o - dlse        dP = W dO . v          dS = P (dP - delta)
 *   dV += P W dO                 dQ += scale dS chain' k
 *   d input += dS d chain / d input                     dK += scale dS chain' q
 * `mean` and `sum` take each branch's own o, lse and delta, and `mean` divides
 * dO by the number of branches; `gradient detached` takes each branch's own o
 * for delta. A pair of weight 0 adds nothing, whatever its operands are. */
#include "oracle_gradient.h"
#include <math.h>
#include <string.h>

/* ---- a row's softmaxes --------------------------------------------------- */

bool gradient_has_own_softmaxes(const pattern *p) {
  return p->combine == DIL_COMBINE_MEAN || p->combine == DIL_COMBINE_SUM;
}

static double row_element(const dil_tensor *x, const oracle_query *r) {
  int64_t at =
      r->b * x->stride[0] + r->h * x->stride[1] + r->n * x->stride[2];
  return dil_element_read(x->data, x->dtype, at);
}

static void open_row(gradient_row *g, const pattern *p,
                     const dil_backward_call *call, oracle_forward forward,
                     const int64_t at[3]) {
  query_open(&g->query, p, &call->forward, at, g->q, g->key);
  g->call = call;
  g->forward = forward;
  g->known = 0;
  g->joint_known = false;
  g->dlse = call->lse.data ? row_element(&call->lse, &g->query) : 0;
  query_read(&g->query, &call->output, g->output);
  double share = p->combine == DIL_COMBINE_MEAN ? p->branch_count : 1;
  for (int64_t d = 0; d < p->value_dim; d++) g->output[d] /= share;
}

static void take_delta(gradient_softmax *of, const gradient_row *g,
                       const double *o) {
  of->delta = -g->dlse;
  of->deltas = fabs(g->dlse);
  of->squares = 0;
  for (int64_t d = 0; d < g->query.pattern->value_dim; d++) {
    double part = g->output[d] * o[d];
    of->delta += part;
    of->deltas += fabs(part);
    of->squares += part * part;
  }
}

/* The o and lse of the definition, or those that the call brings. */
const gradient_softmax *gradient_joint(gradient_row *g) {
  double o[DIL_HEAD_DIM_MAX];
  const dil_call *forward = &g->call->forward;
  if (g->joint_known) return &g->joint;
  g->joint_known = true;
  if (g->forward == ORACLE_SAVED && forward->lse.data) {
    query_read(&g->query, &forward->o, o);
    g->joint.lse = row_element(&forward->lse, &g->query);
  } else {
    g->joint.lse = query_output(&g->query, o);
  }
  take_delta(&g->joint, g, o);
  return &g->joint;
}

const gradient_softmax *gradient_of_branch(gradient_row *g, int32_t index) {
  double o[DIL_HEAD_DIM_MAX];
  const pattern *p = g->query.pattern;
  gradient_softmax *of = &g->branch[index];
  bool own = gradient_has_own_softmaxes(p);
  if (!own && !p->detached) return gradient_joint(g);
  if (g->known >> index & 1) return of;
  g->known |= UINT64_C(1) << index;
  const oracle_branches one = {index, index + 1, own};
  of->lse = query_softmax(&g->query, one, o);
  take_delta(of, g, o);
  if (!own) of->lse = gradient_joint(g)->lse;
  return of;
}

/* ---- one pair ------------------------------------------------------------ */

dual gradient_chain(const gradient_row *g, const gradient_pair *pair,
                    double slope, const expr *read) {
  dual s = {pair->s0, slope};
  dual_point at = {.point = g->query.point, .read = read};
  at.point.j = (int32_t)pair->j;
  for (int32_t n = 0; n < pair->steps; n++) {
    at.point.s = s.value;
    at.slope = s.slope;
    s = dual_eval(pair->chain[n], &at);
  }
  s.value = query_counted(s.value);
  return s;
}

double gradient_chain_bend(const gradient_row *g, const gradient_pair *pair,
                           double slope, const expr *read) {
  static const double steps[] = {-1, -0.25, 0.25, 1};
  double here = gradient_chain(g, pair, slope, read).slope, most = 0;
  if (pair->error.score == 0) return 0;
  for (int i = 0; i < 4; i++) {
    gradient_pair moved = *pair;
    moved.s0 += steps[i] * pair->error.score;
    double there = gradient_chain(g, &moved, slope, read).slope;
    most = fmax(most, fabs(there - here));
  }
  return most;
}

/* dO . v, for the key of the pair. */
static double value_product(gradient_row *g, const gradient_pair *pair) {
  double sum = 0;
  query_read_key(&g->query, &g->call->forward.v, pair->j);
  for (int64_t d = 0; d < g->query.pattern->value_dim; d++)
    sum += g->output[d] * g->query.key[d];
  return sum;
}

static double product_sizes(gradient_row *g, const gradient_pair *pair) {
  double sum = 0;
  query_read_key(&g->query, &g->call->forward.k, pair->j);
  for (int64_t d = 0; d < g->query.pattern->head_dim; d++)
    sum += fabs(g->q[d] * g->query.key[d]);
  return fabs(g->query.scale) * sum;
}

static double value_sizes(gradient_row *g, const gradient_pair *pair) {
  double sum = 0;
  if (pair->kept == 0) return 0;
  query_read_key(&g->query, &g->call->forward.v, pair->j);
  for (int64_t d = 0; d < g->query.pattern->value_dim; d++)
    sum += fabs(g->output[d] * g->query.key[d]);
  return pair->kept * sum;
}

static void judge_pair(gradient_row *g, gradient_pair *pair,
                       const gradient_softmax *of, double product,
                       const oracle_scatter *scatter) {
  dual s = gradient_chain(g, pair, 1, NULL);
  const oracle_pair seen = {.sizes = product_sizes(g, pair),
                            .score = s.value,
                            .chain = s.slope,
                            .below = s.value - of->lse,
                            .product = product,
                            .products = value_sizes(g, pair),
                            .delta = of->delta,
                            .deltas = of->deltas,
                            .squares = of->squares};
  pair->error = scatter->judge(scatter->context, &seen);
}

/* False for a pair of weight 0, unless a judge gives it one. */
static bool weigh_pair(gradient_row *g, int32_t index, gradient_pair *pair,
                       const oracle_scatter *scatter) {
  oracle_query *r = &g->query;
  pair->s0 = query_dot(r, pair->j);
  double s = gradient_chain(g, pair, 0, NULL).value;
  if (s == -INFINITY) return false;
  const gradient_softmax *of = gradient_of_branch(g, index);
  double weight = exp(s - of->lse);
  pair->weight = weight > 1 ? 1 : weight;
  if (pair->weight == 0 && !scatter) return false;
  bool dropped = query_drops(r, pair->j);
  pair->kept = dropped ? 0 : r->drops ? 1 / (1 - r->pattern->dropout) : 1;
  double dp = dropped ? 0 : pair->kept * value_product(g, pair);
  pair->slope = dual_product(pair->weight, dp - of->delta);
  if (scatter) judge_pair(g, pair, of, dp, scatter);
  return pair->weight != 0 || pair->error.weight > 0;
}

static void add_value_part(const gradient_row *g, const gradient_pair *pair,
                           double *dv) {
  if (dv == NULL || pair->kept == 0 || pair->weight == 0) return;
  for (int64_t d = 0; d < g->query.pattern->value_dim; d++)
    dv[d] += pair->weight * pair->kept * g->output[d];
}

static double square_of(double a) {
  return a * a;
}

static double norm_of(const double *x, int64_t count) {
  double sum = 0;
  for (int64_t d = 0; d < count; d++) sum += x[d] * x[d];
  return sqrt(sum);
}

double gradient_share(const gradient_row *g, oracle_shared *of, double part) {
  const oracle_query *r = &g->query;
  int64_t N = r->call->q.shape[1], H = r->pattern->heads;
  int64_t row = (r->b * N + r->n) * H + r->h + 1;
  if (of->row != row) *of = (oracle_shared){.row = row};
  double before = of->sum;
  of->sum += part;
  return part * (before + of->sum);
}

/* The errors of a pair, in the norms of what they are multiplied with. */
static void add_scatter(gradient_row *g, const gradient_pair *pair,
                        oracle_scatter *to) {
  oracle_query *r = &g->query;
  const pattern *p = r->pattern;
  double chain = fabs(gradient_chain(g, pair, 1, NULL).slope * r->scale);
  double bend = gradient_chain_bend(g, pair, 1, NULL) * fabs(r->scale);
  double error = dual_product(pair->error.slope, chain) +
                 dual_product(fabs(pair->slope), bend);
  double noise = dual_product(pair->error.noise, chain);
  double shared = dual_product(pair->error.shared, chain);
  query_read_key(r, &g->call->forward.k, pair->j);
  double key = norm_of(r->key, p->head_dim), q = norm_of(g->q, p->head_dim);
  double in_row = gradient_share(g, &g->shared, dual_product(shared, key));
  double in_key = square_of(dual_product(shared, q)), copies = pair->copies;
  to->dq += copies * square_of(dual_product(error, key)) + in_row;
  to->dk += copies * (square_of(dual_product(error, q)) + in_key);
  to->dq_noise += copies * square_of(dual_product(noise, key)) + in_row;
  to->dk_noise += copies * (square_of(dual_product(noise, q)) + in_key);
  to->dv += copies * square_of(dual_product(pair->error.weight * pair->kept,
                                            norm_of(g->output, p->value_dim)));
}

static void add_score_parts(gradient_row *g, const gradient_pair *pair,
                            const gradient_sums *to) {
  oracle_query *r = &g->query;
  double chain = gradient_chain(g, pair, 1, NULL).slope;
  double ds0 = r->scale * dual_product(chain, pair->slope);
  if (ds0 == 0) return;
  query_read_key(r, &g->call->forward.k, pair->j);
  for (int64_t d = 0; d < r->pattern->head_dim; d++) {
    if (to->dq) to->dq[d] += ds0 * r->key[d];
    if (to->dk) to->dk[d] += ds0 * r->q[d];
  }
}

/* ---- walks --------------------------------------------------------------- */

static bool has_key(oracle_query *r, int32_t index, int64_t j) {
  oracle_range keys = query_range(r, index);
  return keys.first <= j && j <= keys.last &&
         (j - keys.first) % keys.step == 0 && query_keeps(r, index, j);
}

static int32_t count_copies(oracle_query *r, int64_t j) {
  int32_t copies = 0;
  for (int32_t k = 0; k < r->pattern->branch_count; k++)
    copies += has_key(r, k, j);
  return copies;
}

static void add_pair(gradient_row *g, int32_t index, int64_t j,
                     const gradient_sums *to) {
  const branch *b = &g->query.pattern->branch[index];
  gradient_pair pair = {.chain = b->score, .steps = b->score_count, .j = j};
  if (to->scatter) pair.copies = count_copies(&g->query, j);
  if (!weigh_pair(g, index, &pair, to->scatter)) return;
  add_value_part(g, &pair, to->dv);
  if (to->dq || to->dk) add_score_parts(g, &pair, to);
  gradient_add_inputs(g, &pair, to);
  if (to->scatter && (to->dq || to->dk)) add_scatter(g, &pair, to->scatter);
}

void oracle_gradient_query(const pattern *p, const dil_backward_call *call,
                           oracle_forward forward, const int64_t at[3],
                           double *dq, oracle_scatter *scatter) {
  const gradient_sums sums = {.dq = dq, .scatter = scatter};
  gradient_row g;
  fenv_t mode;
  oracle_take_subnormals(&mode);
  memset(dq, 0, (size_t)p->head_dim * sizeof *dq);
  open_row(&g, p, call, forward, at);
  for (int32_t k = 0; k < p->branch_count; k++) {
    oracle_range keys = query_range(&g.query, k);
    for (int64_t j = keys.first; j <= keys.last; j += keys.step)
      if (query_keeps(&g.query, k, j)) add_pair(&g, k, j, &sums);
  }
  query_close(&g.query);
  fesetenv(&mode);
}

void oracle_gradient_key(const pattern *p, const dil_backward_call *call,
                         oracle_forward forward, const int64_t at[3],
                         double *dk, double *dv, oracle_scatter *scatter) {
  const gradient_sums sums = {.dk = dk, .dv = dv, .scatter = scatter};
  gradient_row g;
  fenv_t mode;
  int64_t group = p->heads / p->kv_heads;
  oracle_document own = query_document(&call->forward, at[0], at[1], true);
  int64_t j = at[1] - own.first_key;
  oracle_take_subnormals(&mode);
  memset(dk, 0, (size_t)p->head_dim * sizeof *dk);
  memset(dv, 0, (size_t)p->value_dim * sizeof *dv);
  for (int64_t row = own.first_query * group; row < own.end_query * group;
       row++) {
    int64_t place[3] = {at[0], row / group, at[2] * group + row % group};
    open_row(&g, p, call, forward, place);
    for (int32_t k = 0; k < p->branch_count; k++)
      if (has_key(&g.query, k, j)) add_pair(&g, k, j, &sums);
    query_close(&g.query);
  }
  fesetenv(&mode);
}

/* ---- all rows ------------------------------------------------------------ */

/* Row `row` of an array of rows that may not be wanted. */
static double *row_of(double *array, int64_t row, int64_t width) {
  return array ? array + row * width : NULL;
}

static void add_row(gradient_row *g, const oracle_gradients *to,
                    oracle_scatter *scatter) {
  const oracle_query *r = &g->query;
  const pattern *p = r->pattern;
  int64_t N = r->call->q.shape[1], M = r->call->k.shape[1];
  int64_t row = (r->b * N + r->n) * p->heads + r->h;
  gradient_sums sums = {.inputs = to->inputs, .scatter = scatter};
  sums.dq = row_of(to->dq, row, p->head_dim);
  for (int32_t k = 0; k < p->branch_count; k++) {
    oracle_range keys = query_range(r, k);
    for (int64_t j = keys.first; j <= keys.last; j += keys.step) {
      if (!query_keeps(&g->query, k, j)) continue;
      int64_t key = (r->b * M + r->first_key + j) * p->kv_heads + r->kv;
      sums.dk = row_of(to->dk, key, p->head_dim);
      sums.dv = row_of(to->dv, key, p->value_dim);
      add_pair(g, k, j, &sums);
    }
  }
  gradient_add_sinks(g, &sums);
}

void oracle_gradient_inputs(const pattern *p, const dil_backward_call *call,
                            oracle_forward forward, const int64_t at[3],
                            double *const inputs[DIL_INPUT_MAX],
                            oracle_scatter *scatter) {
  gradient_row g;
  fenv_t mode;
  oracle_gradients to = {0};
  memcpy(to.inputs, inputs, sizeof to.inputs);
  oracle_take_subnormals(&mode);
  open_row(&g, p, call, forward, at);
  add_row(&g, &to, scatter);
  query_close(&g.query);
  fesetenv(&mode);
}

static void clear_array(double *array, int64_t count) {
  if (array) memset(array, 0, (size_t)count * sizeof *array);
}

static void clear_gradients(const pattern *p, const dil_call *call,
                            const oracle_gradients *to) {
  int64_t B = call->q.shape[0];
  int64_t rows = B * call->q.shape[1] * p->heads;
  int64_t keys = B * call->k.shape[1] * p->kv_heads;
  clear_array(to->dq, rows * p->head_dim);
  clear_array(to->dk, keys * p->head_dim);
  clear_array(to->dv, keys * p->value_dim);
  for (int32_t k = 0; k < p->input_count; k++)
    clear_array(to->inputs[k], dil_tensor_count(&call->inputs[k]));
}

static void run_rows(const pattern *p, const dil_backward_call *call,
                     oracle_forward forward, const oracle_gradients *to) {
  gradient_row g;
  fenv_t mode;
  int64_t N = call->forward.q.shape[1], H = p->heads;
  oracle_take_subnormals(&mode);
  clear_gradients(p, &call->forward, to);
  for (int64_t row = 0; row < call->forward.q.shape[0] * N * H; row++) {
    int64_t at[3] = {row / (N * H), row / H % N, row % H};
    open_row(&g, p, call, forward, at);
    add_row(&g, to, NULL);
    query_close(&g.query);
  }
  fesetenv(&mode);
}

dil_status oracle_gradient_run(const pattern *p, const dil_backward_call *call,
                               oracle_forward forward,
                               const oracle_gradients *to) {
  dil_backward_call with = *call;
  oracle_lists lists = {0};
  dil_status status = oracle_check_backward(p, call);
  if (status != DIL_OK) return status;
  status = oracle_lists_open(p, &with.forward, &lists);
  if (!status && with.forward.made && !call->forward.made)
    status = oracle_choose(p, &with.forward, ORACLE_NUMBERS, lists.made);
  if (!status) run_rows(p, &with, forward, to);
  oracle_lists_free(&lists);
  return status;
}
