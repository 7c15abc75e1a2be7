/* test_oracle_gradient_cases.c - the oracle's gradients on cases worked by
 * hand: pairs of weight 0, rows and keys without pairs, dropped pairs, kinks,
 * what infinite gradients reach, o and lse of the caller, and calls that it
 * refuses. */
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

/* ---- calls --------------------------------------------------------------- */

static tested_pattern *parsed;

static const pattern *parse(const char *text) {
  tested_pattern_free(parsed);
  parsed = tested_pattern_new("gradient", text, NULL, 0);
  ck_assert_msg(parsed->pattern != NULL, "%s", parsed->problem);
  return parsed->pattern;
}

static void close_cases(void) {
  tested_pattern_free(parsed);
  parsed = NULL;
  close_memory();
}

static dil_backward_call *make_call(const pattern *p, int64_t N, int64_t M) {
  uint64_t state = 6;
  dil_call *call = sample_call(memory, p, 2, N, M, 4);
  sample_declared(memory, p, call, &state);
  call->train = true;
  return sample_backward(memory, p, call, 8);
}

static double *new_array(const dil_tensor *x) {
  return ARENA_ARRAY(memory, double, dil_tensor_count(x) + 1);
}

static oracle_gradients gradients_of(const pattern *p,
                                     const dil_backward_call *back,
                                     oracle_forward forward) {
  oracle_gradients to = {.dq = new_array(&back->forward.q),
                         .dk = new_array(&back->forward.k),
                         .dv = new_array(&back->forward.v)};
  for (int32_t k = 0; k < p->input_count; k++)
    to.inputs[k] = new_array(&back->forward.inputs[k]);
  dil_status status = oracle_gradient_run(p, back, forward, &to);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  return to;
}

static oracle_gradients defined(const pattern *p,
                                const dil_backward_call *back) {
  return gradients_of(p, back, ORACLE_DEFINED);
}

/* Row x[b, n, h] of a tensor's gradient. */
static double *row_of(double *gradient, const dil_tensor *x, int64_t b,
                      int64_t n, int64_t h) {
  return gradient + ((b * x->shape[1] + n) * x->shape[2] + h) * x->shape[3];
}

static void set_row(const dil_tensor *x, int64_t b, int64_t n, int64_t h,
                    double number) {
  for (int64_t d = 0; d < x->shape[3]; d++) sample_set(x, b, n, h, d, number);
}

static void expect_zeros(const double *x, int64_t count, const char *name) {
  for (int64_t d = 0; d < count; d++)
    ck_assert_msg(x[d] == 0, "%s[%d] is %g, not 0", name, (int)d, x[d]);
}

static void expect_finite(const double *x, int64_t count, const char *name) {
  for (int64_t d = 0; d < count; d++)
    ck_assert_msg(isfinite(x[d]), "%s[%d] is %g", name, (int)d, x[d]);
}

static void expect_same(const oracle_gradients *a, const oracle_gradients *b,
                        const dil_call *call) {
  size_t queries = (size_t)dil_tensor_count(&call->q) * sizeof(double);
  size_t keys = (size_t)dil_tensor_count(&call->k) * sizeof(double);
  size_t values = (size_t)dil_tensor_count(&call->v) * sizeof(double);
  ck_assert(memcmp(a->dq, b->dq, queries) == 0);
  ck_assert(memcmp(a->dk, b->dk, keys) == 0);
  ck_assert(memcmp(a->dv, b->dv, values) == 0);
}

/* ---- by hand ------------------------------------------------------------- */

#define NEAR(is, should) ck_assert_double_eq_tol(is, should, 1e-7)

/* Weights 1/3 and 2/3 of the values 1 and 4, so that o is 3. */
START_TEST(two_keys_by_hand) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->scale_kind = SCALE_RUNTIME;
  dil_call *call = sample_call(memory, p, 1, 1, 2, 1);
  double scale = call->scale = log(2) / 2;
  sample_set(&call->q, 0, 0, 0, 0, 2);
  for (int j = 0; j < 2; j++) {
    sample_set(&call->k, 0, j, 0, 0, j);
    sample_set(&call->v, 0, j, 0, 0, 1 + 3 * j);
  }
  dil_backward_call *back = sample_backward(memory, p, call, 1);
  sample_set(&back->output, 0, 0, 0, 0, 1);
  sample_set(&back->lse, 0, 0, 0, 0, 0.5);
  oracle_gradients is = defined(p, back);
  NEAR(is.dv[0], 1.0 / 3);
  NEAR(is.dv[1], 2.0 / 3);
  NEAR(is.dq[0], scale * (2.0 / 3) * 1.5);
  NEAR(is.dk[0], scale * (1.0 / 3) * -1.5 * 2);
  NEAR(is.dk[1], scale * (2.0 / 3) * 1.5 * 2);
}
END_TEST

