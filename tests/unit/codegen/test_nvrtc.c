/* test_nvrtc.c - every example's kernels through NVRTC and the gate, for sm_80
 * and sm_90a; no GPU is needed. Skipped with a word where NVRTC is missing.
 * `make check` asks for all kernels of an example on one of the chips, and for
 * those of Hopper; `make check-long` for all on both. */
#include "tests/support/gate.h"
#include "tests/support/gpu.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Every second one is for sm_90a, where `pairwise` names kernels below. */
static const char *const examples[] = {
    "dense",              "causal",         "longnet",    "longnet_text",
    "longnet_torchscale", "headsplit_mean", "longformer", "strided",
    "blocksparse",        "random_hash",    "alibi",      "decode_gqa",
    "softcap",            "union",          "documents",
};
enum { EXAMPLES = sizeof examples / sizeof examples[0] };
static const int32_t archs[] = {80, 90};

/* Masks and scores of 16-bit elements have kernels of their own on Hopper; those
 * that become ranges of rows and keys need none. */
static const struct {
  const char *example, *variant;
} pairwise[] = {{"longformer", "hopper bf16"},
                {"blocksparse", "hopper pairs"},
                {"alibi", "hopper scores"},
                {"softcap", "hopper scores"},
                {"documents", "hopper pairs"}};

static void expect_pairwise(const gpu_codes *codes, const char *name) {
  for (size_t i = 0; i < sizeof pairwise / sizeof pairwise[0]; i++)
    if (strstr(name, pairwise[i].example))
      ck_assert_msg(strstr(codes->code[0].variant, pairwise[i].variant) != NULL,
                    "%s: %s comes first", name, codes->code[0].variant);
}

static void compile(const plan *p, int32_t arch, const char *name) {
  gpu_codes codes = {0};
  gpu_request request = {.common = {p}, .arch = arch};
  dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
  ck_assert_msg(status == DIL_OK, "%s, sm_%d: %s", name, arch,
                dil_last_error());
  ck_assert_int_ge(codes.count, 1);
  ck_assert_str_eq(codes.code[codes.count - 1].family, "general");
  if (arch == 90) expect_pairwise(&codes, name);
  for (int32_t i = 0; i < codes.count; i++) {
    ck_assert_msg(codes.code[i].size > 4 &&
                      !memcmp(codes.code[i].cubin, "\177ELF", 4),
                  "%s: no cubin", name);
    free(codes.code[i].cubin);
  }
}

/* The kernels for Hopper as they are where no call is a part: those of one pass
 * have no states. */
static void compile_whole(const plan *p, const char *name) {
  static const char *const kinds[] = {"hopper", "hopper pairs"};
  for (int i = 0; i < 2; i++) {
    gpu_codes codes;
    gpu_request request = {.common = {p},
                           .arch = 90,
                           .only = kinds[i],
                           .full_sequences_only = true};
    dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
    ck_assert_msg(status == DIL_OK, "%s: %s", name, dil_last_error());
    while (codes.count > 0) {
      const dil_cuda_code *code = &codes.code[--codes.count];
      ck_assert_int_eq(code->knob[HOPPER_KNOB_WHOLE],
                       p->table.pass_count == 1);
      free(code->cubin);
    }
  }
}

START_TEST(example) {
  if (!gate_has_compiler()) return;
  const char *folder = getenv("EXAMPLES");
  char path[1000];
  snprintf(path, sizeof path, "%s/%s.dil", folder ? folder : "examples",
           examples[_i]);
  tested_pattern *s = tested_pattern_read(path, NULL, 0);
  compile(gate_plan(s, 0), archs[1 - _i % 2], path);
  if (suite_is_long()) compile(gate_plan(s, 0), archs[_i % 2], path);
  compile_whole(gate_plan(s, 0), path);
  tested_pattern_free(s);
}
END_TEST

/* The largest head sizes of each type pass the gate on the smallest chip, one
 * of them with scratch memory that leaves no room for 64 rows. */
