/* test_verdict.c - the judge of `--check` is itself judged: right outputs are
 * good, and each way to be wrong is found and located. Also the sizes that a
 * command line settles, and the plain counts of cost.c. */
#include "cost.h"
#include "suite.h"
#include "verdict.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static arena *memory;
static options given;
static binding bound;

static void open_memory(void) {
  memory = arena_new();
}

static void close_memory(void) {
  binding_free(&bound);
  arena_free(memory);
}

static const pattern *parse(const char *text) {
  diag *d = diag_new(memory);
  const program *p =
      program_parse(memory, d, "test", text, strlen(text), NULL, 0);
  ck_assert_msg(p && p->pattern_count == 1, "the pattern is not accepted");
  return p->pattern[0];
}

/* The words of a `dil run`, options alone. */
static dil_status bind_words(const char *text, const char *words) {
  char *argv[32] = {"run", "test.dil"};
  int argc = 2;
  char *rest = arena_copy(memory, words, strlen(words));
  for (char *word = strtok(rest, " "); word; word = strtok(NULL, " "))
    argv[argc++] = word;
  ck_assert_int_eq(options_read(memory, VERB_run, argc, argv, &given), DIL_OK);
  ck_assert_int_eq(binding_open(memory, &given, parse(text), &bound), DIL_OK);
  return binding_tensors(&bound, -1);
}

#define PATTERN(type, rest)                                                    \
  "pattern p { heads 2; head_dim 8; dtype " type "; " rest " }"
#define WORDS "--seq 30 --batch 2 --random 1 --threads 1"

/* A bound call whose outputs are the oracle's. */
static void bind_right(const char *text, const char *words) {
  ck_assert_int_eq(bind_words(text, words), DIL_OK);
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
}

static verdict judge(double budget) {
  cover_count count;
  verdict v;
  measure_cover(&bound, 32, 128, &count);
  ck_assert_int_eq(verdict_make(&bound, count.pairs, budget, &v), DIL_OK);
  return v;
}

/* o[1, 17, 1, 3], in the middle of things */
enum { B = 1, N = 17, H = 1, D = 3, PLACE = ((B * 30 + N) * 2 + H) * 8 + D };

static void damage(double wrong) {
  dil_element_write(bound.call.o.data, bound.call.o.dtype, PLACE, wrong);
}

static void check_located(const verdict *v) {
  ck_assert(!v->good);
  ck_assert_int_eq(v->worst.b, B);
  ck_assert_int_eq(v->worst.n, N);
  ck_assert_int_eq(v->worst.h, H);
  ck_assert_int_eq(v->worst.d, D);
}

/* ---- verdicts ------------------------------------------------------------ */

static const char *const patterns[] = {
    PATTERN("f32", "branch { }"),
    PATTERN("bf16", "causal; branch { segment 8; } branch { dilation 3; }"),
    PATTERN("f16", "branch { segment 7; dilation 2; }"),
    PATTERN("f32", "combine mean; branch { segment 8; } branch { }"),
};

START_TEST(the_oracle_is_good) {
  bind_right(patterns[_i], WORDS);
  verdict v = judge(VERDICT_BUDGET);
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
  bind_right(patterns[_i], WORDS);
  damage(3);
  verdict v = judge(VERDICT_BUDGET);
  check_located(&v);
  ck_assert_double_eq(v.worst.got, 3);
}
END_TEST

START_TEST(a_nan_is_found) {
  bind_right(patterns[_i], WORDS);
  damage(NAN);
  verdict v = judge(VERDICT_BUDGET);
  check_located(&v);
}
END_TEST

START_TEST(an_infinity_is_found) {
  bind_right(patterns[_i], WORDS);
  damage(INFINITY);
  verdict v = judge(VERDICT_BUDGET);
  check_located(&v);
}
END_TEST

START_TEST(what_was_never_written_is_found) {
  bind_right(patterns[_i], WORDS);
  binding_wipe(&bound);
  ck_assert(!judge(VERDICT_BUDGET).good);
}
END_TEST

START_TEST(expected_nans_are_good) {
  ck_assert_int_eq(bind_words(patterns[0], WORDS), DIL_OK);
  ((float *)bound.call.q.data)[40] = NAN;
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
  verdict v = judge(VERDICT_BUDGET);
  ck_assert(v.good);
  ck_assert_int_eq(v.nan_rows, 1);
}
END_TEST

START_TEST(a_wrong_lse_is_found) {
  bind_right(patterns[0], WORDS);
  ((float *)bound.call.lse.data)[(B * 2 + H) * 30 + N] += 1e-3f;
  verdict v = judge(VERDICT_BUDGET);
  ck_assert(!v.good);
  ck_assert_int_eq(v.worst.n, N);
  ck_assert_int_eq(v.worst.h, H);
  ck_assert_int_eq(v.worst.d, -1);
}
END_TEST

/* Rows at odd positions have no key: O = 0 and lse = -inf, exactly. */
START_TEST(rows_without_keys_are_exact) {
  const char *text = PATTERN("f32", "branch { dilation 2; phase 0; }");
  bind_right(text, WORDS);
  ck_assert(judge(VERDICT_BUDGET).good);
  ((float *)bound.call.lse.data)[(B * 2 + H) * 30 + N] = -1e30f;
  ck_assert(!judge(VERDICT_BUDGET).good);
}
END_TEST

