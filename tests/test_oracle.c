/* test_oracle.c - the oracle against the definition written out a second
 * time: every (branch, key) pair is listed and judged by the formulas, in
 * long double. Then cases worked by hand, and the edge table of the language
 * reference. */
#include "meaning.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static arena *memory;

static void open_memory(void) { memory = arena_new(); }
static void close_memory(void) { arena_free(memory); }

/* ---- calls --------------------------------------------------------------- */

static dil_tensor new_tensor(dil_dtype dtype, int32_t rank, int64_t a,
                             int64_t b, int64_t c, int64_t d) {
  const int64_t shape[DIL_RANK_MAX] = {a, b, c, d};
  dil_tensor x = dil_tensor_make(NULL, dtype, rank, shape);
  size_t count = (size_t)dil_tensor_count(&x);
  x.data = ARENA_ARRAY(memory, char, count * dil_dtype_size(dtype) + 1);
  return x;
}

static void fill(const dil_tensor *x, uint64_t *state, double size) {
  for (int64_t e = 0; e < dil_tensor_count(x); e++)
    dil_element_write(x->data, x->dtype, e,
                      size * (double)random_in(state, -1000, 1000) / 1000);
}

static int64_t index_of(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                        int64_t d) {
  return a * x->stride[0] + b * x->stride[1] + c * x->stride[2] +
         d * (x->rank > 3 ? x->stride[3] : 0);
}

static double element(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                      int64_t d) {
  return dil_element_read(x->data, x->dtype, index_of(x, a, b, c, d));
}

static void set_element(const dil_tensor *x, int64_t a, int64_t b, int64_t c,
                        int64_t d, double number) {
  dil_element_write(x->data, x->dtype, index_of(x, a, b, c, d), number);
}

static dil_call *make_call(const pattern *p, int64_t B, int64_t N, int64_t M,
                           uint64_t seed) {
  dil_call *call = ARENA_NEW(memory, dil_call);
  call->size = sizeof *call;
  call->q = new_tensor(p->dtype, 4, B, N, p->heads, p->head_dim);
  call->k = new_tensor(p->dtype, 4, B, M, p->kv_heads, p->head_dim);
  call->v = new_tensor(p->dtype, 4, B, M, p->kv_heads, p->value_dim);
  call->o = new_tensor(p->dtype, 4, B, N, p->heads, p->value_dim);
  if (pattern_has_lse(p)) call->lse = new_tensor(DIL_F32, 3, B, p->heads, N, 0);
  fill(&call->q, &seed, 2);
  fill(&call->k, &seed, 2);
  fill(&call->v, &seed, 2);
  call->seed = random_bits(&seed);
  return call;
}

static void give_inputs(const pattern *p, dil_call *call, uint64_t *state) {
  int64_t B = call->q.shape[0], M = call->k.shape[1];
  int64_t blocks = (M + GIVEN_BLOCK - 1) / GIVEN_BLOCK;
  dil_tensor *inputs = ARENA_ARRAY(memory, dil_tensor, GIVEN_COUNT);
  inputs[DOC] = new_tensor(DIL_I32, 2, B, M, 0, 0);
  inputs[SLOPE] = new_tensor(DIL_F32, 1, p->heads, 0, 0, 0);
  inputs[KEPT] = new_tensor(DIL_U8, 3, p->heads, blocks, blocks, 0);
  for (int32_t k = 0; k < GIVEN_COUNT; k++)
    for (int64_t e = 0; e < dil_tensor_count(&inputs[k]); e++)
      dil_element_write(inputs[k].data, inputs[k].dtype, e,
                        (double)random_in(state, 0, 2) / (k == SLOPE ? 4 : 1));
  call->inputs = inputs;
  call->input_count = GIVEN_COUNT;
}

/* ---- the definition, once more ------------------------------------------- */

typedef struct cell {
  const pattern *p;
  const dil_call *call;
  int64_t b, h, t, M;
} cell;

static int64_t wrap_around(int64_t x, int64_t m) { return (x % m + m) % m; }

static value given(void *context, int32_t index, const int32_t *at) {
  const dil_call *call = context;
  const dil_tensor *x = &call->inputs[index];
  int64_t place[DIL_RANK_MAX] = {0};
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return (value){0, 0};
    place[axis] = at[axis];
  }
  double number = dil_element_read(
      x->data, x->dtype,
      place[0] * x->stride[0] + place[1] * x->stride[1] +
          place[2] * x->stride[2]);
  return (value){(int64_t)number, number};
}

