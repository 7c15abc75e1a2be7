/* test_laws.c - what attention obeys whatever the numbers are: no oracle, only
 * kernels compared with themselves. Weights sum to one, the output is linear
 * in V, the past does not see the future, repetition shifts lse, and neither
 * threads nor rows that nobody may see change a bit. */
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define P(body) "pattern p { heads 4; head_dim 24; dtype f32; " body " }"
#define LONGNET "segments 32, 64, 128; dilations 1, 2, 4;"
enum { LENGTH = 171, CHANGED = 90 };

typedef struct law_result {
  double *o, *lse; /* [N, H, Dv], [H, N], as stored */
  int64_t count, rows;
} law_result;

/* The patterns that every law is tried on. */
static const char *const patterns[] = {
    P("branch { }"),
    P("causal; branch { }"),
    P("causal; " LONGNET),
    P("causal; phase block; " LONGNET),
    P("causal; combine union; branch { window 20, 0; } branch { mask j < 9; }"),
    P("segments 24, 48; dilations 2, 3;"),
    P("causal; segments 50, 70, 110; dilations 7, 11, 13;"),
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

static const unsigned forces[] = {0, FORCE_CHAIN, FORCE_GENERAL};

/* The last kernel is kept: a law runs the same one on several numbers. */
static struct {
  tested_pattern *tested;
  kernel_made *made;
  const char *text;
  dil_dtype dtype;
} last;

static void forget_last(void) {
  kernel_unmake(last.made);
  tested_pattern_free(last.tested);
  last.made = NULL;
  last.tested = NULL;
}

static kernel_made *kernel_of(const char *text, recipe way, dil_dtype dtype) {
  if (last.made && last.text == text && last.dtype == dtype &&
      last.made->way.isa == way.isa && last.made->way.force == way.force) {
    last.made->way.threads = way.threads;
    return last.made;
  }
  forget_last();
  last.text = text;
  last.dtype = dtype;
  last.tested = tested_pattern_new("law", text, NULL, 0);
  ck_assert_msg(last.tested->pattern != NULL, "%s", last.tested->problem);
  tested_pattern_retype(last.tested, dtype);
  last.made = kernel_make(last.tested, way);
  ck_assert_msg(last.made->kernel != NULL, "%s", last.made->problem);
  return last.made;
}

static law_result compute(const char *text, call_shape shape, recipe way,
                          dil_dtype dtype) {
  kernel_made *k = kernel_of(text, way, dtype);
  shape.batch = 1;
  shape.queries = shape.keys = LENGTH;
  shape.seed = 21;
  data *d = data_new(last.tested, shape);
  ck_assert_msg(data_run(d, k) == DIL_OK, "%s", dil_last_error());
  law_result r = {.count = dil_tensor_count(&d->call.o),
                  .rows = LENGTH * last.tested->pattern->heads};
  r.o = calloc((size_t)r.count, sizeof *r.o);
  r.lse = calloc((size_t)r.rows, sizeof *r.lse);
  for (int64_t e = 0; e < r.count; e++)
    r.o[e] = dil_element_read(d->call.o.data, dtype, e);
  for (int64_t e = 0; d->call.lse.data && e < r.rows; e++)
    r.lse[e] = dil_element_read(d->call.lse.data, DIL_F32, e);
  data_free(d);
  return r;
}

static void result_free(law_result *r) {
  free(r->o);
  free(r->lse);
}

static int64_t width_of(const law_result *r) {
  return r->count / r->rows;
}
static double lse_of(const law_result *r, int64_t row) { /* row = n * H + h */
  int64_t heads = r->rows / LENGTH;
  return r->lse[row % heads * LENGTH + row / heads];
}

/* Bitwise: NaN equals NaN, 0 and -0 are the same number. */
static void expect_same(const law_result *a, const law_result *b, int64_t rows,
                        const char *what) {
  for (int64_t e = 0; e < rows * width_of(a); e++)
    ck_assert_msg(a->o[e] == b->o[e] || (isnan(a->o[e]) && isnan(b->o[e])),
                  "%s: row %d: %.9g and %.9g", what,
                  (int)(e / width_of(a)), a->o[e], b->o[e]);
  for (int64_t row = 0; row < rows; row++)
    ck_assert_msg(lse_of(a, row) == lse_of(b, row), "%s: lse of row %d", what,
                  (int)row);
}

static void expect_close(const law_result *a, const law_result *b, double shift,
                         const char *what) {
  double square = 0, whole = 0;
  for (int64_t e = 0; e < a->count; e++) {
    square += (a->o[e] - b->o[e]) * (a->o[e] - b->o[e]);
    whole += b->o[e] * b->o[e];
  }
  ck_assert_msg(sqrt(square) <= 2e-6 * sqrt(whole), "%s: o off by %g", what,
                sqrt(square / whole));
  for (int64_t e = 0; e < a->rows; e++)
    ck_assert_msg(a->lse[e] == b->lse[e] + shift ||
                      fabs(a->lse[e] - b->lse[e] - shift) < 2e-5,
                  "%s: lse %g and %g", what, a->lse[e], b->lse[e]);
}

/* A union is one pass: it cannot be chained. */
static bool is_possible(const char *text, unsigned force) {
  return !(force & FORCE_CHAIN) || strstr(text, "union") == NULL;
}

#define FOR_EACH_WAY(way, text)                                               \
  for (const char *const *isa = cpu_isas(); *isa; isa++)                      \
    for (int index = 0; index < 3; index++)                                   \
      for (recipe way = {.isa = *isa, .force = forces[index], .threads = 2},  \
                  *once = &way;                                               \
           once && is_possible(text, way.force); once = NULL)

/* ---- the laws ----------------------------------------------------------- */

static double one_in_v(int32_t tensor, const int64_t *at, double number) {
  (void)at;
  return tensor == 2 ? 1 : number;
}

START_TEST(weights_sum_to_one) {
  FOR_EACH_WAY(way, patterns[_i]) {
    law_result r =
        compute(patterns[_i], (call_shape){.element = one_in_v}, way, DIL_F32);
    for (int64_t e = 0; e < r.count; e++) {
      double covered = isinf(lse_of(&r, e / width_of(&r))) ? 0 : 1;
      ck_assert_msg(fabs(r.o[e] - covered) < 2e-6, "row %d: %.9g",
                    (int)(e / width_of(&r)), r.o[e]);
    }
    result_free(&r);
  }
}
END_TEST

static double other_v(int32_t tensor, const int64_t *at, double number) {
  return tensor == 2 ? cos((double)(at[1] * 31 + at[2] * 7 + at[3])) : number;
}
static double both_v(int32_t tensor, const int64_t *at, double number) {
  return tensor == 2 ? 2 * number - 3 * other_v(2, at, 0) : number;
}

START_TEST(output_is_linear_in_v) {
  FOR_EACH_WAY(way, patterns[_i]) {
    law_result a = compute(patterns[_i], (call_shape){0}, way, DIL_F32);
    law_result b =
        compute(patterns[_i], (call_shape){.element = other_v}, way, DIL_F32);
    law_result c =
        compute(patterns[_i], (call_shape){.element = both_v}, way, DIL_F32);
    for (int64_t e = 0; e < a.count; e++) a.o[e] = 2 * a.o[e] - 3 * b.o[e];
    expect_close(&c, &a, 0, "2 V - 3 W");
    result_free(&a), result_free(&b), result_free(&c);
  }
}
END_TEST

static double changed_later(int32_t tensor, const int64_t *at, double number) {
  return tensor > 0 && at[1] >= CHANGED ? 100 - number : number;
}

START_TEST(the_past_does_not_see_the_future) {
  if (strstr(patterns[_i], "causal") == NULL) return;
  FOR_EACH_WAY(way, patterns[_i])
    for (dil_dtype dtype = DIL_F32; dtype <= DIL_F16; dtype++) {
      law_result a = compute(patterns[_i], (call_shape){0}, way, dtype);
      law_result b = compute(
          patterns[_i], (call_shape){.element = changed_later}, way, dtype);
      expect_same(&a, &b, CHANGED * (a.rows / LENGTH), "before the change");
      result_free(&a), result_free(&b);
    }
}
END_TEST

START_TEST(threads_change_nothing) {
  FOR_EACH_WAY(way, patterns[_i])
    for (dil_dtype dtype = DIL_F32; dtype <= DIL_BF16; dtype++) {
      way.threads = 1;
      law_result a = compute(patterns[_i], (call_shape){0}, way, dtype);
      for (way.threads = 2; way.threads <= 7; way.threads += 1 + way.threads) {
        law_result b = compute(patterns[_i], (call_shape){0}, way, dtype);
        expect_same(&a, &b, a.rows, "another number of threads");
        result_free(&b);
      }
      result_free(&a);
    }
}
END_TEST

START_TEST(unseen_rows_change_nothing) {
  FOR_EACH_WAY(way, patterns[_i])
    for (dil_dtype dtype = DIL_F32; dtype <= DIL_F16; dtype++) {
      law_result a = compute(patterns[_i], (call_shape){0}, way, dtype);
      law_result b =
          compute(patterns[_i], (call_shape){.clean = true}, way, dtype);
      expect_same(&a, &b, a.rows, "NaN where nobody looks");
      result_free(&a), result_free(&b);
    }
}
END_TEST

/* Two patterns that mean the same, but for a constant in lse. */
static const struct { const char *name, *one, *other; double shift; } same[] = {
    {"a branch twice", P("branch { segment 40; } branch { segment 40; }"),
     P("branch { segment 40; }"), M_LN2},
    {"a branch twice in a union", P("combine union; branch { segment 40; } "
     "branch { segment 40; }"), P("branch { segment 40; }"), 0},
    {"one segment of the length", P("branch { segment 171; }"),
     P("branch { }"), 0},
    {"two halves", P("branch { window inf, 0; } branch { mask j > i; }"),
     P("branch { }"), 0},
    {"the two combs", P("branch { dilation 2; phase 0; } "
     "branch { dilation 2; phase 1; }"),
     P("branch { mask (i - j) % 2 == 0; }"), 0},
    {"a shift of scores", P("score s + 5; " LONGNET), P(LONGNET), 5},
    {"causal as a window", P("causal; " LONGNET),
     P("window inf, 0; " LONGNET), 0},
    {"causal as a mask", P("causal; " LONGNET), P("mask j <= i; " LONGNET), 0},
    {"block local as a mask", P("block 16; keep local(1); branch { }"),
     P("mask abs(i / 16 - j / 16) <= 1; branch { }"), 0},
    {"a branch in every head", P("branch { heads 0..1; segment 30; } "
     "branch { heads 2..3; segment 30; }"), P("branch { segment 30; }"), 0},
    {"the mean of one branch twice", P("combine mean; branch { segment 40; } "
     "branch { segment 40; }"), P("combine mean; branch { segment 40; }"), NAN},
};

START_TEST(two_ways_to_say_it) {
  FOR_EACH_WAY(way, same[_i].one) {
    law_result a = compute(same[_i].one, (call_shape){0}, way, DIL_F32);
    law_result b = compute(same[_i].other, (call_shape){0}, way, DIL_F32);
    double shift = same[_i].shift;
    if (isnan(shift)) { /* no lse to compare */
      memset(a.lse, 0, (size_t)a.rows * sizeof *a.lse);
      memset(b.lse, 0, (size_t)b.rows * sizeof *b.lse);
      shift = 0;
    }
    expect_close(&a, &b, shift, same[_i].name);
    result_free(&a), result_free(&b);
  }
}
END_TEST

/* One kernel for all lengths: two variants at most, tiles and rows. */
START_TEST(a_new_length_compiles_nothing) {
  static const int64_t sizes[][2] = {{171, 171}, {3, 400}, {700, 90}, {1, 1},
                                     {171, 171}, {64, 1500}, {20, 20}};
  kernel_made *k = kernel_of(patterns[_i], (recipe){0}, DIL_BF16);
  for (int32_t i = 0; i < 7; i++) {
    data *d = data_new(last.tested, (call_shape){.batch = 1 + i % 2,
                                                 .queries = sizes[i][0],
                                                 .keys = sizes[i][1],
                                                 .seed = 4});
    ck_assert_str_eq(data_problem(d, k), "");
    data_free(d);
  }
  ck_assert_int_le(k->compiled, DIL_VARIANT_COUNT);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("laws");
  TCase *tests = tcase_create("laws");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, NULL, forget_last);
  tcase_add_loop_test(tests, weights_sum_to_one, 0, PATTERNS);
  tcase_add_loop_test(tests, output_is_linear_in_v, 0, PATTERNS);
  tcase_add_loop_test(tests, the_past_does_not_see_the_future, 0, PATTERNS);
  tcase_add_loop_test(tests, threads_change_nothing, 0, PATTERNS);
  tcase_add_loop_test(tests, unseen_rows_change_nothing, 0, PATTERNS);
  tcase_add_loop_test(tests, a_new_length_compiles_nothing, 0, PATTERNS);
  tcase_add_loop_test(tests, two_ways_to_say_it, 0,
                      sizeof same / sizeof same[0]);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
