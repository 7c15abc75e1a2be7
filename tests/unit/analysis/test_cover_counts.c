/* test_cover_counts.c - counts by arithmetic on shapes whose counts are known
 * in closed form, from the smallest to millions of positions, which take no
 * time. */
#include "compiler/analysis/cover.h"
#include "runtime/base/arithmetic.h"
#include "tests/support/numeric.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

/* ---- known counts -------------------------------------------------------- */

static cover_count count_pattern(const pattern *p, int64_t N, int64_t M) {
  cover_count count;
  cover_pattern(p, N, M, 128, 64, NULL, 0, &count);
  return count;
}

START_TEST(dense_and_causal) {
  pattern *p = make_pattern(memory, 3, 1, 1, 1, 1);
  cover_count count = count_pattern(p, 1000, 5000);
  ck_assert_double_eq(count.pairs, 3.0 * 1000 * 5000);
  ck_assert_double_eq(count.full, 3.0 * 8 * 79);
  p->branch[0].causal = true;
  count = count_pattern(p, 5000, 5000);
  ck_assert_double_eq(count.pairs, 3.0 * 5000 * 5001 / 2);
  ck_assert_double_eq(count.uncovered, 0);
  count = count_pattern(p, 5000, 3000);
  ck_assert_double_eq(count.uncovered, 3.0 * 2000);
}
END_TEST

START_TEST(largest_sizes) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->branch[0].left = 10;
  p->branch[0].right = INT64_MAX - 1;
  p->branch[0].segment = (int64_t)1 << 40;
  cover_count count;
  cover_pattern(p, 1000, INT32_MAX, 128, 1 << 20, NULL, 0, &count);
  ck_assert_double_eq(count.pairs, 1000 * 11 + 999 * 1000 / 2);
  p->branch[0].left = p->branch[0].right = DIL_ENDLESS;
  p->branch[0].dilation = (int64_t)1 << 38;
  cover_pattern(p, 1000, INT32_MAX, 128, 1 << 20, NULL, 0, &count);
  ck_assert_double_eq(count.pairs, 0);
  ck_assert_double_eq(count.uncovered, 1000);
}
END_TEST

/* Keys of 0..M-1 that leave the rest of x when divided by m. */
static double keys_of_residue(int64_t x, int64_t M, int64_t m) {
  return (double)(x / m + (M - 1 - x) / m + 1);
}

/* Two of the three dilations meet once in the whole sequence. */
START_TEST(dilations_that_hardly_meet) {
  const int64_t r[3] = {131071, 131101, 7}, M = INT32_MAX, x = M - 5, N = 1000;
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 3);
  for (int32_t k = 0; k < 3; k++) {
    p->branch[k].dilation = r[k];
    p->branch[k].phase_kind = PHASE_EXPR;
    p->branch[k].phase_expr = make_int(memory, x % r[k]);
  }
  set_phases(memory, p);
  double rows = keys_of_residue(x, M, 7) - keys_of_residue(x % 7, M - N, 7);
  double distinct = rows * keys_of_residue(x, M, 7) +
                    keys_of_residue(x, M, r[0]) + keys_of_residue(x, M, r[1]) -
                    1 - keys_of_residue(x, M, 7 * r[0]) -
                    keys_of_residue(x, M, 7 * r[1]) + 1;
  cover_count count;
  cover_pattern(p, N, M, 128, 1 << 20, NULL, 0, &count);
  ck_assert_double_eq(count.distinct, distinct);
  ck_assert_double_eq(count.uncovered, 1000 - rows);
}
END_TEST

START_TEST(equal_branches_count_twice) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 40);
  cover_count count = count_pattern(p, 100, 100);
  ck_assert_double_eq(count.pairs, 40 * 1e4);
  ck_assert_double_eq(count.distinct, 1e4);
  p->combine = DIL_COMBINE_UNION;
  ck_assert_double_eq(count_pattern(p, 100, 100).pairs, 1e4);
}
END_TEST