static expr_point point_of(const cell *c, int64_t j, double s) {
  return (expr_point){.b = (int32_t)c->b,
                      .h = (int32_t)c->h,
                      .i = (int32_t)c->t,
                      .j = (int32_t)j,
                      .B = (int32_t)c->call->q.shape[0],
                      .N = (int32_t)c->call->q.shape[1],
                      .M = (int32_t)c->M,
                      .s = s,
                      .input = given,
                      .context = (void *)c->call};
}

static bool level_keeps(const cell *c, const keeps *level, int64_t j) {
  if (level->count == 0) return true;
  expr_point point = point_of(c, j, 0);
  for (int32_t k = 0; k < level->count; k++) {
    const keep *one = &level->keep[k];
    int64_t s = level->block;
    const int32_t at[3] = {(int32_t)c->h, (int32_t)floor((double)c->t / (double)s),
                           (int32_t)(j / s)};
    if (one->kind == KEEP_EXPR
            ? expr_eval(one->condition, &point, false).integer
            : given((void *)c->call, one->input, at).integer)
      return true;
  }
  return false;
}

static bool chosen(const branch *b, int64_t h, int64_t t) {
  int64_t s = b->segment;
  int64_t inside = s ? wrap_around(t, s) : t;
  return wrap_around(inside, b->dilation) == b->phase[h];
}

static bool has_key(const cell *c, const branch *b, int64_t j) {
  if (c->h < b->head_first || c->h > b->head_last) return false;
  if (!chosen(b, c->h, c->t) || !chosen(b, c->h, j)) return false;
  double s = (double)b->segment;
  if (s > 0 && floor((double)j / s) != floor((double)c->t / (double)s)) return false;
  if (b->causal && j > c->t) return false;
  if (b->left != DIL_ENDLESS && j - c->t < -b->left) return false;
  if (b->right != DIL_ENDLESS && j - c->t > b->right) return false;
  expr_point point = point_of(c, j, 0);
  for (int32_t k = 0; k < b->mask_count; k++)
    if (!expr_eval(b->mask[k], &point, false).integer) return false;
  return level_keeps(c, &b->keeps[0], j) && level_keeps(c, &b->keeps[1], j);
}

static double plain_score(const cell *c, const branch *b, int64_t j) {
  const pattern *p = c->p;
  int64_t n = c->t - c->M + c->call->q.shape[1];
  int64_t kv = c->h / (p->heads / p->kv_heads);
  long double sum = 0;
  for (int64_t d = 0; d < p->head_dim; d++)
    sum += (long double)element(&c->call->q, c->b, n, c->h, d) *
           element(&c->call->k, c->b, j, kv, d);
  double scale = p->scale_kind == SCALE_RUNTIME ? c->call->scale
                 : p->scale_kind == SCALE_FIXED ? p->scale
                                                : 1 / sqrt((double)p->head_dim);
  double s = (double)(scale * sum);
  for (int32_t k = 0; k < b->score_count; k++) {
    expr_point point = point_of(c, j, s);
    s = expr_eval(b->score[k], &point, true).real;
  }
  return s;
}

static long double survival(const cell *c, int64_t j) {
  if (!c->call->train || c->p->dropout == 0) return 1;
  uint32_t counter[4] = {(uint32_t)(j / 4), (uint32_t)c->t, (uint32_t)c->h,
                         (uint32_t)c->b};
  uint32_t key[2] = {(uint32_t)(c->call->seed & 0xFFFFFFFF),
                     (uint32_t)(c->call->seed >> 32)};
  uint32_t out[4];
  dil_philox(counter, key, out);
  bool dropped = out[j % 4] < (uint64_t)(c->p->dropout * 4294967296.0);
  return dropped ? 0 : 1 / (1 - (long double)c->p->dropout);
}

typedef struct listed { int64_t j; double score; } listed;

/* The keys of branches first..last, in `union` each key once. */
static int list_keys(const cell *c, int32_t first, int32_t last, listed *to) {
  int count = 0;
  for (int64_t j = 0; j < c->M; j++)
    for (int32_t k = first; k <= last; k++) {
      const branch *b = &c->p->branch[k];
      if (!has_key(c, b, j)) continue;
      to[count++] = (listed){j, plain_score(c, b, j)};
      if (c->p->combine == DIL_COMBINE_UNION) break;
    }
  return count;
}

