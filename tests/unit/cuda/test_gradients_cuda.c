/* test_gradients_cuda.c - gradients by the GPU's general kernels against the
 * oracle's, on the device that DIL_TEST_DEVICE asks for: a chip, or the
 * emulated one (tests/emulator/README.md). */
#include "gradient_cases.h"
#include "tests/support/gpu_gradients.h"
#include "tests/support/patterns.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>

static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};

typedef const char *gradient_check(const tested_pattern *, unsigned,
                                   gradient_shape);

static void try(const char *name, const char *text, dil_dtype dtype,
                unsigned force, gradient_shape shape, gradient_check *check) {
  tested_pattern *s = tested_pattern_new(name, text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", name, s->problem);
  tested_pattern_retype(s, dtype);
  const char *problem = check(s, force, shape);
  ck_assert_msg(problem[0] == 0, "%s, %s: %s", name, dil_dtype_name(dtype),
                problem);
  tested_pattern_free(s);
}

static void try_case(int32_t i, dil_dtype dtype, int32_t seed,
                     gradient_check *check) {
  try(cases[i].name, cases[i].text, dtype, 0,
      (gradient_shape){.call = {.batch = cases[i].batch,
                                .queries = cases[i].queries,
                                .keys = cases[i].keys,
                                .train = true,
                                .dropout_seed = 7,
                                .seed = (uint32_t)seed + 1}},
      check);
}

START_TEST(compared) {
  if (gpu_wanted())
    try_case(_i / 3, dtypes[_i % 3], _i, gpu_gradient_problem);
}
END_TEST

/* `gradient_order any`; f32 has no kernels of Hopper. */
START_TEST(compared_in_any_order) {
  if (gpu_wanted())
    try_case(_i, dtypes[1 + _i % 2], _i, gpu_gradient_problem_any_order);
}
END_TEST

/* ---- ways to ask --------------------------------------------------------- */

static const int32_t some_lengths[] = {61, 90, 0};
/* Documents of no row, of one and of many, and rows of nobody behind them. */
static const int32_t some_rows[] = {0, 0, 1, 70, 70, 165, 190};
static const int32_t some_keys[] = {0, 9, 9, 100, 120, 220, 221};
#define DOCUMENTS                                                             \
  .batch = 1, .queries = 200, .keys = 200, .clean = true, .offsets = some_rows, \
  .documents = 6
#define DOCUMENTS_APART                                                       \
  .batch = 1, .queries = 200, .keys = 230, .clean = true, .offsets = some_rows, \
  .key_offsets = some_keys, .documents = 6

/* A few elements of q, k, v and dO are not finite: what a pair of weight 0 has
 * of them must not show. */
static double spoil(int32_t tensor, const int64_t *at, double number) {
  bool here = (at[1] * 7 + tensor * 3) % 41 == 5 && at[3] == tensor;
  return here ? at[1] % 2 ? NAN : INFINITY : number;
}
static double spoil_output(const int64_t *at, double number) {
  return spoil(3, at, number);
}

/* The gradient of a loss that is multiplied by 65536: up to the largest f16, so
 * that the gradients of scores do not fit into one. */
static double scaled_loss(const int64_t *at, double number) {
  (void)at;
  return fmax(fmin(number / 5, 0.99), -0.99) * 65536;
}
/* Rows whose gradients differ by powers of two. */
static double uneven_loss(const int64_t *at, double number) {
  return ldexp(number, -(int)(at[1] % 9));
}

typedef struct asked_way {
  const char *name, *text;
  unsigned force;
  gradient_shape shape;
} asked_way;

static const asked_way ways[] = {
    {"lse is made again",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.without_lse = true}},
    {"lse is made again by passes",
     P(SMALL, "segments 32, 64; dilations 1, 2;"),
     FORCE_CHAIN,
     {.without_lse = true}},
    {"gradients in f32", P(SMALL, "causal; branch { }"), 0, {.wide = true}},
    {"no gradient of lse",
     P(SMALL, "causal; branch { }"),
     0,
     {.without_dlse = true}},
    {"dQ alone",
     P(SMALL, "causal; branch { }"),
     0,
     {.unwanted = 1 << GRADIENT_DK | 1 << GRADIENT_DV}},
    {"dV alone",
     P(SMALL, "causal; branch { }"),
     0,
     {.unwanted = 1 << GRADIENT_DQ | 1 << GRADIENT_DK}},
    {"layouts",
     P(SMALL, "causal; branch { }"),
     0,
     {.call = {.layout = GUARD_BACKWARD},
      .layout = {GUARD_HEADS, GUARD_HOLES, GUARD_BACKWARD, GUARD_HEADS}}},
    {"holes",
     P(SMALL, "window 9, 9; branch { }"),
     0,
     {.call = {.layout = GUARD_HOLES, .at_start = true},
      .layout = {GUARD_BACKWARD, GUARD_HEADS, GUARD_HOLES, GUARD_HOLES}}},
    {"lengths",
     P(SMALL, "causal; branch { }"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"lengths of segments",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"lengths, grouped heads, dropout",
     P("heads 4 kv 2; head_dim 48",
       "dropout 0.3; segments 48, 96; dilations 1, 2; phase kv;"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths, .train = true}}},
    {"lengths, windows of many rows",
     P(SMALL, "window 40, 9; mask abs(i - j) < 20 || j < 30; branch { }"),
     0,
     {.call = {.batch = 3, .queries = 200, .lengths = some_lengths}}},
    {"lengths, chosen blocks",
     P(SMALL, "causal; block 8; keep top 4 by mean; branch { }"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}, .without_lse = true}},
    {"lengths, wide heads",
     P("heads 1; head_dim 160", "branch { segment 100; dilation 3; }"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"many rows, dilated",
     P("heads 2 kv 1; head_dim 32", "phase kv; branch { dilation 2; }"),
     0,
     {.call = {.queries = 150}}},
    {"many rows, segments",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.queries = 200}}},
    {"many rows, segments that cross",
     P(SMALL, "branch { segment 40; } branch { segment 64; dilation 2; }"),
     0,
     {.call = {.queries = 200}}},
    {"passes",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     FORCE_CHAIN,
     {.call = {.seed = 3}}},
    {"multiset",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     FORCE_FUSE | FORCE_MULTISET,
     {.call = {.seed = 3}}},
    {"not finite",
     P(SMALL, "causal; branch { }"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"not finite, masks",
     P(SMALL, "mask (i + j) % 2 == 0; branch { }"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"a branch alone, its lse made again",
     P(SMALL,
       "gradient detached; input z : f32[H] gradient; sink z[h]; causal; "
       "branch { segment 32; } branch { dilation 2; sink z[0]; }"),
     0,
     {.without_lse = true}},
    {"lengths of inputs",
     P(SMALL,
       "causal; input t : f32[M] gradient; input z : f32[B, N] gradient; "
       "score s * t[i] + z[b, i]; branch { }"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"inputs alone",
     P(SMALL, "causal; input t : f32[H] gradient; score s * t[h]; branch { }"),
     0,
     {.unwanted = 1 << GRADIENT_DQ | 1 << GRADIENT_DK | 1 << GRADIENT_DV}},
    {"inputs of passes",
     P(SMALL, "causal; input t : f32[H] gradient; score s * t[h]; segments 32, "
              "64; dilations 1, 2;"),
     FORCE_CHAIN,
     {.call = {.seed = 3}}},
    {"inputs, not finite",
     P(SMALL, "mask (i + j) % 2 == 0; input t : f32[H, M] gradient; "
              "score s * t[h, j]; branch { }"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"large scores", P(SMALL, "causal; branch { }"), 0, {.call = {.size = 10}}},
    {"large scores, dropout",
     P(SMALL, "dropout 0.25; causal; branch { }"),
     0,
     {.call = {.size = 10, .train = true, .dropout_seed = 3}}},
    {"scaled losses",
     P(SMALL, "causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.element = scaled_loss}},
    {"scaled losses, dropout",
     P(SMALL, "dropout 0.25; branch { }"),
     0,
     {.call = {.train = true, .dropout_seed = 3}, .element = scaled_loss}},
    {"uneven losses",
     P(SMALL, "causal; branch { }"),
     0,
     {.element = uneven_loss}},
    {"dropout at rest",
     P(SMALL, "dropout 0.25; branch { }"),
     0,
     {.wide = false}},
    {"not finite, dropout",
     P(SMALL, "dropout 0.25; causal; branch { }"),
     0,
     {.call = {.element = spoil, .train = true, .dropout_seed = 3},
      .element = spoil_output}},
    {"not finite, mean",
     P(SMALL, "combine mean; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"not finite, sum of one",
     P(SMALL, "combine sum; causal; branch { }"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"not finite, detached",
     P(SMALL, "gradient detached; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.element = spoil}, .element = spoil_output}},
    {"lengths, detached",
     P(SMALL, "gradient detached; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"lengths, mean",
     P(SMALL, "combine mean; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {.batch = 3, .lengths = some_lengths}}},
    {"many rows, mean",
     P("heads 2 kv 1; head_dim 32", "combine mean; branch { dilation 2; phase "
                                    "kv; } branch { window 20, 9; }"),
     0,
     {.call = {.queries = 150}}},
    {"dropout, detached",
     P("heads 4 kv 2; head_dim 48", "dropout 0.3; gradient detached; phase kv; "
                                    "segments 48, 96; dilations 1, 2;"),
     0,
     {.call = {.train = true, .dropout_seed = 3}}},
    {"dropout, sum",
     P(SMALL, "dropout 0.3; combine sum; causal; segments 32, 64; dilations 1, "
              "2;"),
     0,
     {.call = {.train = true, .dropout_seed = 3}}},
    {"scaled losses, mean",
     P(SMALL, "combine mean; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.element = scaled_loss}},
    {"documents", P(SMALL, "causal; branch { }"), 0, {.call = {DOCUMENTS}}},
    {"documents, other keys",
     P("heads 4 kv 2; head_dim 64", "branch { }"),
     0,
     {.call = {DOCUMENTS_APART}}},
    {"documents, wide heads",
     P("heads 2; head_dim 128", "causal; window 30, 0; branch { }"),
     0,
     {.call = {DOCUMENTS_APART}, .without_lse = true}},
    {"documents, longnet",
     P("heads 4 kv 2; head_dim 64", "causal; phase kv; segments 32, 64; dilations 1, 2;"),
     FORCE_CHAIN,
     {.call = {DOCUMENTS_APART}}},
    {"documents, a dilation of segments",
     P("heads 2; head_dim 192 value 128", "branch { segment 50; dilation 3; }"),
     0,
     {.call = {DOCUMENTS_APART}}},
    {"documents, every phase",
     P(SMALL, "causal; branch { dilation 4; phase each - 1; }"),
     0,
     {.call = {DOCUMENTS_APART}}},
    {"documents, slopes",
     P("heads 2; head_dim 64", "input slope : f32[H]; causal; score s - slope[h] * (i - j); "
                               "branch { }"),
     0,
     {.call = {DOCUMENTS_APART}}},
    {"documents, a cap and sinks",
     P(SMALL, "input z : f32[H] gradient; sink z[h]; causal; score 4 * tanh(s / 4); "
              "branch { }"),
     0,
     {.call = {DOCUMENTS}}},
    {"documents, not finite",
     P(SMALL, "causal; window 9, 0; branch { }"),
     0,
     {.call = {DOCUMENTS, .element = spoil}, .element = spoil_output}},
    {"documents, mean",
     P(SMALL, "combine mean; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.call = {DOCUMENTS_APART}}},
    {"detached, its joint lse made again",
     P(SMALL, "gradient detached; causal; segments 32, 64; dilations 1, 2;"),
     0,
     {.without_lse = true}},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Of masks that keep documents apart alone: the numbers of three documents, the middle one
 * long; and of sinks. */
static double long_middle(int32_t index, const int64_t *at, const int64_t *shape) {
  (void)shape;
  if (index) return 0.5 + 0.25 * (double)at[0];
  return at[1] < 70 + 20 * at[0] ? 3 : at[1] < 280 ? 4 : 9;
}
static double mixed_middle(int32_t index, const int64_t *at, const int64_t *shape) {
  return at[1] == 100 ? 3 : long_middle(index, at, shape);
}
#define DOC "input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "
#define APART(b) .batch = b, .queries = 300, .keys = 300, .input

static const asked_way masked_ways[] = {
    {"documents of a mask", P("heads 16 kv 4; head_dim 32", "causal; " DOC "branch { }"), 0,
     {.call = {APART(2) = long_middle}}},
    {"documents that are not sorted",
     P("heads 16 kv 4; head_dim 32", "causal; " DOC "branch { }"), 0,
     {.call = {APART(1) = mixed_middle}}},
    {"documents, a window, sinks and a cap",
     P("heads 8; head_dim 64", DOC "input z : f32[H] gradient; sink z[h]; "
                               "score 4 * tanh(s / 4); branch { window 80, 40; }"), 0,
     {.call = {APART(1) = long_middle}, .without_lse = true}},
    {"documents, wide heads, not finite",
     P("heads 8; head_dim 128", "causal; " DOC "branch { }"), 0,
     {.call = {APART(1) = long_middle, .element = spoil}, .element = spoil_output}},
    {"documents, wide heads, not sorted",
     P("heads 8; head_dim 128", "causal; " DOC "branch { }"), 0,
     {.call = {APART(1) = mixed_middle}}},
};
enum { MASKED_WAYS = sizeof masked_ways / sizeof *masked_ways };

static void try_way(const asked_way *way, dil_dtype dtype, int32_t seed,
                    gradient_check *check) {
  gradient_shape shape = way->shape;
  call_shape *call = &shape.call;
  if (!call->batch) call->batch = 1;
  if (!call->queries) call->queries = 90;
  if (!call->keys) call->keys = 90;
  call->seed += (uint32_t)seed + 1;
  try(way->name, way->text, dtype, way->force, shape, check);
}

START_TEST(asked) {
  if (gpu_wanted()) try_way(&ways[_i / 3], dtypes[_i % 3], _i, gpu_gradient_problem);
}
END_TEST

START_TEST(asked_with_masks) {
  if (gpu_wanted())
    try_way(&masked_ways[_i], _i < 3 ? DIL_BF16 : DIL_F16, _i, gpu_gradient_problem_whole);
}
END_TEST

START_TEST(asked_in_any_order) {
  if (gpu_wanted())
    try_way(&ways[_i], dtypes[1 + _i % 2], _i, gpu_gradient_problem_any_order);
}
END_TEST

/* ---- random patterns ----------------------------------------------------- */

static int32_t number_of(const char *variable, int32_t otherwise) {
  const char *text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

/* A tested pattern of its canonical text. */
static tested_pattern *random_tested(uint64_t *state) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  ck_assert(out != NULL);
  pattern *p = random_pattern(memory, state, true);
  pattern_print(p, out);
  fclose(out);
  tested_pattern *s = tested_pattern_new("random", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  free(text);
  return s;
}

START_TEST(random_patterns) {
  if (!gpu_wanted()) return;
  uint64_t seed = (uint64_t)number_of("FUZZ_SEED", 1) * 1000;
  for (int32_t i = 0; i < number_of("GRADIENT_PATTERNS", 10); i++) {
    uint64_t state = seed + (uint64_t)i;
    open_memory();
    tested_pattern *s = random_tested(&state);
    tested_pattern_retype(s, dtypes[i % 3]);
    gradient_shape shape = {.call = {.batch = random_in(&state, 1, 2),
                                     .queries = random_in(&state, 1, 90),
                                     .keys = random_in(&state, 1, 110),
                                     .scale = 0.3,
                                     .seed = (uint32_t)i + 1,
                                     .train = true}};
    const char *problem = gpu_gradient_problem(s, 0, shape);
    if (problem[0]) pattern_print(s->pattern, stderr);
    ck_assert_msg(problem[0] == 0, "pattern %d of seed %d, %s, %d x %d: %s", i,
                  (int)(seed / 1000), dil_dtype_name(s->pattern->dtype),
                  (int)shape.call.queries, (int)shape.call.keys, problem);
    tested_pattern_free(s);
    close_memory();
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("gradients on a GPU");
  TCase *tests = tcase_create("compared");
  tcase_set_timeout(tests, 300);
  tcase_add_loop_test(tests, compared, 0, 3 * CASES);
  tcase_add_loop_test(tests, asked, 0, 3 * WAYS);
  suite_add_tcase(suite, tests);
  TCase *masked = tcase_create("documents");
  tcase_set_timeout(masked, 300);
  tcase_add_loop_test(masked, asked_with_masks, 0, MASKED_WAYS);
  suite_add_tcase(suite, masked);
  TCase *random = tcase_create("random");
  tcase_set_timeout(random, 300);
  tcase_add_test(random, random_patterns);
  suite_add_tcase(suite, random);
  TCase *unordered = tcase_create("any order");
  tcase_set_timeout(unordered, 300);
  tcase_add_loop_test(unordered, compared_in_any_order, 0, CASES);
  tcase_add_loop_test(unordered, asked_in_any_order, 0, WAYS);
  suite_add_tcase(suite, unordered);
  return suite_run(suite, CK_FORK_GETENV);
}
