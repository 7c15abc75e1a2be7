/* oracle.c - the definition in float64, with plain loops.
 *
 * In: a pattern and a call. Out: O and lse, one row at a time, straight from
 * the formulas of the language reference. It shares nothing with cover, plan
 * or a back end, so that it can judge them. Only keys that a row has are ever
 * read; conditions are evaluated as every target does, in single f32
 * roundings, scores in float64. */
#include "oracle.h"
#include "runtime/base/random.h"
#include <assert.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A softmax under way: the largest score so far, and the sums relative to
 * it. */
typedef struct oracle_softmax {
  double largest, weights;
  double *values; /* [value_dim] */
  bool spoiled;   /* a score was NaN or +inf */
} oracle_softmax;

typedef struct oracle_query {
  const pattern *pattern;
  const dil_call *call;
  int64_t b, h, kv, t, M;
  double scale;
  bool drops;
  const double *q;
  double *key; /* scratch, as long as a row of K or V */
  expr_point point;
} oracle_query;

/* ---- reading ------------------------------------------------------------- */

static int64_t row_start(const dil_tensor *x, int64_t b, int64_t n,
                         int64_t h) {
  return b * x->stride[0] + n * x->stride[1] + h * x->stride[2];
}

static float bits_float(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

/* The 16-bit types are written out here, for a call an element would take most
 * of the time of a row. bf16 is the upper half of an f32; f16 is an f32 whose
 * exponent is too small by 112. */
static inline double of_bf16(uint16_t half) {
  return (double)bits_float((uint32_t)half << 16);
}

static inline double of_f16(uint16_t half) {
  double size = (double)bits_float((uint32_t)(half & 0x7fff) << 13) * 0x1p112;
  if ((half & 0x7c00) == 0x7c00) size = half & 0x3ff ? NAN : INFINITY;
  return half & 0x8000 ? -size : size;
}

/* A row of an array as the pattern stores it, if the array is wider. */
static void round_row(dil_dtype dtype, int64_t count, double *to) {
  for (int64_t d = 0; d < count; d++)
    to[d] = dtype == DIL_BF16  ? of_bf16(dil_f32_to_bf16((float)to[d]))
            : dtype == DIL_F16 ? of_f16(dil_f32_to_f16((float)to[d]))
                               : to[d];
}

static void read_stored(const dil_tensor *x, int64_t start, int64_t count,
                        double *to) {
  const float *wide = (const float *)x->data + start;
  const uint16_t *half = (const uint16_t *)x->data + start;
  switch (x->dtype) {
  case DIL_F32:
    for (int64_t d = 0; d < count; d++) to[d] = (double)wide[d];
    return;
  case DIL_BF16:
    for (int64_t d = 0; d < count; d++) to[d] = of_bf16(half[d]);
    return;
  case DIL_F16:
    for (int64_t d = 0; d < count; d++) to[d] = of_f16(half[d]);
    return;
  default: abort();
  }
}

static void read_tensor_row(const pattern *p, const dil_tensor *x,
                            int64_t start, int64_t count, double *to) {
  read_stored(x, start, count, to);
  if (x->dtype != p->dtype) round_row(p->dtype, count, to);
}

/* A row of q, k or v, made here when it has no data. */
static void read_operand(const oracle_query *r, const dil_tensor *x,
                         int64_t start, int64_t count, double *to) {
  if (x->data)
    read_tensor_row(r->pattern, x, start, count, to);
  else dil_normal_row(r->call, x, start, count, to);
}

static value read_input_element(void *context, int32_t index,
                                const int32_t *at) {
  const oracle_query *r = context;
  const dil_tensor *x = &r->call->inputs[index];
  int64_t element = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return (value){0, 0};
    element += at[axis] * x->stride[axis];
  }
  double number = dil_element_read(x->data, x->dtype, element);
  bool whole = x->dtype == DIL_I32 || x->dtype == DIL_U8;
  return (value){whole ? (int64_t)number : 0, number};
}

/* ---- which keys ---------------------------------------------------------- */

/* start + residue, start + residue + step, ... from `first` to `last` */
typedef struct key_range { int64_t first, last, step; } key_range;