static long double attend(const cell *c, const listed *keys, int count,
                          long double *o) {
  const pattern *p = c->p;
  int64_t kv = c->h / (p->heads / p->kv_heads);
  long double most = -INFINITY, sum = 0;
  bool bad = false;
  for (int k = 0; k < count; k++) {
    bad = bad || isnan(keys[k].score) || keys[k].score == INFINITY;
    if (keys[k].score > most) most = keys[k].score;
  }
  for (int64_t d = 0; d < p->value_dim; d++) o[d] = bad ? NAN : 0;
  if (bad) return NAN;
  if (most == -INFINITY) return -INFINITY;
  for (int k = 0; k < count; k++) sum += expl(keys[k].score - most);
  for (int k = 0; k < count; k++) {
    long double w = expl(keys[k].score - most) / sum * survival(c, keys[k].j);
    for (int64_t d = 0; d < p->value_dim && w > 0; d++)
      o[d] += w * element(&c->call->v, c->b, keys[k].j, kv, d);
  }
  return most + logl(sum);
}

static long double defined_row(const cell *c, long double *o) {
  const pattern *p = c->p;
  listed *keys =
      ARENA_ARRAY(memory, listed, c->M * p->branch_count + 1);
  int32_t last = p->branch_count - 1;
  if (p->combine == DIL_COMBINE_SOFTMAX || p->combine == DIL_COMBINE_UNION)
    return attend(c, keys, list_keys(c, 0, last, keys), o);
  long double part[64], lse = NAN;
  int serving = 0;
  for (int64_t d = 0; d < p->value_dim; d++) o[d] = 0;
  for (int32_t k = 0; k <= last; k++) {
    long double own = attend(c, keys, list_keys(c, k, k, keys), part);
    const branch *b = &p->branch[k];
    if (b->head_first <= c->h && c->h <= b->head_last) serving++, lse = own;
    for (int64_t d = 0; d < p->value_dim; d++)
      o[d] += p->combine == DIL_COMBINE_MEAN ? part[d] / p->branch_count
                                             : part[d];
  }
  return serving == 1 ? lse : NAN;
}

/* ---- comparison ---------------------------------------------------------- */

static void check_near(double is, long double should, const char *what,
                       const cell *c) {
  if (isnan(is) && isnan(should)) return;
  if ((long double)is == should) return;
  if (fabsl(is - should) <= 1e-13L * (1 + fabsl(should))) return;
  ck_abort_msg("%s of b %d h %d t %d is %.17g, not %.17Lg", what, (int)c->b,
               (int)c->h, (int)c->t, is, should);
}

static void check_row(const pattern *p, const dil_call *call, int64_t b,
                      int64_t n, int64_t h) {
  int64_t M = call->lengths ? call->lengths[b] : call->k.shape[1];
  cell c = {p, call, b, h, n + M - call->q.shape[1], M};
  double o[64], lse;
  long double right[64];
  oracle_row(p, call, b, n, h, o, &lse);
  long double right_lse = defined_row(&c, right);
  for (int64_t d = 0; d < p->value_dim; d++) check_near(o[d], right[d], "o", &c);
  if (pattern_has_lse(p))
    check_near(lse, right_lse, "lse", &c);
  else
    ck_assert(isnan(lse));
}

static void check_rows(const pattern *p, const dil_call *call) {
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t n = 0; n < call->q.shape[1]; n++)
      for (int64_t h = 0; h < p->heads; h++) check_row(p, call, b, n, h);
}

static bool is_seen(const pattern *p, const dil_call *call, int64_t b,
                    int64_t kv, int64_t j) {
  int64_t M = call->lengths ? call->lengths[b] : call->k.shape[1];
  int64_t group = p->heads / p->kv_heads, N = call->q.shape[1];
  for (int64_t h = kv * group; h < (kv + 1) * group; h++)
    for (int64_t t = M - N; t < M; t++)
      for (int32_t k = 0; k < p->branch_count; k++) {
        cell c = {p, call, b, h, t, M};
        if (j < M && has_key(&c, &p->branch[k], j)) return true;
      }
  return false;
}

