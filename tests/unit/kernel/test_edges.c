/* test_edges.c - the edge table of the language's specification, section 4,
 * and what else has corners: head sizes, shares, phases, windows, lengths,
 * strides, few queries; scores are in score_edges.c, sinks in sink_edges.c. One
 * row a case; each is computed in two storage types by every instruction set and
 * plan, and compared with the oracle. */
#include "tests/support/edge.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>

static double far_index(int32_t index, const int64_t *at,
                        const int64_t *sizes) {
  (void)index, (void)sizes;
  return (double)(at[0] % 5) * 7 - 9;
}
/* LongNet's branches in words: compilers find them again. */
#define BRANCHES                                                           \
  "(i / 96 == j / 96 || (i / 192 == j / 192 && i % 192 % 2 == h % 2 && "   \
  "j % 192 % 2 == h % 2))"

static const edge edges[] = {
    /* sizes that do not divide */
    {"segment beyond the end", P("branch { segment 48; }"), S(100, 100)},
    {"dilation and segment apart", P("branch { segment 10; dilation 4; }"),
     S(77, 77)},
    {"16 by 6", P("branch { segment 16; dilation 6; } branch { }"), S(90, 90)},
    {"dilation above segment", P("branch { segment 3; dilation 5; }"),
     S(61, 61)},
    {"segment above M", P("branch { segment 1000; dilation 3; }"), S(50, 50)},
    {"segments of one", P("branch { segment 1; }"), S(20, 20)},
    {"one key", P("branch { }"), S(5, 1)},
    {"one query, one key", P(LONGNET), S(1, 1)},
    {"no keys", P("branch { }"), S(40, 0)},
    {"no keys, dilated", P(LONGNET), S(4, 0)},
    {"no queries", P(LONGNET), S(0, 9)},
    {"no batch", P("branch { }"), {.batch = 0, .queries = 7, .keys = 9}},
    {"large common period", P("segments 70, 99, 130; dilations 7, 11, 13;"),
     S(290, 290)},
    {"period as long as cells", P("segments 20, 28, 33; dilations 3, 4, 5;"),
     S(170, 170)},
    {"dilation without segment", P("branch { dilation 3; } branch { "
     "segment 40; }"), S(130, 130)},
    {"twelve branches", P("segments 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48,"
     " 52; dilations 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2;"), S(110, 110)},
    /* coverage and repetition */
    {"rows that nobody selects", P("branch { segment 32; dilation 4; }"),
     S(100, 100)},
    {"the same branch twice", P("branch { segment 32; } branch { segment 32; "
     "}"), S(100, 100)},
    {"the same, in another order", P("branch { segment 32; dilation 2; } "
     "branch { segment 64; } branch { segment 32; dilation 2; }"), S(90, 90)},
    /* keys of lists, of which -1 is none */
    {"keys of a list", P("input cols : i32[H, *]; branch { keys cols; }"),
     S(100, 100)},
    {"keys of a list, causal", P("input cols : i32[B, H, *]; causal; "
     "branch { window 15, 0; } branch { keys cols; mask i - j > 15; }"),
     S(90, 160)},
    {"keys of a list and residues", P("input cols : i32[*]; "
     "branch { segment 40; dilation 2; keys cols; } branch { keys cols; }"),
     S(120, 120)},
    {"a list before a union of windows", P("input cols : i32[B, H, *]; "
     "combine union; branch { keys cols; } branch { window 9, 20; } branch { "
     "causal; segment 50; heads 1..2; }"), S(110, 150)},
    {"two branches of a list and one of another", P("input cols : i32[H, *]; input rest : "
     "i32[*]; branch { keys cols; causal; } branch { keys rest; } branch { keys cols; "
     "mask i % 3 != j % 2; } branch { window 7, 7; }"), S(131, 131)},
    {"the mean of a list and a window", P("input cols : i32[*]; combine mean; "
     "branch { keys cols; } branch { window 7, 7; }"), S(131, 131)},
    {"few queries and a list", P("input cols : i32[H, *]; branch { keys cols; "
     "score s + 0.01 * j; }"), S(3, 200)},
    {"no keys, and a list of them", P("input cols : i32[*]; branch { keys cols; "
     "}"), S(20, 0)},
    {"dense, fewer queries", P("branch { }"), S(33, 130)},
    {"dense, more queries", P("branch { }"), S(130, 33)},
    {"causal, fewer queries", P("causal; branch { }"), S(33, 130)},
    {"causal, more queries", P("causal; branch { }"), S(130, 33)},
    {"segments, fewer queries", P("causal; " LONGNET), S(71, 190)},
    {"segments, more queries", P("causal; " LONGNET), S(190, 71)},
    {"one causal branch of two", P("branch { causal; segment 64; } "
     "branch { segment 32; dilation 2; }"), S(150, 150)},
    /* phases and heads */
    {"phase cycle", P("phase cycle; " LONGNET), S(150, 150)},
    {"phase block", P("phase block; " LONGNET), S(150, 150)},
    {"phase branch", P("phase branch; " LONGNET), S(150, 150)},
    {"phase kv", "pattern p { heads 6 kv 2; head_dim 16; dtype f32; phase kv; "
     LONGNET " }", S(150, 150)},
    {"phase by expression", P("phase 3 - 2 * h; " LONGNET), S(150, 150)},
    {"phase of a branch", P("branch { segment 30; dilation 3; phase 2; } "
     "branch { }"), S(80, 80)},
    {"phase beyond a partial segment", P("branch { segment 40; dilation 4; "
     "phase 3; }"), S(82, 82)},
    {"shares by range", P("branch { heads 0..1; segment 32; } "
     "branch { heads 1..3; segment 64; dilation 2; }"), S(130, 130)},
    {"a head without branch", P("branch { heads 1..2; segment 32; }"),
     S(70, 70)},
    {"heads split", P("heads split; " LONGNET), S(150, 150)},
    {"more branches than heads", "pattern p { heads 2; head_dim 8; dtype f32; "
     "heads split; " LONGNET " }", S(150, 150)},
    {"grouped queries", "pattern p { heads 6 kv 2; head_dim 16; dtype f32; "
     "causal; " LONGNET " }", S(140, 140)},
    {"one key head", "pattern p { heads 5 kv 1; head_dim 16; dtype f32; "
     LONGNET " }", S(140, 140)},
    /* combines */
    {"union of branches", P("combine union; " LONGNET), S(150, 150)},
    {"union of windows", P("combine union; causal; branch { window 9, 0; } "
     "branch { window 40, 0; segment 64; } branch { mask j % 7 == 0; }"),
     S(150, 150)},
    {"mean of branches", P("combine mean; " LONGNET), S(150, 150)},
    {"sum of branches", P("combine sum; causal; " LONGNET), S(150, 150)},
    {"mean over shares", P("combine mean; heads split; " LONGNET),
     S(150, 150)},
    {"sum with an empty branch", P("combine sum; branch { mask i < 0; } "
     "branch { segment 20; }"), S(70, 70)},
    /* windows and masks */
    {"window", P("window 9, 4; branch { }"), S(150, 150)},
    {"window ahead", P("window 0, inf; branch { }"), S(150, 150)},
    {"window before the row", P("mask i - j >= 21; branch { }"), S(90, 150)},
    {"window behind the row", P("mask j - i > 2; branch { segment 64; }"),
     S(150, 150)},
    {"window beside residues", P("causal; mask i - j < 9 || (i - j) % 48 == 0; "
     "branch { }"), S(150, 130)},
    {"rows that see all", P("mask abs(i - j) <= 3 || i < 9 || j < 9; branch { }"),
     S(90, 150)},
    {"rows of a range", P("mask i >= 20 && i < 41; branch { segment 64; }"),
     S(150, 130)},
    {"window of one", P("window 0, 0; branch { }"), S(90, 90)},
    {"window that ends inside a pair", P("window inf, 21; "
     "mask j < 48; branch { }"), S(54, 54)},
    {"window in segments", P("window 20, 20; " LONGNET), S(150, 150)},
    {"windows intersect", P("window 30, 5; branch { window 10, 20; causal; }"),
     S(150, 150)},
    {"mask over heads", P("mask h % 2 == 0 || j <= i; branch { }"),
     S(100, 100)},
    {"mask that drops all", P("mask i > 100000; branch { }"), S(50, 50)},
    {"mask with floats", P("mask 0.5 * i < 1.25 * j + 3; branch { }"),
     S(100, 100)},
    {"mask by floor division", P("mask (i - 50) / 7 == (j - 50) / 7 || "
     "(j - 40) % 9 == 2; branch { }"), S(100, 100)},
    {"mask of branches", P("mask " BRANCHES "; branch { }"), S(300, 300)},
    {"mask of branches, few rows", P("mask " BRANCHES "; branch { "
     "window 99, 20; }"), S(90, 333)},
    {"mask of branches, few keys", P("mask " BRANCHES " && i + h != j; "
     "branch { causal; }"), S(333, 200)},
    {"mask of a branch", P("mask i / 96 == j / 96 && i % 96 % 3 == (h + 1) % 3 "
     "&& j % 96 % 3 == (h + 1) % 3; branch { }"), S(200, 300)},
    {"division by zero", P("mask 10 / (j % 3) == 5 || i % (j % 2) == 0; "
     "branch { }"), S(64, 64)},
    {"mask by batch", P("mask b == 0 || (i + j) % 2 == 0; branch { }"),
     {.batch = 3, .queries = 60, .keys = 60}},
    {"mask of sizes", P("mask i < N / 2 || j > M - 10 || B > 1; branch { }"),
     S(60, 80)},
    {"mask by choice", P("mask (i < 20 ? j < 10 : j >= 10) && !(j == 12); "
     "branch { }"), S(60, 60)},
    {"hash", P("mask hash(h, i / 8, j / 8, 7) % 3 != 0; branch { }"),
     S(100, 100)},
    {"keep from a table", P("block 16; input kept : u8[H, nb, nb]; "
     "keep from kept; branch { }"), S(150, 150)},
    {"keep from two tables", P("block 8; input all : u8[nb, nb]; "
     "input kept : u8[B, H, nb, nb]; keep from all; causal; "
     "branch { keep from kept; }"), S(70, 90)},
    {"keep blocks", P("block 16; keep local(1) || global(1) || strided(3); "
     "branch { }"), S(150, 150)},
    {"keeps of two levels", P("block 16; keep bj % 2 == 0; keep bi == bj; "
     "branch { keep bi >= bj; } branch { block 8; segment 64; "
     "keep random(0.5, 3); }"), S(150, 150)},
    {"keep by levels", P("block 8; keep hierarchical(1, 1, 4, 8); branch { }"),
     S(150, 150)},
    {"predicates that differ", P("branch { segment 64; mask j % 3 != 0; } "
     "branch { segment 128; dilation 2; mask i % 5 != 0; } branch { "
     "segment 64; }"), S(200, 200)},
    {"mask by row", P("causal; mask row % 7 != 2 || j / 5 == row / 9; "
     "branch { } branch { segment 40; mask row < 30; }"),
     {.batch = 4, .queries = 120, .keys = 100, .lengths = ragged}},
    {"keep by row", P("block 16; input kept : u8[N, nb]; keep kept[row, bj] == "
     "1 || local(0); branch { }"), S(64, 150)},
    {"mask by int()", P("input w : f32[H]; mask int(0.37 * i - w[h] * j) % 3 "
     "!= 1 && int(1e30 * (i - j)) >= -5 || int((j % 4) / (0.0 * i)) == 0; "
     "branch { }"), S(100, 130)},
    /* declared inputs */
    {"index out of range", P("input far : i32[M]; input near : f32[H]; "
     "score s + near[far[j]]; mask far[i + j] < 15; branch { }"),
     S_(70, 70, .input = far_index)},
    {"inputs of each type", P("input a : f32[H]; input c : bf16[N]; "
     "input e : f16[M, 2]; input f : i32[B, M]; input g : u8[4]; "
     "score s * a[h] + c[i] - e[j, 1]; mask f[b, i] <= f[b, j] || g[i % 4] == "
     "1; branch { }"), {.batch = 2, .queries = 90, .keys = 90}},
    {"bias by row, fewer queries", P("input z : f32[B, H, N, M]; "
     "score s + z[b, h, row, j]; branch { }"),
     {.batch = 2, .queries = 70, .keys = 130}},
    {"bias by row, more queries", P("causal; input z : f32[B, H, N, M]; "
     "score s + z[b, h, row, j]; branch { segment 64; } branch { }"),
     {.batch = 4, .queries = 110, .keys = 100, .lengths = ragged}},
    {"bias by int()", P("input near : f32[H, 20]; "
     "score s + near[h, int(0.3 * abs(i - j) - 0.5)] * (1 + int(0.1 * j)); "
     LONGNET), S(140, 150)},
    {"documents", P("input doc : i32[B, M]; mask doc[b, i] == doc[b, j]; "
     LONGNET), {.batch = 2, .queries = 150, .keys = 150}},
    {"lengths", P("causal; " LONGNET),
     {.batch = 4, .queries = 100, .keys = 100, .lengths = ragged}},
    {"lengths, few queries", P("branch { }"),
     {.batch = 4, .queries = 3, .keys = 100, .lengths = ragged}},
    {"lengths, dense", P("branch { } branch { segment 32; dilation 2; }"),
     {.batch = 4, .queries = 64, .keys = 100, .lengths = ragged}},
    /* dropout */
    {"dropout", P("dropout 0.3; " LONGNET),
     S_(150, 150, .train = true, .dropout_seed = 0x123456789abcdefULL)},
    {"dropout, few queries", P("dropout 0.5; causal; branch { }"),
     S_(3, 300, .train = true, .dropout_seed = 5)},
    {"dropout not in training", P("dropout 0.3; " LONGNET), S(90, 90)},
    /* memory */
    {"views by heads", P(LONGNET), S_(90, 90, .layout = GUARD_HEADS)},
    {"views with holes", P(LONGNET), S_(90, 90, .layout = GUARD_HOLES)},
    {"views backward", P("causal; " LONGNET),
     S_(90, 90, .layout = GUARD_BACKWARD)},
    {"batches", P("causal; " LONGNET),
     {.batch = 5, .queries = 70, .keys = 70}},
    {"guards before", P(LONGNET), S_(90, 90, .at_start = true)},
};
enum { EDGES = sizeof edges / sizeof edges[0] };

