/* test_plan_text.c - the text form of plans, out and in: each reads back to the
 * same text and hash, and a wrong one is told where. */
#include "compiler/plan/plan.h"
#include "tests/support/plan_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <glob.h>
#include <pthread.h>
#include <string.h>

static void check_round_trip(const plan *p) {
  const char *text = printed(p);
  plan *again = plan_parse(memory, messages, "p.plan", text, strlen(text));
  ck_assert_msg(again != NULL, "%s%s", text, complaints());
  plan_verify(again);
  ck_assert_str_eq(printed(again), text);
  ck_assert_uint_eq(plan_hash(again), plan_hash(p));
}

START_TEST(every_example_reads_back) {
  static const unsigned forces[] = {0, FORCE_FUSE, FORCE_CHAIN, FORCE_MULTISET,
                                    FORCE_GENERAL};
  glob_t files;
  ck_assert_int_eq(glob("examples/*.dil", 0, NULL, &files), 0);
  for (size_t i = 0; i < files.gl_pathc; i++)
    for (size_t f = 0; f < sizeof forces / sizeof *forces; f++) {
      close_memory();
      open_plans();
      dil_status status;
      program *read = program_read(memory, messages, files.gl_pathv[i], NULL, 0,
                                   &status);
      ck_assert_ptr_nonnull(read);
      plan *p = plan_make(memory, messages, read->pattern[0], forces[f]);
      ck_assert(p || read->pattern[0]->combine == DIL_COMBINE_UNION);
      if (p) check_round_trip(p);
    }
  ck_assert_uint_ge(files.gl_pathc, 14);
  globfree(&files);
}
END_TEST

START_TEST(a_plan_reads_as_it_says) {
  plan *p = plan_of("segments 8, 16, 32; dilations 1, 2, 4;", FORCE_FUSE);
  const char *text = printed(p);
  ck_assert_msg(strstr(text, "plan 1 p\nvisit dedup\npass 0 1 2  # period 4\n"
                             "# head 0, cell of 8 positions:\n"
                             "#   1/4 of the rows: 0 1 2; keys of (0 1 2) x3, "
                             "(0) x1, (0 1) x2\n"), "%s", text);
}
END_TEST

/* The direction is in the text and the hash of a plan that is not forward. */
START_TEST(a_direction_names_a_plan) {
  const pattern *of = pattern_of("segments 8, 16; dilations 1, 2;");
  plan *forward = plan_make_for(memory, messages, of, 0, DIL_FORWARD, false);
  plan *backward = plan_make_for(memory, messages, of, 0, DIL_BACKWARD, false);
  ck_assert(plan_hash(forward) != plan_hash(backward));
  ck_assert_ptr_null(strstr(printed(forward), "direction"));
  const char *text = printed(backward);
  ck_assert_ptr_nonnull(strstr(text, "visit dedup\ndirection backward\n"));
  plan *again = plan_parse(memory, messages, "p.plan", text, strlen(text));
  ck_assert_msg(again != NULL, "%s", complaints());
  ck_assert_int_eq(again->direction, DIL_BACKWARD);
  ck_assert(plan_hash(again) == plan_hash(backward));
}
END_TEST

START_TEST(sinks_read_back) {
  const pattern *of = pattern_of("input z : f32[H] gradient; sink z[h]; "
                                 "branch { segment 8; } branch { sink 1.0; "
                                 "heads 0..0; }");
  check_round_trip(plan_make(memory, messages, of, 0));
  check_round_trip(plan_make_for(memory, messages, of, 0, DIL_BACKWARD, NULL));
}
END_TEST

START_TEST(a_pass_without_a_head_is_written) {
  plan *p = plan_of("heads split; segments 8, 16, 32, 64, 128; "
                    "dilations 1, 1, 1, 1, 1;", 0);
  ck_assert_msg(p != NULL, "%s", complaints());
  ck_assert_ptr_nonnull(strstr(printed(p), "pass 4  # period 1\npattern p"));
  check_round_trip(p);
}
END_TEST

