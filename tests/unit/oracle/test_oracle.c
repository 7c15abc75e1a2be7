/* test_oracle.c - the oracle against the definition written out a second time,
 * on random patterns and calls in which nobody may see what is NaN; and whole
 * runs, with the calls that are refused. */
#include "compiler/oracle/oracle.h"
#include "tests/support/definition.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparison ---------------------------------------------------------- */

static void check_near(double is, long double should, const char *what,
                       const definition *c) {
  if (isnan(is) && isnan(should)) return;
  if ((long double)is == should) return;
  if (fabsl(is - should) <= 1e-13L * (1 + fabsl(should))) return;
  ck_abort_msg("%s of b %d h %d t %d is %.17g, not %.17Lg", what, (int)c->b,
               (int)c->h, (int)c->t, is, should);
}

static void check_row(const pattern *p, const dil_call *call, int64_t b,
                      int64_t n, int64_t h) {
  int64_t M = call->lengths ? call->lengths[b] : call->k.shape[1];
  definition c = {p, call, b, h, n + M - call->q.shape[1], M};
  double o[64], lse;
  long double right[64];
  oracle_row(p, call, b, n, h, o, &lse);
  long double right_lse = definition_row(memory, &c, right);
  for (int64_t d = 0; d < p->value_dim; d++)
    check_near(o[d], right[d], "o", &c);
  if (pattern_has_lse(p))
    check_near(lse, right_lse, "lse", &c);
  else
    ck_assert(isnan(lse));
}

static void check_rows(const pattern *p, const dil_call *call) {
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t n = 0; n < call->q.shape[1]; n++)
      for (int64_t h = 0; h < p->heads; h++) check_row(p, call, b, n, h);
}

static bool is_seen(const pattern *p, const dil_call *call, int64_t b,
                    int64_t kv, int64_t j) {
  int64_t M = call->lengths ? call->lengths[b] : call->k.shape[1];
  int64_t group = p->heads / p->kv_heads, N = call->q.shape[1];
  for (int64_t h = kv * group; h < (kv + 1) * group; h++)
    for (int64_t t = M - N; t < M; t++)
      for (int32_t k = 0; k < p->branch_count; k++) {
        definition c = {p, call, b, h, t, M};
        if (j < M && definition_reaches(&c, &p->branch[k], j)) return true;
      }
  return false;
}

/* NaN where nobody may look. */
static void spoil_unseen(const pattern *p, dil_call *call) {
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    for (int64_t kv = 0; kv < p->kv_heads; kv++)
      for (int64_t j = 0; j < call->k.shape[1]; j++) {
        if (is_seen(p, call, b, kv, j)) continue;
        for (int64_t d = 0; d < p->head_dim; d++)
          sample_set(&call->k, b, j, kv, d, NAN);
        for (int64_t d = 0; d < p->value_dim; d++)
          sample_set(&call->v, b, j, kv, d, NAN);
      }
}

static void random_choices(pattern *p, uint64_t *state) {
  p->dtype = (dil_dtype)random_in(state, DIL_F32, DIL_F16);
  if (random_chance(state, 20)) p->dropout = 0.25;
  p->scale_kind = (scale_kind)random_in(state, SCALE_DEFAULT, SCALE_RUNTIME);
  if (p->scale_kind == SCALE_FIXED) p->scale = 0.375;
}

static void check_random(uint64_t *state) {
  pattern *p = random_pattern(memory, state, true);
  random_choices(p, state);
  if (random_chance(state, 40)) random_sinks(memory, state, p);
  pattern_verify(p);
  dil_call *call =
      sample_call(memory, p, random_in(state, 1, 2), random_in(state, 0, 24),
                  random_in(state, 0, 24), random_bits(state));
  sample_inputs(memory, p, call, state);
  call->scale = 0.625;
  call->train = random_chance(state, 70);
  if (random_chance(state, 30)) sample_lengths(memory, call, state);
  spoil_unseen(p, call);
  check_rows(p, call);
}

START_TEST(rows_follow_the_definition) {
  uint64_t state = 2024;
  for (int k = 0; k < 500; k++) {
    if (k % 20 == 0) fresh_memory();
    check_random(&state);
  }
}
END_TEST

START_TEST(dropout_leaves_the_denominator) {
  pattern *p = make_pattern(memory, 1, 1, 1, 1, 1);
  p->dropout = 0.5;
  dil_call *call = sample_call(memory, p, 1, 64, 64, 3);
  double plain[64], lse[64], dropped, dropped_lse;
  for (int64_t n = 0; n < 64; n++)
    oracle_row(p, call, 0, n, 0, &plain[n], &lse[n]);
  call->train = 1;
  int changed = 0;
  for (int64_t n = 0; n < 64; n++) {
    oracle_row(p, call, 0, n, 0, &dropped, &dropped_lse);
    changed += dropped != plain[n];
    ck_assert(dropped_lse == lse[n]);
  }
  ck_assert_int_gt(changed, 60);
  check_rows(p, call);
}
END_TEST