/* Long enough for several blocks, strips and packing items
 * (runtime/cpu/tile_pass.c), and for keys that are split between workers. */
#define L(body) "pattern p { heads 2 kv 1; head_dim 8; dtype f32; " body " }"

static const edge long_ones[] = {
    {"long dense", L("branch { }"), S(2300, 4700)},
    {"long causal LongNet", L("causal; segments 700, 1400, 2800; "
     "dilations 1, 2, 4;"), S(4500, 4500)},
    {"long segments, more queries", L("branch { segment 1100; dilation 3; } "
     "branch { segment 90; }"), S(5200, 3300)},
    {"long windows", L("combine union; causal; branch { window 200, 0; } "
     "branch { mask j < 3; }"), S(4200, 4200)},
    {"long documents", L("input doc : i32[B, M]; mask doc[b, i / 20] == "
     "doc[b, j / 20]; branch { } branch { segment 2100; dilation 2; }"),
     S(3000, 3000)},
    {"long decoding", L("causal; branch { } branch { segment 5000; "
     "dilation 4; }"), S(3, 21000)},
    {"long decoding, ragged", L("branch { segment 3000; }"),
     {.batch = 4, .queries = 1, .keys = 5000, .lengths = ragged}},
    {"long lengths", L("causal; branch { segment 1500; }"),
     {.batch = 4, .queries = 2500, .keys = 2500, .lengths = ragged}},
};
enum { LONG_ONES = sizeof long_ones / sizeof long_ones[0] };