/* ---- time ---------------------------------------------------------------- */

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void expect_soon(double start, double seconds) {
  ck_assert_double_lt(cpu_seconds() - start, SANITIZED ? 10 * seconds : seconds);
}

static pattern *longnet_pattern(int64_t w, int32_t branches) {
  pattern *p = make_pattern(memory, 12, 12, 1, 1, branches);
  for (int32_t b = 0; b < branches; b++) {
    p->branch[b].segment = w << b;
    p->branch[b].dilation = 1 << b;
    p->branch[b].causal = true;
  }
  set_phases(memory, p);
  return p;
}

/* For each branch N / s segments of m (m + 1) / 2 pairs, m = s / r = w. */
START_TEST(longnet_of_a_million) {
  double start = cpu_seconds();
  int64_t N = 1 << 20, w = 2048;
  cover_count count = count_pattern(longnet_pattern(w, 3), N, N);
  double segments = (double)(N / w) * (1 + 0.5 + 0.25);
  ck_assert_double_eq(count.pairs, 12 * segments * (double)(w * (w + 1) / 2));
  ck_assert_double_eq(count.uncovered, 0);
  count_pattern(longnet_pattern(w, 16), N, N);
  expect_soon(start, 1);
}
END_TEST

/* |i - j| <= w, i < g or j < g, written as one mask. */
static pattern *longformer_pattern(int64_t w, int64_t g) {
  pattern *p = make_pattern(memory, 12, 12, 1, 1, 1);
  expr *i = make_leaf(memory, EXPR_I_), *j = make_leaf(memory, EXPR_J_);
  expr *gap = make_number(memory, EXPR_ABS,
                          make_number(memory, EXPR_SUB, i, j), NULL);
  expr *near = make_condition(memory, EXPR_LE, gap, make_int(memory, w));
  expr *global = make_condition(
      memory, EXPR_OR, make_condition(memory, EXPR_LT, i, make_int(memory, g)),
      make_condition(memory, EXPR_LT, j, make_int(memory, g)));
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_OR, near, global));
  return p;
}

/* The branches of longnet() as one mask: x % s % r == h % r of both sides, where
 * both lie in one segment. */
static expr *residue_holds(expr_op side, int64_t s, int64_t r) {
  expr *inside = make_number(memory, EXPR_MOD, make_leaf(memory, side),
                             make_int(memory, s));
  return make_condition(
      memory, EXPR_EQ,
      make_number(memory, EXPR_MOD, inside, make_int(memory, r)),
      make_number(memory, EXPR_MOD, make_leaf(memory, EXPR_H_),
                  make_int(memory, r)));
}

static expr *segment_holds(int64_t s) {
  expr *i = make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_I_),
                        make_int(memory, s));
  expr *j = make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_J_),
                        make_int(memory, s));
  return make_condition(memory, EXPR_EQ, i, j);
}

static pattern *longnet_as_mask(int64_t w, int32_t branches, bool causal) {
  pattern *p = make_pattern(memory, 12, 12, 1, 1, 1);
  expr *any = NULL;
  for (int32_t b = 0; b < branches; b++) {
    int64_t s = w << b, r = 1 << b;
    expr *both = make_condition(memory, EXPR_AND, residue_holds(EXPR_I_, s, r),
                                residue_holds(EXPR_J_, s, r));
    expr *one = make_condition(memory, EXPR_AND, segment_holds(s), both);
    any = any ? make_condition(memory, EXPR_OR, any, one) : one;
  }
  p->branch[0].causal = causal;
  add_mask(memory, &p->branch[0], any);
  return p;
}

START_TEST(branches_as_one_mask) {
  double start = cpu_seconds();
  for (int32_t causal = 0; causal < 2; causal++) {
    int64_t size = causal ? 3000 : 32768, w = causal ? 256 : 2048;
    pattern *p = longnet_pattern(w, 3);
    for (int32_t b = 0; b < 3; b++) p->branch[b].causal = causal;
    cover_count branches = count_pattern(p, size, size);
    cover_count mask = count_pattern(longnet_as_mask(w, 3, causal), size, size);
    ck_assert_double_eq(mask.pairs, branches.distinct);
    ck_assert_double_eq(mask.uncovered, branches.uncovered);
  }
  expect_soon(start, 6);
}
END_TEST