/* ---- whole runs ---------------------------------------------------------- */

START_TEST(run_stores_every_row) {
  pattern *p = make_pattern(memory, 4, 2, 3, 5, 1);
  p->dtype = DIL_BF16;
  p->branch[0].segment = 4;
  dil_call *call = sample_call(memory, p, 2, 6, 7, 12);
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  for (int64_t b = 0; b < 2; b++)
    for (int64_t n = 0; n < 6; n++)
      for (int64_t h = 0; h < 4; h++) {
        double o[5], lse;
        oracle_row(p, call, b, n, h, o, &lse);
        ck_assert_double_eq(sample_element(&call->lse, b, h, n, 0),
                            (double)(float)lse);
        for (int64_t d = 0; d < 5; d++)
          ck_assert_double_eq_tol(sample_element(&call->o, b, n, h, d), o[d],
                                  fabs(o[d]) / 256);
      }
}
END_TEST

START_TEST(run_of_nothing) {
  pattern *p = make_pattern(memory, 1, 1, 2, 2, 1);
  ck_assert_int_eq(oracle_run(p, sample_call(memory, p, 0, 5, 5, 1)), DIL_OK);
  ck_assert_int_eq(oracle_run(p, sample_call(memory, p, 1, 0, 5, 1)), DIL_OK);
}
END_TEST

static void check_refused(const pattern *p, const dil_call *call,
                          dil_status status, const char *text) {
  ck_assert_int_eq(oracle_run(p, call), status);
  ck_assert_msg(strstr(dil_last_error(), text) != NULL, "%s", dil_last_error());
}

START_TEST(run_refuses_wrong_calls) {
  pattern *p = make_pattern(memory, 2, 1, 3, 3, 2);
  dil_call *call = sample_call(memory, p, 1, 4, 4, 1);
  call->k.shape[3] = 2;
  check_refused(p, call, DIL_USAGE, "k has size 2 in dimension 3, not 3");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->v.dtype = DIL_F16;
  check_refused(p, call, DIL_USAGE, "v is f16, not f32");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->q.stride[3] = 2;
  check_refused(p, call, DIL_USAGE, "q has stride 2");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->o.rank = 3;
  check_refused(p, call, DIL_USAGE, "o has 3 dimensions, not 4");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->size = 8;
  check_refused(p, call, DIL_USAGE, "size 8");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->lengths = (int32_t[]){5};
  check_refused(p, call, DIL_USAGE, "length 5");
  call = sample_call(memory, p, 1, 4, 4, 1);
  call->q.data = NULL;
  check_refused(p, call, DIL_USAGE, "q has no data");
}
END_TEST

START_TEST(run_refuses_what_has_no_answer) {
  pattern *p = make_pattern(memory, 2, 1, 3, 3, 2);
  dil_call *call = sample_call(memory, p, 1, 4, 4, 1);
  p->combine = DIL_COMBINE_SUM;
  check_refused(p, call, DIL_USAGE, "has no lse");
  call->lse.data = NULL;
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  p = make_pattern(memory, 2, 1, 3, 3, 1);
  add_inputs(memory, p);
  call = sample_call(memory, p, 1, 4, 4, 1);
  check_refused(p, call, DIL_USAGE, "brings 0 inputs, not 3");
  uint64_t state = 1;
  sample_inputs(memory, p, call, &state);
  ck_assert_int_eq(oracle_run(p, call), DIL_OK);
  ((dil_tensor *)call->inputs)[DOC].shape[1] = 3;
  check_refused(p, call, DIL_USAGE, "doc has size 3 in dimension 1, not 4");
}
END_TEST

/* ---- the suite ----------------------------------------------------------- */

static Suite *oracle_suite(void) {
  Suite *suite = suite_create("oracle");
  TCase *tests = tcase_create("oracle");
  tcase_add_checked_fixture(tests, open_memory, close_memory);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, rows_follow_the_definition);
  tcase_add_test(tests, dropout_leaves_the_denominator);
  tcase_add_test(tests, run_stores_every_row);
  tcase_add_test(tests, run_of_nothing);
  tcase_add_test(tests, run_refuses_wrong_calls);
  tcase_add_test(tests, run_refuses_what_has_no_answer);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(oracle_suite(), CK_FORK_GETENV);
}
