/* test_choice.c - blocks chosen by their scores: lists that kernels make, held
 * against the definition, and attention over them.
 *
 * In: patterns and shapes, most of them random. Out: what is wrong with a list or
 * with the rows that are computed from it. */
#include "compiler/oracle/oracle.h"
#include "runtime/base/random.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 200, TEXT = 1200 };

/* ---- random cases -------------------------------------------------------- */

static uint32_t word_of(uint32_t seed, uint32_t number) {
  const uint32_t counter[4] = {number, 0, 0, 0}, key[2] = {seed, 5};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return word[0];
}

/* A number of low..high. */
static int32_t draw(uint32_t seed, uint32_t number, int32_t low, int32_t high) {
  return low + (int32_t)(word_of(seed, number) % (uint32_t)(high - low + 1));
}

#define PICK(seed, number, list)                                               \
  (list)[draw(seed, number, 0, (int32_t)(sizeof(list) / sizeof *(list)) - 1)]

static void print_branch(uint32_t seed, uint32_t from, char *to, size_t size) {
  static const char *const reaches[] = {
      "", "causal;", "causal;", "window 40, 0;", "window 25, 9;", "segment 70;",
      "segment 50; dilation 3;", "dilation 4; causal;", "causal; window 90, inf;",
      "heads 1..1;", "dilation 2; phase kv;", "mask j % 3 != 1;"};
  static const char *const others[] = {
      "", "", "", "keep bi == bj;", "keep bj < 1;", "keep bj % 4 == 2;",
      "keep hash(h, bi, bj) % 10 < 3;", "keep bi == 2 || bj == 3;"};
  static const char *const estimates[] = {"mean", "mean", "mean each", "gate"};
  char choice[60];
  int32_t most = draw(seed, from, 1, 7);
  if (draw(seed, from + 1, 0, 3) == 0)
    snprintf(choice, sizeof choice, "mass 0.%d, %d",
             draw(seed, from + 2, 1, 9), most);
  else snprintf(choice, sizeof choice, "top %d", most);
  snprintf(to, size, "branch { %s %s keep %s by %s; %s }",
           PICK(seed, from + 3, reaches),
           PICK(seed, from + 4, others), choice,
           PICK(seed, from + 5, estimates),
           draw(seed, from + 6, 0, 2) ? "" : "shared kv;");
}

static void print_case(uint32_t seed, char *text) {
  static const char *const blocks[] = {"8", "16", "32", "7", "16, 8", "8, 16",
                                       "1, 16", "24, 16"};
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  static const char *const above[] = {"", "", "keep bj != 1;", "causal;",
                                      "combine sum;", "combine union;"};
  char first[300], second[300] = "";
  print_branch(seed, 10, first, sizeof first);
  if (draw(seed, 1, 0, 2) == 0) print_branch(seed, 20, second, sizeof second);
  int32_t kv = draw(seed, 2, 1, 2);
  snprintf(text, TEXT,
           "pattern p { heads %d kv %d; head_dim %d; dtype %s; block %s; "
           "input gate : f32[B, H, nbq, nb]; %s %s %s }",
           kv * 2, kv, draw(seed, 4, 1, 40), PICK(seed, 5, dtypes),
           PICK(seed, 6, blocks), PICK(seed, 7, above), first, second);
}

/* Few values, so that estimates are often the same; and now and then none. */
static double few_values(int32_t tensor, const int64_t *at, double number) {
  (void)at;
  return tensor == 2 ? number : floor(number);
}

static double with_nan(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 && at[1] % 37 == 5 && at[3] == 0 ? NAN : number;
}

static call_shape shape_of(uint32_t seed, int32_t *lengths) {
  static const int64_t sizes[] = {1, 2, 15, 16, 33, 64, 100, 129, 160};
  call_shape s = {.batch = draw(seed, 30, 1, 2), .keys = PICK(seed, 31, sizes),
                  .seed = seed, .layout = (guard_layout)(seed % 4)};
  s.queries = draw(seed, 32, 0, 2) ? s.keys : PICK(seed, 33, sizes);
  if (draw(seed, 34, 0, 2) == 0) s.element = few_values;
  else if (draw(seed, 35, 0, 4) == 0) s.element = with_nan;
  for (int32_t b = 0; b < s.batch; b++)
    lengths[b] = draw(seed, 36 + (uint32_t)b, 0, (int32_t)s.keys);
  if (draw(seed, 40, 0, 2) == 0) s.lengths = lengths;
  return s;
}

static void check_case(uint32_t seed, int32_t threads) {
  char text[TEXT];
  int32_t lengths[2];
  print_case(seed, text);
  tested_pattern *made = tested_pattern_new("choice.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s\n%s", text, made->problem);
  kernel_made *k = kernel_make(made, (recipe){.threads = threads});
  data *d = data_new(made, shape_of(seed, lengths));
  const char *problem = data_problem(d, k);
  ck_assert_msg(!problem[0], "seed %u: %s\n%s\nB %d N %d M %d", seed, problem,
                text, (int)d->shape.batch, (int)d->shape.queries,
                (int)d->shape.keys);
  data_free(d);
  kernel_unmake(k);
  tested_pattern_free(made);
}

START_TEST(random_cases_hold) {
  for (uint32_t seed = 0; seed < CASES / 4; seed++)
    check_case((uint32_t)_i * (CASES / 4) + seed, 1 + _i % 3);
}
END_TEST

static Suite *choice_suite(void) {
  Suite *s = suite_create("choice");
  TCase *cases = tcase_create("cases");
  tcase_set_timeout(cases, 240);
  tcase_add_loop_test(cases, random_cases_hold, 0, 4);
  suite_add_tcase(s, cases);
  return s;
}

int main(void) { return suite_run(choice_suite(), CK_FORK_GETENV); }
