/* test_grid.c - patterns of a grid keep the pairs of the reference. The windows
 * of NATTEN's own kernels are written out here once more: the first cell of a
 * window comes from the length of the axis, the size and the dilation. Random
 * statements of two and three axes; the masks of a kernel, the oracle and the
 * counts keep the same pairs. */
#include "compiler/analysis/cover.h"
#include "compiler/oracle/oracle_query.h"
#include "runtime/base/random.h"
#include "tests/support/definition.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 3, CASES = 60 };

typedef struct axis {
  int64_t extent, kernel, left, right, dilation; /* -1: no bound */
  bool causal;
} axis;

typedef struct sample {
  int32_t axes;
  bool any; /* the first extent */
  axis axis[AXES];
} sample;

/* ---- the reference ------------------------------------------------------- */

/* NATTEN's get_window_start of an odd size, where the window fits. */
static int64_t natten_start(int64_t at, int64_t length, int64_t size,
                            int64_t dilation) {
  int64_t around = size / 2, first = at - around * dilation;
  if (first < 0) return at % dilation;
  if (at + around * dilation < length) return first;
  int64_t left_over = at % dilation, whole = length / dilation * dilation;
  int64_t rest = length - whole;
  if (left_over < rest)
    return length - rest + left_over - 2 * around * dilation;
  return whole + left_over - size * dilation;
}

static bool axis_keeps(const axis *a, int64_t i, int64_t j) {
  int64_t r = a->dilation;
  if ((i - j) % r != 0) return false;
  if (a->left >= 0 && i - j > a->left) return false;
  if (a->right >= 0 && j - i > a->right) return false;
  if (a->causal && j > i) return false;
  if (a->kernel < 0) return true;
  if (a->causal) return i - j <= (a->kernel - 1) * r;
  int64_t first = natten_start(i, a->extent, a->kernel, r);
  return j >= first && j <= first + (a->kernel - 1) * r;
}

static bool sample_keeps(const sample *s, int64_t i, int64_t j) {
  for (int32_t a = s->axes - 1; a >= 0; a--) {
    int64_t extent = s->axis[a].extent;
    if (!axis_keeps(&s->axis[a], i % extent, j % extent)) return false;
    i /= extent;
    j /= extent;
  }
  return true;
}

/* ---- random statements --------------------------------------------------- */

/* NATTEN wants size * dilation within the axis. */
static axis draw_axis(uint64_t *state) {
  axis a = {.extent = random_in(state, 1, 9), .kernel = -1, .left = -1,
            .right = -1, .dilation = random_in(state, 1, 3)};
  if (a.dilation > a.extent) a.dilation = 1;
  int64_t fits = a.extent / a.dilation;
  if (random_in(state, 0, 3) > 0) a.kernel = random_in(state, 0, (fits - 1) / 2);
  if (a.kernel >= 0) a.kernel = 2 * a.kernel + 1;
  if (random_chance(state, 3)) a.left = random_in(state, 0, 4);
  if (random_chance(state, 3)) a.right = random_in(state, 0, 4);
  a.causal = random_chance(state, 4);
  return a;
}

static sample draw_sample(uint64_t *state) {
  sample s = {.axes = (int32_t)random_in(state, 2, 3),
              .any = random_chance(state, 3)};
  for (int32_t a = 0; a < s.axes; a++) s.axis[a] = draw_axis(state);
  return s;
}

static const char *bound_text(int64_t bound) {
  return bound < 0 ? "inf" : arena_print(memory, "%d", (int)bound);
}

static const char *sample_text(const sample *s) {
  static const char *const names[] = {"z", "y", "x"};
  char *cells = "", *size = "", *side = "", *step = "", *past = "";
  for (int32_t a = 0; a < s->axes; a++) {
    const axis *x = &s->axis[a];
    const char *by = a ? " x " : "";
    const char *extent =
        a == 0 && s->any ? "any" : bound_text(x->extent);
    cells = arena_print(memory, "%s%s%s", cells, by, extent);
    size = arena_print(memory, "%s%s%s", size, by, bound_text(x->kernel));
    side = arena_print(memory, "%s%s(%s, %s)", side, by, bound_text(x->left),
                       bound_text(x->right));
    step = arena_print(memory, "%s%s%d", step, by, (int)x->dilation);
    if (x->causal)
      past = arena_print(memory, "%s%s %s", past, *past ? "," : "causal",
                         names[AXES - s->axes + a]);
  }
  return arena_print(memory,
                     "pattern p { heads 1; head_dim 4; dtype f32; grid %s;"
                     " window %s; dilation %s; branch { neighborhood %s;"
                     " %s%s } }",
                     cells, side, step, size, past, *past ? ";" : "");
}

