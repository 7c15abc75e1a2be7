/* test_oracle_gradient.c - the oracle's gradients against finite differences of
 * its forward pass: random patterns of every kind, `gradient detached` against
 * mixing weights that stand still, inputs; the ways to ask for them; and how
 * errors of pairs add up. */
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

/* A pattern, its call and the gradients that the oracle gives. */
typedef struct gradient_case {
  const pattern *p;
  dil_call *call;
  dil_backward_call *back;
  oracle_gradients right;
  const double *mixing; /* [B, N, H, branches]: they stand still; or NULL */
} gradient_case;

static double *new_array(const dil_tensor *x) {
  return ARENA_ARRAY(memory, double, dil_tensor_count(x) + 1);
}

/* ---- the loss ------------------------------------------------------------ */

/* The part of a pattern that one branch is: its own softmax, with its own
 * sinks. */
static const pattern *single_branch(const pattern *p, int32_t index) {
  pattern *one = ARENA_NEW(memory, pattern);
  *one = *p;
  one->branch = &p->branch[index];
  one->branch_count = 1;
  one->sink_count = 0;
  one->detached = false;
  return one;
}

static int64_t row_number(const gradient_case *c, const int64_t at[3]) {
  return (at[0] * c->call->q.shape[1] + at[1]) * c->p->heads + at[2];
}

/* o with the branches' own outputs mixed by weights that stand still. */
static void mix_frozen(const gradient_case *c, const int64_t at[3],
                       double *o) {
  double part[64], lse;
  int64_t Dv = c->p->value_dim;
  memset(o, 0, (size_t)Dv * sizeof *o);
  for (int32_t k = 0; k < c->p->branch_count; k++) {
    double weight =
        c->mixing[row_number(c, at) * c->p->branch_count + k];
    if (weight == 0) continue;
    oracle_row(single_branch(c->p, k), c->call, at[0], at[1], at[2], part,
               &lse);
    for (int64_t d = 0; d < Dv; d++) o[d] += weight * part[d];
  }
}

static double row_loss(const gradient_case *c, const int64_t at[3]) {
  double o[64], lse, loss = 0;
  oracle_row(c->p, c->call, at[0], at[1], at[2], o, &lse);
  if (c->mixing) mix_frozen(c, at, o);
  for (int64_t d = 0; d < c->p->value_dim; d++)
    loss += o[d] * sample_element(&c->back->output, at[0], at[1], at[2], d);
  if (c->back->lse.data == NULL || lse == -INFINITY) return loss;
  return loss + lse * sample_element(&c->back->lse, at[0], at[2], at[1], 0);
}

/* dO . o + dlse . lse of the whole call. */
static double loss_of(const gradient_case *c) {
  double loss = 0;
  int64_t at[3];
  for (at[0] = 0; at[0] < c->call->q.shape[0]; at[0]++)
    for (at[1] = 0; at[1] < c->call->q.shape[1]; at[1]++)
      for (at[2] = 0; at[2] < c->p->heads; at[2]++) loss += row_loss(c, at);
  return loss;
}

/* ---- finite differences -------------------------------------------------- */

static double slope_over(const gradient_case *c, const dil_tensor *x,
                         int64_t element, double step) {
  double loss[2], here = dil_element_read(x->data, x->dtype, element);
  for (int k = 0; k < 2; k++) {
    dil_element_write(x->data, x->dtype, element, here + (k ? step : -step));
    loss[k] = loss_of(c);
  }
  dil_element_write(x->data, x->dtype, element, here);
  return (loss[1] - loss[0]) / (2 * step);
}

/* Central differences of two steps, extrapolated (Richardson). Elements are
 * multiples of 2^-10, so that f32 holds them exactly with the step added. False
 * where a kink lies so near that the two differ. */
static bool find_slope(const gradient_case *c, const dil_tensor *x,
                       int64_t element, double *slope) {
  double wide = slope_over(c, x, element, 0x1p-7);
  double narrow = slope_over(c, x, element, 0x1p-8);
  *slope = (4 * narrow - wide) / 3;
  return fabs(wide - narrow) <= 1e-3 * (1 + fabs(*slope));
}

static int slopes_seen, kinks_seen;