/* A few rows of many: as many as the budget, and all wrong is seen. */
START_TEST(some_rows_of_many) {
  bind_right(patterns[0], WORDS);
  verdict v = judge(1e-12);
  ck_assert(v.good);
  ck_assert_int_eq(v.rows, 64);
  ck_assert_int_eq(v.total, 120);
  binding_wipe(&bound);
  ck_assert(!judge(1e-12).good);
}
END_TEST

static double largest_product(void) {
  const float *q = bound.call.q.data, *k = bound.call.k.data;
  double most = 0;
  for (int64_t n = 0; n < 2 * 30 * 2; n++)
    for (int64_t j = 0; j < 30; j++) {
      int64_t row = ((n / 60 * 30) + j) * 2 + n % 2;
      double sum = 0;
      for (int64_t d = 0; d < 8; d++)
        sum += (double)q[n * 8 + d] * (double)k[row * 8 + d];
      most = fmax(most, fabs(sum));
    }
  return most;
}

/* Large scores widen the bounds by largest / 16. */
START_TEST(bounds_follow_the_scores) {
  const char *text = PATTERN("f32", "scale 4.0; branch { }");
  bind_right(text, WORDS);
  verdict v = judge(VERDICT_BUDGET);
  double largest = 4 * largest_product();
  ck_assert_double_gt(largest, 16);
  ck_assert_double_eq_tol(v.largest_score, largest, 1e-9 * largest);
  ck_assert_double_eq_tol(v.bound, 2e-6 * largest / 16, 1e-18);
  ck_assert_double_eq_tol(v.lse_bound, 2e-5 * largest / 16, 1e-18);
}
END_TEST

/* What scores become counts too, at the top of each softmax: keys that a
 * -1e9 takes out forgive nothing. */
START_TEST(bounds_follow_rewritten_scores) {
  static const struct {
    const char *body;
    double least, most;
  } cases[] = {
      {"score s + 1000; branch { }", 995, 1010},
      {"score s + 1000; score s - 1000; branch { }", 995, 1010},
      {"score -1000; branch { }", 1000, 1000},
      {"score j % 2 == 0 ? s : -1e9; branch { }", 0, 10},
      {"score j == 3 ? inf : s; branch { }", 0, 10},
      {"score -inf; branch { }", 0, 10},
      {"branch { } branch { score s - 1e6; }", 0, 10},
      {"combine sum; branch { } branch { score s - 1000; }", 990, 1010},
  };
  char text[200];
  snprintf(text, sizeof text, PATTERN("f32", "%s"), cases[_i].body);
  bind_right(text, WORDS);
  verdict v = judge(VERDICT_BUDGET);
  ck_assert(v.good);
  ck_assert_double_ge(v.largest_score, cases[_i].least);
  ck_assert_double_le(v.largest_score, cases[_i].most);
}
END_TEST

/* ---- random numbers, sizes ----------------------------------------------- */

START_TEST(random_is_what_it_says) {
  ck_assert_int_eq(bind_words(patterns[0], WORDS), DIL_OK);
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
  ck_assert_int_eq(bind_words(patterns[0], "--seq 9 --random 1"), DIL_OK);
  ck_assert_int_eq(bound.size[BIND_B], 1);
  ck_assert_int_eq(bound.size[BIND_N], 9);
  ck_assert_int_eq(bound.size[BIND_M], 9);
}
END_TEST

START_TEST(sizes_are_asked_for) {
  ck_assert_int_eq(bind_words(patterns[0], "--random 1"), DIL_USAGE);
}
END_TEST

/* ---- counts -------------------------------------------------------------- */

START_TEST(dense_by_counting) {
  static const int64_t sizes[][2] = {{5, 5}, {3, 9}, {9, 3}, {0, 4}, {4, 0}};
  bound.threads = NULL;
  const pattern *p = parse(patterns[0]);
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

static Suite *verdict_suite(void) {
  Suite *suite = suite_create("verdict");
  TCase *tests = tcase_create("verdict");
  int kinds = sizeof patterns / sizeof *patterns;
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_add_loop_test(tests, the_oracle_is_good, 0, kinds);
  tcase_add_loop_test(tests, one_wrong_element_is_found, 0, kinds);
  tcase_add_loop_test(tests, a_nan_is_found, 0, kinds);
  tcase_add_loop_test(tests, an_infinity_is_found, 0, kinds);
  tcase_add_loop_test(tests, what_was_never_written_is_found, 0, kinds);
  tcase_add_test(tests, expected_nans_are_good);
  tcase_add_test(tests, a_wrong_lse_is_found);
  tcase_add_test(tests, rows_without_keys_are_exact);
  tcase_add_test(tests, some_rows_of_many);
  tcase_add_test(tests, bounds_follow_the_scores);
  tcase_add_loop_test(tests, bounds_follow_rewritten_scores, 0, 8);
  tcase_add_test(tests, random_is_what_it_says);
  tcase_add_test(tests, sizes_by_default);
  tcase_add_test(tests, sizes_are_asked_for);
  tcase_add_loop_test(tests, dense_by_counting, 0, 5);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(verdict_suite(), CK_FORK_GETENV);
}
