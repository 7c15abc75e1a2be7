/* test_choice.c - blocks chosen by their scores: lists that kernels make, held
 * against the definition, and attention over them.
 *
 * In: patterns and shapes, most of them random. Out: what is wrong with a list or
 * with the rows that are computed from it. */
#include "compiler/oracle/oracle.h"
#include "runtime/base/random.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 200, TEXT = 1200 };
/* On a GPU, where compiling takes the time, a pattern meets so many shapes. */
enum { SHAPES_A_PATTERN = 4, PATTERNS = CASES / SHAPES_A_PATTERN };

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
      "heads 1..1;", "dilation 2; phase kv;", "mask j % 3 != 1;",
      /* what another branch would say by a residue, a window or heads */
      "mask (i - j) % 2 == 0;", "mask i - j < 40 && j <= i;", "mask h < 1;"};
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
                                       "1, 16", "24, 16", "2, 1", "1, 3"};
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

static void check_shape(const tested_pattern *s, kernel_made *k, uint32_t seed,
                        const char *text) {
  int32_t lengths[2];
  data *d = data_new(s, shape_of(seed, lengths));
  const char *problem = data_problem(d, k);
  ck_assert_msg(!problem[0], "seed %u: %s\n%s\nB %d N %d M %d", seed, problem,
                text, (int)d->shape.batch, (int)d->shape.queries,
                (int)d->shape.keys);
  data_free(d);
}

/* Random pattern number `seed`, and the shapes of `count` seeds. */
static void check_case(uint32_t seed, int32_t threads, uint32_t shapes,
                       uint32_t count) {
  char text[TEXT];
  print_case(seed, text);
  tested_pattern *made = tested_pattern_new("choice.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s\n%s", text, made->problem);
  kernel_made *k = kernel_make(made, (recipe){.threads = threads});
  for (uint32_t i = 0; i < count; i++) check_shape(made, k, shapes + i, text);
  kernel_unmake(k);
  tested_pattern_free(made);
}

START_TEST(random_cases_hold) {
  uint32_t each = CASES / 4, first = (uint32_t)_i * each;
  for (uint32_t seed = first; seed < first + each && !gpu_wanted(); seed++)
    check_case(seed, 1 + _i % 3, seed, 1);
  uint32_t end = gpu_wanted() ? PATTERNS : 0;
  for (uint32_t seed = (uint32_t)_i; seed < end; seed += 4)
    if (!gpu_leaves_case("random pattern", (int32_t)seed))
      check_case(seed, 1, seed * SHAPES_A_PATTERN, SHAPES_A_PATTERN);
}
END_TEST

/* ---- papers -------------------------------------------------------------- */

enum { ROWS = 90, HEADS = 4, WIDTH = 8, SIZE = 8, KEPT = 5 };

/* How well a query of a head likes a block of keys. */
static double liking(const data *d, int64_t h, int64_t i, int64_t block) {
  int64_t kv = h / (d->pattern->heads / d->pattern->kv_heads), count = 0;
  double sum = 0;
  for (int64_t j = block * SIZE; j < (block + 1) * SIZE && j < ROWS; j++, count++)
    for (int64_t x = 0; x < WIDTH; x++)
      sum += dil_element_read(d->call.q.data, DIL_F32,
                              tensor_index(&d->call.q, (int64_t[]){0, i, h, x})) *
             dil_element_read(d->call.k.data, DIL_F32,
                              tensor_index(&d->call.k, (int64_t[]){0, j, kv, x}));
  return sum / (double)count;
}

/* Takes the best of the blocks before `end` that are not taken, `count` times. */
static void take_best(const double *like, int64_t end, int64_t count,
                      bool *taken) {
  for (; count > 0; count--) {
    int64_t best = -1;
    for (int64_t k = 0; k < end; k++)
      if (!taken[k] && (best < 0 || like[k] > like[best])) best = k;
    if (best >= 0) taken[best] = true;
  }
}

/* MoBA 2.2: the block of the query itself, and the best of those before it, with
 * top-k counting both. */
static void paper_moba(const data *d, int64_t h, int64_t i, bool *taken) {
  double like[ROWS];
  for (int64_t k = 0; k < i / SIZE; k++) like[k] = liking(d, h, i, k);
  taken[i / SIZE] = true;
  take_best(like, i / SIZE, KEPT - 1, taken);
}

/* NSA 3.3.2: one initial block, two local ones, and those of largest importance,
 * which is summed over the heads of a group. */
