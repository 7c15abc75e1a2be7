/* test_hopper_gate.c - the kernels of Hopper's own families through NVRTC and the gate:
 * grids, gathered rows, lists of blocks, few rows, fused gradients. A kernel that the gate refuses
 * would leave its calls to slower ones without a word. No GPU is needed. */
#include "tests/support/gate.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Neighbourhoods of grids: the widest tiles leave room for their registers. */
static const struct {
  int32_t head_dim;
  const char *variant;
} grid_sizes[] = {{64, "hopper grid bf16 192x112 d64"},
                  {128, "hopper grid bf16 128x112 d128"}};
enum { GRID_SIZES = sizeof grid_sizes / sizeof *grid_sizes };

START_TEST(grid_size) {
  if (!gate_has_compiler()) return;
  char text[200];
  snprintf(text, sizeof text,
           "pattern p { heads 2; head_dim %d; dtype bf16; grid 128 x 128; "
           "neighborhood 13 x 13; branch { } }",
           grid_sizes[_i].head_dim);
  tested_pattern *s = tested_pattern_new("grid", text, NULL, 0);
  gpu_codes codes = {0};
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 90};
  dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
  ck_assert_msg(status == DIL_OK, "%s: %s", text, dil_last_error());
  ck_assert_str_eq(codes.code[0].variant, grid_sizes[_i].variant);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  tested_pattern_free(s);
}
END_TEST

/* Kernels that gather rows by the blocks that they chose. */
static const struct {
  int32_t head_dim, block;
  const char *dtype, *causal;
} gathered_sizes[] = {{64, 512, "bf16", "causal;"}, {128, 512, "bf16", ""},
                      {128, 400, "f16", "causal;"}, {96, 64, "bf16", ""},
                      {32, 40, "f16", ""}};
enum { GATHERED_SIZES = sizeof gathered_sizes / sizeof *gathered_sizes };

/* The gradients that the kernels of a family make, of those that pass the gate;
 * FORWARD: a kernel runs a pass. */
enum { FORWARD = 1 << 8 };
static int32_t made_by(gpu_request *request, const char *family) {
  gpu_codes codes = {0};
  int32_t found = 0;
  gate_compile_family(request, family, &codes);
  while (codes.count > 0) {
    const dil_cuda_code *code = &codes.code[--codes.count];
    free(code->cubin);
    found |= code->passes ? FORWARD : code->knob[GRADIENT_KNOB_MAKES];
  }
  return found;
}

START_TEST(gathered_rows) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim %d; dtype %s; %s block 1, %d; "
           "keep top 3 by mean each; branch { } }",
           gathered_sizes[_i].head_dim, gathered_sizes[_i].dtype,
           gathered_sizes[_i].causal, gathered_sizes[_i].block);
  tested_pattern *s = tested_pattern_new("gathered", text, NULL, 0);
  gpu_request request = {.common = {gate_backward_plan(s)}, .arch = 90,
                         .full_sequences_only = true};
  ck_assert_int_eq(made_by(&request, "hopper_gather"), FORWARD);
  ck_assert_int_eq(made_by(&request, "gather gradient"),
                   GRADIENT_Q | GRADIENT_K | GRADIENT_V);
  tested_pattern_free(s);
}
END_TEST

/* Lists of blocks: which configuration the gate lets pass first. */
static const struct {
  int32_t head_dim;
  const char *dtype, *form, *variant;
} list_sizes[] = {
    {64, "bf16", "block 64;", "hopper lists bf16 3x64x128 d64"},
    {64, "f16", "causal; block 64;", "hopper lists f16 3x64x128 d64"},
    {64, "bf16", "block 128, 64;", "hopper lists bf16 3x64x128 d64"},
    {32, "bf16", "causal; block 64;", "hopper lists bf16 3x64x128 d32"},
    {64, "bf16", "block 64, 320;", "hopper lists bf16 3x64x64 d64"},
    {128, "bf16", "causal; block 64;", "hopper lists bf16 2x64x64 d128"},
    {96, "f16", "block 64, 192;", "hopper lists f16 2x64x64 d96"}};
enum { LIST_SIZES = sizeof list_sizes / sizeof *list_sizes };

