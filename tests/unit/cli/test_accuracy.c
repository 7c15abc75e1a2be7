/* test_accuracy.c - the judge of `--check` is itself judged: right outputs are
 * good, and each way to be wrong is found and located. Also the sizes that a
 * command line settles, and the plain counts of cost.c. */
#include "compiler/analysis/cost.h"
#include "compiler/cli/accuracy.h"
#include "compiler/cli/rounding.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/random.h"
#include "tests/support/check_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The words of a `dil run`, options alone. */
static dil_status set_up(const char *text, const char *words) {
  char *argv[32] = {"run", "test.dil"};
  int argc = 2;
  char *rest = arena_copy(memory, words, strlen(words));
  for (char *word = strtok(rest, " "); word; word = strtok(NULL, " "))
    argv[argc++] = word;
  return open_call(text, argc, argv);
}

#define PATTERN(type, rest)                                                    \
  "pattern p { heads 2; head_dim 8; dtype " type "; " rest " }"
#define WORDS "--seq 30 --batch 2 --random 1 --threads 1"

/* A bound call whose outputs are the oracle's. */
static void set_up_rightly(const char *text, const char *words) {
  ck_assert_int_eq(set_up(text, words), DIL_OK);
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
}

static accuracy check_within(double budget) {
  cover_count count;
  accuracy v;
  measure_cover(&bound, 32, 128, &count);
  ck_assert_int_eq(accuracy_check(&bound, count.pairs, budget, &v), DIL_OK);
  return v;
}

/* o[1, 17, 1, 3], in the middle of things */
enum { B = 1, N = 17, H = 1, D = 3, PLACE = ((B * 30 + N) * 2 + H) * 8 + D };

static void damage_output(double wrong) {
  dil_element_write(bound.call.o.data, bound.call.o.dtype, PLACE, wrong);
}

static void check_located(const accuracy *v) {
  ck_assert(!v->good);
  ck_assert_int_eq(v->worst.b, B);
  ck_assert_int_eq(v->worst.n, N);
  ck_assert_int_eq(v->worst.h, H);
  ck_assert_int_eq(v->worst.d, D);
}

/* ---- accuracy ------------------------------------------------------------ */

static const char *const patterns[] = {
    PATTERN("f32", "branch { }"),
    PATTERN("bf16", "causal; branch { segment 8; } branch { dilation 3; }"),
    PATTERN("f16", "branch { segment 7; dilation 2; }"),
    PATTERN("f32", "combine mean; branch { segment 8; } branch { }"),
};

START_TEST(the_oracle_is_good) {
  set_up_rightly(patterns[_i], WORDS);
  accuracy v = check_within(ACCURACY_BUDGET);
  ck_assert(v.good);
  ck_assert_int_eq(v.nan_rows, 0);
  ck_assert_int_eq(v.rows, 120);
  ck_assert_int_eq(v.total, 120);
  bool has_lse = pattern_has_lse(bound.pattern);
  ck_assert(has_lse == !isnan(v.lse_error));
  ck_assert(v.rel_error > 0 && v.rel_error < v.bound);
}
END_TEST

START_TEST(one_wrong_element_is_found) {
  set_up_rightly(patterns[_i], WORDS);
  damage_output(3);
  accuracy v = check_within(ACCURACY_BUDGET);
  check_located(&v);
  ck_assert_double_eq(v.worst.got, 3);
}
END_TEST

START_TEST(a_nan_is_found) {
  set_up_rightly(patterns[_i], WORDS);
  damage_output(NAN);
  accuracy v = check_within(ACCURACY_BUDGET);
  check_located(&v);
}
END_TEST

START_TEST(an_infinity_is_found) {
  set_up_rightly(patterns[_i], WORDS);
  damage_output(INFINITY);
  accuracy v = check_within(ACCURACY_BUDGET);
  check_located(&v);
}
END_TEST

START_TEST(what_was_never_written_is_found) {
  set_up_rightly(patterns[_i], WORDS);
  call_setup_wipe(&bound);
  ck_assert(!check_within(ACCURACY_BUDGET).good);
}
END_TEST

START_TEST(expected_nans_are_good) {
  ck_assert_int_eq(set_up(patterns[0], WORDS), DIL_OK);
  ((float *)bound.call.q.data)[40] = NAN;
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
  accuracy v = check_within(ACCURACY_BUDGET);
  ck_assert(v.good);
  ck_assert_int_eq(v.nan_rows, 1);
}
END_TEST