START_TEST(width) {
  if (!gate_has_compiler()) return;
  static const char *const texts[] = {
      "pattern p { heads 2; head_dim 256; dtype f32; causal; branch { } }",
      "pattern p { heads 2; head_dim 256; dtype bf16; causal; branch { } }",
      "pattern p { heads 2; head_dim 100; dtype f16; causal; branch { } }",
      "pattern p { heads 2; head_dim 256; dtype f32; segments 8, 16, 24, 32, "
      "40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160; "
      "dilations 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1; "
      "}"};
  tested_pattern *s = tested_pattern_new("width", texts[_i], NULL, 0);
  compile(gate_plan(s, 0), 86, texts[_i]);
  tested_pattern_free(s);
}
END_TEST

/* Every head size has a Hopper kernel that the gate lets pass; some of them as
 * well with state between passes, and for segments that are not nested. */
static const struct {
  int32_t head_dim, value_dim, segment;
  unsigned force;
} hopper_sizes[] = {
    {8, 8, 1024, 0},             {40, 40, 1024, 0},
    {64, 64, 1024, 0},           {96, 96, 1024, 0},
    {128, 128, 1024, 0},         {160, 160, 1024, 0},
    {192, 192, 1024, 0},         {192, 128, 1024, 0},
    {224, 224, 1024, 0},         {256, 256, 1024, 0},
    {64, 256, 1024, 0},          {256, 64, 1024, 0},
    {64, 64, 1024, FORCE_CHAIN}, {128, 128, 1024, FORCE_CHAIN},
    {64, 64, 750, 0},            {128, 128, 750, 0},
    {192, 192, 750, 0},          {256, 256, 750, 0},
};
enum { HOPPER_SIZES = sizeof hopper_sizes / sizeof *hopper_sizes };

static void compile_size(int i, int32_t dilation, bool whole) {
  char text[200];
  snprintf(text, sizeof text,
           "pattern p { heads 2; head_dim %d value %d; dtype %s; "
           "segments 512, %d; dilations %d, %d; }",
           hopper_sizes[i].head_dim, hopper_sizes[i].value_dim,
           i % 2 ? "bf16" : "f16", hopper_sizes[i].segment, dilation,
           2 * dilation);
  tested_pattern *s = tested_pattern_new("hopper", text, NULL, 0);
  gpu_codes codes = {0};
  gpu_request request = {.common = {gate_plan(s, hopper_sizes[i].force)},
                         .arch = 90,
                         .full_sequences_only = whole,
                         .only = "hopper"};
  dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
  ck_assert_msg(status == DIL_OK, "%s: %s", text, dil_last_error());
  ck_assert_msg(codes.count >= 1, "%s: the gate refuses all", text);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  tested_pattern_free(s);
}

/* With and without states, with and without rows that no branch selects; one of
 * the two for every second size, unless the check is a long one. */
START_TEST(hopper_size) {
  if (!gate_has_compiler()) return;
  if (_i % 2 || suite_is_long()) compile_size(_i, 1, false);
  if (!(_i % 2) || suite_is_long()) compile_size(_i, 2, true);
}
END_TEST

/* Scores that may be -inf have their pairs' values asked for in every block. */
static const struct { const char *score; bool hides; } scores[] = {
    {"s - 0.5 * abs(i - j)", false}, {"s - slope[h] * (i - j)", false},
    {"8.0 * tanh(s / 8)", false},    {"s + i / 3", false},
    {"s / slope[h]", true},          {"s + log(1.0 + j)", true},
    {"s + bias[i, j]", true},        {"j % 3 == 0 ? -inf : s", true},
    {"s + int(0.5 * j)", false},     {"s + bias[row, int(0.5 * j)]", true},
};

START_TEST(hiding_scores) {
  char text[300], *written = NULL;
  size_t size;
  snprintf(text, sizeof text, "pattern p { heads 8; head_dim 64; dtype bf16; "
           "input slope : f32[8]; input bias : f32[N, M]; score %s; branch { } "
           "}", scores[_i].score);
  tested_pattern *s = tested_pattern_new("hiding", text, NULL, 0);
  FILE *cuda = open_memstream(&written, &size);
  gpu_codes codes = {0};
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 90,
                         .source_only = true, .cuda = cuda};
  ck_assert_int_eq(gpu_compiler()->common.compile(&request.common, &codes),
                   DIL_OK);
  fclose(cuda);
  const char *says = strstr(written, "#define HIDING ");
  ck_assert_msg(says && (says[15] == '1') == scores[_i].hides, "%s", text);
  free(written);
  tested_pattern_free(s);
}
END_TEST