START_TEST(listed_blocks) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim %d; dtype %s; %s "
           "input kept : u8[H, nbq, nb]; keep from kept; branch { } }",
           list_sizes[_i].head_dim, list_sizes[_i].dtype, list_sizes[_i].form);
  tested_pattern *s = tested_pattern_new("listed", text, NULL, 0);
  gpu_codes codes = {0};
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 90,
                         .full_sequences_only = true};
  gate_compile_family(&request, "hopper_block_list", &codes);
  ck_assert_int_eq(codes.count, 1);
  ck_assert_str_eq(codes.code[0].variant, list_sizes[_i].variant);
  free(codes.code[0].cubin);
  tested_pattern_free(s);
}
END_TEST

/* The gate accepts kernels of a family for all gradients of a pattern. */
static void expect_gradients(const char *text, const char *family) {
  tested_pattern *s = tested_pattern_new("gradients", text, NULL, 0);
  gpu_request request = {.common = {gate_backward_plan(s)}, .arch = 90,
                         .full_sequences_only = true};
  ck_assert_msg(made_by(&request, family) == (GRADIENT_Q | GRADIENT_K | GRADIENT_V), "%s",
                text);
  tested_pattern_free(s);
}

/* Their gradients, which take blocks that fill tiles, too. */
static const char *const list_gradients[] = {
    "head_dim 64; dtype f16; causal; block 128, 64;",
    "head_dim 128; dtype f16; block 128; window 700, 30;",
    "head_dim 96 value 40; dtype bf16; block 64, 192; window 100, 0;"};
enum { LIST_GRADIENTS = sizeof list_gradients / sizeof *list_gradients };

START_TEST(listed_gradients) {
  char text[300];
  if (!gate_has_compiler()) return;
  const char *form = list_gradients[_i], *window = strstr(form, "window");
  int before = window ? (int)(window - form) : (int)strlen(form);
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; %.*s input kept : u8[H, nbq, nb]; "
           "keep from kept; branch { %s } }",
           before, form, window ? window : "");
  expect_gradients(text, "list gradient");
}
END_TEST

/* Few rows: slopes of heads once took more registers than there are. */
static const char *const few_rows[] = {
    "head_dim 64; input slope : f32[H]; causal; score s - slope[h] * abs(i - j);",
    "head_dim 128; input slope : f32[H]; causal; score s - slope[h] * abs(i - j);",
    "head_dim 64; input z : f32[M]; mask (i + j) % 3 != 1; score s + log(z[j]);",
    "head_dim 256; causal; sink 0.5; mask hash(i, j) % 5 != 0;"};
enum { FEW_ROWS = sizeof few_rows / sizeof *few_rows };

START_TEST(decoding) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text, "pattern p { heads 4 kv 2; dtype bf16; %s branch { } }",
           few_rows[_i]);
  tested_pattern *s = tested_pattern_new("few rows", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s: %s", text, s->problem);
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 90};
  ck_assert_msg(made_by(&request, "decode") == FORWARD, "the gate refuses %s", text);
  tested_pattern_free(s);
}
END_TEST

/* Documents that a mask keeps apart, and the height of the tiles that they take. */
static const struct {
  const char *body;
  int32_t tile_rows;
} masked_documents[] = {{"head_dim 64; causal;", 192},
             {"head_dim 128; window 1024, 0;", 128},
             {"head_dim 64; causal; score 30 * tanh(s / 30);", 192}};
enum { MASKED_DOCUMENTS = sizeof masked_documents / sizeof *masked_documents };

START_TEST(documents) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text, "pattern p { heads 4 kv 2; dtype bf16; %s input doc : "
           "i32[B, M]; mask doc[b, i] == doc[b, j]; branch { } }", masked_documents[_i].body);
  tested_pattern *s = tested_pattern_new("documents", text, NULL, 0);
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 90, .only = "hopper",
                         .full_sequences_only = true};
  gpu_codes codes = {0};
  dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
  ck_assert_msg(status == DIL_OK && codes.count == 1, "%s: %s", text, dil_last_error());
  ck_assert_int_eq(codes.code[0].knob[CUDA_KNOB_DOCUMENTS_OF], 1);
  ck_assert_int_eq(codes.code[0].knob[HOPPER_KNOB_DOCUMENTS], 1);
  ck_assert_int_eq(codes.code[0].tile_rows, masked_documents[_i].tile_rows);
  free(codes.code[0].cubin);
  tested_pattern_free(s);
}
END_TEST

