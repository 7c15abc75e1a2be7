/* test_key_list.c - keys by a list through the public interface: the mask of
 * MInference, filled pair by pair; lists in any order; what is refused. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 96, HEADS = 2, D = 16, WIDTH = HEADS * D, LISTED = 9 };

/* preset:vertical_slash in f32, with what a call brings. */
typedef struct slash_call {
  dil_kernel *kernel;
  host_call call;
  dil_arguments *a;
  int32_t vertical[HEADS * LISTED];
  uint8_t slash[HEADS * ROWS];
  int64_t shape[2][2];
  DLTensor input[2];
  const DLTensor *inputs[2];
} slash_call;

static dil_kernel *open_preset(void) {
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel;
  dil_kernel_options options = DIL_KERNEL_OPTIONS_INIT;
  options.dtype = "f32", options.heads = HEADS, options.head_dim = D;
  host_must(dil_context_new(NULL, &context));
  host_must(dil_program_read(context, "preset:vertical_slash", NULL, &program));
  host_must(dil_program_kernel(program, NULL, &options, &kernel));
  dil_program_free(program);
  dil_context_free(context);
  return kernel;
}

/* The tensors are those of dense attention of the same sizes. */
static void make_call(slash_call *c) {
  dil_kernel *dense = host_kernel(NULL, "pattern p { heads 2; head_dim 16; "
                                        "dtype f32; branch { } }");
  *c = (slash_call){.shape = {{HEADS, LISTED}, {HEADS, ROWS}}};
  c->kernel = open_preset();
  host_call_make(&c->call, dense, &host_sizes);
  dil_kernel_free(dense);
  c->a = &c->call.arguments;
  for (int h = 0; h < HEADS; h++) {
    for (int n = 0; n < LISTED; n++)
      c->vertical[h * LISTED + n] = n % 4 == 3 ? -1 : (n * 37 + h * 11) % ROWS;
    for (int t = 0; t < ROWS; t++)
      c->slash[h * ROWS + t] = t < 3 || (t / 8 + h) % 5 == 2;
  }
  for (int i = 0; i < 2; i++) {
    c->input[i] = (DLTensor){.data = i ? (void *)c->slash : c->vertical,
                             .device = {kDLCPU, 0},
                             .ndim = 2,
                             .dtype = {i ? kDLUInt : kDLInt, i ? 8 : 32, 1},
                             .shape = c->shape[i]};
    c->inputs[i] = &c->input[i];
  }
  c->a->inputs = c->inputs;
  c->a->input_count = 2;
}

static void drop_call(slash_call *c) {
  host_call_free(&c->call);
  dil_kernel_free(c->kernel);
}

/* MInference 3.2: a query sees the keys of the vertical lines and of the slashes
 * before it. */
static bool paper_sees(const slash_call *c, int h, int i, int j) {
  bool seen = c->slash[h * ROWS + i - j];
  for (int n = 0; n < LISTED; n++) seen |= c->vertical[h * LISTED + n] == j;
  return seen;
}

static double paper_row(const slash_call *c, int h, int i, double o[D]) {
  const float *q = c->call.tensor[DIL_TENSOR_Q].data;
  const float *k = c->call.tensor[DIL_TENSOR_K].data;
  const float *v = c->call.tensor[DIL_TENSOR_V].data;
  double sum = 0;
  memset(o, 0, D * sizeof *o);
  for (int j = 0; j <= i; j++) {
    double score = 0;
    if (!paper_sees(c, h, i, j)) continue;
    for (int d = 0; d < D; d++)
      score += (double)q[i * WIDTH + h * D + d] * k[j * WIDTH + h * D + d];
    double weight = exp(score / sqrt(D));
    sum += weight;
    for (int d = 0; d < D; d++) o[d] += weight * v[j * WIDTH + h * D + d];
  }
  for (int d = 0; d < D; d++) o[d] /= sum;
  return log(sum);
}

START_TEST(pairs_are_those_of_minference) {
  slash_call c;
  make_call(&c);
  host_must(dil_kernel_run(c.kernel, c.a));
  const float *o = c.call.tensor[DIL_TENSOR_O].data;
  const float *lse = c.call.tensor[DIL_TENSOR_LSE].data;
  for (int h = 0; h < HEADS; h++)
    for (int i = 0; i < ROWS; i++) {
      double want[D], sum = paper_row(&c, h, i, want);
      ck_assert_double_eq_tol(lse[h * ROWS + i], sum, 1e-5);
      for (int d = 0; d < D; d++)
        ck_assert_double_eq_tol(o[i * WIDTH + h * D + d], want[d], 1e-5);
    }
  drop_call(&c);
}
END_TEST

START_TEST(order_and_repeats_say_nothing) {
  static float o[ROWS * WIDTH];
  slash_call c;
  make_call(&c);
  float *to = c.call.tensor[DIL_TENSOR_O].data;
  host_must(dil_kernel_run(c.kernel, c.a));
  memcpy(o, to, sizeof o);
  for (int h = 0; h < HEADS; h++) {
    int32_t *list = c.vertical + h * LISTED, first = list[0];
    list[3] = list[5]; /* in place of a -1 */
    list[0] = list[8];
    list[8] = first;
  }
  memset(to, 0xFF, sizeof o);
  host_must(dil_kernel_run(c.kernel, c.a));
  ck_assert(!memcmp(o, to, sizeof o));
  drop_call(&c);
}
END_TEST

static void behind(slash_call *c) { c->vertical[LISTED + 2] = ROWS; }
static void below(slash_call *c) { c->vertical[1] = -2; }
static void type(slash_call *c) { c->input[0].dtype.code = kDLFloat; }
static void rank(slash_call *c) { c->input[0].ndim = 1; }
static void heads(slash_call *c) { c->shape[0][0] = 1; }

static const struct {
  void (*spoil)(slash_call *c);
  const char *words;
} refusals[] = {
    {behind, "entry 2 of input 'vertical' (line 1) is 96, and the keys are 0..95; "
             "-1 is none"},
    {below, "entry 1 of input 'vertical' (line 0) is -2"},
    {type, "input 'vertical' must be i32, got f32"},
    {rank, "input 'vertical' must have 2 dimensions, got 1"},
    {heads, "the first dimension of input 'vertical' must be 2, got 1"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(refusals_name_what_is_wrong) {
  slash_call c;
  make_call(&c);
  refusals[_i].spoil(&c);
  host_refused(dil_kernel_run(c.kernel, c.a), DIL_USAGE, refusals[_i].words);
  drop_call(&c);
}
END_TEST

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  Suite *suite = suite_create("key_list");
  TCase *t = tcase_create("key_list");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, pairs_are_those_of_minference);
  tcase_add_test(t, order_and_repeats_say_nothing);
  tcase_add_loop_test(t, refusals_name_what_is_wrong, 0, REFUSALS);
  suite_add_tcase(suite, t);
  return suite_run(suite, CK_NOFORK);
}
