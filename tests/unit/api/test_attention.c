/* test_attention.c - kernels without a file: what dil_attention makes equals
 * what the same pattern gives as text, bit by bit; every preset is what its
 * file says; whatever cannot be done is refused with the reason. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dil_context *context;

static dil_kernel *made(const dil_attention_options *o) {
  dil_kernel *k;
  host_must(dil_attention(context, o, &k));
  return k;
}

static dil_kernel *parsed(const char *text) {
  dil_program *p;
  dil_kernel *k;
  host_must(dil_program_parse(context, "t", text, strlen(text), NULL, &p));
  host_must(dil_program_kernel(p, NULL, NULL, &k));
  dil_program_free(p);
  return k;
}

/* Both on the same numbers: the same bits. Frees both. */
static void same(dil_kernel *a, dil_kernel *b) {
  host_call x, y;
  size_t bytes = 1;
  host_call_make(&x, a, &host_sizes);
  host_call_make(&y, b, &host_sizes);
  host_must(dil_kernel_run(a, &x.arguments));
  host_must(dil_kernel_run(b, &y.arguments));
  const DLTensor *o = &x.tensor[DIL_TENSOR_O], *p = &y.tensor[DIL_TENSOR_O];
  for (int axis = 0; axis < 4; axis++) {
    ck_assert_int_eq(o->shape[axis], p->shape[axis]);
    bytes *= (size_t)o->shape[axis];
  }
  ck_assert_mem_eq(o->data, p->data, bytes * sizeof(float));
  host_call_free(&x);
  host_call_free(&y);
  dil_kernel_free(a);
  dil_kernel_free(b);
}

START_TEST(branches_become_a_pattern) {
  static const int64_t segments[] = {16, 64, 0}, dilations[] = {1, 2, 4};
  static const int64_t window[] = {40, -1};
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 16;
  o.value_dim = 8;
  o.branch_count = 3;
  o.segments = segments;
  o.dilations = dilations;
  o.window = window;
  o.causal = 1;
  o.combine = "union";
  same(made(&o), parsed("pattern p { heads 4 kv 2; head_dim 16 value 8;\n"
                        "dtype f32; causal; window 40, inf; combine union;\n"
                        "branch { segment 16; } branch { segment 64;\n"
                        "dilation 2; } branch { dilation 4; } }"));
}
END_TEST

START_TEST(without_branches_it_is_dense) {
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.heads = 2;
  o.head_dim = 32;
  same(made(&o), parsed("pattern p { heads 2; head_dim 32; dtype f32; "
                        "branch { } }"));
}
END_TEST

START_TEST(presets_are_their_files) {
  const char *name = dil_preset_name(_i);
  char path[200], line[300];
  snprintf(path, sizeof path, "examples/presets/%s.dil", name);
  FILE *file = fopen(path, "r");
  ck_assert_msg(file != NULL, "%s", path);
  const char *text = dil_preset_text(name);
  while (fgets(line, sizeof line, file)) {
    ck_assert_msg(!strncmp(text, line, strlen(line)), "%s: %s", path, line);
    text += strlen(line);
  }
  ck_assert_str_eq(text, "");
  fclose(file);
}
END_TEST

/* Heads, their size, type and direction are the caller's in every preset that
 * has a direction to choose. */
START_TEST(presets_take_sizes) {
  /* Grids whose cells are the rows of the call. */
  dil_define cells[] = {{"wide", "8"}, {"tall", "4"}, {"deep", "3"}};
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.preset = dil_preset_name(_i);
  const char *text = dil_preset_text(o.preset);
  o.defines = cells;
  o.define_count = strstr(text, "let deep ")   ? 3
                   : strstr(text, "let tall ") ? 2
                   : strstr(text, "let wide ") ? 1
                                               : 0;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 24;
  o.value_dim = 8;
  o.causal = strstr(text, "let ahead ") != NULL;
  o.dtype = "f32";
  dil_kernel *k = made(&o);
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_kernel_describe(k, &info));
  ck_assert_str_eq(info.name, o.preset);
  ck_assert_int_eq(info.heads, 4);
  ck_assert_int_eq(info.kv_heads, 2);
  ck_assert_int_eq(info.head_dim, 24);
  ck_assert_int_eq(info.value_dim, 8);
  ck_assert_int_eq(info.dtype.bits, 32);
  /* Causal: the first query sees the first key alone, and gets its value. */
  host_call c;
  host_call_make(&c, k, &host_sizes);
  host_must(dil_kernel_run(k, &c.arguments));
  const float *out = c.tensor[DIL_TENSOR_O].data;
  const float *v = c.tensor[DIL_TENSOR_V].data;
  for (int d = 0; d < 8 && o.causal; d++)
    ck_assert_float_eq_tol(out[d], v[d], 1e-6f);
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

START_TEST(presets_take_definitions) {
  dil_define w = {"w", "3"};
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.preset = "sliding";
  o.heads = 2;
  o.head_dim = 16;
  o.dtype = "f32";
  o.defines = &w;
  o.define_count = 1;
  same(made(&o), parsed("pattern p { heads 2; head_dim 16; dtype f32; "
                        "branch { window 3, 3; } }"));
}
END_TEST

/* ---- refusals ------------------------------------------------------------ */

static const int64_t one[] = {1}, none[] = {0}, pair[] = {-2, 4};
static const dil_define strange = {"colour", "3"};