static void try_kernels(const tested_pattern *s, data *d, const char *name) {
  forced list[FORCES_MOST];
  forces_of(s, list);
  for (const char *const *isa = cpu_isas(); *isa; isa++)
    for (const forced *f = list; f->name; f++) {
      kernel_made *k = kernel_make(s, (recipe){.isa = *isa, .force = f->force});
      ck_assert_msg(f->force != 0 || !k->refused, "%s: refused: %s", name,
                    k->problem);
      const char *problem = k->refused ? "" : data_problem(d, k);
      ck_assert_msg(problem[0] == 0, "%s, %s, %s, %s: %s", name,
                    dil_dtype_name(s->pattern->dtype), *isa, f->name, problem);
      kernel_unmake(k);
    }
}

static void try_shape(const char *name, const char *text, call_shape shape,
                      dil_dtype dtype) {
  tested_pattern *s = tested_pattern_new(name, text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  tested_pattern_retype(s, dtype);
  if (shape.seed == 0) shape.seed = 11;
  data *d = data_new(s, shape);
  try_kernels(s, d, name);
  data_free(d);
  tested_pattern_free(s);
}

static void try_edge(const edge *e) {
  try_shape(e->name, e->text, e->shape, DIL_F32);
  if (gpu_wanted() && e->shape.element == huge_key_nan_value) return;
  try_shape(e->name, e->text, e->shape, DIL_BF16);
}

START_TEST(edge_case) { try_edge(&edges[_i]); }
END_TEST

START_TEST(score) { try_edge(&score_edges[_i]); }
END_TEST

START_TEST(sink) { try_edge(&sink_edges[_i]); }
END_TEST

START_TEST(long_one) {
  const edge *e = &long_ones[_i];
  try_shape(e->name, e->text, e->shape, _i % 2 ? DIL_BF16 : DIL_F32);
}
END_TEST

static const int32_t widths[][2] = {{1, 1},   {2, 3},   {3, 1},    {17, 17},
                                    {63, 64}, {80, 40}, {96, 160}, {192, 128},
                                    {256, 256}, {8, 256}};

START_TEST(width) {
  for (dil_dtype dtype = DIL_F32; dtype <= DIL_F16; dtype++)
    for (int64_t queries = 5; queries <= 70; queries += 65) {
      char text[200], name[50];
      snprintf(name, sizeof name, "head_dim %d value %d", widths[_i][0],
               widths[_i][1]);
      snprintf(text, sizeof text, "pattern p { heads 4 kv 2; %s; dtype f32; "
               "branch { segment 50; } branch { dilation 2; } }", name);
      try_shape(name, text, (call_shape){.batch = 1, .queries = queries,
                                         .keys = 101}, dtype);
    }
}
END_TEST

static const char *const decoders[] = {
    P("causal; branch { }"),
    P("causal; " LONGNET),
    P("branch { segment 300; mask j % 3 != 1; score s + 0.1 * h; }"),
    P("input z : f32[N, M]; score s + z[row, j]; mask row != 3 || j < 90;"
      " branch { }"),
    "pattern p { heads 8 kv 2; head_dim 40; dtype f32; causal; combine union;"
    " branch { window 99, 0; } branch { mask j < 4; } }",
    P("combine mean; branch { } branch { dilation 3; phase 0; }"),
};

/* One to twenty queries over many keys. */
START_TEST(decode) {
  for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++)
    try_shape("decoding", decoders[i],
              (call_shape){.batch = 1 + _i % 2, .queries = _i, .keys = 517},
              (dil_dtype)(_i % 3));
}
END_TEST