/* All scores are 0, where abs is flat and min with 0 has half a slope. */
START_TEST(kinks_of_scores) {
  static const char *const text[] = {
      "pattern p { heads 1; head_dim 2; dtype f32; branch { } }",
      "pattern p { heads 1; head_dim 2; dtype f32; score min(s, 0.0); "
      "branch { } }",
      "pattern p { heads 1; head_dim 2; dtype f32; score abs(s); branch { } }",
  };
  static const double slopes[] = {1, 0.5, 0};
  double first[64];
  for (int k = 0; k < 3; k++) {
    const pattern *p = parse(text[k]);
    dil_backward_call *back = make_call(p, 4, 5);
    for (int b = 0; b < 2; b++)
      for (int n = 0; n < 4; n++) set_row(&back->forward.q, b, n, 0, 0);
    const double *dq = defined(p, back).dq;
    for (int e = 0; e < 16; e++) {
      if (k == 0) first[e] = dq[e];
      ck_assert_double_eq(dq[e], slopes[k] * first[e]);
    }
  }
}
END_TEST

START_TEST(kinks_of_inputs) {
  const pattern *p = parse("pattern p { heads 1; head_dim 2; dtype f32; "
                           "input t : f32[M]; score s + max(t[j], 0.0) + abs("
                           "t[j]) + t[9]; branch { } }");
  dil_backward_call *back = make_call(p, 4, 5);
  for (int j = 0; j < 5; j++)
    dil_element_write(back->forward.inputs[0].data, DIL_F32, j, 0);
  double *tied = defined(p, back).inputs[0], sum = 0;
  p = parse("pattern p { heads 1; head_dim 2; dtype f32; "
            "input t : f32[M]; score s + t[j]; branch { } }");
  double *plain = defined(p, back).inputs[0];
  for (int j = 0; j < 5; j++) {
    ck_assert_double_eq(tied[j], plain[j] / 2);
    sum += fabs(plain[j]);
  }
  ck_assert(sum > 0.1);
}
END_TEST

/* ---- pairs that add nothing ---------------------------------------------- */

/* Rows 0..2 have no key, keys 5 and 6 no row, key 7 lies beyond the length. */
START_TEST(no_pairs_no_gradient) {
  const pattern *p = parse("pattern p { heads 2; head_dim 3; dtype f32; "
                           "mask i >= 2 && j < 5; branch { } }");
  dil_backward_call *back = make_call(p, 8, 8);
  back->forward.lengths = (const int32_t[]){7, 7};
  for (int b = 0; b < 2; b++)
    for (int h = 0; h < 2; h++) {
      for (int n = 0; n < 3; n++) {
        set_row(&back->output, b, n, h, n == 1 ? INFINITY : NAN);
        sample_set(&back->lse, b, h, n, 0, NAN);
        set_row(&back->forward.q, b, n, h, NAN);
      }
      for (int j = 5; j < 8; j++) {
        set_row(&back->forward.k, b, j, h, NAN);
        set_row(&back->forward.v, b, j, h, INFINITY);
      }
    }
  oracle_gradients is = defined(p, back);
  const dil_call *call = &back->forward;
  for (int b = 0; b < 2; b++) {
    expect_zeros(row_of(is.dq, &call->q, b, 0, 0), 3 * 6, "dq");
    expect_zeros(row_of(is.dk, &call->k, b, 5, 0), 3 * 6, "dk");
    expect_zeros(row_of(is.dv, &call->v, b, 5, 0), 3 * 6, "dv");
  }
  expect_finite(is.dq, 2 * 8 * 6, "dq");
  expect_finite(is.dk, 2 * 8 * 6, "dk");
  expect_finite(is.dv, 2 * 8 * 6, "dv");
  ck_assert(*row_of(is.dq, &call->q, 0, 3, 0) != 0);
}
END_TEST