#define WISH .size = sizeof(dil_attention_options)
static const struct {
  dil_attention_options options;
  dil_status status;
  const char *words;
} refusals[] = {
    {{WISH}, DIL_USAGE, "heads and head_dim must be given"},
    {{WISH, .heads = 4, .head_dim = 8, .branch_count = 1},
     DIL_USAGE,
     "the list of segments of branches is NULL, and its count is 1"},
    {{WISH, .heads = 4, .head_dim = 8, .branch_count = 65},
     DIL_USAGE,
     "there must be 0 to 64 segments of branches, got 65"},
    {{WISH, .heads = 4, .head_dim = 8, .branch_count = 1, .segments = one,
      .dilations = none},
     DIL_INPUT,
     "dilation must be at least 1, got 0"},
    {{WISH, .heads = 4, .head_dim = 8, .dtype = "f64"},
     DIL_USAGE,
     "not as 'f64'"},
    {{WISH, .heads = 4, .head_dim = 8, .combine = "x; causal"},
     DIL_USAGE,
     "not by 'x; causal'"},
    {{WISH, .heads = 4, .head_dim = 8, .window = pair}, DIL_INPUT, "window"},
    {{WISH, .heads = 4, .kv_heads = 3, .head_dim = 8}, DIL_INPUT, "share 3 kv"},
    {{WISH, .heads = 4, .head_dim = 1000}, DIL_INPUT, "head_dim 1000"},
    {{WISH, .heads = 4, .head_dim = 8, .define_count = 1, .defines = &strange},
     DIL_USAGE,
     "definitions are for the lets of a preset"},
    {{WISH, .preset = "longnte"}, DIL_INPUT, "did you mean 'longnet'?"},
    {{WISH, .preset = "mine.dil"},
     DIL_INPUT,
     "a file is no preset: `dil_program_read` reads it"},
    {{WISH, .preset = "prefix", .causal = 1},
     DIL_USAGE,
     "preset 'prefix' has a direction of its own"},
    {{WISH, .preset = "dense", .heads = 6, .kv_heads = 4},
     DIL_INPUT,
     "6 heads cannot share 4 kv heads evenly"},
    {{WISH, .preset = "dense", .value_dim = 257},
     DIL_USAGE,
     "value_dim must be 1 to 256, got 257"},
    {{WISH, .preset = "dense", .window = pair}, DIL_USAGE, "a window"},
    {{WISH, .preset = "dense", .define_count = 1, .defines = &strange},
     DIL_INPUT,
     "colour"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(the_rest_is_refused) {
  dil_kernel *k = (dil_kernel *)&context;
  dil_status status = dil_attention(context, &refusals[_i].options, &k);
  ck_assert_ptr_null(k);
  ck_assert_msg(status == refusals[_i].status, "%s: %s",
                dil_status_name(status), dil_last_error());
  ck_assert_msg(strstr(dil_last_error(), refusals[_i].words) != NULL, "%s",
                dil_last_error());
}
END_TEST

static char log_path[] = "/tmp/dil-test-attention-XXXXXX";

static bool log_has(const char *before, const char *device,
                    const char *reason) {
  char line[600], want[400];
  bool found = false;
  FILE *in = fopen(log_path, "r");
  ck_assert_ptr_nonnull(in);
  snprintf(want, sizeof want, "%s%s: %s\n", before, device, reason);
  while (fgets(line, sizeof line, in)) found |= strstr(line, want) != NULL;
  fclose(in);
  return found;
}

/* Without a context it looks for a GPU first; here or there it says where, and
 * why. */
START_TEST(the_device_is_chosen) {
  dil_attention_options o = DIL_ATTENTION_OPTIONS_INIT;
  o.preset = "dense";
  dil_kernel *k;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_attention(NULL, &o, &k));
  host_must(dil_kernel_describe(k, &info));
  const char *begin =
      !strcmp(info.device, "cpu") ? "no GPU: " : "the first GPU";
  ck_assert(!strcmp(info.device, "cpu") || !strcmp(info.device, "cuda:0"));
  ck_assert_msg(!strncmp(info.device_reason, begin, strlen(begin)),
                "'%s' for '%s'", info.device_reason, info.device);
  ck_assert(log_has("info: device ", info.device, info.device_reason));
  dil_kernel_free(k);
  k = made(&o); /* on a context of ours */
  host_must(dil_kernel_describe(k, &info));
  ck_assert_str_eq(info.device_reason, "");
  dil_kernel_free(k);
}
END_TEST

static void open_context(void) {
  host_must(dil_context_new(NULL, &context));
}

static void close_context(void) {
  dil_context_free(context);
}

/* Read at the first context. */
static void open_log(void) {
  char text[64];
  int file = mkstemp(log_path);
  if (file < 0) abort();
  close(file);
  snprintf(text, sizeof text, "info:%s", log_path);
  setenv("DIL_LOG", text, 1);
}

int main(void) {
  host_modules();
  open_log();
  alarm(300); /* a hang is a failure */
  Suite *s = suite_create("attention");
  TCase *t = tcase_create("attention");
  tcase_set_timeout(t, 60);
  tcase_add_unchecked_fixture(t, open_context, close_context);
  tcase_add_test(t, branches_become_a_pattern);
  tcase_add_test(t, without_branches_it_is_dense);
  tcase_add_loop_test(t, presets_are_their_files, 0, dil_preset_count());
  tcase_add_loop_test(t, presets_take_sizes, 0, dil_preset_count());
  tcase_add_test(t, presets_take_definitions);
  tcase_add_loop_test(t, the_rest_is_refused, 0, REFUSALS);
  tcase_add_test(t, the_device_is_chosen);
  suite_add_tcase(s, t);
  int failed = suite_run(s, CK_NOFORK);
  unlink(log_path);
  return failed;
}