enum { WRITERS = 4, TIMES = 2000 };

static void *hash_often(void *of) {
  const plan *p = of;
  uint64_t first = plan_hash(p);
  for (int32_t i = 0; i < TIMES; i++)
    if (plan_hash(p) != first) return NULL;
  return of;
}

/* As `dil tune` does, whose kernels are made on all threads. */
START_TEST(threads_may_write_one_plan) {
  plan *p = plan_of("causal; segments 64, 128, 256; dilations 1, 2, 4;", FORCE_CHAIN);
  pthread_t writer[WRITERS];
  for (int32_t i = 0; i < WRITERS; i++)
    ck_assert_int_eq(pthread_create(&writer[i], NULL, hash_often, p), 0);
  for (int32_t i = 0; i < WRITERS; i++) {
    void *same;
    pthread_join(writer[i], &same);
    ck_assert_ptr_nonnull(same);
  }
}
END_TEST

static const struct {
  const char *lines, *message;
} wrong[] = {
    {"plan 2 p\nvisit dedup\npass 0 1\n", "expected version 1 in a plan, got '2'"},
    {"plan 1 p\nvisit twice\npass 0 1\n",
     "expected `dedup`, `multiset` or `general` in a plan, got 'twice'"},
    {"plan 1 p\nvisit dedup\npass 0 x\n",
     "expected a branch number in a plan, got 'x'"},
    {"plan 1 p\nvisit dedup\nstep 0 1\n",
     "expected `plan`, `visit`, `direction` or `pass` in a plan, got 'step'"},
    {"plan 1 p\nvisit dedup\npass 0\n",
     "the passes of a plan must hold each of the 2 branches once"},
    {"plan 1 p\nvisit dedup\npass 0 1\npass 1\n",
     "the passes of a plan must hold each of the 2 branches once"},
};

START_TEST(a_wrong_plan_is_told_where) {
  char *text = arena_print(memory,
                           "%spattern p { heads 4; head_dim 8; dtype f32; "
                           "branch { } branch { segment 8; } }",
                           wrong[_i].lines);
  ck_assert_ptr_null(
      plan_parse(memory, messages, "p.plan", text, strlen(text)));
  ck_assert_msg(strstr(complaints(), wrong[_i].message), "%s", complaints());
}
END_TEST

static const struct {
  const char *combine, *lines, *message;
} misfits[] = {
    {"union", "pass 0\npass 1\n", "pass 0 must hold all branches of its heads"},
    {"mean", "pass 0 1\n", "pass 0 must hold one branch with this `combine`"},
};

START_TEST(passes_fit_the_combine) {
  char *text = arena_print(memory,
                           "plan 1 p\nvisit dedup\n%spattern p { heads 4; "
                           "head_dim 8; dtype f32; combine %s; branch { } "
                           "branch { segment 8; } }",
                           misfits[_i].lines, misfits[_i].combine);
  ck_assert_ptr_null(
      plan_parse(memory, messages, "p.plan", text, strlen(text)));
  ck_assert_msg(strstr(complaints(), misfits[_i].message), "%s", complaints());
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

int main(void) {
  Suite *suite = suite_create("plan_text");
  TCase *tests = tcase_create("plan_text");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, open_plans, close_memory);
  tcase_add_test(tests, a_pass_without_a_head_is_written);
  tcase_add_test(tests, threads_may_write_one_plan);
  tcase_add_test(tests, every_example_reads_back);
  tcase_add_test(tests, a_plan_reads_as_it_says);
  tcase_add_test(tests, a_direction_names_a_plan);
  tcase_add_loop_test(tests, a_wrong_plan_is_told_where, 0, COUNT(wrong));
  tcase_add_loop_test(tests, passes_fit_the_combine, 0, COUNT(misfits));
  tcase_add_test(tests, sinks_read_back);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