/* Weight 0 by a score of -inf, or by one that no f32 holds: NaN and inf in k, v and
 * the slope stay out. */
static const char *const hiding[] = {"-inf", "-3e38"};

START_TEST(scores_of_minus_infinity) {
  char text[300];
  snprintf(text, sizeof text,
           "pattern p { heads 1; head_dim 3; dtype f32; input t : f32[M]; "
           "score j == 2 ? %s : s * t[j]; "
           "score j == 2 ? s + sqrt(t[2]) : s; branch { } }", hiding[_i]);
  const pattern *p = parse(text);
  dil_backward_call *back = make_call(p, 4, 5);
  sample_set(&back->forward.inputs[0], 2, 0, 0, 0, 0);
  oracle_gradients plain = defined(p, back);
  for (int b = 0; b < 2; b++) {
    set_row(&back->forward.k, b, 2, 0, NAN);
    set_row(&back->forward.v, b, 2, 0, INFINITY);
  }
  oracle_gradients is = defined(p, back);
  expect_same(&is, &plain, &back->forward);
  ck_assert_double_eq(is.inputs[0][2], 0);
  ck_assert(is.inputs[0][1] != 0);
}
END_TEST

START_TEST(dropped_pairs) {
  const pattern *p = parse("pattern p { heads 1; head_dim 3; dtype f32; "
                           "dropout 0.5; branch { } }");
  dil_backward_call *back = make_call(p, 1, 20);
  oracle_gradients plain = defined(p, back);
  const dil_call *call = &back->forward;
  int dropped = 0;
  for (int j = 0; j < 20; j++) {
    if (*row_of(plain.dv, &call->v, 0, j, 0) != 0) continue;
    ck_assert(*row_of(plain.dk, &call->k, 0, j, 0) != 0);
    set_row(&call->v, 0, j, 0, NAN);
    dropped++;
  }
  ck_assert(4 < dropped && dropped < 16);
  oracle_gradients is = defined(p, back);
  expect_same(&is, &plain, call);
}
END_TEST

/* ---- numbers that are not finite, or large ------------------------------- */

/* Row 3 sees keys 0..3: no other row, no other key and no other element of a
 * value learns of the infinity. */
START_TEST(infinite_gradients_reach_what_depends_on_them) {
  const pattern *p = parse("pattern p { heads 1; head_dim 3; dtype f32; "
                           "causal; branch { } }");
  dil_backward_call *back = make_call(p, 6, 6);
  sample_set(&back->output, 0, 3, 0, 1, INFINITY);
  oracle_gradients is = defined(p, back);
  for (int n = 0; n < 6; n++)
    for (int d = 0; d < 3; d++) {
      ck_assert_int_eq(!isfinite(is.dq[n * 3 + d]), n == 3);
      ck_assert_int_eq(!isfinite(is.dk[n * 3 + d]), n <= 3);
      ck_assert_int_eq(!isfinite(is.dv[n * 3 + d]), n <= 3 && d == 1);
    }
  expect_finite(is.dq + 18, 18, "dq");
  expect_finite(is.dk + 18, 18, "dk");
}
END_TEST

/* Row 3, by q or by its sink, has no lse: all that it weighs is NaN, but not
 * key 1, which its score of -inf leaves out. */
START_TEST(rows_of_nan_reach_what_they_weigh) {
  const pattern *p = parse("pattern p { heads 1; head_dim 3; dtype f32; "
                           "causal; input z : f32[N]; sink z[i]; "
                           "score j == 1 ? -inf : s; branch { } }");
  for (int by_sink = 0; by_sink < 2; by_sink++) {
    dil_backward_call *back = make_call(p, 6, 6);
    if (by_sink)
      dil_element_write(back->forward.inputs[0].data, DIL_F32, 3, INFINITY);
    else
      set_row(&back->forward.q, 0, 3, 0, NAN);
    oracle_gradients is = defined(p, back);
    for (int n = 0; n < 6; n++) {
      bool weighed = n <= 3 && n != 1;
      ck_assert_int_eq(isnan(is.dq[n * 3]), n == 3);
      ck_assert_int_eq(isnan(is.dk[n * 3]), weighed);
      ck_assert_int_eq(isnan(is.dv[n * 3]), weighed);
      ck_assert_int_eq(isnan(is.inputs[0][n]), n == 3);
    }
  }
}
END_TEST

