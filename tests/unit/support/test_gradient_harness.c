/* test_gradient_harness.c - the harness of backward calls notices what it is
 * there to notice, in every layout; and the laws of gradients hold for the
 * oracle's and are broken by wrong ones. */
#include "tests/support/gradients.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

#define P(body) "pattern p { heads 4 kv 2; head_dim 5 value 3; dtype f32; " \
                body " }"
#define TWO "branch { segment 6; } branch { dilation 2; }"

static tested_pattern *s;
static gradient_data *g;

static void close_data(void) {
  gradient_data_free(g);
  tested_pattern_free(s);
  g = NULL;
  s = NULL;
}

/* What a right kernel writes. */
static void store_right(void) {
  for (int32_t k = 0; k < g->result_count; k++) {
    const dil_tensor *x = g->result[k].tensor;
    int64_t at[DIL_RANK_MAX] = {0}, element = 0;
    bool more = dil_tensor_count(x) > 0;
    for (; more; more = tensor_next(x, at))
      dil_element_write(x->data, x->dtype, tensor_index(x, at),
                        g->result[k].right[element++]);
  }
}

static void open_data(const char *text, gradient_shape shape) {
  close_data();
  s = tested_pattern_new("gradients", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  if (!shape.call.batch) shape.call.batch = 2;
  if (!shape.call.queries) shape.call.queries = 13;
  if (!shape.call.keys) shape.call.keys = 15;
  shape.call.seed = 5;
  g = gradient_data_new(s, shape);
}

static float *element_of(dil_tensor *x, int64_t b, int64_t n, int64_t h,
                         int64_t d) {
  return (float *)x->data + tensor_index(x, (int64_t[]){b, n, h, d});
}

static void expect_problem(const char *text) {
  const char *problem = gradient_data_compare(g);
  ck_assert_msg(strstr(problem, text) != NULL, "'%s' in '%s'", text, problem);
  store_right();
  ck_assert_str_eq(gradient_data_compare(g), "");
}

/* ---- the comparison ------------------------------------------------------ */

/* Row 3 has no key, and key 2 no row. */
#define HOLES P("mask i != 3 && j != 2; branch { }")

START_TEST(faults_are_noticed) {
  open_data(HOLES, (gradient_shape){.call.keys = 13,
                                    .layout[GRADIENT_DK] = GUARD_HOLES});
  expect_problem("dq[0, 0, 0, 0] is finite in one of both: nan");
  *element_of(&g->call.dv, 1, 4, 1, 2) += 0.01f;
  expect_problem("dv off by");
  *element_of(&g->call.dk, 1, 4, 1, 2) = INFINITY;
  expect_problem("dk[1, 4, 1, 2] is finite in one of both: inf");
  *element_of(&g->call.dq, 0, 3, 1, 2) = 1e-30f;
  expect_problem("dq[0, 3, 1, 2] is not exactly 0");
  *element_of(&g->call.dk, 1, 2, 0, 1) = 1e-30f;
  expect_problem("dk[1, 2, 0, 1] is not exactly 0");
  *element_of(&g->call.dv, 1, 2, 0, 1) = 1e-30f;
  expect_problem("dv[1, 2, 0, 1] is not exactly 0");
  float *beside = element_of(&g->call.dk, 0, 0, 0, 5), before = *beside;
  *beside = 0;
  ck_assert_str_eq(gradient_data_compare(g),
                   "wrote beside the elements of dk");
  *beside = before;
  ck_assert_str_eq(gradient_data_compare(g), "");
}
END_TEST

/* One key: dP is delta, and dq and dk are what rounding leaves. */
START_TEST(cancelled_gradients_are_judged_by_their_terms) {
  open_data(P("branch { }"),
            (gradient_shape){.call.keys = 1, .without_dlse = true});
  store_right();
  *element_of(&g->call.dq, 1, 4, 1, 2) += 1e-7f;
  ck_assert_str_eq(gradient_data_compare(g), "");
  *element_of(&g->call.dq, 1, 4, 1, 2) += 1e-4f;
  expect_problem("dq off by");
  *element_of(&g->call.dk, 1, 0, 1, 2) += 1e-7f;
  ck_assert_str_eq(gradient_data_compare(g), "");
  *element_of(&g->call.dk, 1, 0, 1, 2) += 1e-4f;
  expect_problem("dk off by");
}
END_TEST

/* The derivative of sqrt(abs(s)) moves as far as s does near 0. */
static double no_product(int32_t tensor, const int64_t *at, double number) {
  if (tensor == 0) return at[3] == 0 ? 1 : at[3] == 1 ? -1 : 0;
  double base = 1 + 0.1 * (double)at[1];
  return tensor == 1 && at[3] < 2 ? base + (double)at[3] * 1e-6 * number
                                  : number;
}

START_TEST(slopes_that_bend_are_judged_by_the_rounding_of_scores) {
  for (int bends = 0; bends < 2; bends++) {
    open_data(bends ? P("score s + sqrt(abs(s)); branch { }") : P("branch { }"),
              (gradient_shape){.call.element = no_product});
    store_right();
    for (int64_t n = 0; n < 13; n++)
      *element_of(&g->call.dq, 0, n, 0, 1) *= 1.001f;
    ck_assert_int_eq(gradient_data_compare(g)[0] == 0, bends);
  }
}
END_TEST

START_TEST(every_layout_is_written) {
  for (int which = 0; which < GRADIENT_TENSORS; which++)
    for (int layout = 0; layout < GUARD_LAYOUT_COUNT; layout++) {
      gradient_shape shape = {.call = {.at_start = layout % 2}};
      shape.layout[which] = (guard_layout)layout;
      open_data(P("input t : f32[H] gradient; score s + t[h]; " TWO), shape);
      ck_assert_int_eq(g->result_count, 4);
      ck_assert_ptr_nonnull(strstr(gradient_data_compare(g), "nan"));
      store_right();
      ck_assert_str_eq(gradient_data_compare(g), "");
      gradient_data_forget(g);
      ck_assert_ptr_nonnull(strstr(gradient_data_compare(g), "nan"));
    }
}
END_TEST

START_TEST(gradients_that_are_not_wanted_have_no_place) {
  open_data(P("branch { }"), (gradient_shape){.unwanted = 1 << GRADIENT_DK,
                                              .without_dlse = true,
                                              .without_lse = true});
  ck_assert_int_eq(g->result_count, 2);
  ck_assert_ptr_null(g->call.dk.data);
  ck_assert_ptr_null(g->call.lse.data);
  ck_assert_ptr_null(g->call.forward.lse.data);
  store_right();
  ck_assert_str_eq(gradient_data_compare(g), "");
  ck_assert_str_eq(gradient_laws(s->pattern, &g->call, 1e-6), "");
}
END_TEST

START_TEST(narrow_patterns_have_wide_gradients_where_asked) {
  for (int wide = 0; wide < 2; wide++) {
    open_data("pattern p { heads 2; head_dim 8; dtype bf16; branch { } }",
              (gradient_shape){.wide = wide});
    ck_assert_int_eq(g->call.dq.dtype, wide ? DIL_F32 : DIL_BF16);
    store_right();
    ck_assert_str_eq(gradient_data_compare(g), "");
  }
}
END_TEST

/* A call that chooses has the lists that the definition chooses. */
START_TEST(chosen_blocks_have_gradients) {
  open_data(P("causal; block 4; keep top 1 by mean; branch { }"),
            (gradient_shape){.call.keys = 13});
  store_right();
  for (int64_t row = 0; row < 13; row++)
    ck_assert(isfinite(*element_of(&g->call.dq, 1, row, 3, 0)));
  ck_assert(*element_of(&g->call.dv, 1, 0, 1, 2) != 0);
  ck_assert_str_eq(gradient_laws(s->pattern, &g->call, 1e-6), "");
}
END_TEST

/* ---- the laws ------------------------------------------------------------ */

static const char *const lawful[] = {
    P("branch { }"),
    P("causal; " TWO),
    P("mask (i * 7 + j) % 3 != 0; branch { }"),
    P("combine union; causal; branch { window 3, 0; } branch { mask j < 3; }"),
    P("combine mean; " TWO),
    P("combine sum; dropout 0.3; " TWO),
    P("gradient detached; " TWO),
    P("dropout 0.4; " TWO),
    P("input t : f32[H]; score s - t[h] * abs(i - j); branch { }"),
    P("score 2 * tanh(s / 2); " TWO),
    P("segments 4, 8; dilations 3, 5;"),
    P("combine sum; branch { heads 0..2; causal; } branch { heads 3..3; }"),
    P("input z : f32[H]; sink z[h]; causal; " TWO),
    P("input z : f32[H]; sink z[h]; mask j > i; dropout 0.4; branch { }"),
    P("input z : f32[H]; combine union; branch { segment 6; sink z[h]; } "
      "branch { dilation 2; sink z[0]; sink 1; }"),
    P("input z : f32[H]; gradient detached; sink z[h]; "
      "branch { segment 6; sink z[h]; } branch { dilation 2; }"),
    P("input z : f32[H]; combine mean; sink z[h]; " TWO),
};
enum { LAWFUL = sizeof lawful / sizeof *lawful };

START_TEST(laws_hold) {
  for (int layout = 0; layout < GUARD_LAYOUT_COUNT; layout++) {
    gradient_shape shape = {.call = {.layout = (guard_layout)layout,
                                     .train = true,
                                     .dropout_seed = 9,
                                     .lengths = (int32_t[]){15, 9}}};
    open_data(lawful[_i], shape);
    store_right();
    const char *broken = gradient_laws(s->pattern, &g->call, 1e-6);
    ck_assert_msg(broken[0] == 0, "%s: %s", lawful[_i], broken);
  }
}
END_TEST

static void expect_broken(float *at, const char *law) {
  float before = *at;
  *at += 0.01f;
  const char *broken = gradient_laws(s->pattern, &g->call, 1e-6);
  ck_assert_msg(strstr(broken, law) == broken, "'%s' in '%s'", law, broken);
  *at = before;
  ck_assert_str_eq(gradient_laws(s->pattern, &g->call, 1e-6), "");
}

START_TEST(wrong_gradients_break_laws) {
  open_data(P("branch { }"), (gradient_shape){.call.clean = true});
  store_right();
  expect_broken(element_of(&g->call.dq, 1, 2, 3, 4), "sum dq . q");
  expect_broken(element_of(&g->call.dv, 1, 2, 1, 2), "sum dv . v");
  *element_of(&g->call.dk, 1, 2, 1, 2) = 0;
  ck_assert_str_ne(gradient_laws(s->pattern, &g->call, 1e-6), "");
}
END_TEST

/* An output that is NaN by its definition leaves the laws nothing to say of its
 * key/value head; they hold of the other one. */
START_TEST(laws_are_silent_where_outputs_are_undefined) {
  open_data(P("score h == 0 && j == 2 ? -inf : s;"
              " branch { score s + sqrt(abs(s)); }"),
            (gradient_shape){.call.clean = true});
  store_right();
  ck_assert(isnan(*element_of(&g->call.forward.o, 0, 5, 0, 0)));
  ck_assert(isnan(*element_of(&g->call.dq, 0, 5, 0, 0)));
  ck_assert_str_eq(gradient_laws(s->pattern, &g->call, 1e-6), "");
  expect_broken(element_of(&g->call.dq, 1, 2, 3, 4), "sum dq . q");
  *element_of(&g->call.dq, 1, 2, 3, 4) = NAN;
  ck_assert_str_ne(gradient_laws(s->pattern, &g->call, 1e-6), "");
}
END_TEST

/* What moves from one key to another is noticed by no sum of all keys, but by
 * the sums with v and k; what is orthogonal to k by the sum over keys. */
START_TEST(laws_complete_each_other) {
  open_data(P("branch { }"), (gradient_shape){.call.clean = true});
  store_right();
  const dil_tensor *k = &g->call.forward.k;
  float *dk = element_of(&g->call.dk, 0, 4, 0, 0);
  double a = dil_element_read(k->data, DIL_F32, tensor_index(k, (int64_t[]){
                                                    0, 4, 0, 0}));
  double b = dil_element_read(k->data, DIL_F32, tensor_index(k, (int64_t[]){
                                                    0, 4, 0, 1}));
  dk[0] += (float)(0.01 * b);
  dk[1] -= (float)(0.01 * a);
  ck_assert_ptr_nonnull(
      strstr(gradient_laws(s->pattern, &g->call, 1e-6), "sum dk = scale"));
  store_right();
  float *dv = element_of(&g->call.dv, 0, 4, 0, 0);
  const dil_tensor *v = &g->call.forward.v;
  a = dil_element_read(v->data, DIL_F32,
                       tensor_index(v, (int64_t[]){0, 4, 0, 0}));
  b = dil_element_read(v->data, DIL_F32,
                       tensor_index(v, (int64_t[]){0, 4, 0, 1}));
  dv[0] += (float)(0.01 * b);
  dv[1] -= (float)(0.01 * a);
  ck_assert_ptr_nonnull(
      strstr(gradient_laws(s->pattern, &g->call, 1e-6), "sum dv = sum dO"));
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *gradient_harness_suite(void) {
  Suite *suite = suite_create("gradient_harness");
  TCase *tests = tcase_create("gradient_harness");
  tcase_add_checked_fixture(tests, NULL, close_data);
  tcase_add_test(tests, faults_are_noticed);
  tcase_add_test(tests, cancelled_gradients_are_judged_by_their_terms);
  tcase_add_test(tests, slopes_that_bend_are_judged_by_the_rounding_of_scores);
  tcase_add_test(tests, every_layout_is_written);
  tcase_add_test(tests, gradients_that_are_not_wanted_have_no_place);
  tcase_add_test(tests, narrow_patterns_have_wide_gradients_where_asked);
  tcase_add_test(tests, chosen_blocks_have_gradients);
  tcase_add_loop_test(tests, laws_hold, 0, LAWFUL);
  tcase_add_test(tests, wrong_gradients_break_laws);
  tcase_add_test(tests, laws_are_silent_where_outputs_are_undefined);
  tcase_add_test(tests, laws_complete_each_other);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(gradient_harness_suite(), CK_FORK_GETENV);
}