static void check_element(const gradient_case *c, const dil_tensor *x,
                          const double *gradient, int64_t element,
                          const char *name) {
  double slope, is = gradient[element];
  slopes_seen++;
  if (!find_slope(c, x, element, &slope)) {
    kinks_seen++;
    return;
  }
  if (fabs(is - slope) <= 1e-7 * (1 + fabs(slope))) return;
  pattern_print(c->p, stderr);
  ck_abort_msg("%s[%d] is %.12g, not %.12g", name, (int)element, is, slope);
}

/* Some elements of a tensor; all where it has no more. */
static void check_tensor(const gradient_case *c, const dil_tensor *x,
                         const double *gradient, int64_t most,
                         const char *name, uint64_t *state) {
  int64_t count = dil_tensor_count(x);
  for (int64_t k = 0; k < count && k < most; k++)
    check_element(c, x, gradient,
                  count <= most ? k : random_in(state, 0, count - 1), name);
}

static void round_tensor(const dil_tensor *x) {
  for (int64_t e = 0; e < dil_tensor_count(x); e++) {
    double number = dil_element_read(x->data, x->dtype, e);
    dil_element_write(x->data, x->dtype, e, round(number * 1024) / 1024);
  }
}

static gradient_case open_case(const pattern *p, dil_call *call,
                               uint64_t seed) {
  gradient_case c = {.p = p, .call = call};
  round_tensor(&call->q);
  round_tensor(&call->k);
  round_tensor(&call->v);
  c.back = sample_backward(memory, p, call, seed);
  c.right = (oracle_gradients){.dq = new_array(&call->q),
                               .dk = new_array(&call->k),
                               .dv = new_array(&call->v)};
  for (int32_t k = 0; k < p->input_count; k++)
    if (p->input[k].dtype == DIL_F32)
      c.right.inputs[k] = new_array(&call->inputs[k]);
  return c;
}

static void ask_gradients(gradient_case *c) {
  c->back->forward = *c->call;
  dil_status status =
      oracle_gradient_run(c->p, c->back, ORACLE_DEFINED, &c->right);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
}

static void check_operands(const gradient_case *c, uint64_t *state) {
  check_tensor(c, &c->call->q, c->right.dq, 10, "dq", state);
  check_tensor(c, &c->call->k, c->right.dk, 10, "dk", state);
  check_tensor(c, &c->call->v, c->right.dv, 10, "dv", state);
}

/* ---- random patterns ----------------------------------------------------- */

static dil_call *random_call(const pattern *p, uint64_t *state) {
  dil_call *call =
      sample_call(memory, p, random_in(state, 1, 2), random_in(state, 0, 9),
                  random_in(state, 0, 9), random_bits(state));
  if (p->input_count) sample_inputs(memory, p, call, state);
  call->scale = 0.625;
  call->train = random_chance(state, 70);
  if (random_chance(state, 30)) sample_lengths(memory, call, state);
  return call;
}

static pattern *random_case_pattern(uint64_t *state) {
  pattern *p = random_pattern(memory, state, true);
  if (random_chance(state, 30)) p->dropout = 0.25;
  p->scale_kind = (scale_kind)random_in(state, SCALE_DEFAULT, SCALE_RUNTIME);
  if (p->scale_kind == SCALE_FIXED) p->scale = 0.375;
  return p;
}

START_TEST(random_patterns_by_differences) {
  uint64_t state = 77;
  for (int k = 0; k < 300; k++) {
    fresh_memory();
    pattern *p = random_case_pattern(&state);
    dil_call *call = random_call(p, &state);
    gradient_case c = open_case(p, call, random_bits(&state));
    if (random_chance(&state, 30)) c.back->lse.data = NULL;
    ask_gradients(&c);
    check_operands(&c, &state);
  }
  ck_assert_int_gt(slopes_seen, 1000);
  ck_assert_int_eq(kinks_seen, 0);
}
END_TEST

/* A judge that finds half of each weight, and of each dS, in doubt. */
static oracle_error doubt(const void *context, const oracle_pair *pair) {
  const double *part = context;
  double weight = exp(pair->below) < 1 ? exp(pair->below) : 1;
  double slope = weight * fabs(pair->product - pair->delta);
  return (oracle_error){.weight = *part * weight, .slope = *part * slope};
}

static void must_match(const double *part, const double *whole, int64_t count) {
  for (int64_t d = 0; d < count; d++)
    ck_assert_msg(fabs(part[d] - whole[d]) <= 1e-9 * (1 + fabs(whole[d])),
                  "%.12g is not %.12g", part[d], whole[d]);
}

