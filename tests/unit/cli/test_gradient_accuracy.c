/* test_gradient_accuracy.c - the judge of gradients is itself judged: those of
 * the oracle are good however scores are sized, and each way to be wrong is
 * found and located. */
#include "compiler/cli/gradient_accuracy.h"
#include "compiler/cli/gradient_setup.h"
#include "compiler/oracle/oracle.h"
#include "tests/support/check_case.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static dil_backward_call call;

static char *const words[] = {
    "run",     "test.dil", "--backward",   "--seq",  "30",
    "--batch", "2",        "--random",     "1",      "--threads",
    "2",       "--input",  "slope=random", "--dlse", "random"};
enum { WORDS = sizeof words / sizeof *words };

/* The oracle's gradients, rounded to the call's types. */
static void store(const double *from, dil_tensor *to) {
  for (int64_t i = 0; i < dil_tensor_count(to); i++)
    dil_element_write(to->data, to->dtype, i, from[i]);
}

static double *room(const dil_tensor *x) {
  return ARENA_ARRAY(memory, double, dil_tensor_count(x) + 1);
}

static void fill_rightly(void) {
  oracle_gradients sums = {.dq = room(&call.dq),
                           .dk = room(&call.dk),
                           .dv = room(&call.dv),
                           .inputs = {room(&call.inputs[0])}};
  ck_assert_int_eq(
      oracle_gradient_run(bound.pattern, &call, ORACLE_SAVED, &sums), DIL_OK);
  store(sums.dq, &call.dq);
  store(sums.dk, &call.dk);
  store(sums.dv, &call.dv);
  store(sums.inputs[0], &call.inputs[0]);
}

/* A call both ways with the oracle's results. */
static void set_up(const char *statements, bool dlse) {
  char *argv[WORDS];
  const char *text = arena_print(
      memory,
      "pattern p { heads 2; head_dim 8; input slope : f32[H] gradient; "
      "score s - slope[h] * (i - j); %s }",
      statements);
  memcpy(argv, words, sizeof argv);
  int argc = dlse ? WORDS : WORDS - 2;
  ck_assert_int_eq(open_call(text, argc, argv), DIL_OK);
  ck_assert_int_eq(gradient_setup_make(&bound, &call), DIL_OK);
  ck_assert_int_eq(oracle_run(bound.pattern, &bound.call), DIL_OK);
  call.forward = bound.call;
  fill_rightly();
}

static gradient_accuracy judge(double budget) {
  cover_count count;
  gradient_accuracy v;
  measure_pairs(&bound, &count);
  ck_assert_int_eq(
      gradient_accuracy_check(&bound, &call, count.pairs, budget, &v), DIL_OK);
  ck_assert_int_eq(v.count, 4);
  return v;
}

/* ---- tests ----------------------------------------------------------------
 */

