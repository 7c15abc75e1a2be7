/* test_hopper_grid.c - the Hopper kernels for grids: patches and boxes of every
 * shape, edges, dilations; the same for gradients. On a GPU of that kind each case is
 * computed, compared with the oracle, and the kernels that took it are asserted;
 * elsewhere the CPU computes it. */
#include "tests/support/gpu.h"
#include "tests/support/gpu_case.h"
#include "tests/support/gpu_gradients.h"
#include "tests/support/suite.h"
#include <check.h>
#include <string.h>

#define BF16(d) "heads 2; head_dim " #d "; dtype bf16;"
#define F16(d) "heads 2; head_dim " #d "; dtype f16;"
#define GROUPED(d) "heads 4 kv 2; head_dim " #d "; dtype bf16;"
#define BRANCH(words) words " branch { }"

static const gpu_case cases[] = {
    /* one box along x; patches that the grid does not fill */
    {P(BF16(64), BRANCH("grid 24 x 32; neighborhood 13 x 13;")), 0,
     SHAPE(1, 768, 768, 0)},
    {P(F16(64), BRANCH("grid 17 x 37; neighborhood 13 x 13;")), 0,
     SHAPE(2, 629, 629, 1)},
    {P(GROUPED(128), BRANCH("grid 21 x 19; neighborhood 5 x 7;")), 0,
     SHAPE(2, 399, 399, 0)},
    {P("heads 3; head_dim 72 value 40; dtype f16;",
       BRANCH("grid 20 x 20; window 2 x 2;")), 0, SHAPE(1, 400, 400, 0)},
    {P(F16(96), BRANCH("grid 24 x 24; neighborhood 9 x 9; causal y, x;")), 0,
     SHAPE(1, 576, 576, 1)},
    {P(BF16(8), BRANCH("grid 24 x 16; neighborhood 5 x 5;")), 0,
     SHAPE(3, 384, 384, 0)},
    /* windows of two lengths; the first extent by the call */
    {P(GROUPED(64), BRANCH("grid any x 45; window (6, 0) x 3;")), 0,
     SHAPE(2, 900, 900, 0)},
    {P(BF16(64), BRANCH("grid any x 16; window (0, 9) x (1, 4); causal y;")), 0,
     SHAPE(1, 80, 80, 0)},
    {P(BF16(64), BRANCH("grid 23 x 31; neighborhood 5 x 5; window 9 x (3, 0);")), 0,
     SHAPE(1, 713, 713, 0)},
    /* several boxes along x; all of an axis */
    {P(BF16(64), BRANCH("grid 12 x 150; window 2 x 70;")), 0,
     SHAPE(1, 1800, 1800, 0)},
    {P(F16(32), BRANCH("grid 30 x 33; neighborhood 7 x 31; causal y;")), 0,
     SHAPE(2, 990, 990, 0)},
    {P(GROUPED(128), BRANCH("grid 40 x 32; neighborhood 5 x inf;")), 0,
     SHAPE(1, 1280, 1280, 0)},
    {P(BF16(64), BRANCH("grid 40 x 48; neighborhood 33 x 33;")), 0,
     SHAPE(1, 1920, 1920, 1)}, /* some boxes count whole */
    /* three axes */
    {P(BF16(64), BRANCH("grid 6 x 13 x 18; neighborhood 3 x 5 x 7;")), 0,
     SHAPE(2, 1404, 1404, 0)},
    {P(GROUPED(128), BRANCH("grid 9 x 5 x 16; neighborhood 5 x 3 x 3; causal z;")), 0,
     SHAPE(1, 720, 720, 1)},
    {P(F16(64), BRANCH("grid any x 9 x 33; window 1 x (2, 0) x 3;")), 0,
     SHAPE(3, 1188, 1188, 0)},
    {P(BF16(32), BRANCH("grid 32 x 3 x 48; neighborhood 5 x 3 x 13;")), 0,
     SHAPE(1, 4608, 4608, 0)},
    /* residues */
    {P(BF16(64), BRANCH("grid 25 x 96; dilation 2 x 3; neighborhood 5 x 5;")), 0,
     SHAPE(2, 2400, 2400, 0)},
    {P(GROUPED(64), BRANCH("grid 31 x 35; dilation 3 x 1; neighborhood 3 x 7; "
                           "causal x;")), 0, SHAPE(1, 1085, 1085, 1)},
    {P(F16(32), BRANCH("grid 7 x 11 x 33; dilation 1 x 2 x 2; window 1 x 2 x 3;")), 0,
     SHAPE(2, 2541, 2541, 0)},
    /* values that are not finite; a scale of the call */
    {P(BF16(64), BRANCH("grid 24 x 32; neighborhood 13 x 13;")), 0,
     BAD(1, 768, 768, 0)},
    {P(F16(128), BRANCH("grid 24 x 31; neighborhood 5 x 7;")), 0, BAD(2, 744, 744, 1)},
    {P(BF16(64), BRANCH("scale runtime; grid 24 x 32; neighborhood 5 x 5;")), 0,
     {.batch = 1, .queries = 768, .keys = 768, .seed = 7, .scale = 0.4}},
    /* sinks of all rows, and of each by its cell */
    {P(BF16(64), BRANCH("sink 0.5; grid 24 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 768, 768, 0)},
    {P(GROUPED(64), BRANCH("grid 4 x 9 x 18; dilation 1 x 2 x 1; window 1 x 2 x 3; "
                           "input z : f32[H]; sink z[h] - 0.01 * i;")), 0,
     SHAPE(2, 648, 648, 1)},
};

/* Patterns and calls that other kernels take. */
static const gpu_case left_cases[] = {
    {P("heads 2; head_dim 64; dtype f32;",
       BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0, SHAPE(1, 768, 768, 0)},
    {P(BF16(192), BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 768, 768, 0)},
    {P(BF16(20), BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 768, 768, 0)},
    {P(BF16(64), BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 768, 768, GUARD_BACKWARD)},
    {P(BF16(64), BRANCH("scale runtime; grid 24 x 32; neighborhood 5 x 5;")), 0,
     {.batch = 1, .queries = 768, .keys = 768, .seed = 7, .scale = -0.4}},
    {P(BF16(64), BRANCH("grid 150 x 5; neighborhood 3 x 3;")), 0,
     SHAPE(1, 750, 750, 0)}, /* patches of 16 cells along x would be empty */
    /* boxes of keys that the rows see little of */
    {P(BF16(8), BRANCH("grid 24 x 16; neighborhood 3 x 3;")), 0,
     SHAPE(3, 384, 384, 0)},
    {P(BF16(64), BRANCH("grid 23 x 31; neighborhood 5 x 5; window 9 x (1, 0);")), 0,
     SHAPE(1, 713, 713, 0)},
    {P(BF16(64), "grid 24 x 32; branch { neighborhood 5 x 5; heads 0..0; }"), 0,
     SHAPE(1, 768, 768, 0)},
    {P(BF16(64), "grid 24 x 32; branch { neighborhood 5 x 5; } branch { window 1 x "
                 "1; }"), 0, SHAPE(1, 768, 768, 0)},
    {P(BF16(64), "grid 24 x 32; neighborhood 5 x 5; branch { mask (iy + jx) % 3 > 0; "
                 "score s + 0.1 * (jx - ix); }"), 0, SHAPE(1, 768, 768, 0)},
    {P(BF16(32), BRANCH("grid 60 x 64; dilation 5 x 4; neighborhood 3 x 3;")), 0,
     SHAPE(1, 3840, 3840, 0)}, /* more residues than maps */
};

enum {
  CASES = sizeof cases / sizeof *cases,
  LEFT = sizeof left_cases / sizeof *left_cases
};

START_TEST(computed) {
  if (gpu_leaves_case("computed", _i)) return;
  gpu_case_compute(&cases[_i], (page_layout){0}, "hopper grid", "general");
}
END_TEST

START_TEST(left_to_others) {
  if (gpu_leaves_case("left to others", _i)) return;
  gpu_case_compute(&left_cases[_i], (page_layout){0}, NULL, "hopper grid");
}
END_TEST

/* Calls that train are left, and other calls of the plan are not. */
START_TEST(dropped) {
  gpu_case c = {P(BF16(64), BRANCH("dropout 0.2; grid 24 x 32; neighborhood 5 x 5;")),
                0, SHAPE(1, 768, 768, 0)};
  if (gpu_leaves_case("dropped", _i)) return;
  gpu_case_compute(&c, (page_layout){0}, "hopper grid", "general");
  c.shape.train = true;
  c.shape.dropout_seed = 5;
  gpu_case_compute(&c, (page_layout){0}, "general", "hopper grid");
}
END_TEST

/* One kernel, more calls than it keeps the maps of, and again. */
START_TEST(calls_in_turn) {
  if (gpu_leaves_case("calls in turn", _i)) return;
  tested_pattern *s = tested_pattern_new(
      "grids", P(BF16(32), BRANCH("grid any x 20; neighborhood 3 x 5;")), NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  kernel_made *k = kernel_make(s, (recipe){0});
  for (int i = 0; i < 40; i++) {
    int64_t rows = 20 * (4 + i % 20);
    data *d = data_new(s, (call_shape)SHAPE(1 + i % 2, rows, rows, i % 2));
    const char *problem = data_problem(d, k);
    ck_assert_msg(problem[0] == 0, "call %d: %s", i, problem);
    data_free(d);
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

/* ---- gradients ----------------------------------------------------------- */

static void try_gradients(const gpu_case *c, gradient_shape shape, bool takes) {
  tested_pattern *s = tested_pattern_new("a case", c->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", c->text, s->problem);
  shape.call = c->shape;
  const char *problem = gpu_gradient_problem_whole(s, c->force, shape);
  ck_assert_msg(problem[0] == 0, "%s: %s", c->text, problem);
  bool taken = strstr(gpu_gradient_kernels(), "hopper grid gradient dkv");
  ck_assert_msg(taken == takes, "%s takes %s", c->text, gpu_gradient_kernels());
  tested_pattern_free(s);
}

static const gpu_case gradient_cases[] = {
    /* rows at every place of a patch */
    {P(BF16(64), BRANCH("grid 17 x 35; neighborhood 13 x 13;")), 0,
     SHAPE(1, 595, 595, 0)},
    {P(F16(64), BRANCH("grid 17 x 37; neighborhood 13 x 13;")), 0,
     SHAPE(2, 629, 629, 1)},
    {P(GROUPED(128), BRANCH("grid 21 x 19; neighborhood 5 x 7;")), 0,
     SHAPE(2, 399, 399, 0)},
    {P("heads 3; head_dim 72 value 40; dtype f16;",
       BRANCH("grid 20 x 20; window 2 x 2;")), 0, SHAPE(1, 400, 400, 0)},
    {P(F16(96), BRANCH("grid 24 x 24; neighborhood 9 x 9; causal y, x;")), 0,
     SHAPE(1, 576, 576, 1)},
    {P(GROUPED(8), BRANCH("grid any x 45; window (6, 0) x 3;")), 0,
     SHAPE(2, 630, 630, 0)},
    {P(BF16(64), BRANCH("grid any x 16; window (0, 9) x (1, 4); causal y;")), 0,
     SHAPE(1, 80, 80, 0)},
    /* several boxes along x, all of an axis, boxes that count whole */
    {P(BF16(64), BRANCH("grid 6 x 120; window 2 x 50;")), 0, SHAPE(1, 720, 720, 0)},
    {P(F16(128), BRANCH("grid 3 x 232; window 1 x 100;")), 0, SHAPE(1, 696, 696, 1)},
    {P(GROUPED(128), BRANCH("grid 20 x 32; neighborhood 5 x inf;")), 0,
     SHAPE(1, 640, 640, 0)},
    {P(BF16(64), BRANCH("grid 28 x 24; neighborhood 19 x 21;")), 0,
     SHAPE(1, 672, 672, 1)},
    /* three axes */
    {P(BF16(64), BRANCH("grid 4 x 9 x 18; neighborhood 3 x 5 x 7;")), 0,
     SHAPE(1, 648, 648, 0)},
    {P(GROUPED(64), BRANCH("grid 3 x 9 x 17; neighborhood 3 x 7 x 9;")), 0,
     SHAPE(1, 459, 459, 0)},
    {P(GROUPED(128), BRANCH("grid 9 x 5 x 16; neighborhood 5 x 3 x 3; causal z;")), 0,
     SHAPE(1, 720, 720, 1)},
    {P(F16(64), BRANCH("grid any x 4 x 33; window 1 x (2, 0) x 3;")), 0,
     SHAPE(3, 528, 528, 0)},
    /* residues */
    {P(BF16(64), BRANCH("grid 9 x 80; dilation 2 x 3; neighborhood 3 x 5;")), 0,
     SHAPE(2, 720, 720, 0)},
    {P(GROUPED(64), BRANCH("grid 19 x 35; dilation 3 x 1; neighborhood 3 x 7; "
                           "causal x;")), 0, SHAPE(1, 665, 665, 1)},
    {P(F16(32), BRANCH("grid 3 x 6 x 32; dilation 1 x 2 x 2; window 1 x 2 x 3;")), 0,
     SHAPE(2, 576, 576, 0)},
    /* values that are not finite; a scale of the call */
    {P(BF16(64), BRANCH("grid 16 x 32; neighborhood 5 x 5;")), 0, BAD(1, 512, 512, 0)},
    {P(F16(128), BRANCH("grid 16 x 31; neighborhood 5 x 7;")), 0, BAD(2, 496, 496, 1)},
    {P(BF16(64), BRANCH("scale runtime; grid 16 x 32; neighborhood 5 x 5;")), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = 0.4}},
    /* sinks, one of them with a gradient of its own */
    {P(F16(64), BRANCH("sink 0.5; grid 16 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 512, 512, 0)},
    {P(GROUPED(64), BRANCH("grid 4 x 8 x 18; window 1 x 2 x 3; "
                           "input z : f32[H] gradient; sink z[h] - 0.01 * i;")), 0,
     SHAPE(2, 576, 576, 1)},
};
enum { GRADIENTS = sizeof gradient_cases / sizeof *gradient_cases };

/* All gradients, or one; with and without lse and its gradient. */
START_TEST(gradients) {
  const unsigned others[] = {1u << GRADIENT_DK | 1u << GRADIENT_DV,
                             1u << GRADIENT_DQ | 1u << GRADIENT_DV};
  gradient_shape shape = {0};
  if (!gpu_wanted() || gpu_leaves_case("gradients", _i)) return;
  for (int x = 0; x < GRADIENT_TENSORS; x++) shape.layout[x] = (guard_layout)(_i % 2);
  if (_i % 4 == 3) shape.unwanted = others[_i / 4 % 2];
  shape.without_lse = _i % 4 == 2;
  shape.without_dlse = _i % 4 == 1;
  try_gradients(&gradient_cases[_i], shape, true);
}
END_TEST

static const gpu_case gradients_left[] = {
    {P("heads 2; head_dim 64; dtype f32;",
       BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0, SHAPE(1, 768, 768, 0)},
    {P(BF16(192), BRANCH("grid 16 x 16; neighborhood 5 x 5;")), 0,
     SHAPE(1, 256, 256, 0)},
    {P(BF16(20), BRANCH("grid 16 x 16; neighborhood 5 x 5;")), 0,
     SHAPE(1, 256, 256, 0)},
    {P(BF16(64), BRANCH("grid 24 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 768, 768, GUARD_BACKWARD)},
    {P(BF16(64), BRANCH("scale runtime; grid 16 x 32; neighborhood 5 x 5;")), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = -0.4}},
    {P(BF16(64), BRANCH("dropout 0.2; grid 16 x 32; neighborhood 5 x 5;")), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(64), "grid 16 x 32; branch { neighborhood 5 x 5; } branch { window 1 x "
                 "1; }"), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), "grid 16 x 32; neighborhood 5 x 5; branch { mask (iy + jx) % 3 > 0; "
                 "}"), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BRANCH("grid 2 x 300; neighborhood 1 x 243;")), 0,
     SHAPE(1, 600, 600, 0)}};
enum { GRADIENTS_LEFT = sizeof gradients_left / sizeof *gradients_left };

START_TEST(gradients_left_to_others) {
  if (!gpu_wanted() || gpu_leaves_case("gradients left to others", _i)) return;
  try_gradients(&gradients_left[_i], (gradient_shape){0}, false);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_grid");
  TCase *tests = tcase_create("cases");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, computed, 0, CASES);
  tcase_add_loop_test(tests, left_to_others, 0, LEFT);
  tcase_add_test(tests, dropped);
  tcase_add_test(tests, calls_in_turn);
  tcase_add_loop_test(tests, gradients, 0, GRADIENTS);
  tcase_add_loop_test(tests, gradients_left_to_others, 0, GRADIENTS_LEFT);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
