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
#include "oracle.h"
#include "oracle_dual.h"
#include "oracle_query.h"
#include <assert.h>
#include <math.h>
#include <string.h>

/* Where a pair's parts go; NULL: not wanted. */
typedef struct gradient_sums {
  double *dq, *dk, *dv;   /* of the pair's row and key */
  double *const *inputs;  /* [DIL_INPUT_MAX], each row-major */
  oracle_scatter *scatter;
} gradient_sums;

typedef struct gradient_row {
  oracle_query query;
  const dil_backward_call *call;
  oracle_forward forward;
  double q[DIL_HEAD_DIM_MAX], key[DIL_HEAD_DIM_MAX];
  double output[DIL_HEAD_DIM_MAX]; /* dO, by branches under `mean` */
  double dlse;
  uint64_t known;           /* branches whose lse and delta are known */
  bool joint_known;         /* those of the joint softmax are */
  double joint_lse, joint_delta;
  double lse[DIL_BRANCH_MAX], delta[DIL_BRANCH_MAX];
} gradient_row;

typedef struct gradient_pair {
  int32_t branch;
  int64_t j;
  double s0;     /* scale q . k */
  double weight; /* P */
  double kept;   /* W */
  double slope;  /* dS */
  oracle_error error; /* of P and dS, where a judge was asked */
} gradient_pair;

/* ---- a row's softmaxes --------------------------------------------------- */