static void paper_nsa(const data *d, int64_t h, int64_t i, bool *taken) {
  int64_t group = d->pattern->heads / d->pattern->kv_heads, own = i / SIZE;
  double like[ROWS] = {0};
  for (int64_t k = 0; k < own; k++)
    for (int64_t n = h / group * group; n < (h / group + 1) * group; n++)
      like[k] += liking(d, n, i, k);
  taken[0] = taken[own] = true;
  if (own > 0) taken[own - 1] = true;
  take_best(like, own, KEPT - 3, taken);
}

/* SeerAttention: the blocks of largest gate score; the query's own is there. */
static void paper_seer(const data *d, int64_t h, int64_t i, bool *taken) {
  double like[ROWS];
  for (int64_t k = 0; k < i / SIZE; k++)
    like[k] = dil_element_read(
        d->inputs[0].data, DIL_F32,
        tensor_index(&d->inputs[0], (int64_t[]){0, h, i / SIZE, k}));
  taken[i / SIZE] = true;
  take_best(like, i / SIZE, KEPT - 1, taken);
}

static const struct {
  const char *name;
  void (*take)(const data *d, int64_t h, int64_t i, bool *taken);
} papers[] = {
    {"moba", paper_moba}, {"nsa_selected", paper_nsa}, {"seer", paper_seer}};

static bool is_listed(const data *d, int64_t h, int64_t bi, int64_t block) {
  const int32_t *rows =
      (const int32_t *)d->call.made[0].data + h * d->call.made[0].stride[1];
  const int32_t *cols =
      (const int32_t *)d->call.made[1].data + h * d->call.made[1].stride[1];
  for (int32_t e = rows[bi]; e < rows[bi + 1]; e++)
    if (cols[e] == block) return true;
  return false;
}

