/* test_hopper.c - what the Hopper kernels take: head sizes, chains of passes,
 * segments of any kind, masks and scores. On a GPU of that kind each case is
 * computed, compared with the oracle, and the path that it took is asserted;
 * elsewhere the CPU computes it. */
#include "hopper_cases.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>

static void compute(const gpu_case *c, const char *takes, const char *leaves) {
  gpu_case_compute(c, (page_layout){0}, takes, leaves);
}

START_TEST(computed) {
  const gpu_case *c = &cases[_i];
  if (gpu_leaves_case("computed", _i)) return;
  if (c->shape.told && !gpu_wanted()) return; /* refused there */
  compute(c, "hopper", "general");
}
END_TEST

/* Only calls that train take the kernel with dropout. */
START_TEST(dropped) {
  gpu_case c = dropping[_i];
  if (gpu_leaves_case("dropped", _i)) return;
  compute(&c, "hopper", "dropout");
  c.shape.train = true;
  c.shape.dropout_seed = 0x123456789abcdef;
  compute(&c, "dropout", "general");
}
END_TEST

START_TEST(left_to_general) {
  if (gpu_leaves_case("left to general", _i)) return;
  compute(&left_cases[_i], "general", "hopper");
}
END_TEST

START_TEST(apart) {
  if (gpu_leaves_case("apart", _i)) return;
  gpu_case c = document_cases[_i];
  c.shape.whole = true;
  compute(&c, "documents of", "general");
}
END_TEST

/* One kernel, calls of more sizes than it keeps the numbers of, and again. */
START_TEST(sizes_in_turn) {
  if (gpu_leaves_case("sizes in turn", CASES + _i)) return;
  static const int32_t few[] = {70, 0, 33};
  static const call_shape shapes[] = {
      SHAPE(1, 300, 300, 0), SHAPE(1, 64, 64, 0),    SHAPE(2, 300, 300, 1),
      SHAPE(1, 65, 1, 0),    SHAPE(1, 129, 300, 0),  SHAPE(3, 100, 70, 0),
      SHAPE(1, 1, 300, 0),   SHAPE(1, 100, 0, 0),    SHAPE(1, 301, 301, 3),
      SHAPE(1, 200, 300, 2), SHAPE(1, 0, 64, 0),     SHAPE(1, 300, 129, 1),
      {.batch = 3, .queries = 100, .keys = 70, .seed = 7, .lengths = few}};
  enum { SHAPES = sizeof shapes / sizeof *shapes };
  const gpu_case c = {
      _i ? P(BF16(32), "causal; branch { window 40, 0; dilation 2; }")
         : P(F16(64), "segments 64, 128; dilations 1, 2;"),
      _i ? 0 : FORCE_CHAIN, shapes[0]};
  tested_pattern *s = tested_pattern_new("hopper", c.text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", c.text, s->problem);
  kernel_made *k = kernel_make(s, (recipe){.force = c.force});
  for (int i = 0; i < 2 * SHAPES; i++) {
    data *d = data_new(s, shapes[i % SHAPES]);
    const char *problem = data_problem(d, k);
    ck_assert_msg(problem[0] == 0, "call %d of %s: %s", i, c.text, problem);
    data_free(d);
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper");
  TCase *tests = tcase_create("cases");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, computed, 0, CASES);
  tcase_add_loop_test(tests, left_to_general, 0, LEFT);
  tcase_add_loop_test(tests, sizes_in_turn, 0, 2);
  suite_add_tcase(suite, tests);
  TCase *masked = tcase_create("documents");
  tcase_set_timeout(masked, 240);
  tcase_add_loop_test(masked, apart, 0, DOCUMENT_CASES);
  suite_add_tcase(suite, masked);
  TCase *training = tcase_create("dropout");
  tcase_set_timeout(training, 240);
  tcase_add_loop_test(training, dropped, 0, DROPPING);
  suite_add_tcase(suite, training);
  return suite_run(suite, CK_FORK_GETENV);
}