/* NaN where nobody may look. */
static void spoil_unseen(const pattern *p, dil_call *call) {
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t kv = 0; kv < p->kv_heads; kv++)
      for (int64_t j = 0; j < call->k.shape[1]; j++) {
        if (is_seen(p, call, b, kv, j)) continue;
        for (int64_t d = 0; d < p->head_dim; d++)
          set_element(&call->k, b, j, kv, d, NAN);
        for (int64_t d = 0; d < p->value_dim; d++)
          set_element(&call->v, b, j, kv, d, NAN);
      }
}

static void add_lengths(dil_call *call, uint64_t *state) {
  int64_t B = call->q.shape[0];
  int32_t *lengths = ARENA_ARRAY(memory, int32_t, B);
  for (int64_t b = 0; b < B; b++)
    lengths[b] = (int32_t)random_in(state, 0, call->k.shape[1]);
  call->lengths = lengths;
}

static void random_choices(pattern *p, uint64_t *state) {
  p->dtype = (dil_dtype)random_in(state, DIL_F32, DIL_F16);
  if (random_chance(state, 20)) p->dropout = 0.25;
  p->scale_kind = (scale_kind)random_in(state, SCALE_DEFAULT, SCALE_RUNTIME);
  if (p->scale_kind == SCALE_FIXED) p->scale = 0.375;
}

static void check_random(uint64_t *state) {
  pattern *p = random_pattern(memory, state, true);
  random_choices(p, state);
  pattern_verify(p);
  dil_call *call =
      make_call(p, random_in(state, 1, 2), random_in(state, 0, 24),
                random_in(state, 0, 24), random_bits(state));
  give_inputs(p, call, state);
  call->scale = 0.625;
  call->train = random_chance(state, 70);
  if (random_chance(state, 30)) add_lengths(call, state);
  spoil_unseen(p, call);
  check_rows(p, call);
}

START_TEST(rows_follow_the_definition) {
  uint64_t state = 2024;
  for (int k = 0; k < 500; k++) {
    if (k % 20 == 0) arena_free(memory), memory = arena_new();
    check_random(&state);
  }
}
END_TEST

/* ---- by hand ------------------------------------------------------------- */

static dil_call *small_call(const pattern *p, int64_t N, int64_t M,
                            const double *q, const double *k,
                            const double *v) {
  dil_call *call = make_call(p, 1, N, M, 1);
  for (int64_t n = 0; n < N; n++) set_element(&call->q, 0, n, 0, 0, q[n]);
  for (int64_t j = 0; j < M; j++) {
    set_element(&call->k, 0, j, 0, 0, k[j]);
    set_element(&call->v, 0, j, 0, 0, v[j]);
  }
  return call;
}

/* Row n of head 0, for value_dim 1. */
static double row_value(const pattern *p, const dil_call *call, int64_t n,
                        double *lse) {
  double o, unused;
  oracle_row(p, call, 0, n, 0, &o, lse ? lse : &unused);
  return o;
}

START_TEST(two_keys_by_hand) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->scale_kind = SCALE_RUNTIME;
  dil_call *call = small_call(p, 1, 2, (double[]){2}, (double[]){0, 1},
                              (double[]){1, 4});
  call->scale = log(2) / 2;
  double lse;
  ck_assert_double_eq_tol(row_value(p, call, 0, &lse), 3, 1e-15);
  ck_assert_double_eq_tol(lse, log(3), 1e-15);
}
END_TEST

/* Equal scores: a row's output is the mean of the values it sees. */
static double mean_seen(pattern *p, int64_t N, int64_t M, int64_t n,
                        double *lse) {
  double zero[32] = {0}, v[32];
  for (int k = 0; k < 32; k++) v[k] = pow(2, k);
  set_phases(memory, p);
  return row_value(p, small_call(p, N, M, zero, zero, v), n, lse);
}

START_TEST(dilation_that_does_not_divide) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].segment = 7;
  p->branch[0].dilation = 3;
  double lse;
  /* the second of two segments is 7..9: keys 7, and 10 is not there */
  ck_assert_double_eq(mean_seen(p, 10, 10, 7, &lse), 128);
  ck_assert_double_eq(lse, 0);
  /* the first holds 0, 3, 6 */
  ck_assert_double_eq_tol(mean_seen(p, 10, 10, 3, &lse), (1 + 8 + 64) / 3.0,
                          1e-13);
  ck_assert_double_eq_tol(lse, log(3), 1e-15);
}
END_TEST

