/* test_backward.c - gradients by the processors' kernels against the oracle:
 * what a pattern may say, each by every instruction set and every forced plan,
 * with guarded tensors full of NaN; the laws of gradients; and the same bits
 * whatever the threads and the memory are. */
#include "tests/support/gradients.h"
#include "tests/support/suite.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define P(shape, body) "pattern p { " shape "; dtype f32; " body " }"
#define GROUPED        "heads 4 kv 2; head_dim 17 value 9"
#define TWO            "branch { segment 32; } branch { dilation 3; }"

static const struct backward_case {
  const char *name, *text;
} cases[] = {
    {"dense", P(GROUPED, "branch { }")},
    {"softmax", P(GROUPED, "causal; " TWO)},
    {"union", P(GROUPED, "combine union; " TWO)},
    {"mean", P(GROUPED, "combine mean; " TWO)},
    {"sum", P(GROUPED, "combine sum; " TWO)},
    {"detached", P(GROUPED, "gradient detached; " TWO)},
    {"heads select rows", P(GROUPED, "phase cycle; " TWO)},
    {"windows", P(GROUPED, "window 9, 4; branch { }")},
    {"rows and keys without pairs",
     P(GROUPED, "mask i % 5 != 3 && j % 4 != 2; branch { }")},
    {"chains", P(GROUPED, "score s * 0.5; score 4 * tanh(s / 4); "
                          "score s + 0.01 * (i - j); branch { }")},
    {"a slope that is learned",
     P(GROUPED, "input t : f32[H] gradient; score s - t[h] * abs(i - j); "
                "branch { }")},
    {"a temperature that is learned",
     P(GROUPED, "input t : f32[H] gradient; score s * t[h]; branch { }")},
    {"a table of distances",
     P(GROUPED, "input t : bf16[H, 9] gradient; "
                "score s + t[h, min(abs(i - j), 8)]; branch { }")},
    {"a bias read at i - j, and outside",
     P(GROUPED, "input t : f16[H, 40] gradient; score s + t[h, i - j]; " TWO)},
    {"keys without scores", P(GROUPED, "score j % 3 == 1 ? -inf : s; " TWO)},
    {"one element", P("heads 3 kv 1; head_dim 1 value 1", "branch { }")},
    {"wide heads", P("heads 1; head_dim 256 value 3", "causal; branch { }")},
    {"wide values", P("heads 2; head_dim 5 value 129", "branch { }")},
    {"dropout", P(GROUPED, "dropout 0.25; " TWO)},
    /* The index runs from -2 on, and past the table. */
    {"a table read at an index of keys, and outside",
     P(GROUPED, "input at : i32[M]; input t : f32[H, 2] gradient; "
                "score s + t[h, at[j] * 3 - 2]; branch { }")},
    {"keys of a list",
     P(GROUPED, "input cols : i32[H, *]; causal; branch { window 20, 0; } "
                "branch { keys cols; mask i - j > 20; }")},
    {"keys of a list of each batch row, before a window",
     P(GROUPED, "input cols : i32[B, H, *]; branch { keys cols; } "
                "branch { window 9, 9; } branch { keys cols; causal; }")},
    {"keys of a list alone", P(GROUPED, "input cols : i32[*]; causal; branch { keys "
                                        "cols; }")},
    {"the sum of a list and a window",
     P(GROUPED, "input cols : i32[H, *]; combine sum; branch { keys cols; heads 0..0; } "
                "branch { window 9, 9; }")},
    {"keys of a list in a union",
     P(GROUPED, "input cols : i32[*]; combine union; branch { window 9, 9; } "
                "branch { keys cols; }")},
    {"chosen blocks",
     P(GROUPED, "causal; block 8; keep top 2 by mean; branch { }")},
    {"chosen blocks beside a window",
     P(GROUPED, "input gate : f32[B, H, nbq, nb]; block 4, 8; branch { window 5, 5; } "
                "branch { keep mass 0.6, 3 by gate; shared kv; }")},
    {"tables of rows and keys by an index",
     P(GROUPED, "input doc : i32[B, M]; input t : f32[2, 3] gradient; "
                "score s * (1 + t[doc[b, i], doc[b, j]]); " TWO)},
    {"sinks", P(GROUPED, "input z : f32[H] gradient; sink z[h]; causal; "
                         "branch { segment 32; sink 0.5; }")},
    {"sinks of branches",
     P(GROUPED, "combine mean; input z : f32[H] gradient; "
                "branch { segment 32; sink z[h]; } branch { dilation 3; }")},
    {"sinks of detached branches",
     P(GROUPED, "gradient detached; input z : f32[H] gradient; "
                "branch { segment 32; sink z[h]; } branch { dilation 3; }")},
    {"detached branches of one pass",
     P(GROUPED, "gradient detached; input z : f32[H] gradient; score 4 * "
                "tanh(s / 4); branch { segment 64; } branch { dilation 2; window "
                "20, 9; } branch { dilation 2; sink z[h]; }")},
    {"a sink that takes most", P(GROUPED, "sink 6.0; branch { }")},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static tested_pattern *s;

static void open_tested(const char *text) {
  s = tested_pattern_new("backward", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
}

static gradient_shape shape_of(int64_t queries, int64_t keys) {
  return (gradient_shape){.call = {.batch = 2,
                                   .queries = queries,
                                   .keys = keys,
                                   .seed = 11,
                                   .train = true,
                                   .dropout_seed = 7}};
}

/* ---- against the oracle -------------------------------------------------- */

static void try_kernel(gradient_data *g, recipe way, const char *name) {
  way.direction = DIL_BACKWARD;
  kernel_made *k = kernel_make(s, way);
  ck_assert_msg(way.force || !k->refused, "%s: %s", name, k->problem);
  if (!k->refused) {
    const char *problem = gradient_data_problem(g, k);
    ck_assert_msg(problem[0] == 0, "%s, %s, force %u: %s", name, way.isa,
                  way.force, problem);
    if (s->pattern->dtype == DIL_F32)
      ck_assert_str_eq(gradient_laws(s->pattern, &g->call, 1e-5), "");
  }
  kernel_unmake(k);
}

START_TEST(every_case_is_right) {
  static const dil_dtype dtypes[] = {DIL_F32, DIL_BF16, DIL_F16};
  forced list[FORCES_MOST];
  open_tested(cases[_i].text);
  for (int i = 0; i < 3; i++) {
    tested_pattern_retype(s, dtypes[i]);
    gradient_shape shape = shape_of(33 + i, 65 - 32 * i);
    for (int x = 0; x < GRADIENT_TENSORS; x++)
      shape.layout[x] = (guard_layout)((x + i + _i) % GUARD_LAYOUT_COUNT);
    shape.call.at_start = i == 1;
    shape.without_dlse = i == 2;
    shape.without_lse = i == 1;
    gradient_data *g = gradient_data_new(s, shape);
    forces_of(s, list);
    const char *const *isa = cpu_isas(), *last = isa[0];
    for (; *isa; last = *isa++)
      try_kernel(g, (recipe){.isa = *isa}, cases[_i].name);
    for (const forced *f = list + 1; f->name; f++)
      try_kernel(g, (recipe){.isa = last, .force = f->force}, cases[_i].name);
    gradient_data_free(g);
  }
  tested_pattern_free(s);
}
END_TEST

/* One kernel, many calls. */
static kernel_made *open_kernel(const char *text, int32_t threads) {
  open_tested(text);
  recipe way = {.threads = threads, .direction = DIL_BACKWARD};
  kernel_made *k = kernel_make(s, way);
  ck_assert_msg(k->kernel != NULL, "%s", k->problem);
  return k;
}

static void try_shape(kernel_made *k, gradient_shape shape) {
  gradient_data *g = gradient_data_new(s, shape);
  const char *problem = gradient_data_problem(g, k);
  ck_assert_msg(problem[0] == 0, "%d queries, %d keys, unwanted %u: %s",
                (int)shape.call.queries, (int)shape.call.keys, shape.unwanted,
                problem);
  gradient_data_free(g);
}

START_TEST(lengths_one_off_every_tile) {
  static const int64_t lengths[] = {1,  2,  15, 16, 17,  31,  32,
                                    33, 63, 64, 65, 127, 128, 129};
  kernel_made *k =
      open_kernel(P("heads 2 kv 1; head_dim 8", "causal; " TWO), 2);
  for (size_t x = 0; x < sizeof lengths / sizeof *lengths; x++) {
    try_shape(k, shape_of(lengths[x], lengths[x]));
    try_shape(k, shape_of(3, lengths[x]));
    try_shape(k, shape_of(lengths[x], 19));
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

START_TEST(long_ones_cross_strips_and_ranges) {
  kernel_made *k = open_kernel(P("heads 1; head_dim 4", "window 20, 20; "
                                                        "branch { }"),
                               3);
  for (int64_t n = 1023; n <= 1025; n++) {
    gradient_shape shape = shape_of(n, 2 * n);
    shape.call.batch = 1;
    try_shape(k, shape);
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

START_TEST(every_choice_of_outputs_and_lengths) {
  static const int32_t lengths[2][2] = {{0, 40}, {1, 17}};
  kernel_made *k = open_kernel(P(GROUPED, "phase cycle; " TWO), 2);
  for (unsigned unwanted = 0; unwanted < 1u << GRADIENT_TENSORS; unwanted += 2)
    for (int x = 0; x < 2; x++) {
      gradient_shape shape = shape_of(21, 40);
      shape.call.lengths = lengths[x];
      shape.unwanted = unwanted;
      try_shape(k, shape);
    }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

/* An infinity in one row: what does not depend on it is finite and right. */
static double spoilt_output(const int64_t *at, double number) {
  return at[1] == 5 && at[2] == 1 && at[3] == 0 ? INFINITY : number;
}
static double spoilt_query(int32_t tensor, const int64_t *at, double number) {
  return tensor == 0 && at[1] == 5 && at[3] == 0 ? INFINITY : number;
}
static double spoilt_key(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 && at[1] == 5 && at[3] == 0 ? INFINITY : number;
}
static double spoilt_value(int32_t tensor, const int64_t *at, double number) {
  return tensor == 2 && at[1] == 5 && at[3] == 0 ? INFINITY : number;
}

#define APART "branch { window 3, 3; } branch { segment 8; }"
#define INFINITE_SCORES \
  "score i % 11 == 3 && j % 4 == 1 ? inf : i % 11 == 5 ? -inf : s; "
static const char *const spoilt_patterns[] = {
    P(GROUPED, "window 3, 3; branch { }"),
    P(GROUPED, "combine mean; " APART),
    P(GROUPED, "combine sum; window 3, 3; branch { }"),
    P(GROUPED, "gradient detached; " APART),
    P(GROUPED, INFINITE_SCORES APART),
    P(GROUPED, "combine mean; " INFINITE_SCORES APART),
};
enum { SPOILT_PATTERNS = sizeof spoilt_patterns / sizeof *spoilt_patterns };

START_TEST(infinities_stay_where_they_are) {
  static double (*const spoils[])(int32_t, const int64_t *, double) = {
      NULL, spoilt_query, spoilt_key, spoilt_value};
  kernel_made *k = open_kernel(spoilt_patterns[_i], 2);
  for (int x = 0; x < 8; x++) { /* the host kept lse, or it is made again */
    gradient_shape shape = shape_of(37, 37);
    if (x % 4 == 0) shape.element = spoilt_output;
    shape.call.element = spoils[x % 4];
    shape.without_lse = x / 4;
    try_shape(k, shape);
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

START_TEST(large_scores) {
  kernel_made *k = open_kernel(P(GROUPED, "causal; branch { }"), 2);
  for (double size = 1; size <= 100; size *= 10) {
    gradient_shape shape = shape_of(40, 40);
    shape.call.size = size;
    try_shape(k, shape);
  }
  kernel_unmake(k);
  tested_pattern_free(s);
}
END_TEST

/* The gradient of a loss that is multiplied by 65536: up to the largest f16,
 * so that dP and dS do not fit into one. */
static double scaled_loss(const int64_t *at, double number) {
  (void)at;
  double gradient = fmax(fmin(number / 5, 0.99), -0.99);
  return gradient * 65536;
}

START_TEST(scaled_losses_of_f16) {
  open_tested(P("heads 4 kv 2; head_dim 64", "branch { }"));
  tested_pattern_retype(s, DIL_F16);
  gradient_shape shape = shape_of(40, 40);
  shape.element = scaled_loss;
  shape.wide = true;
  gradient_data *g = gradient_data_new(s, shape);
  try_kernel(g, (recipe){.threads = 2}, "scaled losses");
  gradient_data_free(g);
  tested_pattern_free(s);
}
END_TEST

/* ---- the same bits ------------------------------------------------------- */

static size_t copy_results(const gradient_data *g, unsigned char *to) {
  size_t all = 0;
  for (int32_t k = 0; k < g->result_count; k++) {
    const guard *memory = &g->result[k].memory;
    if (to) memcpy(to + all, guard_inner(memory), guard_inner_size(memory));
    all += guard_inner_size(memory);
  }
  return all;
}

static void expect_bits(gradient_data *g, kernel_made *k,
                        const unsigned char *first, unsigned char *next) {
  ck_assert_str_eq(gradient_data_problem(g, k), "");
  size_t size = copy_results(g, next);
  ck_assert(memcmp(first, next, size) == 0);
}

/* With more threads, workers own blocks, parts of blocks, or shares of blocks
 * and strips of queries: the last row has all three. */
static const struct {
  int64_t batch, queries, keys;
  bool inputs; /* have gradients, and then blocks are never shared out */
} repeated[] = {
    {2, 70, 130, true}, {2, 70, 130, false}, {1, 19, 1100, false}};
enum { REPEATED = sizeof repeated / sizeof *repeated };

START_TEST(bits_depend_on_nothing) {
  static const int32_t threads[] = {1, 2, 3, 7};
  open_tested(P(GROUPED, "input t : f32[H] gradient; score s * t[h]; " TWO));
  gradient_shape shape = shape_of(repeated[_i].queries, repeated[_i].keys);
  shape.call.batch = repeated[_i].batch;
  shape.without_inputs = !repeated[_i].inputs;
  gradient_data *g = gradient_data_new(s, shape);
  unsigned char *first = malloc(copy_results(g, NULL));
  unsigned char *next = malloc(copy_results(g, NULL));
  ck_assert(first && next);
  for (size_t x = 0; x < sizeof threads / sizeof *threads; x++) {
    recipe way = {.threads = threads[x], .direction = DIL_BACKWARD};
    kernel_made *k = kernel_make(s, way);
    if (x == 0) {
      ck_assert_str_eq(gradient_data_problem(g, k), "");
      copy_results(g, first);
    }
    for (int run = 0; run < 13; run++) expect_bits(g, k, first, next);
    kernel_unmake(k);
  }
  free(first);
  free(next);
  gradient_data_free(g);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("backward");
  TCase *tests = tcase_create("gradients");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, every_case_is_right, 0, CASES);
  tcase_add_test(tests, lengths_one_off_every_tile);
  tcase_add_test(tests, long_ones_cross_strips_and_ranges);
  tcase_add_test(tests, every_choice_of_outputs_and_lengths);
  tcase_add_loop_test(tests, infinities_stay_where_they_are, 0,
                      SPOILT_PATTERNS);
  tcase_add_test(tests, large_scores);
  tcase_add_test(tests, scaled_losses_of_f16);
  tcase_add_loop_test(tests, bits_depend_on_nothing, 0, REPEATED);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