/* Gradients over grids: both directions have shapes of their own. */
static const char *const grid_gradients[] = {
    "head_dim 64; dtype bf16; grid 128 x 128; neighborhood 13 x 13;",
    "head_dim 128; dtype f16; grid 128 x 128; neighborhood 13 x 13; causal y;",
    "head_dim 96 value 40; dtype bf16; grid any x 45; window (6, 0) x 3;",
    "head_dim 64; dtype f16; grid 30 x 48 x 80; neighborhood 5 x 9 x 9;",
    "head_dim 128; dtype bf16; grid 9 x 40 x 90; dilation 1 x 2 x 2; window 1 x 3 x 3;",
    "head_dim 128; dtype f16; grid 12 x 300; window 2 x 100;"};
enum { GRID_GRADIENTS = sizeof grid_gradients / sizeof *grid_gradients };

START_TEST(gradients_of_grids) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text, "pattern p { heads 4 kv 2; %s branch { } }",
           grid_gradients[_i]);
  expect_gradients(text, "grid gradient");
}
END_TEST

/* The fused form, which no part of a sequence takes: its widths, with and without
 * dropout. Wider heads, and f16 with dropout, have two kernels (NONE). */
enum { NONE = 0, PLAIN = 10, DROPPING = 1 };
static const struct {
  int32_t head_dim, value_dim;
  const char *dtype, *dropout;
  int32_t found;
} fused_sizes[] = {{64, 64, "bf16", "dropout 0.1;", PLAIN + DROPPING},
                   {64, 64, "f16", "", PLAIN},
                   {32, 96, "bf16", "dropout 0.1;", PLAIN + DROPPING},
                   {64, 64, "f16", "dropout 0.1;", NONE},
                   {128, 128, "bf16", "", NONE}};
enum { FUSED_SIZES = sizeof fused_sizes / sizeof *fused_sizes };

START_TEST(fused_gradients_on_hopper) {
  static const knobs any = {
      .given = 1u << KNOB_GRADIENT_ORDER,
      .value = {[KNOB_GRADIENT_ORDER] = {ORDER_ANY}}};
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim %d value %d; dtype %s; causal; "
           "%s phase kv; segments 64, 128; dilations 1, 2; }",
           fused_sizes[_i].head_dim, fused_sizes[_i].value_dim,
           fused_sizes[_i].dtype, fused_sizes[_i].dropout);
  tested_pattern *s = tested_pattern_new("gradients", text, NULL, 0);
  plan *p = gate_backward_plan(s);
  gpu_codes codes = {0};
  gpu_request request = {.common = {p},
                         .arch = 90,
                         .knobs = &any,
                         .full_sequences_only = true};
  dil_status status = gpu_compiler()->estimate(&request, &codes);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  int32_t found = 0, apart = 0;
  while (codes.count > 0)
    apart += !strcmp(codes.code[--codes.count].family, "hopper gradient");
  gate_compile_family(&request, "hopper fused", &codes);
  while (codes.count > 0) {
    const dil_cuda_code *code = &codes.code[--codes.count];
    free(code->cubin);
    ck_assert_int_eq(code->tile_keys, 128);
    ck_assert_int_eq(code->knob[GRADIENT_KNOB_MAKES],
                     GRADIENT_Q | GRADIENT_K | GRADIENT_V);
    found += code->knob[GRADIENT_KNOB_DROPS] ? DROPPING : PLAIN;
  }
  ck_assert_msg(found == fused_sizes[_i].found, "%s: %d", text, found);
  ck_assert_msg((apart > 0) == (found == NONE), "%s: %d", text, apart);
  tested_pattern_free(s);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hopper_gate");
  TCase *tests = tcase_create("hopper");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, grid_size, 0, GRID_SIZES);
  tcase_add_loop_test(tests, gathered_rows, 0, GATHERED_SIZES);
  tcase_add_loop_test(tests, listed_blocks, 0, LIST_SIZES);
  tcase_add_loop_test(tests, listed_gradients, 0, LIST_GRADIENTS);
  tcase_add_loop_test(tests, decoding, 0, FEW_ROWS);
  tcase_add_loop_test(tests, documents, 0, MASKED_DOCUMENTS);
  tcase_add_loop_test(tests, gradients_of_grids, 0, GRID_GRADIENTS);
  tcase_add_loop_test(tests, fused_gradients_on_hopper, 0, FUSED_SIZES);
  suite_add_tcase(suite, tests);
  return suite_run(suite, CK_FORK_GETENV);
}