/* A row, a key and the inputs by themselves are those of all rows; a judge
 * changes none of them, and finds errors where there are gradients. */
START_TEST(parts_are_those_of_the_whole) {
  static const double part = 0.5;
  uint64_t state = 79;
  for (int k = 0; k < 60; k++) {
    fresh_memory();
    pattern *p = random_case_pattern(&state);
    dil_call *call = random_call(p, &state);
    gradient_case c = open_case(p, call, random_bits(&state));
    int64_t N = call->q.shape[1], M = call->k.shape[1];
    double row[256], key[256];
    ask_gradients(&c);
    if (N == 0 || M == 0) continue;
    oracle_scatter scatter = {.judge = doubt, .context = &part};
    const int64_t at[3] = {0, random_in(&state, 0, N - 1), p->heads - 1};
    oracle_gradient_query(p, c.back, ORACLE_DEFINED, at, row, &scatter);
    const double *dq = c.right.dq + (at[1] * p->heads + at[2]) * p->head_dim;
    must_match(row, dq, p->head_dim);
    double size = 0;
    for (int64_t d = 0; d < p->head_dim; d++) size += dq[d] * dq[d];
    ck_assert(size == 0 || scatter.dq > 0);
    const int64_t on[3] = {0, random_in(&state, 0, M - 1), p->kv_heads - 1};
    oracle_gradient_key(p, c.back, ORACLE_DEFINED, on, row, key, &scatter);
    int64_t place = on[1] * p->kv_heads + on[2];
    must_match(row, c.right.dk + place * p->head_dim, p->head_dim);
    must_match(key, c.right.dv + place * p->value_dim, p->value_dim);
  }
}
END_TEST

/* exp(lse of the branch - lse) of each row and branch, as they are now. */
static const double *frozen_mixing(const pattern *p, const dil_call *call) {
  int64_t B = call->q.shape[0], N = call->q.shape[1], H = p->heads;
  double *mixing =
      ARENA_ARRAY(memory, double, B * N * H * p->branch_count + 1);
  double o[64], lse, own;
  for (int64_t row = 0; row < B * N * H; row++)
    for (int32_t k = 0; k < p->branch_count; k++) {
      const int64_t at[3] = {row / (N * H), row / H % N, row % H};
      oracle_row(p, call, at[0], at[1], at[2], o, &lse);
      oracle_row(single_branch(p, k), call, at[0], at[1], at[2], o, &own);
      if (own > -INFINITY) mixing[row * p->branch_count + k] = exp(own - lse);
    }
  return mixing;
}

static bool mixes_branches(const pattern *p) {
  return p->combine == DIL_COMBINE_SOFTMAX && p->branch_count > 1;
}

START_TEST(detached_mixing_stands_still) {
  uint64_t state = 78;
  for (int k = 0; k < 300; k++) {
    fresh_memory();
    pattern *p = random_case_pattern(&state);
    if (!mixes_branches(p)) continue;
    dil_call *call = random_call(p, &state);
    p->detached = true;
    gradient_case c = open_case(p, call, random_bits(&state));
    c.mixing = frozen_mixing(p, call);
    ask_gradients(&c);
    check_operands(&c, &state);
  }
  ck_assert_int_gt(slopes_seen, 1000);
  ck_assert_int_eq(kinks_seen, 0);
}
END_TEST

/* ---- inputs -------------------------------------------------------------- */

#define P(body) \
  "pattern p { heads 4 kv 2; head_dim 3 value 5; dtype f32; " body \
  " }"
#define TWO "branch { segment 4; } branch { dilation 2; }"

