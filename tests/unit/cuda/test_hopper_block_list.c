/* test_hopper_block_list.c - the Hopper kernel whose warpgroups walk lists of kept
 * blocks, each its own. On a GPU of that kind each case is computed, compared with the
 * oracle, and the kernel that took it is asserted; elsewhere the CPU computes it. */
#include "tests/support/gpu.h"
#include "tests/support/gpu_case.h"
#include "tests/support/gpu_gradients.h"
#include "tests/support/suite.h"
#include <check.h>
#include <string.h>

#define BF16(d) "heads 2; head_dim " #d "; dtype bf16;"
#define F16(d) "heads 2; head_dim " #d "; dtype f16;"
#define GROUPED(d) "heads 4 kv 2; head_dim " #d "; dtype bf16;"
#define GATE "input gate : f32[B, H, nbq, nb];"
#define TABLE "input kept : u8[H, nbq, nb]; keep from kept;"
#define HASH(n) "keep hash(h, bi, bj, 1) % " #n " == 0;"
#define BLOCKS(size, words) " block " size "; " words " branch { }"
#define SEES(size, words, more) " block " size "; " words " branch { " more " }"

static const int32_t lengths[4] = {400, 0, 77, 333};

static const gpu_case cases[] = {
    {P(BF16(64), BLOCKS("64", HASH(4))), 0, SHAPE(1, 1024, 1024, 0)},
    {P(F16(64), BLOCKS("64", TABLE)), 0, SHAPE(2, 500, 500, 1)},
    {P(GROUPED(128), BLOCKS("64", TABLE)), 0, SHAPE(1, 700, 700, 0)},
    /* lists, some of them empty; a condition that is no table */
    {P(BF16(64), BLOCKS("64", "input rows : i32[H, nbq + 1]; input cols : i32[H, *];"
                              "keep from rows, cols;")), 0, SHAPE(1, 640, 640, 0)},
    {P(BF16(32), BLOCKS("64", HASH(30))), 0, SHAPE(3, 1100, 1100, 0)},
    {P(F16(96), BLOCKS("64", "input kept : u8[nbq, nb];"
                             "keep kept[bi, bj] != 0 || bj == 0 || local(1);")), 0,
     SHAPE(1, 777, 777, 0)},
    {P("heads 3; head_dim 72 value 40; dtype f16;", BLOCKS("64", TABLE)), 0,
     SHAPE(1, 450, 450, 1)},
    {P(BF16(8), BLOCKS("64", HASH(3))), 0, SHAPE(2, 510, 510, 0)},
    /* blocks of queries and of keys that differ, and of several units */
    {P(BF16(64), BLOCKS("128, 64", TABLE)), 0, SHAPE(1, 600, 600, 0)},
    {P(BF16(128), BLOCKS("64, 192", TABLE)), 0, SHAPE(1, 333, 777, 0)},
    {P(F16(64), BLOCKS("192", HASH(2))), 0, SHAPE(2, 900, 900, 0)},
    /* causality and windows */
    {P(BF16(64), "causal;" BLOCKS("64", TABLE)), 0, SHAPE(1, 790, 790, 0)},
    {P(GROUPED(128), "causal;" BLOCKS("64", HASH(2))), 0, SHAPE(2, 500, 500, 1)},
    {P(F16(40), SEES("64", TABLE, "window 100, 30;")), 0, SHAPE(1, 750, 750, 0)},
    {P(BF16(64), SEES("64, 320", HASH(2), "window 333, 0;")), 0, SHAPE(1, 900, 900, 0)},
    {P(BF16(128), "causal;" SEES("192", TABLE, "window 250, 0;")), 0,
     SHAPE(1, 800, 800, 0)},
    /* fewer queries than keys, which begin inside a block; and more */
    {P(BF16(64), BLOCKS("64", TABLE)), 0, SHAPE(1, 100, 520, 0)},
    {P(F16(32), "causal;" BLOCKS("64", TABLE)), 0, SHAPE(2, 130, 777, 0)},
    {P(BF16(64), "causal;" BLOCKS("64", HASH(2))), 0, SHAPE(1, 500, 300, 0)},
    /* rows before the first key see keys, too, where no window hides them */
    {P(GROUPED(128), BLOCKS("64", HASH(2))), 0, SHAPE(1, 230, 170, 0)},
    {P(F16(64), BLOCKS("192, 64", HASH(2))), 0,
     {.batch = 4, .queries = 400, .keys = 400, .seed = 7, .lengths = lengths}},
    /* blocks that queries choose */
    {P(BF16(64), GATE BLOCKS("64", "keep top 2 by gate;")), 0, SHAPE(1, 600, 600, 0)},
    {P(GROUPED(64), "causal;" GATE BLOCKS("64", "keep top 3 by gate; shared kv;")), 0,
     SHAPE(2, 520, 520, 0)},
    {P(F16(128), GATE BLOCKS("64", "keep bj == 0; keep mass 0.6, 2 by gate;")), 0,
     SHAPE(1, 700, 700, 0)},
    /* batch rows of fewer keys, some with rows before the first key */
    {P(BF16(64), BLOCKS("64", TABLE)), 0,
     {.batch = 4, .queries = 400, .keys = 400, .seed = 7, .lengths = lengths}},
    {P(F16(32), "causal;" BLOCKS("64", HASH(2))), 0,
     {.batch = 4, .queries = 70, .keys = 730, .seed = 7, .lengths = lengths}},
    {P(BF16(64), GATE BLOCKS("64", "keep top 2 by gate;")), 0,
     {.batch = 4, .queries = 300, .keys = 430, .seed = 7, .lengths = lengths}},
    /* values that are not finite; a scale of the call; dropout in calls that train */
    {P(BF16(64), BLOCKS("64", TABLE)), 0, BAD(1, 512, 512, 0)},
    {P(F16(128), "causal;" BLOCKS("64", HASH(2))), 0, BAD(2, 450, 450, 1)},
    {P("scale runtime; " BF16(64), BLOCKS("64", TABLE)), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = 0.4}},
    {P("dropout 0.2; " BF16(64), BLOCKS("64", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    /* sinks, of rows without keys, too */
    {P(BF16(64), BLOCKS("64", HASH(30) " sink 0.5;")), 0, SHAPE(1, 600, 600, 0)},
    {P(GROUPED(128), "causal; input z : f32[H] gradient;"
                     BLOCKS("64", TABLE " sink z[h] - 0.01 * i;")), 0,
     SHAPE(2, 500, 500, 1)},
    {P(F16(64), BLOCKS("64", TABLE " sink 0.5;")), 0,
     {.batch = 4, .queries = 400, .keys = 400, .seed = 7, .lengths = lengths}},
};

/* Patterns and calls that other kernels take. */
static const gpu_case left_cases[] = {
    {P("heads 2; head_dim 64; dtype f32;", BLOCKS("64", TABLE)), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(192), BLOCKS("64", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(20), BLOCKS("64", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("32", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("128", TABLE)), 0, SHAPE(1, 512, 512, 0)}, /* fill tiles */
    {P(BF16(64), BLOCKS("64", TABLE)), 0, SHAPE(1, 512, 512, GUARD_BACKWARD)},
    {P(BF16(64), BLOCKS("64", TABLE)), 0, SHAPE(1, 40, 512, 0)},
    {P(BF16(64), BLOCKS("64", TABLE " mask j % 3 > 0;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("64", TABLE " score s + 0.1 * (j - i);")), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(64), SEES("64", TABLE, "segment 256;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("64", TABLE) " branch { window 9, 9; }"), 0,
     SHAPE(1, 512, 512, 0)},
    {P("scale runtime; " BF16(64), BLOCKS("64", TABLE)), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = -0.4}},
    {P("dropout 0.2; " BF16(64), BLOCKS("64", TABLE)), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .train = true,
      .dropout_seed = 5}},
};

enum {
  CASES = sizeof cases / sizeof *cases,
  LEFT = sizeof left_cases / sizeof *left_cases
};

START_TEST(computed) {
  if (gpu_leaves_case("computed", _i)) return;
  gpu_case_compute(&cases[_i], (page_layout){0}, "hopper lists", "general");
}
END_TEST

START_TEST(left_to_others) {
  if (gpu_leaves_case("left to others", _i)) return;
  gpu_case_compute(&left_cases[_i], (page_layout){0}, NULL, "hopper lists");
}
END_TEST

/* ---- gradients ----------------------------------------------------------- */

/* Lists of blocks that fill tiles, of which the kernels take the gradients alone. */
static const gpu_case wide_cases[] = {
    {P(BF16(64), BLOCKS("128", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    {P(GROUPED(128), "causal;" BLOCKS("128", HASH(2))), 0, SHAPE(2, 700, 700, 0)},
    {P(F16(128), SEES("256, 128", TABLE, "window 333, 40;")), 0, SHAPE(1, 900, 900, 1)},
};
enum { WIDE = sizeof wide_cases / sizeof *wide_cases };

static const gpu_case *gradient_case(int i) {
  return i < CASES ? &cases[i] : &wide_cases[i - CASES];
}

/* Whether their queries begin with a tile, in a plan and a call without lengths and
 * dropout. */
static bool lists_take(const gpu_case *c) {
  const call_shape *s = &c->shape;
  return !s->lengths && (s->keys - s->queries) % 64 == 0 && !strstr(c->text, "dropout");
}

static void try_gradients(const gpu_case *c, bool takes) {
  tested_pattern *s = tested_pattern_new("a case", c->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", c->text, s->problem);
  const char *problem =
      gpu_gradient_problem_whole(s, c->force, (gradient_shape){.call = c->shape});
  ck_assert_msg(problem[0] == 0, "%s: %s", c->text, problem);
  bool taken = strstr(gpu_gradient_kernels(), "hopper list gradient dkv");
  ck_assert_msg(taken == takes, "%s takes %s", c->text, gpu_gradient_kernels());
  tested_pattern_free(s);
}

START_TEST(gradients) {
  if (!gpu_wanted() || gpu_leaves_case("gradients", _i)) return;
  try_gradients(gradient_case(_i), lists_take(gradient_case(_i)));
}
END_TEST

static const gpu_case gradients_left[] = {
    {P(BF16(64), BLOCKS("32", TABLE)), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("64", TABLE " mask j % 3 > 0;")), 0, SHAPE(1, 512, 512, 0)},
    {P("heads 2; head_dim 64; dtype f32;", BLOCKS("64", TABLE)), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(64), BLOCKS("64", TABLE)), 0, SHAPE(1, 40, 512, 0)}};
enum { GRADIENTS_LEFT = sizeof gradients_left / sizeof *gradients_left };

START_TEST(gradients_left_to_others) {
  if (!gpu_wanted() || gpu_leaves_case("gradients left to others", _i)) return;
  try_gradients(&gradients_left[_i], false);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_block_list");
  TCase *tests = tcase_create("cases");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, computed, 0, CASES);
  tcase_add_loop_test(tests, left_to_others, 0, LEFT);
  tcase_add_loop_test(tests, gradients, 0, CASES + WIDE);
  tcase_add_loop_test(tests, gradients_left_to_others, 0, GRADIENTS_LEFT);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