START_TEST(large_scores) {
  const pattern *p = parse("pattern p { heads 1; head_dim 3; dtype f32; "
                           "scale 1e5; causal; branch { } }");
  dil_backward_call *back = make_call(p, 12, 12);
  ck_assert_int_eq(oracle_run(p, &back->forward), DIL_OK);
  oracle_gradients is = gradients_of(p, back, ORACLE_SAVED);
  expect_finite(is.dq, 72, "dq");
  expect_finite(is.dk, 72, "dk");
  for (int e = 0; e < 72; e++) ck_assert(fabs(is.dv[e]) <= 12);
}
END_TEST

/* ---- o and lse of the caller --------------------------------------------- */

START_TEST(saved_rows_are_taken) {
  const pattern *p = parse("pattern p { heads 2; head_dim 3; dtype f32; "
                           "branch { segment 4; } branch { dilation 2; } }");
  dil_backward_call *back = make_call(p, 8, 8);
  ck_assert_int_eq(oracle_run(p, &back->forward), DIL_OK);
  oracle_gradients right = defined(p, back);
  oracle_gradients is = gradients_of(p, back, ORACLE_SAVED);
  for (int e = 0; e < 2 * 8 * 6; e++) {
    ck_assert_double_eq_tol(is.dq[e], right.dq[e], 1e-6);
    ck_assert_double_eq_tol(is.dk[e], right.dk[e], 1e-6);
    ck_assert_double_eq_tol(is.dv[e], right.dv[e], 1e-6);
  }
  const dil_tensor *lse = &back->forward.lse;
  for (int64_t e = 0; e < dil_tensor_count(lse); e++) {
    double number = dil_element_read(lse->data, DIL_F32, e);
    dil_element_write(lse->data, DIL_F32, e, number + log(2));
  }
  oracle_gradients half = gradients_of(p, back, ORACLE_SAVED);
  for (int e = 0; e < 2 * 8 * 6; e++)
    ck_assert_double_eq_tol(2 * half.dv[e], is.dv[e], 1e-6);
}
END_TEST

/* Numbers that bf16 holds have the same gradients in bf16 and in f32. */
START_TEST(types_of_storage) {
  pattern *narrow = make_pattern(memory, 4, 2, 3, 5, 1), *wide;
  narrow->dtype = DIL_BF16;
  dil_backward_call *back = make_call(narrow, 5, 6), copy = *back;
  wide = ARENA_NEW(memory, pattern);
  *wide = *narrow;
  wide->dtype = DIL_F32;
  dil_tensor *tensors[] = {&copy.forward.q, &copy.forward.k, &copy.forward.v,
                           &copy.output};
  for (int k = 0; k < 4; k++) {
    dil_tensor *x = tensors[k], old = *x;
    x->dtype = DIL_F32;
    x->data = ARENA_ARRAY(memory, float, dil_tensor_count(x));
    for (int64_t e = 0; e < dil_tensor_count(x); e++)
      dil_element_write(x->data, DIL_F32, e,
                        dil_element_read(old.data, DIL_BF16, e));
  }
  copy.forward.o.dtype = DIL_F32;
  oracle_gradients a = defined(narrow, back), b = defined(wide, &copy);
  expect_same(&a, &b, &copy.forward);
}
END_TEST

static void expect_near(const double *a, const double *b, int64_t count) {
  for (int64_t e = 0; e < count; e++)
    ck_assert_double_eq_tol(a[e], b[e], 1e-12);
}

/* A branch's sink that became the pattern's would lose its part of dO . o where
 * the mixing of branches is detached. */