START_TEST(rows_that_no_branch_selects) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].dilation = 2;
  double lse;
  ck_assert_double_eq(mean_seen(p, 4, 4, 1, &lse), 0);
  ck_assert(lse == -INFINITY);
}
END_TEST

START_TEST(dilation_longer_than_its_segment) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].segment = 4;
  p->branch[0].dilation = 9;
  double lse;
  ck_assert_double_eq(mean_seen(p, 12, 12, 4, &lse), 16);
  ck_assert_double_eq(mean_seen(p, 12, 12, 5, &lse), 0);
  ck_assert(lse == -INFINITY);
}
END_TEST

START_TEST(segment_longer_than_the_sequence) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].segment = INT32_MAX;
  ck_assert_double_eq(mean_seen(p, 3, 3, 1, NULL), 7 / 3.0);
  p->branch[0].segment = INT64_MAX - 1;
  ck_assert_double_eq(mean_seen(p, 3, 3, 1, NULL), 7 / 3.0);
}
END_TEST

START_TEST(windows_are_inclusive) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].left = 1;
  p->branch[0].right = 2;
  ck_assert_double_eq(mean_seen(p, 8, 8, 3, NULL), (4 + 8 + 16 + 32) / 4.0);
  p->branch[0].causal = true;
  ck_assert_double_eq(mean_seen(p, 8, 8, 3, NULL), 6);
  p->branch[0].left = INT64_MAX - 1;
  ck_assert_double_eq(mean_seen(p, 8, 8, 3, NULL), 15 / 4.0);
}
END_TEST

START_TEST(positions_align_at_the_end) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].causal = true;
  /* two queries, five keys: positions 3 and 4 */
  ck_assert_double_eq(mean_seen(p, 2, 5, 0, NULL), 15 / 4.0);
  /* five queries, two keys: positions -3..1 */
  double lse;
  ck_assert_double_eq(mean_seen(p, 5, 2, 2, &lse), 0);
  ck_assert(lse == -INFINITY);
  ck_assert_double_eq(mean_seen(p, 5, 2, 3, NULL), 1);
  p->branch[0].causal = false;
  ck_assert_double_eq(mean_seen(p, 5, 2, 0, NULL), 1.5);
  p->branch[0].segment = 100;
  ck_assert_double_eq(mean_seen(p, 5, 2, 0, &lse), 0);
}
END_TEST

START_TEST(no_keys_at_all) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  double lse;
  ck_assert_double_eq(mean_seen(p, 3, 0, 1, &lse), 0);
  ck_assert(lse == -INFINITY);
}
END_TEST

START_TEST(single_key) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].segment = 5;
  double lse;
  ck_assert_double_eq(mean_seen(p, 1, 1, 0, &lse), 1);
  ck_assert_double_eq(lse, 0);
}
END_TEST

START_TEST(phases_select_by_head) {
  pattern *p = make_pattern(memory, 2, 1, 1, 1, 1);
  p->branch[0].dilation = 2;
  set_phases(memory, p);
  dil_call *call = make_call(p, 1, 4, 4, 9);
  double o, lse;
  oracle_row(p, call, 0, 0, 0, &o, &lse);
  ck_assert(isfinite(lse));
  oracle_row(p, call, 0, 0, 1, &o, &lse);
  ck_assert(lse == -INFINITY);
  oracle_row(p, call, 0, 1, 1, &o, &lse);
  ck_assert(isfinite(lse));
}
END_TEST

/* With one key the output is its value, so that every bit pattern is read. */
START_TEST(every_16_bit_value_is_read) {
  for (dil_dtype dtype = DIL_BF16; dtype <= DIL_F16; dtype++) {
    pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
    p->dtype = dtype;
    dil_call *call = make_call(p, 1, 1, 1, 2);
    for (uint32_t bits = 0; bits < 65536; bits++) {
      *(uint16_t *)call->v.data = (uint16_t)bits;
      double o = row_value(p, call, 0, NULL);
      double right = dil_element_read(call->v.data, dtype, 0);
      ck_assert(isnan(right) ? isnan(o) : o == right);
    }
  }
}
END_TEST

/* ---- the edge table ------------------------------------------------------ */

static void double_branch(pattern *p) {
  branch *two = ARENA_ARRAY(memory, branch, 2);
  two[0] = two[1] = p->branch[0];
  p->branch = two;
  p->branch_count = 2;
}

