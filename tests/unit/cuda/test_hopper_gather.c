/* test_hopper_gather.c - the Hopper kernels that gather rows by the blocks of keys that
 * they chose, forward and backward. On a GPU of that kind each case is computed,
 * compared with the oracle, and the kernel that took it is asserted; elsewhere the CPU
 * computes it, forward. Rows choose by a gate of the call, so that the oracle chooses
 * the same. */
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
#define CHOOSES(block, words) GATE " block 1, " #block "; branch { " words " }"
#define TOP(k) "keep top " #k " by gate;"

static const int32_t lengths[4] = {400, 0, 77, 333};

static const gpu_case cases[] = {
    {P(BF16(64), CHOOSES(64, TOP(2))), 0, SHAPE(1, 512, 512, 0)},
    {P(F16(64), CHOOSES(64, TOP(1))), 0, SHAPE(2, 300, 300, 1)},
    {P(GROUPED(128), CHOOSES(128, TOP(2))), 0, SHAPE(1, 600, 600, 0)},
    /* blocks that no visit fills; the last block is short */
    {P(BF16(32), CHOOSES(40, TOP(2))), 0, SHAPE(2, 393, 393, 0)},
    {P(F16(96), CHOOSES(200, TOP(1))), 0, SHAPE(1, 777, 777, 0)},
    {P("heads 3; head_dim 72 value 40; dtype f16;", CHOOSES(100, TOP(2))), 0,
     SHAPE(1, 450, 450, 1)},
    {P(BF16(8), CHOOSES(16, TOP(3))), 0, SHAPE(3, 510, 510, 0)},
    /* rows behind which no key is seen: their own block is always chosen */
    {P(BF16(64), CHOOSES(64, "causal; " TOP(2))), 0, SHAPE(1, 790, 790, 0)},
    {P(GROUPED(128), CHOOSES(150, "causal; " TOP(1))), 0, SHAPE(2, 500, 500, 1)},
    {P(F16(40), CHOOSES(48, "causal; " TOP(2))), 0, SHAPE(1, 750, 750, 0)},
    /* fewer queries than keys */
    {P(BF16(64), CHOOSES(64, TOP(2))), 0, SHAPE(1, 100, 520, 0)},
    {P(F16(32), CHOOSES(56, "causal; " TOP(2))), 0, SHAPE(2, 130, 760, 0)},
    /* heads that choose as one; a share */
    {P(GROUPED(64), CHOOSES(64, TOP(2) " shared kv;")), 0, SHAPE(1, 520, 520, 0)},
    {P(BF16(64), CHOOSES(64, "keep mass 0.6, 3 by gate;")), 0,
     SHAPE(1, 600, 600, 0)},
    /* batch rows of fewer keys, some with rows before the first key */
    {P(BF16(64), CHOOSES(64, TOP(2))), 0,
     {.batch = 4, .queries = 400, .keys = 400, .seed = 7, .lengths = lengths}},
    {P(F16(32), CHOOSES(40, "causal; " TOP(2))), 0,
     {.batch = 4, .queries = 70, .keys = 730, .seed = 7, .lengths = lengths}},
    /* values that are not finite; a scale of the call */
    {P(BF16(64), CHOOSES(64, TOP(2))), 0, BAD(1, 512, 512, 0)},
    {P(F16(128), CHOOSES(100, "causal; " TOP(1))), 0, BAD(2, 450, 450, 1)},
    {P("scale runtime; " BF16(64), CHOOSES(64, TOP(2))), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = 0.4}},
    /* sinks, one of them with a gradient of its own */
    {P(F16(64), CHOOSES(64, TOP(2) " sink 0.5;")), 0,
     {.batch = 4, .queries = 400, .keys = 400, .seed = 7, .lengths = lengths}},
    {P(GROUPED(128), "input z : f32[H] gradient; sink z[h] - 0.01 * i;"
                     CHOOSES(64, "causal; " TOP(2))), 0, SHAPE(1, 790, 790, 1)},
};