/* The blocks of a preset that a kernel chose, or that its other keep holds. */
START_TEST(presets_choose_as_papers_do) {
  if (gpu_leaves_case("preset", PATTERNS + _i)) return;
  char path[80];
  static const define sizes[] = {{"q_heads", "4"}, {"kv_heads", "2"},
                                 {"width", "8"}, {"size", "8"}, {"blocks", "5"}};
  snprintf(path, sizeof path, "examples/presets/%s.dil", papers[_i].name);
  tested_pattern *made = tested_pattern_read(path, sizes, 5);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  tested_pattern_retype(made, DIL_F32);
  kernel_made *k = kernel_make(made, (recipe){0});
  data *d = data_new(made, (call_shape){.batch = 1, .queries = ROWS,
                                        .keys = ROWS, .seed = 3});
  const char *problem = data_problem(d, k);
  ck_assert_msg(!problem[0], "%s", problem);
  int64_t per = pattern_choice(made->pattern, 0).query_block;
  for (int64_t h = 0; h < HEADS; h++)
    for (int64_t i = 0; i < ROWS; i++) {
      bool taken[ROWS] = {false};
      int64_t own = i / SIZE;
      papers[_i].take(d, h, i, taken);
      for (int64_t block = 0; block <= own; block++) {
        bool held = papers[_i].take == paper_nsa &&
                    (block == 0 || own - block <= 1);
        ck_assert_msg((held || is_listed(d, h, i / per, block)) == taken[block],
                      "%s: head %d, query %d, block %d", papers[_i].name, (int)h,
                      (int)i, (int)block);
      }
    }
  data_free(d);
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

/* ---- laws ---------------------------------------------------------------- */

/* One choice for any number of threads; a batch row chooses as it does alone. */
START_TEST(choices_follow_from_rows_alone) {
  if (gpu_leaves_case("rows alone", PATTERNS + 3)) return;
  static const char text[] =
      "pattern p { heads 4 kv 2; head_dim 24; dtype bf16; causal; block 8; "
      "keep mass 0.8, 6 by mean each; shared kv; branch { } }";
  tested_pattern *made = tested_pattern_new("law.dil", text, NULL, 0);
  kernel_made *one = kernel_make(made, (recipe){.threads = 1});
  kernel_made *three = kernel_make(made, (recipe){.threads = 3});
  call_shape shape = {.batch = 2, .queries = 300, .keys = 300, .seed = 8};
  data *both = data_new(made, shape), *again = data_new(made, shape);
  shape.batch = 1;
  data *alone = data_new(made, shape);
  ck_assert_str_eq(data_problem(both, one), "");
  ck_assert_str_eq(data_problem(again, three), "");
  ck_assert_str_eq(data_problem(alone, three), "");
  for (int list = 0; list < 2; list++) {
    const dil_tensor *t = &both->call.made[list];
    size_t bytes = (size_t)dil_tensor_count(t) * sizeof(int32_t);
    ck_assert_mem_eq(t->data, again->call.made[list].data, bytes);
    ck_assert_mem_eq(t->data, alone->call.made[list].data, bytes / 2);
  }
  data_free(both);
  data_free(again);
  data_free(alone);
  kernel_unmake(one);
  kernel_unmake(three);
  tested_pattern_free(made);
}
END_TEST

/* On a GPU lanes choose of up to 1024 key blocks, each of 16 of up to 512 and else of 32,
 * and a thread block of more. */
static const char *const chosen_of_many[] = {
    "top 37 by mean each", "top 37 by mean", "top 37 by gate", "mass 0.7, 90 by gate",
    "mass 0.999, 400 by gate"};
enum { CHOSEN_OF_MANY = sizeof chosen_of_many / sizeof *chosen_of_many };

START_TEST(many_key_blocks) {
  static const int64_t keys[] = {256, 513, 1024, 1025};
  if (gpu_leaves_case("many key blocks", PATTERNS + 7 + _i)) return;
  char text[TEXT];
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim 16; dtype bf16; window 900, 0; "
           "block 1; input gate : f32[B, H, nbq, nb]; keep %s; "
           "shared kv; branch { } }", chosen_of_many[_i]);
  tested_pattern *made = tested_pattern_new("many.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  kernel_made *k = kernel_make(made, (recipe){0});
  for (int n = 0; n < 8; n++) {
    data *d = data_new(made, (call_shape){.batch = 1, .queries = 19,
                                          .keys = keys[n / 2], .seed = 9,
                                          .element = n % 2 ? few_values : with_nan});
    const char *problem = data_problem(d, k);
    ck_assert_msg(!problem[0], "%s, %d keys: %s", chosen_of_many[_i],
                  (int)keys[n / 2], problem);
    data_free(d);
  }
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

/* On a GPU means, or rows, of several blocks of queries meet the means of keys by matrix
 * products; where a sum is not finite, one number after the other. */
static const char *const products[][2] = {
    {"bf16", "mean"}, {"f32", "mean"}, {"f16", "mean each"}};

START_TEST(blocks_of_queries_share_a_strip) {
  static const int64_t keys[] = {100, 4112, 8215};
  if (gpu_leaves_case("strips", PATTERNS + 7 + CHOSEN_OF_MANY + _i)) return;
  char text[TEXT];
  snprintf(text, sizeof text,
           "pattern p { heads 2; head_dim 24; dtype %s; window 4000, 0; block 16; "
           "keep top 21 by %s; branch { } }", products[_i][0], products[_i][1]);
  tested_pattern *made = tested_pattern_new("strips.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  kernel_made *k = kernel_make(made, (recipe){0});
  for (int n = 0; n < 9; n++) {
    static double (*const elements[])(int32_t, const int64_t *, double) = {
        NULL, few_values, with_nan};
    data *d = data_new(made, (call_shape){.batch = 1, .queries = 35,
                                          .keys = keys[n / 3], .seed = 11,
                                          .element = elements[n % 3]});
    const char *problem = data_problem(d, k);
    ck_assert_msg(!problem[0], "%s by %s, %d keys: %s", products[_i][0],
                  products[_i][1], (int)keys[n / 3], problem);
    data_free(d);
  }
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

/* Means of keys that are alike to 2^-9: rounded to elements they are the same. */
static double nearly_equal(int32_t tensor, const int64_t *at, double number) {
  bool more = at[1] % 16 < at[1] / 16 * 7 % 16;
  return tensor == 2 ? number : tensor == 1 && more ? 1 + 0x1p-7 : 1;
}

/* Squares of keys, or in the second batch row of queries, vanish in f32. */
static double smallest(int32_t tensor, const int64_t *at, double number) {
  return tensor == 1 - at[0] ? number * 0x1p-76 : number;
}

static double with_infinity(int32_t tensor, const int64_t *at, double number) {
  return tensor < 2 && at[1] % 91 == 5 && at[3] == 0 ? INFINITY : number;
}

/* On a GPU all estimates of each row are made with rounded means, and those near the
 * least that is chosen once more. Blocks have 16, 24 and 128 rows: some end within a tile
 * of rows, and rows of 43 numbers are no whole units of 16 bytes. Of 64 rows two blocks,
 * and of 128 one, end with the rows that warpgroups multiply at once. */
static const char *const rounded[] = {
    "head_dim 16; dtype bf16; block 16; keep top 9 by mean each;",
    "head_dim 43; dtype f16; causal; block 24, 16; keep top 5 by mean each;",
    "head_dim 136; dtype bf16; window 500, 90; block 128, 16; keep top 7 by mean each;",
    "head_dim 24; dtype bf16; block 64, 16; keep top 9 by mean each;",
    "head_dim 40; dtype f16; block 128, 16; keep top 9 by mean each;"};
enum { ROUNDED = sizeof rounded / sizeof *rounded };

START_TEST(rounded_means_decide_nothing) {
  static double (*const elements[])(int32_t, const int64_t *, double) = {
      nearly_equal, smallest, with_infinity, NULL};
  if (gpu_leaves_case("rounded", PATTERNS + 10 + CHOSEN_OF_MANY + _i)) return;
  char text[TEXT];
  snprintf(text, sizeof text, "pattern p { heads 2 kv 1; %s branch { } }", rounded[_i]);
  tested_pattern *made = tested_pattern_new("rounded.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  kernel_made *k = kernel_make(made, (recipe){0});
  for (int n = 0; n < 4; n++) {
    data *d = data_new(made, (call_shape){.batch = 2, .queries = 330, .keys = 1040,
                                          .seed = 12, .element = elements[n],
                                          .layout = (guard_layout)(n % 4)});
    const char *problem = data_problem(d, k);
    ck_assert_msg(!problem[0], "%s, numbers %d: %s", rounded[_i], n, problem);
    data_free(d);
  }
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

/* A keep beside the choice reads a table that the run time makes of lists. */
START_TEST(choices_stand_beside_lists) {
  if (gpu_leaves_case("beside lists", PATTERNS + 4)) return;
  static const char text[] =
      "pattern p { heads 2; head_dim 16; dtype f32; causal; block 8; "
      "input places : i32[B, H, nbq + 1]; input blocks : i32[B, H, *]; "
      "keep from places, blocks; keep top 3 by mean; branch { } }";
  tested_pattern *made = tested_pattern_new("beside.dil", text, NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  kernel_made *k = kernel_make(made, (recipe){0});
  data *d = data_new(made, (call_shape){.batch = 2, .queries = 150, .keys = 150,
                                        .seed = 5});
  ck_assert_str_eq(data_problem(d, k), "");
  data_free(d);
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

/* Blocks of cells, among all or beside another keep: of a given grid, and of one
 * whose first extent is the call's. */
static const char *const grids[] = {
    "pattern p { heads 4 kv 2; head_dim 20; dtype f16; grid 9 x 16; "
    "block 3 x 4; keep top 3 by mean each; branch { } }",
    "pattern p { heads 2; head_dim 24; dtype bf16; grid any x 6 x 4; "
    "block 2 x 2 x 4; keep bi == bj; keep mass 0.5, 4 by mean; branch { } }"};

START_TEST(cells_of_a_grid_are_chosen) {
  if (gpu_leaves_case("cells", PATTERNS + 5 + _i)) return;
  tested_pattern *made = tested_pattern_new("cells.dil", grids[_i], NULL, 0);
  ck_assert_msg(made->pattern != NULL, "%s", made->problem);
  kernel_made *k = kernel_make(made, (recipe){0});
  data *d = data_new(made, (call_shape){.batch = 2, .queries = 144, .keys = 144,
                                        .seed = 6});
  ck_assert_str_eq(data_problem(d, k), "");
  data_free(d);
  kernel_unmake(k);
  tested_pattern_free(made);
}
END_TEST

static Suite *choice_suite(void) {
  Suite *s = suite_create("choice");
  TCase *cases = tcase_create("cases");
  tcase_set_timeout(cases, 240);
  tcase_add_loop_test(cases, random_cases_hold, 0, 4);
  tcase_add_loop_test(cases, presets_choose_as_papers_do, 0, 3);
  tcase_add_test(cases, choices_follow_from_rows_alone);
  suite_add_tcase(s, cases);
  TCase *lists = tcase_create("lists");
  tcase_set_timeout(lists, 60);
  tcase_add_loop_test(lists, many_key_blocks, 0, CHOSEN_OF_MANY);
  tcase_add_loop_test(lists, blocks_of_queries_share_a_strip, 0, 3);
  tcase_add_loop_test(lists, rounded_means_decide_nothing, 0, ROUNDED);
  tcase_add_test(lists, choices_stand_beside_lists);
  tcase_add_loop_test(lists, cells_of_a_grid_are_chosen, 0, 2);
  suite_add_tcase(s, lists);
  return s;
}

int main(void) { return suite_run(choice_suite(), CK_FORK_GETENV); }