START_TEST(a_wrong_lse_is_found) {
  set_up_rightly(patterns[0], WORDS);
  ((float *)bound.call.lse.data)[(B * 2 + H) * 30 + N] += 1e-3f;
  accuracy v = check_within(ACCURACY_BUDGET);
  ck_assert(!v.good);
  ck_assert_int_eq(v.worst.n, N);
  ck_assert_int_eq(v.worst.h, H);
  ck_assert_int_eq(v.worst.d, -1);
}
END_TEST

/* Rows at odd positions have no key: O = 0 and lse = -inf, exactly. */
START_TEST(rows_without_keys_are_exact) {
  const char *text = PATTERN("f32", "branch { dilation 2; phase 0; }");
  set_up_rightly(text, WORDS);
  ck_assert(check_within(ACCURACY_BUDGET).good);
  ((float *)bound.call.lse.data)[(B * 2 + H) * 30 + N] = -1e30f;
  ck_assert(!check_within(ACCURACY_BUDGET).good);
}
END_TEST

/* A few rows of many: as many as the budget, and all wrong is seen. */
START_TEST(some_rows_of_many) {
  set_up_rightly(patterns[0], WORDS);
  accuracy v = check_within(1e-12);
  ck_assert(v.good);
  ck_assert_int_eq(v.rows, 64);
  ck_assert_int_eq(v.total, 120);
  call_setup_wipe(&bound);
  ck_assert(!check_within(1e-12).good);
}
END_TEST

/* ---- large scores -------------------------------------------------------- */

static void wipe_output(void) {
  int64_t count = dil_tensor_count(&bound.call.o);
  for (int64_t e = 0; e < count; e++)
    dil_element_write(bound.call.o.data, bound.call.o.dtype, e, 0);
}

/* The definition is good and an output of zeros is not, however large scores
 * are. */
START_TEST(zeros_are_bad_at_any_scale) {
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  static const char *const scales[] = {"0.1", "1.0", "1e2", "1e4", "1e8",
                                       "1e30"};
  char text[120];
  snprintf(text, sizeof text, "pattern p { heads 2; head_dim 8; dtype %s; "
           "scale %s; branch { } }", dtypes[_i % 3], scales[_i / 3]);
  set_up_rightly(text, WORDS);
  ck_assert(check_within(ACCURACY_BUDGET).good);
  wipe_output();
  accuracy v = check_within(ACCURACY_BUDGET);
  ck_assert(!v.good);
  ck_assert_double_eq_tol(v.rel_error, 1, 1e-3);
}
END_TEST

/* Where all rewritten scores lose their differences to rounding, zeros are bad
 * all the same. */
START_TEST(zeros_are_bad_where_scores_are_lost) {
  static const char *const bodies[] = {
      "score s + 1e9; branch { }",
      "score s - 1e30; branch { segment 8; }",
      "combine sum; branch { } branch { score s - 1e9; }",
      "score j % 2 == 0 ? s : -1e9; branch { }",
  };
  char text[200];
  snprintf(text, sizeof text, PATTERN("f32", "%s"), bodies[_i]);
  set_up_rightly(text, WORDS);
  ck_assert(check_within(ACCURACY_BUDGET).good);
  wipe_output();
  ck_assert(!check_within(ACCURACY_BUDGET).good);
}
END_TEST

/* Keys 0 and 1 of the first row score `scale` and a little less; the others 0.
 * Beyond that all is random. */
static void set_up_pair(const char *scale, double apart) {
  char text[120];
  snprintf(text, sizeof text, PATTERN("f32", "scale %s; branch { }"), scale);
  ck_assert_int_eq(set_up(text, "--seq 30 --random 1 --threads 1"), DIL_OK);
  float *q = bound.call.q.data, *k = bound.call.k.data;
  for (int64_t d = 0; d < 8; d++) q[d] = d == 0;
  for (int64_t j = 0; j < 30; j++) k[j * 16] = 0;
  k[0] = 1;
  k[16] = (float)(1 - apart);
}

static rounding rounding_of_first(void) {
  expr_point point = call_setup_point(&bound, 0);
  return rounding_of_row(bound.pattern, &bound.call, &point, 0, 0,
                         (dot_error){0, 0});
}