START_TEST(longformer_of_65536) {
  double start = cpu_seconds(), N = 65536, w = 256, g = 16;
  cover_count count = count_pattern(longformer_pattern(256, 16), 65536, 65536);
  expect_soon(start, 1);
  double outside = 0; /* pairs of the cross that the band has not */
  for (double t = 0; t < g; t++) outside += 2 * (N - (t + w + 1));
  ck_assert_double_eq(count.pairs,
                      12 * (N * (2 * w + 1) - w * (w + 1) + outside));
}
END_TEST

/* A mask of differences alone costs no more than the number of differences. */
START_TEST(strided_of_a_million) {
  double start = cpu_seconds();
  int64_t N = 1 << 20, l = 128;
  pattern *p = make_pattern(memory, 8, 8, 1, 1, 1);
  p->branch[0].causal = true;
  p->branch[0].segment = N / 2;
  expr *gap = make_number(memory, EXPR_SUB, make_leaf(memory, EXPR_I_),
                          make_leaf(memory, EXPR_J_));
  expr *rest = make_number(memory, EXPR_MOD, gap, make_int(memory, l));
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_EQ, rest, make_int(memory, 0)));
  cover_count count;
  cover_pattern(p, N, N, 1 << 14, 1 << 14, NULL, 0, &count);
  double strides = (double)(N / 2 / l); /* each of l rows sees one more key */
  ck_assert_double_eq(count.pairs,
                      8 * 2 * (double)l * strides * (strides + 1) / 2);
  ck_assert_double_eq(count.uncovered, 0);
  expect_soon(start, 2);
}
END_TEST

/* A tenth of the blocks of 64, by chance. */
static pattern *random_blocks(void) {
  pattern *p = make_pattern(memory, 4, 4, 1, 1, 1);
  expr *size = make_int(memory, 64);
  expr *hash = make_expr(
      memory, EXPR_HASH, TYPE_I32, 3,
      make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_I_), size),
      make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_J_), size),
      make_int(memory, 7));
  add_mask(memory, &p->branch[0],
           make_condition(memory, EXPR_LT,
                          make_number(memory, EXPR_MOD, hash,
                                      make_int(memory, 100)),
                          make_int(memory, 10)));
  return p;
}

START_TEST(random_blocks_of_65536) {
  double start = cpu_seconds();
  cover_count count = count_pattern(random_blocks(), 65536, 65536);
  double share = count.pairs / (4 * 65536.0 * 65536.0);
  ck_assert_double_eq_tol(share, 0.1, 0.001);
  ck_assert_double_eq(fmod(count.pairs, 4 * 4096), 0);
  ck_assert(!count.estimated);
  expect_soon(start, 10);
}
END_TEST

/* Blocks of `rows` rows and `keys` keys, a tenth of them kept by chance. */
static pattern *random_keeps(int64_t rows, int64_t keys) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  expr *hash = make_expr(
      memory, EXPR_HASH, TYPE_I32, 3,
      make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_I_),
                  make_int(memory, rows)),
      make_number(memory, EXPR_DIV, make_leaf(memory, EXPR_J_),
                  make_int(memory, keys)),
      make_int(memory, 7));
  expr *rest = make_number(memory, EXPR_MOD, hash, make_int(memory, 100));
  keep one = {.condition = make_condition(memory, EXPR_LT, rest,
                                          make_int(memory, 10))};
  add_keep(memory, &p->branch[0].keeps[0], keys, one);
  p->branch[0].keeps[0].query_block = rows;
  return p;
}

/* Boxes come to the shape of blocks: two for each block that they end at, and
 * none inside a block. */