/* Patterns and calls that other kernels take. */
static const gpu_case left_cases[] = {
    {P("heads 2; head_dim 64; dtype f32;", CHOOSES(64, TOP(2))), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(192), CHOOSES(64, TOP(2))), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(20), CHOOSES(64, TOP(2))), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2))), 0, SHAPE(1, 512, 512, GUARD_BACKWARD)},
    {P(BF16(64), CHOOSES(64, TOP(4))), 0, SHAPE(1, 512, 512, 0)}, /* most keys */
    {P(BF16(64), CHOOSES(64, TOP(2))), 0, SHAPE(1, 40, 512, 0)},
    {P(BF16(64), GATE " block 2, 64; branch { " TOP(2) " }"), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2) " keep bj == 0;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2) " mask j % 3 > 0;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2) " window 200, 0;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2) " score s + 0.1 * (j - i);")), 0,
     SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2) " segment 256;")), 0, SHAPE(1, 512, 512, 0)},
    {P(BF16(64), CHOOSES(64, TOP(2)) " branch { window 9, 9; }"), 0,
     SHAPE(1, 512, 512, 0)},
    {P("scale runtime; " BF16(64), CHOOSES(64, TOP(2))), 0,
     {.batch = 1, .queries = 512, .keys = 512, .seed = 7, .scale = -0.4}},
};

enum {
  CASES = sizeof cases / sizeof *cases,
  LEFT = sizeof left_cases / sizeof *left_cases
};

START_TEST(computed) {
  if (gpu_leaves_case("computed", _i)) return;
  gpu_case_compute(&cases[_i], (page_layout){0}, "hopper gather", "general");
}
END_TEST

START_TEST(left_to_others) {
  if (gpu_leaves_case("left to others", _i)) return;
  gpu_case_compute(&left_cases[_i], (page_layout){0}, NULL, "hopper gather");
}
END_TEST

static void try_gradients(const gpu_case *c, const char *takes, const char *leaves) {
  tested_pattern *s = tested_pattern_new("a case", c->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", c->text, s->problem);
  const char *problem =
      gpu_gradient_problem_whole(s, c->force, (gradient_shape){.call = c->shape});
  ck_assert_msg(problem[0] == 0, "%s: %s", c->text, problem);
  const char *taken = gpu_gradient_kernels();
  ck_assert_msg(strstr(taken, takes) && !strstr(taken, leaves), "%s takes %s",
                c->text, taken);
  tested_pattern_free(s);
}

START_TEST(gradients) {
  if (!gpu_wanted() || gpu_leaves_case("gradients", _i)) return;
  try_gradients(&cases[_i], "gather gradient dkv", "pairs");
}
END_TEST

START_TEST(gradients_left_to_others) {
  const gpu_case most = {P(BF16(64), CHOOSES(64, TOP(4))), 0,
                         SHAPE(1, 512, 512, 0)};
  if (!gpu_wanted() || gpu_leaves_case("gradients left", _i)) return;
  try_gradients(&most, "hopper gradient dkv pairs", "gather");
}
END_TEST

/* Calls that train are left, and other calls of the plan are not. */
START_TEST(dropped) {
  gpu_case c = {P("dropout 0.2; " BF16(64), CHOOSES(64, TOP(2))), 0,
                SHAPE(1, 512, 512, 0)};
  if (gpu_leaves_case("dropped", _i)) return;
  gpu_case_compute(&c, (page_layout){0}, "hopper gather", "general");
  c.shape.train = true;
  c.shape.dropout_seed = 5;
  gpu_case_compute(&c, (page_layout){0}, NULL, "hopper gather");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_gather");
  TCase *tests = tcase_create("cases");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, computed, 0, CASES);
  tcase_add_loop_test(tests, left_to_others, 0, LEFT);
  tcase_add_test(tests, dropped);
  tcase_add_loop_test(tests, gradients, 0, CASES);
  tcase_add_test(tests, gradients_left_to_others);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