START_TEST(same_branch_twice) {
  pattern *once = make_pattern(memory, 2, 1, 5, 1, 1);
  once->branch[0].segment = 6;
  once->branch[0].dilation = 2;
  set_phases(memory, once);
  pattern twice = *once, joined;
  double_branch(&twice);
  joined = twice;
  joined.combine = DIL_COMBINE_UNION;
  dil_call *call = make_call(once, 1, 13, 13, 4);
  for (int64_t n = 0; n < 13; n++) {
    double lse[3], o = row_value(once, call, n, &lse[0]);
    ck_assert_double_eq_tol(row_value(&twice, call, n, &lse[1]), o, 1e-14);
    ck_assert_double_eq(row_value(&joined, call, n, &lse[2]), o);
    ck_assert(lse[2] == lse[0]);
    if (isfinite(lse[0]))
      ck_assert_double_eq_tol(lse[1], lse[0] + log(2), 1e-14);
    else
      ck_assert(lse[1] == -INFINITY);
  }
}
END_TEST

START_TEST(values_of_one_give_one) {
  uint64_t state = 8;
  for (int k = 0; k < 100; k++) {
    pattern *p = random_pattern(memory, &state, true);
    if (p->combine > DIL_COMBINE_UNION) continue;
    dil_call *call = make_call(p, 1, 15, 15, (uint64_t)k);
    give_inputs(p, call, &state);
    for (int64_t e = 0; e < dil_tensor_count(&call->v); e++)
      dil_element_write(call->v.data, call->v.dtype, e, 1);
    for (int64_t n = 0; n < 15; n++) {
      double o[16], lse;
      oracle_row(p, call, 0, n, 0, o, &lse);
      ck_assert_double_eq_tol(o[0], lse == -INFINITY ? 0 : 1, 1e-14);
    }
  }
}
END_TEST

START_TEST(causal_does_not_look_ahead) {
  pattern *p = make_pattern(memory, 1, 1, 3, 1, 2);
  p->branch[0].segment = 4;
  p->branch[1].dilation = 2;
  p->branch[0].causal = p->branch[1].causal = true;
  set_phases(memory, p);
  dil_call *call = make_call(p, 1, 12, 12, 6);
  double before[12];
  for (int64_t n = 0; n < 12; n++) before[n] = row_value(p, call, n, NULL);
  for (int64_t j = 7; j < 12; j++) {
    set_element(&call->k, 0, j, 0, 1, 99);
    set_element(&call->v, 0, j, 0, 0, -99);
  }
  for (int64_t n = 0; n < 7; n++)
    ck_assert(row_value(p, call, n, NULL) == before[n]);
  ck_assert(row_value(p, call, 7, NULL) != before[7]);
}
END_TEST

START_TEST(large_and_equal_scores) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  double lse;
  dil_call *call = small_call(p, 1, 3, (double[]){100},
                              (double[]){100, -100, 100}, (double[]){1, 9, 3});
  ck_assert_double_eq(row_value(p, call, 0, &lse), 2);
  ck_assert_double_eq_tol(lse, 10000 + log(2), 1e-11);
  call = small_call(p, 1, 3, (double[]){-100}, (double[]){100, 100, 100},
                    (double[]){1, 2, 3});
  ck_assert_double_eq_tol(row_value(p, call, 0, &lse), 2, 1e-15);
  ck_assert_double_eq_tol(lse, -10000 + log(3), 1e-11);
}
END_TEST

static pattern *scored(expr *score) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  add_score(memory, &p->branch[0], score);
  return p;
}

/* s, or `other` for key j == 1 */
static expr *except_key_one(double other) {
  expr *is_one = make_condition(memory, EXPR_EQ, make_leaf(memory, EXPR_J_),
                                make_int(memory, 1));
  return make_expr(memory, EXPR_CHOOSE, TYPE_F32, 3, is_one,
                   make_real(memory, other), make_leaf(memory, EXPR_S_));
}

START_TEST(scores_of_minus_infinity) {
  double lse;
  pattern *p = scored(except_key_one(-INFINITY));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 2.5);
  ck_assert_double_eq_tol(lse, log(2), 1e-15);
  p = scored(make_real(memory, -INFINITY));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 0);
  ck_assert(lse == -INFINITY);
}
END_TEST