static const char *const with_inputs[] = {
    P("input t : f32[H, 5]; score s + t[h, (j - i) % 5]; branch { }"),
    P("input t : f32[H]; score s * t[h]; branch { causal; }"),
    P("input t : f32[M]; score s + t[i + 1] - t[j - 2]; branch { }"),
    P("input t : f32[B, M]; input n : i32[M]; "
      "score s + t[b, n[j]] * t[b, j] + t[b, j]; branch { }"),
    P("input t : f32[M]; input c : f32[H]; score s + t[j]; "
      "score c[h] * tanh(s / (2 + t[i])); branch { }"),
    P("input t : f32[M]; score s + exp(t[j]) - log(2 + t[i]) "
      "+ sqrt(3 + t[0]); score -abs(s - t[j]); branch { }"),
    P("input t : f32[M]; score i < j ? s * t[0] : t[1] + s; "
      "score min(max(s, t[j]), 2 + t[i]); branch { }"),
    P("input t : f32[M]; score i % 3 == 1 ? -inf : s + t[j]; branch { }"),
    P("input t : f32[M]; mask t[j] > -2.0; mask int(t[i]) < 5; score s + t[j];"
      "score s + (t[i] < 3.0 ? t[j] : s); branch { }"),
    P("input t : f32[M]; score s + t[j] * t[j] * t[j]; branch { }"),
    P("input t : f32[M]; score s % (5 + t[j]); branch { }"),
    P("input t : f32[M]; score s + t[j]; dropout 0.3; " TWO),
    P("input t : f32[M]; combine union; score s + t[j] * t[i]; " TWO),
    P("input t : f32[M]; input u : f32[H]; combine mean; score s + t[j]; "
      "branch { segment 4; score s * u[h]; } branch { dilation 2; }"),
    P("input t : f32[M]; combine sum; dropout 0.3; score s + t[j]; " TWO),
    P("input t : f32[M]; combine sum; score s + t[j]; "
      "branch { heads 0..1; } branch { heads 2..3; causal; }"),
    P("input z : f32[H]; sink z[h]; branch { causal; }"),
    P("input z : f32[H]; sink z[h]; sink z[h] * z[0]; sink i % 3; dropout 0.3;"
      " score s * z[h]; branch { mask j < i - 2; }"),
    P("input z : f32[H]; sink i % 2 == 0 ? -inf : z[h]; branch { }"),
    P("input z : f32[H]; combine union; sink z[h]; "
      "branch { segment 4; sink 2 * z[0]; } branch { dilation 2; sink z[1]; }"),
    P("input z : f32[H]; combine mean; sink z[h]; dropout 0.3; "
      "branch { segment 4; sink z[0]; } branch { dilation 2; sink z[h]; }"),
    P("input z : f32[H]; combine sum; sink z[h]; "
      "branch { heads 0..1; sink z[3]; } branch { heads 2..3; dilation 2; }"),
    P("input z : f32[N]; input y : f32[B]; sink tanh(z[i]); sink y[b]; "
      "branch { segment 3; sink log(2 + z[2]); } branch { causal; }"),
};
static const char *const with_detached[] = {
    P("input t : f32[M]; gradient detached; score s + t[j]; " TWO),
    P("input t : f32[M]; input u : f32[H]; gradient detached; dropout 0.3; "
      "branch { score s * u[h]; } branch { segment 3; score s + t[j]; }"),
    P("input z : f32[H]; gradient detached; sink z[h]; branch { causal; } "
      "branch { segment 3; }"),
    P("input z : f32[H]; gradient detached; sink z[0]; dropout 0.3; "
      "branch { dilation 2; sink z[h]; } branch { segment 3; sink z[1]; }"),
};
enum {
  WITH_INPUTS = sizeof with_inputs / sizeof *with_inputs,
  WITH_DETACHED = sizeof with_detached / sizeof *with_detached
};

static void check_inputs(const gradient_case *c, uint64_t *state) {
  for (int32_t k = 0; k < c->p->input_count; k++)
    if (c->right.inputs[k])
      check_tensor(c, &c->call->inputs[k], c->right.inputs[k], 100,
                   c->p->input[k].name, state);
}