/* The gate takes the kernel of inputs at its preferred tiles, and that of sinks
 * with the kernel of dQ. */
START_TEST(gradients_of_inputs) {
  static const char *const types[] = {"f32", "bf16"};
  static const int32_t columns[] = {32, 64};
  char text[400];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim 64; dtype %s; causal; input t : "
           "f32[H] gradient; input r : bf16[B, H, M] gradient; sink t[h]; score "
           "s * t[h] + r[b, h, i - j]; branch { } branch { dilation 2; sink "
           "r[b, h, i]; } }",
           types[_i]);
  tested_pattern *s = tested_pattern_new("inputs", text, NULL, 0);
  plan *p = gate_backward_plan(s);
  gpu_codes codes = {0};
  gpu_request request = {.common = {p}, .arch = archs[_i], .only = "general"};
  dil_status status = gpu_compiler()->common.compile(&request.common, &codes);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  int32_t found = 0;
  while (codes.count > 0) {
    const dil_cuda_code *code = &codes.code[--codes.count];
    free(code->cubin);
    if (!strstr(code->variant, "gradient inputs")) continue;
    ck_assert_int_eq(code->knob[GRADIENT_KNOB_MAKES], GRADIENT_INPUTS);
    ck_assert_int_eq(code->tile_keys, columns[_i]);
    found++;
  }
  ck_assert_int_eq(found, 1);
  tested_pattern_free(s);
}
END_TEST

/* Every head size has Hopper kernels of gradients that the gate lets pass, with
 * and without dropout. */
static const struct {
  int32_t head_dim, value_dim;
  const char *name;
} gradient_sizes[] = {{64, 64, "dkv"},   {128, 128, "dkv"}, {192, 128, "dk "},
                      {224, 224, "dv "}, {256, 256, "dk "}, {64, 256, "dv "}};
enum { GRADIENT_SIZES = sizeof gradient_sizes / sizeof *gradient_sizes };

START_TEST(gradients_on_hopper) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim %d value %d; dtype %s; causal; "
           "dropout 0.1; branch { } }",
           gradient_sizes[_i].head_dim, gradient_sizes[_i].value_dim,
           _i % 2 ? "bf16" : "f16");
  tested_pattern *s = tested_pattern_new("gradients", text, NULL, 0);
  plan *p = gate_backward_plan(s);
  gpu_codes codes = {0};
  gpu_request request = {.common = {p}, .arch = 90};
  gate_compile_family(&request, "hopper gradient", &codes);
  int32_t found = 0, wide = strncmp(gradient_sizes[_i].name, "dkv", 3) != 0;
  bool named = false;
  while (codes.count > 0) {
    const dil_cuda_code *code = &codes.code[--codes.count];
    free(code->cubin);
    named |= strstr(code->variant, gradient_sizes[_i].name) != NULL;
    found += code->knob[GRADIENT_KNOB_DROPS] ? 1 : 10;
  }
  ck_assert_msg(found == 11 * (2 + wide) && named, "%s: %d", text, found);
  tested_pattern_free(s);
}
END_TEST

/* The same where scores are rewritten, or masks decide over pairs: the rows of a
 * block of dQ. */
static const struct {
  int32_t head_dim;
  const char *body;
  int32_t rows;
} pair_sizes[] = {
    {64, "score s - 0.1 * abs(i - j);", 128},
    {64, "score 30 * tanh(s / 30);", 96},
    {128, "score s - 0.1 * (h + 1) * (i - j) + 0.1 * i;", 128},
    {128, "score 30 * tanh(s / 30);", 80},
    {128, "score s * s - 0.1 * s * (i - j);", 80},
    {192, "score 30 * tanh(s / 30);", 64},
    {256, "score 30 * tanh(s / 30);", 48},
    {64, "mask i * j % 3 > 0;", 128},
    {128, "mask i * j % 3 > 0;", 64},
    {64, "block 64; keep hash(h, bi, bj) % 10 < 3;", 64},
    {128, "block 128; keep hash(h, bi, bj) % 10 < 3;", 64},
    {128, "block 64; keep top 3 by mean;", 64},
    {64, "mask i * j % 3 > 0; score 30 * tanh(s / 30);", 64}};