/* ---- comparison ---------------------------------------------------------- */

static const pattern *read_sample(const char *text) {
  diag *d = diag_new(memory);
  program *p =
      program_parse(memory, d, "grid.dil", text, strlen(text), NULL, 0);
  if (!p) diag_print(d, stdout, false);
  ck_assert_msg(p, "%s", text);
  pattern_verify(p->pattern[0]);
  return p->pattern[0];
}

static void compare_query(const sample *s, const pattern *p,
                          const dil_call *call, int64_t i) {
  double q[4], key[4];
  const int64_t at[] = {0, i, 0};
  int64_t M = call->k.shape[1];
  const expr_point point = {.B = 1, .N = (int32_t)M, .M = (int32_t)M};
  oracle_query r;
  query_open(&r, p, call, at, q, key);
  for (int64_t j = 0; j < M; j++) {
    bool wanted = sample_keeps(s, i, j);
    ck_assert_int_eq(query_keeps(&r, 0, j), wanted);
    ck_assert_int_eq(pattern_reaches(p, 0, 0, i, j, &point), wanted);
  }
}

START_TEST(pairs_are_those_of_natten) {
  uint64_t state = (uint64_t)_i + 1;
  sample s = draw_sample(&state);
  const char *text = sample_text(&s);
  const pattern *p = read_sample(text);
  int64_t M = 1;
  double pairs = 0;
  for (int32_t a = 0; a < s.axes; a++) M *= s.axis[a].extent;
  dil_call *call = sample_call(memory, p, 1, M, M, 3);
  for (int64_t i = 0; i < M; i++) {
    compare_query(&s, p, call, i);
    for (int64_t j = 0; j < M; j++) pairs += sample_keeps(&s, i, j);
  }
  cover_count count;
  cover_pattern(p, M, M, 32, 32, call, 0, &count);
  ck_assert_double_eq(count.distinct, pairs);
}
END_TEST

/* The canonical text is read as the same pattern. */
START_TEST(texts_are_read_back) {
  uint64_t state = (uint64_t)_i + 1000;
  sample s = draw_sample(&state);
  const pattern *p = read_sample(sample_text(&s));
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  pattern_print(p, out);
  fclose(out);
  ck_assert(pattern_same(p, read_sample(text)));
  free(text);
}
END_TEST

/* Where a residue has fewer cells than the neighborhood, all of them are in
 * it; an even size has one cell more behind the query. */
START_TEST(odd_sizes_are_not_needed) {
  const pattern *p = read_sample(
      "pattern p { heads 1; head_dim 4; dtype f32; grid 1 x 8; branch { "
      "neighborhood 3 x 4; } }");
  static const int64_t first[] = {0, 0, 0, 1, 2, 3, 4, 4};
  const expr_point point = {.B = 1, .N = 8, .M = 8};
  for (int64_t i = 0; i < 8; i++)
    for (int64_t j = 0; j < 8; j++) {
      bool wanted = j >= first[i] && j < first[i] + 4;
      ck_assert_int_eq(pattern_reaches(p, 0, 0, i, j, &point), wanted);
    }
}
END_TEST

/* Blocks of cells, for keep, and coordinates. */
START_TEST(blocks_hold_cells) {
  const pattern *p = read_sample(
      "pattern p { heads 1; head_dim 4; dtype f32; grid any x 5 x 6;"
      " block 2 x 2 x 3; keep bi == bj; branch { } }");
  const pattern *q = read_sample(
      "pattern p { heads 1; head_dim 4; dtype f32; grid any x 5 x 6;"
      " mask iz / 2 == jz / 2 && iy / 2 == jy / 2; mask ix / 3 == jx / 3;"
      " branch { } }");
  const expr_point point = {.B = 1, .N = 90, .M = 90};
  for (int64_t i = 0; i < 90; i++)
    for (int64_t j = 0; j < 90; j++) {
      bool same = i / 60 == j / 60 && i % 30 / 12 == j % 30 / 12 &&
                  i % 6 / 3 == j % 6 / 3;
      ck_assert_int_eq(pattern_reaches(p, 0, 0, i, j, &point), same);
      ck_assert_int_eq(pattern_reaches(q, 0, 0, i, j, &point), same);
    }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("grid");
  TCase *tests = tcase_create("grid");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_add_loop_test(tests, pairs_are_those_of_natten, 0, CASES);
  tcase_add_loop_test(tests, texts_are_read_back, 0, CASES);
  tcase_add_test(tests, odd_sizes_are_not_needed);
  tcase_add_test(tests, blocks_hold_cells);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