static void check_text(const char *text, bool detached, uint64_t *state) {
  tested_pattern *s = tested_pattern_new("gradient", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", text, s->problem);
  dil_call *call =
      sample_call(memory, s->pattern, 2, 6, 7, random_bits(state));
  sample_declared(memory, s->pattern, call, state);
  call->train = true;
  call->lengths = (const int32_t[]){7, 5};
  gradient_case c = open_case(s->pattern, call, random_bits(state));
  if (detached) c.mixing = frozen_mixing(s->pattern, call);
  ask_gradients(&c);
  check_operands(&c, state);
  check_inputs(&c, state);
  tested_pattern_free(s);
  ck_assert_int_le(kinks_seen * 8, slopes_seen);
}

START_TEST(inputs_by_differences) {
  uint64_t state = 3;
  check_text(with_inputs[_i], false, &state);
}
END_TEST

START_TEST(detached_inputs_by_differences) {
  uint64_t state = 4;
  check_text(with_detached[_i], true, &state);
}
END_TEST

/* ---- errors -------------------------------------------------------------- */

/* An error of dS for each pair, of its own or shared by the row's keys. */
static oracle_error one_each(const void *context, const oracle_pair *pair) {
  (void)pair;
  const bool *shared = context;
  return *shared ? (oracle_error){.shared = 1} : (oracle_error){.slope = 1};
}

static double norm_sum(const dil_tensor *x, const int64_t at[3], bool squared) {
  double sum = 0;
  for (int64_t row = 0; row < x->shape[1]; row++) {
    double square = 0;
    for (int64_t d = 0; d < x->shape[3]; d++) {
      double is = sample_element(x, at[0], row, at[2], d);
      square += is * is;
    }
    sum += squared ? square : sqrt(square);
  }
  return sum;
}

/* Four and three of a row's seven keys read the elements 0 and 1 of its head;
 * twelve rows have the head. Each of the branches has all keys. */
static void check_errors(gradient_case *c, bool shared) {
  int branches = c->p->branch_count, all = branches * branches;
  double *inputs[DIL_INPUT_MAX] = {c->right.inputs[0]}, row[8], key[8];
  double squares[8] = {0};
  oracle_shared sums[8] = {{0}};
  oracle_scatter to = {.judge = one_each,
                       .context = &shared,
                       .inputs = {squares},
                       .shared = {sums}};
  int64_t at[3];
  for (at[0] = 0; at[0] < 2; at[0]++)
    for (at[1] = 0; at[1] < 6; at[1]++)
      for (at[2] = 0; at[2] < 4; at[2]++)
        oracle_gradient_inputs(c->p, c->back, ORACLE_DEFINED, at, inputs, &to);
  for (int k = 0; k < 8; k++) {
    int keys = k % 2 ? 3 : 4;
    ck_assert_double_eq_tol(squares[k], all * 12 * keys * (shared ? keys : 1),
                            1e-9);
  }
  memcpy(at, (int64_t[]){1, 2, 3}, sizeof at);
  oracle_gradient_query(c->p, c->back, ORACLE_DEFINED, at, row, &to);
  double of_keys = norm_sum(&c->call->k, (int64_t[]){1, 0, 1}, !shared);
  ck_assert_double_eq_tol(to.dq, all * (shared ? of_keys * of_keys : of_keys) / 3,
                          1e-6);
  memcpy(at, (int64_t[]){1, 2, 1}, sizeof at);
  to.dk = 0;
  oracle_gradient_key(c->p, c->back, ORACLE_DEFINED, at, row, key, &to);
  double of_rows = norm_sum(&c->call->q, (int64_t[]){1, 0, 2}, true) +
                   norm_sum(&c->call->q, (int64_t[]){1, 0, 3}, true);
  ck_assert_double_eq_tol(to.dk, all * of_rows / 3, 1e-6);
}

#define TWO_ELEMENTS "input t : f32[H, 2]; score s + t[h, j % 2]; "
static const char *const with_errors[] = {
    P(TWO_ELEMENTS "branch { }"),
    P(TWO_ELEMENTS "branch { } branch { }"),
};
enum { WITH_ERRORS = sizeof with_errors / sizeof *with_errors };

/* Errors that the keys of a row share add up before they are squared, and so do
 * those of a pair that several branches have. Over rows, and over pairs that have
 * errors of their own, squares add up. */
START_TEST(shared_errors_add_up) {
  uint64_t state = 5;
  tested_pattern *s =
      tested_pattern_new("gradient", with_errors[_i], NULL, 0);
  dil_call *call = sample_call(memory, s->pattern, 2, 6, 7, 8);
  sample_declared(memory, s->pattern, call, &state);
  gradient_case c = open_case(s->pattern, call, 9);
  ask_gradients(&c);
  check_errors(&c, true);
  check_errors(&c, false);
  tested_pattern_free(s);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *oracle_gradient_suite(void) {
  Suite *suite = suite_create("oracle_gradient");
  TCase *tests = tcase_create("oracle_gradient");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, random_patterns_by_differences);
  tcase_add_test(tests, detached_mixing_stands_still);
  tcase_add_test(tests, parts_are_those_of_the_whole);
  tcase_add_loop_test(tests, shared_errors_add_up, 0, WITH_ERRORS);
  tcase_add_loop_test(tests, inputs_by_differences, 0, WITH_INPUTS);
  tcase_add_loop_test(tests, detached_inputs_by_differences, 0,
                      WITH_DETACHED);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(oracle_gradient_suite(), CK_FORK_GETENV);
}