START_TEST(bad_scores_spoil_their_row_alone) {
  const double bad[2] = {NAN, INFINITY};
  for (int k = 0; k < 2; k++) {
    pattern *p = scored(except_key_one(bad[k]));
    p->branch[0].segment = 2;
    double lse;
    ck_assert(isnan(mean_seen(p, 4, 4, 0, &lse)) && isnan(lse));
    ck_assert_double_eq(mean_seen(p, 4, 4, 2, &lse), 6);
    ck_assert(isfinite(lse));
    p->combine = DIL_COMBINE_MEAN;
    ck_assert(isnan(mean_seen(p, 4, 4, 1, &lse)) && isnan(lse));
  }
}
END_TEST

START_TEST(index_outside_an_input) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  add_inputs(memory, p);
  /* doc[b, j + 1] == 0: the last key looks past the end, and reads 0 */
  expr *next = make_number(memory, EXPR_ADD, make_leaf(memory, EXPR_J_),
                           make_int(memory, 1));
  expr *doc = make_input(memory, DOC, TYPE_I32, make_leaf(memory, EXPR_B_),
                         next);
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_EQ, doc, make_int(memory, 0)));
  double zero[3] = {0}, v[3] = {5, 6, 7};
  dil_call *call = small_call(p, 3, 3, zero, zero, v);
  uint64_t state = 1;
  give_inputs(p, call, &state);
  for (int64_t j = 0; j < 3; j++)
    dil_element_write(call->inputs[DOC].data, DIL_I32, j, 1);
  ck_assert_double_eq(row_value(p, call, 0, NULL), 7);
}
END_TEST

START_TEST(mean_divides_by_all_branches) {
  pattern *p = make_pattern(memory, 2, 1, 1, 1, 2);
  p->branch[0].head_last = 0;
  p->branch[1].head_first = 1;
  p->combine = DIL_COMBINE_MEAN;
  double lse;
  ck_assert_double_eq(mean_seen(p, 2, 2, 0, &lse), 0.75);
  ck_assert_double_eq_tol(lse, log(2), 1e-15);
  p->combine = DIL_COMBINE_SUM;
  ck_assert_double_eq(mean_seen(p, 2, 2, 0, &lse), 1.5);
  p->branch[1].head_first = 0;
  ck_assert_double_eq(mean_seen(p, 2, 2, 0, &lse), 3);
  ck_assert(isnan(lse));
}
END_TEST

START_TEST(dropout_leaves_the_denominator) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->dropout = 0.5;
  dil_call *call = make_call(p, 1, 64, 64, 3);
  double plain[64], lse[64], dropped_lse;
  for (int64_t n = 0; n < 64; n++) plain[n] = row_value(p, call, n, &lse[n]);
  call->train = 1;
  int changed = 0;
  for (int64_t n = 0; n < 64; n++) {
    changed += row_value(p, call, n, &dropped_lse) != plain[n];
    ck_assert(dropped_lse == lse[n]);
  }
  ck_assert_int_gt(changed, 60);
  check_rows(p, call);
}
END_TEST

/* ---- whole runs ---------------------------------------------------------- */

START_TEST(run_stores_every_row) {
  pattern *p = make_pattern(memory, 4, 2, 3, 5, 1);
  p->dtype = DIL_BF16;
  p->branch[0].segment = 4;
  dil_call *call = make_call(p, 2, 6, 7, 12);
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  for (int64_t b = 0; b < 2; b++)
    for (int64_t n = 0; n < 6; n++)
      for (int64_t h = 0; h < 4; h++) {
        double o[5], lse;
        oracle_row(p, call, b, n, h, o, &lse);
        ck_assert_double_eq(element(&call->lse, b, h, n, 0), (double)(float)lse);
        for (int64_t d = 0; d < 5; d++)
          ck_assert_double_eq_tol(element(&call->o, b, n, h, d), o[d],
                                  fabs(o[d]) / 256);
      }
}
END_TEST

START_TEST(run_of_nothing) {
  pattern *p = make_pattern(memory, 1, 1, 2, 2, 1);
  ck_assert_int_eq(oracle_run(p, make_call(p, 0, 5, 5, 1)), DIL_OK);
  ck_assert_int_eq(oracle_run(p, make_call(p, 1, 0, 5, 1)), DIL_OK);
}
END_TEST