START_TEST(boxes_end_at_blocks) {
  const int64_t shapes[][2] = {{1, 64}, {64, 1}, {64, 64}, {8, 128}, {128, 8}};
  const int64_t N = 512, M = 2048;
  for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
    cover_count count;
    int64_t rows = shapes[k][0], keys = shapes[k][1];
    cover_pairs(random_keeps(rows, keys), N, M, NULL, 0, &count);
    ck_assert_double_eq(fmod(count.pairs, (double)(rows * keys)), 0);
    ck_assert_double_lt(count.boxes,
                        2 * (double)((N / rows) * (M / keys)));
  }
}
END_TEST

/* Too many to be judged each: 2^28 blocks. A tenth of them, but for some 2 %:
 * 32768 were looked at. */
START_TEST(random_blocks_of_a_million_are_sampled) {
  enum { N = 1 << 20 };
  double start = cpu_seconds(), pairs = 4 * (double)N * N,
         tiles = pairs / 64 / 64;
  cover_count count, again;
  cover_pattern(random_blocks(), N, N, 64, 64, NULL, 0, &count);
  cover_pattern(random_blocks(), N, N, 64, 64, NULL, 0, &again);
  ck_assert(count.estimated);
  ck_assert_double_eq_tol(count.pairs / pairs, 0.1, 0.005);
  ck_assert_double_eq_tol(count.full / tiles, 0.1, 0.005);
  ck_assert_double_eq_tol(count.empty / tiles, 0.9, 0.01);
  ck_assert_double_eq(count.pairs, again.pairs);
  ck_assert_double_eq(count.full, again.full);
  expect_soon(start, 40);
}
END_TEST

/* ---- branches that overlap and lie in no other ---------------------------- */

/* Windows that unite to one of 1063 keys before and 2000 behind a row. */
static pattern *windows_pattern(void) {
  pattern *p = make_pattern(memory, 2, 1, 1, 1, DIL_BRANCH_MAX);
  for (int32_t b = 0; b < DIL_BRANCH_MAX; b++) {
    p->branch[b].left = 1000 + b;
    p->branch[b].right = 2000 - b;
  }
  p->combine = DIL_COMBINE_UNION;
  return p;
}

START_TEST(overlapping_windows) {
  double start = cpu_seconds(), N = 1 << 24;
  cover_count count;
  cover_pairs(windows_pattern(), 1 << 24, 1 << 24, NULL, 0, &count);
  ck_assert_double_eq(count.pairs, 2 * (N * 3064 - 1063.0 * 1064 / 2 -
                                        2000.0 * 2001 / 2));
  ck_assert(!count.estimated);
  expect_soon(start, 1);
}
END_TEST

enum { PRIME_MOST = 61 }; /* dilations from 2 on: none is larger */

static bool is_prime(int64_t x) {
  for (int64_t d = 2; d < x; d++)
    if (x % d == 0) return false;
  return true;
}

/* Of all pairs, those whose positions have no such prime in common. */
static double coprime_share(void) {
  double share = 1;
  for (int64_t x = 2; x <= PRIME_MOST; x++)
    if (is_prime(x)) share *= 1 - 1 / ((double)x * (double)x);
  return share;
}

static double common_pairs(int64_t N) {
  double count = 0;
  for (int64_t t = 0; t < N; t++)
    for (int64_t j = 0; j < N; j++) {
      int64_t common = greatest_divisor(t, j), x = 2;
      while (x <= PRIME_MOST && common % x != 0) x++;
      count += x <= PRIME_MOST;
    }
  return count;
}

/* Every dilation meets with every other: exact in a short sequence, and about
 * right in a long one. */
START_TEST(overlapping_dilations) {
  double start = cpu_seconds(), N = 1 << 20;
  pattern *p = make_pattern(memory, 1, 1, 1, 1, PRIME_MOST - 1);
  for (int32_t b = 0; b < PRIME_MOST - 1; b++) p->branch[b].dilation = b + 2;
  set_phases(memory, p);
  for (int32_t b = 0; b < PRIME_MOST - 1; b++) p->branch[b].phase[0] = 0;
  cover_count count = count_pattern(p, 300, 300);
  ck_assert_double_eq(count.distinct, common_pairs(300));
  ck_assert(!count.estimated);
  cover_pairs(p, 1 << 20, 1 << 20, NULL, 0, &count);
  ck_assert(!count.estimated);
  p->combine = DIL_COMBINE_UNION;
  cover_pairs(p, 1 << 20, 1 << 20, NULL, 0, &count);
  ck_assert(count.estimated);
  ck_assert_double_eq_tol(count.pairs / N / N, 1 - coprime_share(), 0.003);
  expect_soon(start, 4);
}
END_TEST

