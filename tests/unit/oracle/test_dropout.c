/* test_dropout.c - whether the pairs that dropout drops look like the throws of
 * a coin: rates of rows and columns, correlations of all pairs of rows,
 * rectangles, the largest singular value. Every back end is held to the same
 * pairs elsewhere, so that these are asked of the oracle alone. */
#include "compiler/oracle/oracle_query.h"
#include "runtime/base/random.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>

enum { SIZE = 1024, WORDS = SIZE / 64, TURNS = 40 };

static const double shares[] = {0.02, 0.1, 0.25, 0.5};
enum { SHARES = sizeof shares / sizeof *shares };

/* z[i][j]: whether a pair stays, with mean 0 and variance 1; stays: the same as
 * bits. */
static float z[SIZE][SIZE];
static uint64_t stays[SIZE][WORDS];

static void set_pair(int64_t i, int64_t j, bool drops, double share) {
  double spread = sqrt(share * (1 - share));
  z[i][j] = (float)(((drops ? 0 : 1) - (1 - share)) / spread);
  stays[i][j / 64] |= (uint64_t)!drops << j % 64;
}

static void fill_matrix(double share, uint64_t seed) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  float q[SIZE] = {0};
  int64_t shape[] = {1, SIZE, 1, 1};
  dil_call call = {.seed = seed, .train = 1};
  call.q = call.k = dil_tensor_make(q, DIL_F32, 4, shape);
  p->dropout = share;
  memset(stays, 0, sizeof stays);
  for (int64_t i = 0; i < SIZE; i++) {
    oracle_query r;
    double row, key;
    query_open(&r, p, &call, (const int64_t[]){0, i, 0}, &row, &key);
    for (int64_t j = 0; j < SIZE; j++)
      set_pair(i, j, query_drops(&r, j), share);
  }
}

/* Of numbers that should be normal, with mean 0 and variance 1. */
typedef struct spread_of {
  double count, sum, squares, most;
} spread_of;

static void spread_add(spread_of *s, double x) {
  s->count++;
  s->sum += x;
  s->squares += x * x;
  if (fabs(x) > s->most) s->most = fabs(x);
}

/* Within five standard errors. A value beyond `most` has a chance below one in
 * a million in all of its numbers. */
static bool is_normal(const spread_of *s, double most) {
  double mean = s->sum / s->count, error = 1 / sqrt(s->count);
  return fabs(mean) < 5 * error &&
         fabs(s->squares / s->count - 1) < 5 * sqrt(2.0) * error &&
         s->most < most;
}

static bool rates_are_even(void) {
  spread_of rows = {0}, columns = {0};
  for (int i = 0; i < SIZE; i++) {
    double row = 0, column = 0;
    for (int j = 0; j < SIZE; j++) {
      row += (double)z[i][j];
      column += (double)z[j][i];
    }
    spread_add(&rows, row / sqrt(SIZE));
    spread_add(&columns, column / sqrt(SIZE));
  }
  return is_normal(&rows, 6.5) && is_normal(&columns, 6.5);
}

static int stays_of(int i) {
  int count = 0;
  for (int w = 0; w < WORDS; w++) count += __builtin_popcountll(stays[i][w]);
  return count;
}

static int stays_in_both(int i, int j) {
  int count = 0;
  for (int w = 0; w < WORDS; w++)
    count += __builtin_popcountll(stays[i][w] & stays[j][w]);
  return count;
}

/* Of all pairs of rows. The variance is the product over all rectangles. */
static bool rows_are_apart(double share) {
  spread_of pairs = {0};
  double kept = 1 - share;
  for (int i = 0; i < SIZE; i++)
    for (int j = 0; j < i; j++) {
      double both = stays_in_both(i, j) - kept * (stays_of(i) + stays_of(j)) +
                    SIZE * kept * kept;
      spread_add(&pairs, both / (share * kept) / sqrt(SIZE));
    }
  return is_normal(&pairs, 12);
}

/* Products of the four corners of all small squares. */
static bool squares_are_apart(void) {
  double sum = 0;
  for (int i = 1; i < SIZE; i++)
    for (int j = 1; j < SIZE; j++)
      sum += (double)(z[i][j] * z[i - 1][j] * z[i][j - 1] * z[i - 1][j - 1]);
  return fabs(sum / (SIZE - 1)) < 5;
}

/* The largest singular value by power iteration: 2 sqrt(SIZE) of a random
 * matrix. */
static bool has_no_direction(void) {
  static double x[SIZE], y[SIZE];
  double length = 0;
  for (int i = 0; i < SIZE; i++) x[i] = 1 + i % 3;
  for (int turn = 0; turn < TURNS; turn++) {
    for (int i = 0; i < SIZE; i++) {
      y[i] = 0;
      for (int j = 0; j < SIZE; j++) y[i] += (double)z[i][j] * x[j];
    }
    length = 0;
    memset(x, 0, sizeof x);
    for (int i = 0; i < SIZE; i++)
      for (int j = 0; j < SIZE; j++) x[j] += (double)z[i][j] * y[i];
    for (int j = 0; j < SIZE; j++) length += x[j] * x[j];
    length = sqrt(length);
    for (int j = 0; j < SIZE; j++) x[j] /= length;
  }
  return sqrt(length) < 2.06 * sqrt(SIZE);
}

START_TEST(dropped_pairs_look_random) {
  double share = shares[_i];
  fill_matrix(share, 0x9E3779B97F4A7C15 * (uint64_t)(_i + 1));
  ck_assert(rates_are_even());
  ck_assert(rows_are_apart(share));
  ck_assert(squares_are_apart());
  ck_assert(has_no_direction());
}
END_TEST

/* A mix with one multiplication is no use, and these tests see that. */
START_TEST(a_weaker_mix_is_seen) {
  uint32_t word[2][SIZE];
  for (uint32_t side = 0; side < 2; side++)
    for (uint32_t i = 0; i < SIZE; i++) {
      uint32_t out[4];
      dil_philox((const uint32_t[]){i, 0, 0, side}, (const uint32_t[]){7, 0},
                 out);
      word[side][i] = out[0];
    }
  memset(stays, 0, sizeof stays);
  for (int64_t i = 0; i < SIZE; i++)
    for (int64_t j = 0; j < SIZE; j++) {
      uint32_t u = word[0][i] ^ word[1][j];
      u = (u ^ u >> 16) * 0x7feb352d;
      set_pair(i, j, u < 1u << 31, 0.5);
    }
  ck_assert(!rows_are_apart(0.5));
}
END_TEST

static Suite *dropout_suite(void) {
  Suite *s = suite_create("dropout");
  TCase *tests = tcase_create("dropout");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_add_loop_test(tests, dropped_pairs_look_random, 0, SHARES);
  tcase_add_test(tests, a_weaker_mix_is_seen);
  suite_add_tcase(s, tests);
  return s;
}

int main(void) {
  return suite_run(dropout_suite(), CK_FORK_GETENV);
}