enum { PAIR_SIZES = sizeof pair_sizes / sizeof *pair_sizes };

START_TEST(gradients_of_pairs_on_hopper) {
  char text[300];
  if (!gate_has_compiler()) return;
  snprintf(text, sizeof text,
           "pattern p { heads 4 kv 2; head_dim %d; dtype %s; causal; %s "
           "branch { } }",
           pair_sizes[_i].head_dim, _i % 2 ? "bf16" : "f16",
           pair_sizes[_i].body);
  tested_pattern *s = tested_pattern_new("pairs", text, NULL, 0);
  plan *p = gate_backward_plan(s);
  gpu_codes codes = {0};
  gpu_request request = {.common = {p}, .arch = 90};
  gate_compile_family(&request, "hopper gradient", &codes);
  int32_t found = 0;
  while (codes.count > 0) {
    const dil_cuda_code *code = &codes.code[--codes.count];
    free(code->cubin);
    found |= code->knob[GRADIENT_KNOB_MAKES];
    if (code->knob[GRADIENT_KNOB_MAKES] == GRADIENT_Q)
      ck_assert_int_eq(code->tile_keys, pair_sizes[_i].rows);
  }
  ck_assert_int_eq(found, GRADIENT_Q | GRADIENT_K | GRADIENT_V);
  tested_pattern_free(s);
}
END_TEST

START_TEST(unknown_chip) {
  if (!gate_has_compiler()) return;
  tested_pattern *s = tested_pattern_new(
      "old", "pattern p { heads 2; head_dim 8; dtype f32; branch { } }", NULL,
      0);
  gpu_codes codes = {0};
  gpu_request request = {.common = {gate_plan(s, 0)}, .arch = 70};
  ck_assert_int_eq(gpu_compiler()->common.compile(&request.common, &codes),
                   DIL_UNSUPPORTED);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "sm_80"));
  ck_assert_int_eq(codes.count, 0);
  tested_pattern_free(s);
}
END_TEST

/* The measure of a chip compiles for each type, and is a number above 0. */
START_TEST(peak) {
  if (!gate_has_compiler()) return;
  static const char *const types[] = {"f32", "bf16", "f16"};
  char text[100];
  snprintf(text, sizeof text,
           "pattern p { heads 2; head_dim 8; dtype %s; branch { } }",
           types[_i]);
  tested_pattern *s = tested_pattern_new("peak", text, NULL, 0);
  for (int32_t a = 0; a < 2; a++) {
    dil_cuda_code code;
    dil_status status = gpu_compiler()->peak(gate_plan(s, 0), archs[a], NULL, &code);
    ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
    ck_assert_str_eq(code.family, "peak");
    ck_assert_int_gt(code.knob[CUDA_PEAK_OPERATIONS], 0);
    free(code.cubin);
  }
  tested_pattern_free(s);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("nvrtc");
  TCase *tests = tcase_create("nvrtc");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, example, 0, EXAMPLES);
  tcase_add_loop_test(tests, width, 0, 4);
  tcase_add_loop_test(tests, hiding_scores, 0,
                      sizeof scores / sizeof *scores);
  tcase_add_loop_test(tests, gradients_of_inputs, 0, 2);
  tcase_add_loop_test(tests, gradients_on_hopper, 0, GRADIENT_SIZES);
  tcase_add_loop_test(tests, gradients_of_pairs_on_hopper, 0, PAIR_SIZES);
  tcase_add_test(tests, unknown_chip);
  tcase_add_loop_test(tests, peak, 0, 3);
  suite_add_tcase(suite, tests);
  TCase *hopper = tcase_create("hopper");
  tcase_set_timeout(hopper, 240);
  tcase_add_loop_test(hopper, hopper_size, 0, HOPPER_SIZES);
  suite_add_tcase(suite, hopper);
  return suite;
}

int main(void) {
  return suite_run(make_suite(), CK_FORK_GETENV);
}