START_TEST(normalised_patterns_have_the_same_gradients) {
  static const char *const text[] = {
      "pattern p { heads 2; head_dim 3; dtype f32; input z : f32[H]; "
      "gradient detached; branch { causal; sink z[h]; } "
      "branch { segment 3; } }",
      "pattern p { heads 2; head_dim 3; dtype f32; input z : f32[H]; "
      "branch { causal; sink z[h]; mask i / 4 == j / 4; } }",
      "pattern p { heads 2; head_dim 3; dtype f32; input z : f32[H]; sink z[h];"
      "mask i / 4 == j / 4 || i / 6 == j / 6 && i % 2 == 0 && j % 2 == 0; "
      "branch { } }",
  };
  const pattern *p = parse(text[_i]);
  dil_backward_call *back = make_call(p, 7, 9);
  oracle_gradients a = defined(p, back);
  oracle_gradients b = defined(pattern_normalise(memory, p), back);
  expect_near(a.dq, b.dq, dil_tensor_count(&back->forward.q));
  expect_near(a.dk, b.dk, dil_tensor_count(&back->forward.k));
  expect_near(a.dv, b.dv, dil_tensor_count(&back->forward.v));
  expect_near(a.inputs[0], b.inputs[0], 2);
}
END_TEST

/* Small multiples of 1/64 are the same numbers in every type. */
START_TEST(inputs_of_every_type) {
  static const char *const types[] = {"f32", "bf16", "f16"};
  double first[64];
  for (int k = 0; k < 3; k++) {
    const pattern *p = parse(arena_print(
        memory, "pattern p { heads 2; head_dim 3; dtype f32; input t : %s[H, M]"
        "; sink t[h, 0]; score s * t[h, j] + t[h, i]; branch { } }", types[k]));
    dil_backward_call *back = make_call(p, 6, 7);
    const double *dt = defined(p, back).inputs[0];
    for (int e = 0; e < 14; e++) {
      if (k == 0) first[e] = dt[e];
      ck_assert(dt[e] == first[e] && dt[e] != 0);
    }
  }
}
END_TEST

/* ---- refusals ------------------------------------------------------------ */

static void expect_refusal(const pattern *p, const dil_backward_call *back,
                           const char *text) {
  const oracle_gradients none = {0};
  ck_assert_int_eq(oracle_gradient_run(p, back, ORACLE_DEFINED, &none),
                   DIL_USAGE);
  ck_assert_msg(strstr(dil_last_error(), text), "%s", dil_last_error());
}

START_TEST(wrong_calls_are_refused) {
  pattern *p = make_pattern(memory, 2, 1, 3, 3, 2);
  dil_backward_call *back = make_call(p, 4, 4);
  back->output.shape[3] = 2;
  expect_refusal(p, back, "the gradient of o has size 2 in dimension 3, not 3");
  back = make_call(p, 4, 4);
  back->lse.shape[1] = 1;
  expect_refusal(p, back, "the gradient of lse has size 1 in dimension 1");
  back = make_call(p, 4, 4);
  back->forward.lse.data = NULL;
  p->combine = DIL_COMBINE_SUM;
  expect_refusal(p, back, "has no lse");
  back->lse.data = NULL;
  back->forward.q.shape[2] = 9;
  expect_refusal(p, back, "q has size 9");
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *oracle_gradient_cases_suite(void) {
  Suite *suite = suite_create("oracle_gradient_cases");
  TCase *tests = tcase_create("oracle_gradient_cases");
  tcase_add_checked_fixture(tests, open_memory, close_cases);
  tcase_add_test(tests, two_keys_by_hand);
  tcase_add_test(tests, kinks_of_scores);
  tcase_add_test(tests, kinks_of_inputs);
  tcase_add_test(tests, no_pairs_no_gradient);
  tcase_add_loop_test(tests, scores_of_minus_infinity, 0, 2);
  tcase_add_test(tests, dropped_pairs);
  tcase_add_test(tests, infinite_gradients_reach_what_depends_on_them);
  tcase_add_test(tests, rows_of_nan_reach_what_they_weigh);
  tcase_add_test(tests, large_scores);
  tcase_add_test(tests, saved_rows_are_taken);
  tcase_add_test(tests, types_of_storage);
  tcase_add_loop_test(tests, normalised_patterns_have_the_same_gradients, 0, 3);
  tcase_add_test(tests, inputs_of_every_type);
  tcase_add_test(tests, wrong_calls_are_refused);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(oracle_gradient_cases_suite(), CK_FORK_GETENV);
}