static rounding rounding_of_two(double apart) {
  set_up_pair("1e6", apart);
  return rounding_of_first();
}

static double value_distance(void) {
  const float *v = bound.call.v.data;
  double square = 0;
  for (int64_t d = 0; d < 8; d++)
    square += (double)(v[d] - v[16 + d]) * (double)(v[d] - v[16 + d]);
  return sqrt(square);
}

/* Scores of 1e6 that are equal, or so by rounding, may give either value;
 * scores that are farther apart than their rounding give one. */
START_TEST(rounding_explains_what_is_close) {
  rounding equal = rounding_of_two(0);
  double apart = value_distance();
  ck_assert_double_gt(equal.output, 0.1 * apart);
  ck_assert_double_le(equal.output, apart);
  ck_assert(equal.lse > 0.1 && equal.lse < 2);
  call_setup_free(&bound);
  ck_assert_double_gt(rounding_of_two(0x1p-22).output, 0.05 * apart);
  call_setup_free(&bound);
  ck_assert_double_lt(rounding_of_two(0x1p-14).output, 1e-6 * apart);
}
END_TEST

/* The power of a rounding of 1e24 is infinite, and the values are the same. */
START_TEST(rounding_of_equal_keys_is_finite) {
  set_up_pair("1e30", 0);
  float *v = bound.call.v.data;
  memcpy(v + 16, v, 8 * sizeof *v);
  rounding equal = rounding_of_first();
  ck_assert_double_eq(equal.output, 0);
  ck_assert(equal.lse > 1e22 && equal.lse < 1e26);
}
END_TEST

/* A weight of 2^-20 that is stored as f16 is off by up to 2^-25, and one of 2^-10 has
 * all its digits. */
static double rounding_of_weight(const char *dtype, double log2_weight) {
  char text[120];
  snprintf(text, sizeof text, PATTERN("%s", "scale 1; branch { }"), dtype);
  ck_assert_int_eq(set_up(text, "--seq 1 --keys 2 --random 1 --threads 1"), DIL_OK);
  dil_tensor *q = &bound.call.q, *k = &bound.call.k, *v = &bound.call.v;
  for (int64_t d = 0; d < 8; d++) {
    dil_element_write(q->data, q->dtype, d, d == 0);
    for (int64_t j = 0; j < 2; j++) {
      double score = d || j == 0 ? 0 : log2_weight * log(2);
      dil_element_write(k->data, k->dtype, j * k->stride[1] + d, score);
      dil_element_write(v->data, v->dtype, j * v->stride[1] + d, d ? 0 : (double)j);
    }
  }
  return rounding_of_first().output;
}
START_TEST(rounding_knows_small_weights_of_f16) {
  ck_assert_double_eq_tol(rounding_of_weight("f16", -20),
                           ROUNDING_SURENESS * 0x1p-25, 0x1p-35);
  call_setup_free(&bound);
  ck_assert_double_eq(rounding_of_weight("f16", -10), 0);
  call_setup_free(&bound);
  ck_assert_double_eq(rounding_of_weight("bf16", -20), 0);
}
END_TEST

/* The rounding of row 0 excuses no other row. */
START_TEST(a_row_answers_for_itself) {
  rounding_of_two(0);
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
  ck_assert(check_within(ACCURACY_BUDGET).good);
  float *o = bound.call.o.data, right = o[0];
  o[0] += 0.1f * (float)value_distance();
  accuracy v = check_within(ACCURACY_BUDGET);
  ck_assert(v.good && v.rel_error > 1e-3 && v.unexplained <= v.bound);
  o[0] = right;
  o[20 * 16] += 0.1f * (float)value_distance();
  v = check_within(ACCURACY_BUDGET);
  ck_assert(!v.good);
  ck_assert_int_eq(v.worst.n, 20);
}
END_TEST

static void one_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  oracle_row(bound.pattern, &bound.call, 0, index, 0, context, &(double){0});
}