/* ---- grids --------------------------------------------------------------- */

/* Where the axes alone decide, pairs follow from their extents. A mask that every pair
 * fulfils makes them be enumerated: both count the same. */
static const struct {
  const char *words;
  int64_t cells;
} grids[] = {
    {"grid 9 x 13; neighborhood 5 x 7;", 117},
    {"grid 9 x 13; neighborhood 5 x 7; causal y;", 117},
    {"grid 7 x 11; window (2, 0) x 3; causal x;", 77},
    {"grid any x 10; dilation 2 x 3; neighborhood 3 x 3;", 120},
    {"grid 3 x 5 x 8; neighborhood 3 x 3 x 3; dilation 1 x 1 x 2;", 120},
    {"grid 4 x 5 x 6; window 1 x inf x (3, 1); causal z;", 120},
    {"grid 8 x 9; window 1 x inf; neighborhood 3 x inf;", 72},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static cover_count count_grid(const char *words, const char *mask, int64_t cells) {
  char text[300];
  cover_count count;
  snprintf(text, sizeof text,
           "pattern p { heads 3; head_dim 8; dtype f32; %s branch { %s } }", words, mask);
  tested_pattern *s = tested_pattern_new("grid", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  cover_rows(s->pattern, cells, cells, NULL, 0, &count);
  tested_pattern_free(s);
  return count;
}

START_TEST(grids_by_their_axes) {
  int64_t cells = grids[_i].cells;
  cover_count own = count_grid(grids[_i].words, "", cells);
  cover_count each = count_grid(grids[_i].words, "mask i + j >= 0;", cells);
  ck_assert(each.boxes > 0 && own.boxes == 0);
  ck_assert_msg(own.pairs == each.pairs && own.distinct == each.distinct &&
                    own.uncovered == each.uncovered,
                "%s: %g pairs, %g rows without keys; %g, %g", grids[_i].words, own.pairs,
                own.uncovered, each.pairs, each.uncovered);
}
END_TEST

/* Each query of a neighbourhood has as many keys. */
START_TEST(a_grid_of_millions) {
  double start = cpu_seconds();
  cover_count count = count_grid("grid 64 x 160 x 256; neighborhood 5 x 9 x 9;", "",
                                 64 * 160 * 256);
  ck_assert_double_eq(count.pairs, 3.0 * 64 * 160 * 256 * 5 * 9 * 9);
  ck_assert_double_eq(count.uncovered, 0);
  ck_assert(!count.estimated);
  expect_soon(start, 1);
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

int main(void) {
  Suite *suite = suite_create("counts");
  TCase *tests = tcase_create("counts");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, SANITIZED ? 600 : 60);
  tcase_add_test(tests, dense_and_causal);
  tcase_add_test(tests, largest_sizes);
  tcase_add_test(tests, dilations_that_hardly_meet);
  tcase_add_test(tests, equal_branches_count_twice);
  tcase_add_test(tests, longnet_of_a_million);
  tcase_add_test(tests, branches_as_one_mask);
  tcase_add_test(tests, longformer_of_65536);
  tcase_add_test(tests, strided_of_a_million);
  tcase_add_test(tests, random_blocks_of_65536);
  tcase_add_test(tests, boxes_end_at_blocks);
  tcase_add_test(tests, random_blocks_of_a_million_are_sampled);
  tcase_add_test(tests, overlapping_windows);
  tcase_add_test(tests, overlapping_dilations);
  tcase_add_loop_test(tests, grids_by_their_axes, 0, GRIDS);
  tcase_add_test(tests, a_grid_of_millions);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