static void check_refused(const pattern *p, const dil_call *call,
                          dil_status status, const char *text) {
  ck_assert_int_eq(oracle_run(p, call), status);
  ck_assert_msg(strstr(dil_last_error(), text) != NULL, "%s",
                dil_last_error());
}

START_TEST(run_refuses_wrong_calls) {
  pattern *p = make_pattern(memory, 2, 1, 3, 3, 2);
  dil_call *call = make_call(p, 1, 4, 4, 1);
  call->k.shape[3] = 2;
  check_refused(p, call, DIL_USAGE, "k has size 2 in dimension 3, not 3");
  call = make_call(p, 1, 4, 4, 1);
  call->v.dtype = DIL_F16;
  check_refused(p, call, DIL_USAGE, "v is f16, not f32");
  call = make_call(p, 1, 4, 4, 1);
  call->q.stride[3] = 2;
  check_refused(p, call, DIL_USAGE, "q has stride 2");
  call = make_call(p, 1, 4, 4, 1);
  call->o.rank = 3;
  check_refused(p, call, DIL_USAGE, "o has 3 dimensions, not 4");
  call = make_call(p, 1, 4, 4, 1);
  call->size = 8;
  check_refused(p, call, DIL_USAGE, "size 8");
  call = make_call(p, 1, 4, 4, 1);
  call->lengths = (int32_t[]){5};
  check_refused(p, call, DIL_USAGE, "length 5");
  call = make_call(p, 1, 4, 4, 1);
  call->q.data = NULL;
  check_refused(p, call, DIL_USAGE, "q has no data");
}
END_TEST

START_TEST(run_refuses_what_has_no_answer) {
  pattern *p = make_pattern(memory, 2, 1, 3, 3, 2);
  dil_call *call = make_call(p, 1, 4, 4, 1);
  p->combine = DIL_COMBINE_SUM;
  check_refused(p, call, DIL_USAGE, "has no lse");
  call->lse.data = NULL;
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  add_keep(memory, &p->branch[0].keeps[0], 4,
           (keep){.kind = KEEP_TOP, .amount = 2});
  check_refused(p, call, DIL_UNSUPPORTED, "keep top");
  p = make_pattern(memory, 2, 1, 3, 3, 1);
  add_inputs(memory, p);
  call = make_call(p, 1, 4, 4, 1);
  check_refused(p, call, DIL_USAGE, "brings 0 inputs, not 3");
  uint64_t state = 1;
  give_inputs(p, call, &state);
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  ((dil_tensor *)call->inputs)[DOC].shape[1] = 3;
  check_refused(p, call, DIL_USAGE, "doc has size 3 in dimension 1, not 4");
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *oracle_suite(void) {
  Suite *suite = suite_create("oracle");
  TCase *tests = tcase_create("oracle");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, rows_follow_the_definition);
  tcase_add_test(tests, two_keys_by_hand);
  tcase_add_test(tests, dilation_that_does_not_divide);
  tcase_add_test(tests, rows_that_no_branch_selects);
  tcase_add_test(tests, dilation_longer_than_its_segment);
  tcase_add_test(tests, segment_longer_than_the_sequence);
  tcase_add_test(tests, windows_are_inclusive);
  tcase_add_test(tests, positions_align_at_the_end);
  tcase_add_test(tests, no_keys_at_all);
  tcase_add_test(tests, single_key);
  tcase_add_test(tests, phases_select_by_head);
  tcase_add_test(tests, every_16_bit_value_is_read);
  tcase_add_test(tests, same_branch_twice);
  tcase_add_test(tests, values_of_one_give_one);
  tcase_add_test(tests, causal_does_not_look_ahead);
  tcase_add_test(tests, large_and_equal_scores);
  tcase_add_test(tests, scores_of_minus_infinity);
  tcase_add_test(tests, bad_scores_spoil_their_row_alone);
  tcase_add_test(tests, index_outside_an_input);
  tcase_add_test(tests, mean_divides_by_all_branches);
  tcase_add_test(tests, dropout_leaves_the_denominator);
  tcase_add_test(tests, run_stores_every_row);
  tcase_add_test(tests, run_of_nothing);
  tcase_add_test(tests, run_refuses_wrong_calls);
  tcase_add_test(tests, run_refuses_what_has_no_answer);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  SRunner *runner = srunner_create(oracle_suite());
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