/* Threads of a pool flush subnormal numbers; the definition does not. */
START_TEST(subnormal_numbers_count) {
  const char *text = PATTERN("f16", "input z : f32[M]; "
                             "mask z[j] > 0.0; scale 1e6; branch { }");
  ck_assert_int_eq(set_up(text, "--seq 1 --random 1 --threads 2 "
                                "--input z=random"),
                   DIL_OK);
  ((float *)bound.call.inputs[0].data)[0] = 1e-40f;
  dil_element_write(bound.call.v.data, DIL_F16, 0, 0x1p-24);
  double output[8] = {0};
  ck_assert_int_eq(dil_threads_run(bound.threads, 1, one_row, output), DIL_OK);
  ck_assert_double_eq(output[0], 0x1p-24);
}
END_TEST

/* ---- random numbers, sizes ----------------------------------------------- */

START_TEST(random_is_what_it_says) {
  ck_assert_int_eq(set_up(patterns[0], WORDS), DIL_OK);
  const float *q = bound.call.q.data, *k = bound.call.k.data,
              *v = bound.call.v.data;
  for (uint64_t e = 0; e < 2 * 30 * 2 * 8; e++) {
    ck_assert(q[e] == (float)dil_normal(1, 0, e));
    ck_assert(k[e] == (float)dil_normal(1, 1, e));
    ck_assert(v[e] == (float)dil_normal(1, 2, e));
  }
}
END_TEST

START_TEST(sizes_by_default) {
  ck_assert_int_eq(set_up(patterns[0], "--seq 9 --random 1"), DIL_OK);
  ck_assert_int_eq(bound.size[CALL_B], 1);
  ck_assert_int_eq(bound.size[CALL_N], 9);
  ck_assert_int_eq(bound.size[CALL_M], 9);
}
END_TEST

START_TEST(sizes_are_asked_for) {
  ck_assert_int_eq(set_up(patterns[0], "--random 1"), DIL_USAGE);
}
END_TEST

/* ---- counts -------------------------------------------------------------- */

START_TEST(dense_by_counting) {
  static const int64_t sizes[][2] = {{5, 5}, {3, 9}, {9, 3}, {0, 4}, {4, 0}};
  bound.threads = NULL;
  const pattern *p = parse_pattern(patterns[0]);
  int64_t n_count = sizes[_i][0], m_count = sizes[_i][1];
  double all = 0, causal = 0;
  for (int64_t n = 0; n < n_count; n++)
    for (int64_t j = 0; j < m_count; j++) {
      all += 2;
      causal += j <= n + m_count - n_count ? 2 : 0;
    }
  ck_assert_double_eq(cost_dense(p, n_count, m_count, false), all);
  ck_assert_double_eq(cost_dense(p, n_count, m_count, true), causal);
  ck_assert_double_eq(cost_flops(p, 10), 320);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *accuracy_suite(void) {
  Suite *suite = suite_create("accuracy");
  TCase *tests = tcase_create("accuracy");
  int kinds = sizeof patterns / sizeof *patterns;
  tcase_add_checked_fixture(tests, open_memory, close_call);
  tcase_add_loop_test(tests, the_oracle_is_good, 0, kinds);
  tcase_add_loop_test(tests, one_wrong_element_is_found, 0, kinds);
  tcase_add_loop_test(tests, a_nan_is_found, 0, kinds);
  tcase_add_loop_test(tests, an_infinity_is_found, 0, kinds);
  tcase_add_loop_test(tests, what_was_never_written_is_found, 0, kinds);
  tcase_add_test(tests, expected_nans_are_good);
  tcase_add_test(tests, a_wrong_lse_is_found);
  tcase_add_test(tests, rows_without_keys_are_exact);
  tcase_add_test(tests, some_rows_of_many);
  tcase_add_loop_test(tests, zeros_are_bad_at_any_scale, 0, 18);
  tcase_add_loop_test(tests, zeros_are_bad_where_scores_are_lost, 0, 4);
  tcase_add_test(tests, rounding_explains_what_is_close);
  tcase_add_test(tests, a_row_answers_for_itself);
  tcase_add_test(tests, rounding_of_equal_keys_is_finite);
  tcase_add_test(tests, rounding_knows_small_weights_of_f16);
  tcase_add_test(tests, subnormal_numbers_count);
  tcase_add_test(tests, random_is_what_it_says);
  tcase_add_test(tests, sizes_by_default);
  tcase_add_test(tests, sizes_are_asked_for);
  tcase_add_loop_test(tests, dense_by_counting, 0, 5);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(accuracy_suite(), CK_FORK_GETENV);
}