static int64_t positive_part(int64_t a, int64_t b) {
  int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

/* The keys of the row's segment that the branch selects and the window lets
 * through; an empty range when the row itself is not selected. */
static key_range branch_keys(const oracle_query *r, const branch *b) {
  const key_range none = {0, -1, 1};
  int64_t start = 0, end = r->M, t = r->t;
  if (b->segment > 0) {
    if (t < 0) return none;
    start = t / b->segment * b->segment;
    if (end - start > b->segment) end = start + b->segment;
  }
  int64_t phase = b->phase[r->h];
  if (positive_part(t - start, b->dilation) != phase) return none;
  int64_t first = start, last = end - 1;
  if (b->left != DIL_ENDLESS && t - first > b->left) first = t - b->left;
  if (b->causal && last > t) last = t;
  if (b->right != DIL_ENDLESS && last - t > b->right) last = t + b->right;
  first += positive_part(start + phase - first, b->dilation);
  return (key_range){first, last, b->dilation};
}

/* TABLE[bi, bj], TABLE[h, bi, bj] or TABLE[b, h, bi, bj], by its rank */
static bool is_given(const oracle_query *r, const keeps *level,
                     const char *table) {
  const pattern *p = r->pattern;
  int32_t input = 0;
  while (p->input[input].name != table) input++;
  int64_t s = level->block, i = r->point.i;
  const int32_t at[DIL_RANK_MAX] = {r->point.b, r->point.h,
                                    (int32_t)((i - positive_part(i, s)) / s),
                                    (int32_t)(r->point.j / s)};
  int32_t surplus = DIL_RANK_MAX - p->input[input].rank;
  return read_input_element((void *)r, input, at + surplus).integer != 0;
}

static bool is_kept(const oracle_query *r, const keeps *level) {
  bool any = level->count == 0;
  for (int32_t k = 0; k < level->count && !any; k++) {
    const keep *one = &level->keep[k];
    any = one->table ? is_given(r, level, one->table)
                     : expr_eval(one->condition, &r->point, false).integer != 0;
  }
  return any;
}

/* The conditions of a branch for a key that its geometry reaches. */
static bool is_allowed(oracle_query *r, const branch *b, int64_t j) {
  r->point.j = (int32_t)j;
  for (int32_t k = 0; k < b->mask_count; k++)
    if (expr_eval(b->mask[k], &r->point, false).integer == 0) return false;
  return is_kept(r, &b->keeps[0]) && is_kept(r, &b->keeps[1]);
}

static bool is_serving(const oracle_query *r, const branch *b) {
  return b->head_first <= r->h && r->h <= b->head_last;
}

/* Whether one of the branches before `index` has the key as well. */
static bool is_repeated(oracle_query *r, int32_t index, int64_t j) {
  for (int32_t k = 0; k < index; k++) {
    const branch *b = &r->pattern->branch[k];
    if (!is_serving(r, b)) continue;
    key_range keys = branch_keys(r, b);
    if (j < keys.first || j > keys.last) continue;
    if ((j - keys.first) % keys.step == 0 && is_allowed(r, b, j)) return true;
  }
  return false;
}

/* ---- one key ------------------------------------------------------------- */

/* Four sums side by side, so that long rows do not wait for each addition. */
static double dot_product(const double *a, const double *b, int64_t count) {
  double sum[4] = {0, 0, 0, 0};
  int64_t d = 0;
  for (; d + 4 <= count; d += 4)
    for (int lane = 0; lane < 4; lane++) sum[lane] += a[d + lane] * b[d + lane];
  for (; d < count; d++) sum[0] += a[d] * b[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static double key_score(oracle_query *r, const branch *b, int64_t j) {
  const dil_tensor *k = &r->call->k;
  int64_t count = r->pattern->head_dim;
  read_operand(r, k, row_start(k, r->b, j, r->kv), count, r->key);
  r->point.j = (int32_t)j;
  r->point.s = r->scale * dot_product(r->q, r->key, count);
  for (int32_t n = 0; n < b->score_count; n++) {
    value v = expr_eval(b->score[n], &r->point, true);
    r->point.s =
        b->score[n]->type == TYPE_F32 ? v.real : (double)v.integer;
  }
  return r->point.s;
}

static bool is_dropped(const oracle_query *r, int64_t j) {
  if (!r->drops) return false;
  const uint32_t counter[4] = {(uint32_t)(j >> 2), (uint32_t)r->t,
                               (uint32_t)r->h, (uint32_t)r->b};
  const uint32_t key[2] = {(uint32_t)r->call->seed,
                           (uint32_t)(r->call->seed >> 32)};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return (double)word[j & 3] < floor(r->pattern->dropout * 4294967296.0);
}

static void add_value(const oracle_query *r, oracle_softmax *state, int64_t j,
                      double weight) {
  const dil_tensor *v = &r->call->v;
  int64_t count = r->pattern->value_dim;
  read_operand(r, v, row_start(v, r->b, j, r->kv), count, r->key);
  for (int64_t d = 0; d < count; d++) state->values[d] += weight * r->key[d];
}

static void rescale_state(const oracle_query *r, oracle_softmax *state,
                          double largest) {
  double factor = exp(state->largest - largest);
  state->largest = largest;
  state->weights *= factor;
  for (int64_t d = 0; d < r->pattern->value_dim; d++)
    state->values[d] *= factor;
}

/* A score of -inf is a key with no weight, and its value is not read. */
static void visit_key(oracle_query *r, const branch *b, oracle_softmax *state,
                      int64_t j) {
  double s = key_score(r, b, j);
  if (isnan(s) || s == INFINITY) state->spoiled = true;
  if (state->spoiled || s == -INFINITY) return;
  if (s > state->largest) rescale_state(r, state, s);
  double weight = exp(s - state->largest);
  state->weights += weight;
  if (is_dropped(r, j)) return;
  add_value(r, state, j, weight / (r->drops ? 1 - r->pattern->dropout : 1));
}

static void visit_branch_keys(oracle_query *r, int32_t index,
                              oracle_softmax *state) {
  const branch *b = &r->pattern->branch[index];
  if (!is_serving(r, b)) return;
  bool conditions =
      b->mask_count > 0 || b->keeps[0].count > 0 || b->keeps[1].count > 0;
  bool unites = r->pattern->combine == DIL_COMBINE_UNION;
  key_range keys = branch_keys(r, b);
  for (int64_t j = keys.first; j <= keys.last; j += keys.step) {
    if (conditions && !is_allowed(r, b, j)) continue;
    if (unites && is_repeated(r, index, j)) continue;
    visit_key(r, b, state, j);
  }
}

/* ---- one row ------------------------------------------------------------- */

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

/* All branches in one softmax; `union` leaves repeated keys out. */
static double one_softmax(oracle_query *r, double *o) {
  oracle_softmax state = {.values = o};
  state_clear(r, &state);
  for (int32_t b = 0; b < r->pattern->branch_count; b++)
    visit_branch_keys(r, b, &state);
  return state_finish(r, &state);
}

/* Each branch's own softmax, and the sum of the outputs. */
static double own_softmaxes(oracle_query *r, double *o) {
  const pattern *p = r->pattern;
  double part[p->value_dim], lse = NAN;
  oracle_softmax state = {.values = part};
  double share = p->combine == DIL_COMBINE_MEAN ? p->branch_count : 1;
  memset(o, 0, (size_t)p->value_dim * sizeof *o);
  for (int32_t b = 0; b < p->branch_count; b++) {
    if (!is_serving(r, &p->branch[b])) continue;
    state_clear(r, &state);
    visit_branch_keys(r, b, &state);
    lse = state_finish(r, &state);
    for (int64_t d = 0; d < p->value_dim; d++) o[d] += part[d] / share;
  }
  return pattern_has_lse(p) ? lse : NAN;
}

static double call_scale(const pattern *p, const dil_call *call) {
  switch (p->scale_kind) {
  case SCALE_DEFAULT: return 1 / sqrt((double)p->head_dim);
  case SCALE_FIXED: return p->scale;
  case SCALE_RUNTIME: return call->scale;
  }
  abort();
}

static oracle_query row_open(const pattern *p, const dil_call *call, int64_t b,
                             int64_t n, int64_t h) {
  int64_t N = call->q.shape[1];
  int64_t M = call->lengths ? call->lengths[b] : call->k.shape[1];
  oracle_query r = {
      .pattern = p, .call = call, .b = b, .h = h, .t = n + M - N, .M = M};
  r.kv = h / (p->heads / p->kv_heads);
  r.scale = call_scale(p, call);
  r.drops = call->train && p->dropout > 0;
  r.point = (expr_point){.b = (int32_t)b,
                         .h = (int32_t)h,
                         .i = (int32_t)r.t,
                         .B = (int32_t)call->q.shape[0],
                         .N = (int32_t)N,
                         .M = (int32_t)M,
                         .input = read_input_element};
  return r;
}

/* Threads of a pool take subnormal numbers for 0; the definition does not. */
static void take_subnormals(fenv_t *before) {
  fegetenv(before);
  fesetenv(FE_DFL_ENV);
}

void oracle_row(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                int64_t h, double *o, double *lse) {
  assert(oracle_refusal(p) == NULL);
  int64_t longest = p->head_dim > p->value_dim ? p->head_dim : p->value_dim;
  double q[p->head_dim], key[longest];
  fenv_t mode;
  take_subnormals(&mode);
  oracle_query r = row_open(p, call, b, n, h);
  read_operand(&r, &call->q, row_start(&call->q, b, n, h), p->head_dim, q);
  r.q = q;
  r.key = key;
  r.point.context = &r;
  bool joint = p->combine == DIL_COMBINE_SOFTMAX ||
               p->combine == DIL_COMBINE_UNION;
  *lse = joint ? one_softmax(&r, o) : own_softmaxes(&r, o);
  fesetenv(&mode);
}

/* ---- all rows ------------------------------------------------------------ */

static void write_row(const pattern *p, const dil_call *call,
                      const int64_t at[3], const double *o, double lse) {
  int64_t start = row_start(&call->o, at[0], at[1], at[2]);
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

dil_status oracle_run(const pattern *p, const dil_call *call) {
  dil_status status = oracle_check(p, call);
  if (status != DIL_OK) return status;
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t h = 0; h < p->heads; h++)
      for (int64_t n = 0; n < call->q.shape[1]; n++)
        oracle_store(p, call, b, n, h);
  return DIL_OK;
}