static const struct {
  const char *statements;
  bool lse;
} cases[] = {
    {"dtype f32; branch { }", true},
    {"dtype bf16; causal; branch { segment 8; } branch { dilation 3; }", true},
    {"dtype f16; branch { segment 7; dilation 2; }", true},
    {"dtype f32; combine mean; branch { segment 8; } branch { }", false},
    {"dtype f32; scale 1000; branch { }", true},
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(the_oracle_is_good) {
  set_up(cases[_i].statements, cases[_i].lse);
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  ck_assert(v.good);
  ck_assert(v.saved == cases[_i].lse);
  static const int64_t totals[] = {120, 120, 120, 2};
  for (int i = 0; i < 4; i++) {
    ck_assert(v.error[i].good && !v.error[i].torn);
    ck_assert_int_eq(v.error[i].rows, totals[i]);
    ck_assert_int_eq(v.error[i].total, totals[i]);
  }
}
END_TEST

/* Element [1, 17, 1, 3] of dq, dk and dv, and element 1 of the slope's. */
enum { PLACE = ((30 + 17) * 2 + 1) * 8 + 3 };

static void damage(int part, double wrong) {
  dil_tensor *x[] = {&call.dq, &call.dk, &call.dv, &call.inputs[0]};
  dil_element_write(x[part]->data, x[part]->dtype, part == 3 ? 1 : PLACE,
                    wrong);
}

static void check_found(int part, double wrong) {
  damage(part, wrong);
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  const gradient_error *e = &v.error[part];
  ck_assert_msg(!v.good && !e->good, "%s with %g is good", e->name, wrong);
  ck_assert_int_eq(e->worst.n, part == 3 ? 1 : 17);
  if (part < 3)
    ck_assert(e->worst.b == 1 && e->worst.h == 1 && e->worst.d == 3);
  ck_assert(isnan(wrong) ? isnan(e->worst.got) : e->worst.got == wrong);
  for (int i = 0; i < 4; i++) ck_assert(i == part || v.error[i].good);
}

START_TEST(a_wrong_element_is_found) {
  for (int part = 0; part < 4; part++) {
    set_up(cases[_i % CASES].statements, cases[_i % CASES].lse);
    check_found(part, _i < CASES ? 8192 : NAN);
    if (part < 3) call_setup_free(&bound);
  }
}
END_TEST

/* A sign turned, and a factor of 1.05, in all of it. */
START_TEST(a_wrong_factor_is_found) {
  static const double factors[] = {-1, 1.05, 0};
  set_up(cases[1].statements, true);
  dil_tensor *x[] = {&call.dq, &call.dk, &call.dv};
  dil_tensor *one = x[_i % 3];
  for (int64_t i = 0; i < dil_tensor_count(one); i++)
    dil_element_write(one->data, one->dtype, i,
                      factors[_i / 3] *
                          dil_element_read(one->data, one->dtype, i));
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  for (int i = 0; i < 4; i++) ck_assert(v.error[i].good == (i != _i % 3));
}
END_TEST

/* A row with one key has a gradient of 0, of which no error is a share. What
 * rounding explains is good, and what it does not is found. */
START_TEST(gradients_of_zero_have_rounding) {
  set_up("dtype f32; branch { segment 2; dilation 2; }", false);
  damage(0, 1e-9);
  ck_assert(judge(ACCURACY_BUDGET).good);
  damage(0, 0.1);
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  for (int i = 0; i < 4; i++) ck_assert(v.error[i].good == (i != 0));
}
END_TEST

/* A row that sees itself alone has an o of v and a gradient of 0. An o that f32
 * rounds otherwise gives the oracle a gradient of its own, of rounding alone,
 * where a kernel's is 0. */
static void round_outputs_up(void) {
  float *o = call.forward.o.data;
  for (int64_t i = 0; i < dil_tensor_count(&call.forward.o); i++)
    o[i] = nextafterf(o[i], INFINITY);
}

START_TEST(an_oracle_of_rounding_alone_is_no_gradient) {
  set_up("dtype f32; branch { window 0, 0; }", false);
  round_outputs_up();
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  for (int i = 0; i < 4; i++) ck_assert(v.error[i].good);
  damage(0, 1e-3);
  ck_assert(!judge(ACCURACY_BUDGET).error[0].good);
  damage(0, 0);
  damage(1, -1e-3);
  ck_assert(!judge(ACCURACY_BUDGET).error[1].good);
}
END_TEST

/* One row has a gradient of about 0.001 among rows that have none. It is not 0
 * in any type. */
START_TEST(a_small_gradient_is_not_zero) {
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  set_up(arena_print(memory,
                     "dtype %s; branch { window 0, 0; } branch { "
                     "mask i == 17 && j == 16; score s - 7; }",
                     dtypes[_i / 2]),
         false);
  dil_tensor *x = _i % 2 ? &call.dk : &call.dq;
  double most = 0;
  for (int64_t i = 0; i < dil_tensor_count(x); i++) {
    most = fmax(most, fabs(dil_element_read(x->data, x->dtype, i)));
    dil_element_write(x->data, x->dtype, i, 0);
  }
  ck_assert_msg(most > 1e-4 && most < 1e-2, "the gradient is %g", most);
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  for (int i = 0; i < 4; i++) ck_assert(v.error[i].good == (i != _i % 2));
}
END_TEST

/* A sink takes nearly all the weight. f16 then holds numbers in steps of 2^-24. */
START_TEST(steps_of_small_numbers_are_good) {
  set_up("dtype f16; sink 15.0; window 0, 0; branch { }", false);
  ck_assert(judge(ACCURACY_BUDGET).good);
  damage(1, 0x1p-10);
  gradient_accuracy v = judge(ACCURACY_BUDGET);
  for (int i = 0; i < 4; i++) ck_assert(v.error[i].good == (i != 1));
}
END_TEST

/* Little time leaves a sample, and inputs aside where they would take long. */
START_TEST(a_small_budget_takes_a_sample) {
  set_up(cases[0].statements, true);
  gradient_accuracy v = judge(1e-6);
  ck_assert(v.good);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(v.error[i].rows, 16);
  ck_assert_int_eq(v.error[3].rows, 0);
}
END_TEST

static Suite *gradient_accuracy_suite(void) {
  Suite *s = suite_create("gradient_accuracy");
  TCase *t = tcase_create("gradient_accuracy");
  tcase_add_checked_fixture(t, open_memory, close_call);
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, the_oracle_is_good, 0, CASES);
  tcase_add_loop_test(t, a_wrong_element_is_found, 0, 2 * CASES);
  tcase_add_loop_test(t, a_wrong_factor_is_found, 0, 9);
  tcase_add_test(t, gradients_of_zero_have_rounding);
  tcase_add_test(t, an_oracle_of_rounding_alone_is_no_gradient);
  tcase_add_loop_test(t, a_small_gradient_is_not_zero, 0, 6);
  tcase_add_test(t, steps_of_small_numbers_are_good);
  tcase_add_test(t, a_small_budget_takes_a_sample);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  return suite_run(gradient_accuracy_suite(), CK_FORK_GETENV);
}