/* Windows whose ends fall on the borders of tiles, for tiles of any multiple of
 * eight rows and keys: one pair decides whether a tile is seen at all. */
START_TEST(window_at_borders) {
  char text[120];
  int reach = 8 * _i + 1;
  snprintf(text, sizeof text, P("window %d, %d; branch { }"), reach, reach);
  tested_pattern *s = tested_pattern_new("window at borders", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 1, .queries = 300, .keys = 300,
                                     .seed = 5});
  for (const char *const *isa = cpu_isas(); *isa; isa++) {
    kernel_made *k = kernel_make(s, (recipe){.isa = *isa});
    const char *problem = data_problem(d, k);
    ck_assert_msg(!*problem, "window %d, %s: %s", reach, *isa, problem);
    kernel_unmake(k);
  }
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

/* Lengths outside 0..M: refused where the host sees them; a GPU takes the
 * nearer of the two. */
START_TEST(lengths_outside) {
  static const int32_t told[] = {101, -1, 1, INT32_MAX};
  static const int32_t near[] = {100, 0, 1, 100};
  tested_pattern *s =
      tested_pattern_new("lengths outside", edges[0].text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  data *d = data_new(s, (call_shape){.batch = 4, .queries = 70, .keys = 100,
                                     .seed = 3, .lengths = near,
                                     .told = told});
  if (gpu_wanted()) {
    try_kernels(s, d, "lengths outside");
  } else {
    kernel_made *k = kernel_make(s, (recipe){.isa = *cpu_isas()});
    ck_assert_str_eq(data_problem(d, k), "the call is wrong: "
                     "lengths[0] must be within 0 and 100, got 101");
    kernel_unmake(k);
  }
  data_free(d);
  tested_pattern_free(s);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("edges");
  TCase *tests = tcase_create("edges");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, edge_case, 0, EDGES);
  tcase_add_loop_test(tests, score, 0, score_edge_count);
  tcase_add_loop_test(tests, sink, 0, sink_edge_count);
  tcase_add_loop_test(tests, long_one, 0, LONG_ONES);
  tcase_add_loop_test(tests, width, 0, sizeof widths / sizeof widths[0]);
  tcase_add_loop_test(tests, decode, 0, 21);
  tcase_add_loop_test(tests, window_at_borders, 0, 17);
  tcase_add_test(tests, lengths_outside);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(void) {
  return suite_run(make_suite(), CK_FORK_GETENV);
}
