/* test_regressions.c - patterns that a kernel once computed wrongly, each as
 * small as it stayed wrong: by every instruction set and every forced plan
 * against the oracle. A new finding of the fuzzer is a row here. */
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>

#define P(dtype, body) \
  "pattern p { heads 2; head_dim 16; dtype " dtype "; " body " }"

static const struct found {
  const char *name, *text;
  int64_t queries, keys;
} found[] = {
    /* Tiles of keys as long as a block: odd ones cut pairs of bf16 in two. */
    {"odd blocks", P("bf16", "block 91; keep random(0.5, 9); branch { }"),
     131, 131},
    {"odd blocks, more keys",
     P("bf16", "block 33; keep bi != bj; branch { }"), 97, 401},
    {"odd blocks of a branch",
     P("bf16", "causal; branch { segment 300; block 75; keep strided(2); } "
       "branch { dilation 3; }"), 236, 236},
    /* Weights beside that of a sink are subnormal numbers, or lost. */
    {"a sink that leaves subnormal weights",
     P("bf16", "sink 88.0; branch { }"), 40, 300},
};
enum { FOUND = sizeof found / sizeof found[0] };

static void try_kernel(const tested_pattern *s, data *d, recipe way,
                       const char *name) {
  kernel_made *k = kernel_make(s, way);
  ck_assert_msg(way.force || !k->refused, "%s: %s", name, k->problem);
  const char *problem = k->refused ? "" : data_problem(d, k);
  ck_assert_msg(problem[0] == 0, "%s, %s, force %u: %s", name, way.isa,
                way.force, problem);
  kernel_unmake(k);
}

START_TEST(right_now) {
  const struct found *f = &found[_i];
  tested_pattern *s = tested_pattern_new(f->name, f->text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = f->queries,
                                     .keys = f->keys, .seed = 7});
  forced list[FORCES_MOST];
  forces_of(s, list);
  for (const char *const *isa = cpu_isas(); *isa; isa++)
    for (const forced *way = list; way->name; way++)
      try_kernel(s, d, (recipe){.isa = *isa, .force = way->force, .threads = 0}, f->name);
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("found");
  TCase *tests = tcase_create("found");
  tcase_set_timeout(tests, 120);
  tcase_add_loop_test(tests, right_now, 0, FOUND);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