static bool has_own_softmaxes(const pattern *p) {
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

static double delta_of(const gradient_row *g, const double *o) {
  double sum = 0;
  for (int64_t d = 0; d < g->query.pattern->value_dim; d++)
    sum += g->output[d] * o[d];
  return sum - g->dlse;
}

/* The softmax of all branches, or the o and lse that the call brings. */
static void know_joint(gradient_row *g) {
  double o[DIL_HEAD_DIM_MAX];
  const dil_call *forward = &g->call->forward;
  if (g->joint_known) return;
  g->joint_known = true;
  if (g->forward == ORACLE_SAVED && forward->lse.data) {
    query_read(&g->query, &forward->o, o);
    g->joint_lse = row_element(&forward->lse, &g->query);
  } else {
    g->joint_lse = query_output(&g->query, o);
  }
  g->joint_delta = delta_of(g, o);
}

/* The lse and the delta that the keys of a branch are weighed with. */
static void know_branch(gradient_row *g, int32_t index) {
  double o[DIL_HEAD_DIM_MAX];
  const pattern *p = g->query.pattern;
  bool own = has_own_softmaxes(p), alone = own || p->detached;
  if (g->known >> index & 1) return;
  g->known |= UINT64_C(1) << index;
  if (!own) know_joint(g);
  g->lse[index] = g->joint_lse;
  g->delta[index] = g->joint_delta;
  if (!alone) return;
  const oracle_branches one = {index, index + 1, own};
  double lse = query_softmax(&g->query, one, o);
  if (own) g->lse[index] = lse;
  g->delta[index] = delta_of(g, o);
}

/* ---- one pair ------------------------------------------------------------ */

/* The score of a pair from scale q . k on, and its derivative: by s0 itself
 * where `slope` is 1, by a read of an input where one is given. */
static dual chain_dual(const gradient_row *g, const gradient_pair *pair,
                       double slope, const expr *read) {
  const branch *b = &g->query.pattern->branch[pair->branch];
  dual s = {pair->s0, slope};
  dual_point at = {.point = g->query.point, .read = read};
  at.point.j = (int32_t)pair->j;
  for (int32_t n = 0; n < b->score_count; n++) {
    at.point.s = s.value;
    at.slope = s.slope;
    s = dual_eval(b->score[n], &at);
  }
  return s;
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

static void judge_pair(gradient_row *g, gradient_pair *pair, double s,
                       double product, const oracle_scatter *scatter) {
  const oracle_pair seen = {.sizes = product_sizes(g, pair),
                            .score = s,
                            .chain = chain_dual(g, pair, 1, NULL).slope,
                            .below = s - g->lse[pair->branch],
                            .product = product,
                            .delta = g->delta[pair->branch]};
  pair->error = scatter->judge(scatter->context, &seen);
}

/* False for a pair of weight 0, unless a judge gives it one. */
static bool weigh_pair(gradient_row *g, gradient_pair *pair,
                       const oracle_scatter *scatter) {
  oracle_query *r = &g->query;
  pair->s0 = query_dot(r, pair->j);
  double s = chain_dual(g, pair, 0, NULL).value;
  if (s == -INFINITY) return false;
  know_branch(g, pair->branch);
  double weight = exp(s - g->lse[pair->branch]);
  pair->weight = weight > 1 ? 1 : weight;
  if (pair->weight == 0 && !scatter) return false;
  bool dropped = query_drops(r, pair->j);
  pair->kept = dropped ? 0 : r->drops ? 1 / (1 - r->pattern->dropout) : 1;
  double dp = dropped ? 0 : pair->kept * value_product(g, pair);
  pair->slope = dual_product(pair->weight, dp - g->delta[pair->branch]);
  if (scatter) judge_pair(g, pair, s, dp, scatter);
  return pair->weight > 0 || pair->error.weight > 0;
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

/* The errors of a pair, in the norms of what they are multiplied with. */
static void add_scatter(gradient_row *g, const gradient_pair *pair,
                        oracle_scatter *to) {
  oracle_query *r = &g->query;
  const pattern *p = r->pattern;
  double chain = fabs(chain_dual(g, pair, 1, NULL).slope * r->scale);
  double error = dual_product(pair->error.slope, chain);
  query_read_key(r, &g->call->forward.k, pair->j);
  to->dq += square_of(error * norm_of(r->key, p->head_dim));
  to->dk += square_of(error * norm_of(r->q, p->head_dim));
  to->dv += square_of(pair->error.weight * pair->kept *
                      norm_of(g->output, p->value_dim));
}

static void add_score_parts(gradient_row *g, const gradient_pair *pair,
                            const gradient_sums *to) {
  oracle_query *r = &g->query;
  double chain = chain_dual(g, pair, 1, NULL).slope;
  double ds0 = r->scale * dual_product(chain, pair->slope);
  if (ds0 == 0) return;
  query_read_key(r, &g->call->forward.k, pair->j);
  for (int64_t d = 0; d < r->pattern->head_dim; d++) {
    if (to->dq) to->dq[d] += ds0 * r->key[d];
    if (to->dk) to->dk[d] += ds0 * r->q[d];
  }
}

/* ---- inputs -------------------------------------------------------------- */

/* Adds to the element that a read reads, unless it lies outside. */
static void add_to_element(const gradient_row *g, const expr *read,
                           const expr_point *point, double part, double *to) {
  const dil_tensor *x = &g->call->forward.inputs[read->integer];
  int64_t element = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    int64_t at = expr_eval(read->arg[axis], point, true).integer;
    if (at < 0 || at >= x->shape[axis]) return;
    element = element * x->shape[axis] + at;
  }
  to[element] += part;
}

static void add_read_part(const gradient_row *g, const gradient_pair *pair,
                          const expr *read, const gradient_sums *to) {
  expr_point point = g->query.point;
  int64_t input = read->integer;
  point.j = (int32_t)pair->j;
  double slope = chain_dual(g, pair, 0, read).slope;
  add_to_element(g, read, &point, dual_product(slope, pair->slope),
                 to->inputs[input]);
  if (!to->scatter || !to->scatter->inputs[input]) return;
  double error = dual_product(slope, pair->error.slope);
  add_to_element(g, read, &point, error * error, to->scatter->inputs[input]);
}

/* The reads of a tree whose gradients are wanted; a node that the tree holds
 * twice counts once. */
enum { READS_MAX = 256 };
typedef struct gradient_reads {
  const expr *read[READS_MAX];
  int32_t count;
} gradient_reads;

static void list_reads(const expr *e, double *const *inputs,
                       gradient_reads *to) {
  bool wanted = e->op == EXPR_INPUT && e->type == TYPE_F32 &&
                inputs[e->integer] != NULL;
  for (int32_t k = 0; k < to->count; k++) wanted &= to->read[k] != e;
  if (wanted) {
    assert(to->count < READS_MAX);
    to->read[to->count++] = e;
  }
  for (int32_t k = 0; k < e->count; k++) list_reads(e->arg[k], inputs, to);
}

static void add_input_parts(const gradient_row *g, const gradient_pair *pair,
                            const gradient_sums *to) {
  const branch *b = &g->query.pattern->branch[pair->branch];
  gradient_reads reads;
  reads.count = 0;
  if (to->inputs == NULL) return;
  for (int32_t n = 0; n < b->score_count; n++)
    list_reads(b->score[n], to->inputs, &reads);
  for (int32_t k = 0; k < reads.count; k++)
    add_read_part(g, pair, reads.read[k], to);
}

/* ---- walks --------------------------------------------------------------- */

static void add_pair(gradient_row *g, int32_t index, int64_t j,
                     const gradient_sums *to) {
  gradient_pair pair = {.branch = index, .j = j};
  if (!weigh_pair(g, &pair, to->scatter)) return;
  add_value_part(g, &pair, to->dv);
  if (to->dq || to->dk) add_score_parts(g, &pair, to);
  add_input_parts(g, &pair, to);
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
  fesetenv(&mode);
}

static bool has_key(oracle_query *r, int32_t index, int64_t j) {
  oracle_range keys = query_range(r, index);
  return keys.first <= j && j <= keys.last &&
         (j - keys.first) % keys.step == 0 && query_keeps(r, index, j);
}

void oracle_gradient_key(const pattern *p, const dil_backward_call *call,
                         oracle_forward forward, const int64_t at[3],
                         double *dk, double *dv, oracle_scatter *scatter) {
  const gradient_sums sums = {.dk = dk, .dv = dv, .scatter = scatter};
  gradient_row g;
  fenv_t mode;
  int64_t group = p->heads / p->kv_heads, N = call->forward.q.shape[1];
  oracle_take_subnormals(&mode);
  memset(dk, 0, (size_t)p->head_dim * sizeof *dk);
  memset(dv, 0, (size_t)p->value_dim * sizeof *dv);
  for (int64_t row = 0; row < N * group; row++) {
    int64_t place[3] = {at[0], row / group, at[2] * group + row % group};
    open_row(&g, p, call, forward, place);
    for (int32_t k = 0; k < p->branch_count; k++)
      if (has_key(&g.query, k, at[1])) add_pair(&g, k, at[1], &sums);
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
      int64_t key = (r->b * M + j) * p->kv_heads + r->kv;
      sums.dk = row_of(to->dk, key, p->head_dim);
      sums.dv = row_of(to->dv, key, p->value_dim);
      add_pair(g, k, j, &sums);
    }
  }
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

dil_status oracle_gradient_run(const pattern *p, const dil_backward_call *call,
                               oracle_forward forward,
                               const oracle_gradients *to) {
  gradient_row g;
  fenv_t mode;
  int64_t N = call->forward.q.shape[1], H = p->heads;
  dil_status status = oracle_check_backward(p, call);
  if (status != DIL_OK) return status;
  oracle_take_subnormals(&mode);
  clear_gradients(p, &call->forward, to);
  for (int64_t row = 0; row < call->forward.q.shape[0] * N * H; row++) {
    int64_t at[3] = {row / (N * H), row / H % N, row % H};
    open_row(&g, p, call, forward, at);
    add_row(&g, to, NULL);
  }
  fesetenv(&mode);
  return DIL_OK;
}
