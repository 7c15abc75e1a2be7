/* test_oracle_cases.c - the oracle on cases worked by hand, and on the edge
 * table of the language reference. */
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>

/* ---- by hand ------------------------------------------------------------- */

static dil_call *small_call(const pattern *p, int64_t N, int64_t M,
                            const double *q, const double *k,
                            const double *v) {
  dil_call *call = sample_call(memory, p, 1, N, M, 1);
  for (int64_t n = 0; n < N; n++) sample_set(&call->q, 0, n, 0, 0, q[n]);
  for (int64_t j = 0; j < M; j++) {
    sample_set(&call->k, 0, j, 0, 0, k[j]);
    sample_set(&call->v, 0, j, 0, 0, v[j]);
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
  dil_call *call = sample_call(memory, p, 1, 4, 4, 9);
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
    dil_call *call = sample_call(memory, p, 1, 1, 1, 2);
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
  dil_call *call = sample_call(memory, once, 1, 13, 13, 4);
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
    dil_call *call = sample_call(memory, p, 1, 15, 15, (uint64_t)k);
    sample_inputs(memory, p, call, &state);
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
  dil_call *call = sample_call(memory, p, 1, 12, 12, 6);
  double before[12];
  for (int64_t n = 0; n < 12; n++) before[n] = row_value(p, call, n, NULL);
  for (int64_t j = 7; j < 12; j++) {
    sample_set(&call->k, 0, j, 0, 1, 99);
    sample_set(&call->v, 0, j, 0, 0, -99);
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

static pattern *scored_pattern(expr *score) {
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
  pattern *p = scored_pattern(except_key_one(-INFINITY));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 2.5);
  ck_assert_double_eq_tol(lse, log(2), 1e-15);
  p = scored_pattern(make_real(memory, -INFINITY));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 0);
  ck_assert(lse == -INFINITY);
}
END_TEST

/* From 2.3e38 on a score counts as infinite, as in kernels. */
START_TEST(scores_beyond_f32) {
  double lse;
  pattern *p = scored_pattern(except_key_one(-2.4e38));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 2.5);
  ck_assert_double_eq_tol(lse, log(2), 1e-15);
  p = scored_pattern(make_real(memory, -2.4e38));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 0);
  ck_assert(lse == -INFINITY);
  p = scored_pattern(except_key_one(2.4e38));
  ck_assert(isnan(mean_seen(p, 1, 3, 0, &lse)) && isnan(lse));
  p = scored_pattern(except_key_one(2.3e38));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 2);
  ck_assert_double_eq(lse, 2.3e38);
  p = scored_pattern(make_real(memory, -2.3e38));
  ck_assert_double_eq(mean_seen(p, 1, 3, 0, &lse), 7.0 / 3);
  ck_assert_double_eq(lse, -2.3e38);
}
END_TEST

START_TEST(bad_scores_spoil_their_row_alone) {
  const double bad[2] = {NAN, INFINITY};
  for (int k = 0; k < 2; k++) {
    pattern *p = scored_pattern(except_key_one(bad[k]));
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
  sample_inputs(memory, p, call, &state);
  for (int64_t j = 0; j < 3; j++)
    dil_element_write(call->inputs[DOC].data, DIL_I32, j, 1);
  ck_assert_double_eq(row_value(p, call, 0, NULL), 7);
}
END_TEST

/* 0.7 * 90 is 63 in f32, and less in the float64 of the oracle's scores: keys
 * whose number comes to 63 read doc[b, 3] and have a score of -inf. */
START_TEST(int_in_a_score_is_of_f32) {
  expr *j = make_leaf(memory, EXPR_J_);
  expr *ninety = make_number(memory, EXPR_ADD, j, make_int(memory, 90));
  expr *product =
      make_number(memory, EXPR_MUL, make_real(memory, 0.7), ninety);
  expr *at = make_number(memory, EXPR_SUB, make_whole(memory, product),
                         make_int(memory, 60));
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  add_inputs(memory, p);
  expr *read = make_input(memory, DOC, TYPE_I32, make_leaf(memory, EXPR_B_),
                          at);
  add_score(memory, &p->branch[0],
            make_expr(memory, EXPR_CHOOSE, TYPE_F32, 3,
                      make_condition(memory, EXPR_EQ, read,
                                     make_int(memory, 1)),
                      make_real(memory, -INFINITY),
                      make_leaf(memory, EXPR_S_)));
  double zero[4] = {0}, v[4] = {5, 6, 7, 8};
  dil_call *call = small_call(p, 4, 4, zero, zero, v);
  uint64_t state = 1;
  sample_inputs(memory, p, call, &state);
  for (int64_t k = 0; k < 4; k++)
    dil_element_write(call->inputs[DOC].data, DIL_I32, k, k == 3);
  /* 0.7 * 91 .. 0.7 * 93 are 63.7, 64.4 and 65.1 */
  ck_assert_double_eq(row_value(p, call, 0, NULL), 7.5);
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

/* ---- the suite ----------------------------------------------------------- */

static Suite *oracle_cases_suite(void) {
  Suite *suite = suite_create("oracle_cases");
  TCase *tests = tcase_create("oracle_cases");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
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
  tcase_add_test(tests, scores_beyond_f32);
  tcase_add_test(tests, bad_scores_spoil_their_row_alone);
  tcase_add_test(tests, index_outside_an_input);
  tcase_add_test(tests, int_in_a_score_is_of_f32);
  tcase_add_test(tests, mean_divides_by_all_branches);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(oracle_cases_suite(), CK_FORK_GETENV);
}
