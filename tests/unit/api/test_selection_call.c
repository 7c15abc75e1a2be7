/* test_selection_call.c - the blocks that a call chooses, through the public
 * interface: what is written, that it can be given to `keep from`, and what is
 * refused. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 96, BLOCK = 8, BLOCKS = ROWS / BLOCK, HEADS = 2, KEPT = 3,
       WIDTH = HEADS * 16, ENTRIES = BLOCKS * KEPT };

#define SIZES "heads 2; head_dim 16; dtype f32; block 8; "
static const char chooses[] =
    "pattern p { " SIZES "causal; keep top 3 by mean; branch { } }";
static const char given[] =
    "pattern p { " SIZES "causal; input rows : i32[B, H, nb + 1]; "
    "input cols : i32[B, H, *]; keep from rows, cols; branch { } }";

/* A call that chooses, with places for its two lists. */
typedef struct selection_call {
  host_call call;
  dil_arguments *a;
  int32_t rows[HEADS * (BLOCKS + 1)], cols[HEADS * ENTRIES];
  int64_t shape[2][3], stride[3];
  DLTensor list[2], *selection[2];
  uint64_t flags[2];
} selection_call;

static void make_call(selection_call *c, const dil_kernel *k) {
  *c = (selection_call){.shape = {{1, HEADS, BLOCKS + 1}, {1, HEADS, ENTRIES}}};
  host_call_make(&c->call, k, &host_sizes);
  memset(c->rows, 0x55, sizeof c->rows);
  memset(c->cols, 0x55, sizeof c->cols);
  c->a = &c->call.arguments;
  for (int i = 0; i < 2; i++) {
    c->list[i] = (DLTensor){.data = i ? c->cols : c->rows,
                            .device = {kDLCPU, 0},
                            .ndim = 3,
                            .dtype = {kDLInt, 32, 1},
                            .shape = c->shape[i]};
    c->selection[i] = &c->list[i];
  }
  c->a->selection = c->selection;
  c->a->selection_count = 2;
}

START_TEST(shapes_are_told) {
  dil_kernel *k = host_kernel(NULL, chooses);
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_kernel_describe(k, &info));
  ck_assert_int_eq(info.selection_count, 2);
  static const char *const names[] = {"chosen_rows", "chosen_cols"};
  for (int i = 0; i < 2; i++) {
    dil_tensor_info t = DIL_TENSOR_INFO_INIT;
    host_must(dil_kernel_tensor(k, DIL_TENSOR_SELECTION + i, &host_sizes, &t));
    ck_assert_str_eq(t.name, names[i]);
    ck_assert_int_eq(t.rank, 3);
    ck_assert_int_eq(t.dtype.code, kDLInt);
    ck_assert_int_eq(t.shape[1], HEADS);
    ck_assert_int_eq(t.shape[2], i ? ENTRIES : BLOCKS + 1);
  }
  dil_tensor_info t = DIL_TENSOR_INFO_INIT;
  host_refused(dil_kernel_tensor(k, DIL_TENSOR_SELECTION + 2, &host_sizes, &t),
               DIL_USAGE, "has no tensor of number 194");
  dil_kernel_free(k);
}
END_TEST

/* Lists that a call chose keep the same blocks, where they are given. */
START_TEST(lists_can_be_given_back) {
  static float o[ROWS * WIDTH];
  dil_kernel *k = host_kernel(NULL, chooses), *kept = host_kernel(NULL, given);
  selection_call c;
  make_call(&c, k);
  host_must(dil_kernel_run(k, c.a));
  float *to = c.call.tensor[DIL_TENSOR_O].data;
  memcpy(o, to, sizeof o);
  for (int h = 0; h < HEADS; h++)
    for (int r = 0; r < BLOCKS; r++) {
      const int32_t *at = c.rows + h * (BLOCKS + 1) + r;
      ck_assert_int_eq(at[1] - at[0], r + 1 < KEPT ? r + 1 : KEPT);
      ck_assert_int_eq(c.cols[h * ENTRIES + at[1] - 1], r); /* the diagonal */
    }
  const DLTensor *inputs[] = {&c.list[0], &c.list[1]};
  c.a->inputs = inputs;
  c.a->input_count = 2;
  host_refused(dil_kernel_run(kept, c.a), DIL_USAGE,
               "chooses no blocks by their scores: selection_count must be 0");
  c.a->selection_count = 0;
  memset(to, 0xFF, sizeof o);
  host_must(dil_kernel_run(kept, c.a));
  ck_assert(!memcmp(o, to, sizeof o));
  host_call_free(&c.call);
  dil_kernel_free(k);
  dil_kernel_free(kept);
}
END_TEST

/* Lists that are not wanted may be left out, and hosts that know of none have a
 * smaller struct. */
START_TEST(lists_may_be_left_out) {
  dil_kernel *k = host_kernel(NULL, chooses);
  selection_call all, one;
  make_call(&all, k);
  make_call(&one, k);
  host_must(dil_kernel_run(k, all.a));
  one.selection[0] = NULL;
  host_must(dil_kernel_run(k, one.a));
  ck_assert(!memcmp(all.cols, one.cols, sizeof all.cols));
  ck_assert_int_eq(one.rows[0], 0x55555555);
  one.a->size = offsetof(dil_arguments, selection);
  host_must(dil_kernel_run(k, one.a));
  host_call_free(&all.call);
  host_call_free(&one.call);
  dil_kernel_free(k);
}
END_TEST

START_TEST(no_rows_choose_nothing) {
  dil_kernel *k = host_kernel(NULL, chooses);
  selection_call c;
  make_call(&c, k);
  c.call.shape[DIL_TENSOR_Q][1] = c.call.shape[DIL_TENSOR_O][1] = 0;
  c.call.shape[DIL_TENSOR_LSE][2] = 0;
  host_must(dil_kernel_run(k, c.a));
  for (int i = 0; i < HEADS * (BLOCKS + 1); i++)
    ck_assert_int_eq(c.rows[i], 0);
  for (int i = 0; i < HEADS * ENTRIES; i++) ck_assert_int_eq(c.cols[i], -1);
  host_call_free(&c.call);
  dil_kernel_free(k);
}
END_TEST

/* ---- cubes of a video ----------------------------------------------------- */

/* 4 frames of 4 x 6 cells, in cubes of 2 x 2 x 3. */
enum { FRAMES = 4, TALL = 4, WIDE = 6, DEEP = 2, HIGH = 2, BROAD = 3,
       CUBE = DEEP * HIGH * BROAD, CUBES = ROWS / CUBE, CHOSEN = 3 };

static int cube_of(int cell) {
  int z = cell / (TALL * WIDE), y = cell / WIDE % TALL, x = cell % WIDE;
  return (z / DEEP * (TALL / HIGH) + y / HIGH) * (WIDE / BROAD) + x / BROAD;
}

/* VSA's coarse stage: the product of the means of two cubes. */
static double cube_score(const selection_call *c, int h, int one, int other) {
  const float *q = c->call.tensor[DIL_TENSOR_Q].data;
  const float *k = c->call.tensor[DIL_TENSOR_K].data;
  double sum = 0;
  for (int d = 0; d < 16; d++) {
    double of_q = 0, of_k = 0;
    for (int t = 0; t < ROWS; t++) {
      if (cube_of(t) == one) of_q += q[t * WIDTH + h * 16 + d];
      if (cube_of(t) == other) of_k += k[t * WIDTH + h * 16 + d];
    }
    sum += of_q * of_k;
  }
  return sum;
}

static int better_cubes(const selection_call *c, int h, int one, int other) {
  int count = 0;
  for (int third = 0; third < CUBES; third++)
    count += cube_score(c, h, one, third) > cube_score(c, h, one, other);
  return count;
}

START_TEST(cubes_are_those_of_vsa) {
  static const dil_define defines[] = {
      {"q_heads", "2"}, {"width", "16"}, {"tall", "4"}, {"wide", "6"},
      {"deep", "2"},    {"high", "2"},   {"broad", "3"}, {"blocks", "3"}};
  dil_context *context;
  dil_program *program;
  dil_kernel *k;
  dil_program_options lets = DIL_PROGRAM_OPTIONS_INIT;
  dil_kernel_options options = DIL_KERNEL_OPTIONS_INIT;
  selection_call c;
  lets.defines = defines, lets.define_count = 8;
  options.dtype = "f32";
  host_must(dil_context_new(NULL, &context));
  host_must(dil_program_read(context, "preset:vsa", &lets, &program));
  host_must(dil_program_kernel(program, NULL, &options, &k));
  make_call(&c, k);
  c.shape[0][2] = CUBES + 1, c.shape[1][2] = CUBES * CHOSEN;
  host_must(dil_kernel_run(k, c.a));
  for (int h = 0; h < HEADS; h++)
    for (int one = 0; one < CUBES; one++) {
      const int32_t *rows = c.rows + h * (CUBES + 1) + one;
      ck_assert_int_eq(rows[1] - rows[0], CHOSEN);
      for (int32_t e = rows[0]; e < rows[1]; e++) {
        int other = c.cols[h * CUBES * CHOSEN + e];
        ck_assert_int_lt(better_cubes(&c, h, one, other), CHOSEN);
      }
    }
  host_call_free(&c.call);
  dil_kernel_free(k);
  dil_program_free(program);
  dil_context_free(context);
}
END_TEST

/* ---- refusals ------------------------------------------------------------- */

static void count(selection_call *c) { c->a->selection_count = 1; }
static void negative(selection_call *c) { c->a->selection_count = -2; }
static void nowhere(selection_call *c) { c->a->selection = NULL; }
static void no_memory(selection_call *c) { c->list[1].data = NULL; }
static void type(selection_call *c) { c->list[0].dtype.bits = 64; }
static void narrow(selection_call *c) {
  c->list[0].dtype = (DLDataType){kDLUInt, 8, 1};
}
static void few(selection_call *c) { c->shape[1][2] = ENTRIES - 1; }
static void rank(selection_call *c) {
  c->list[0].ndim = 2;
  c->list[0].shape = c->shape[0] + 1;
}
static void apart(selection_call *c) {
  c->stride[0] = HEADS * ENTRIES, c->stride[1] = 1, c->stride[2] = HEADS;
  c->list[1].strides = c->stride;
}
static void device(selection_call *c) { c->list[0].device.device_type = kDLCUDA; }
static void read_only(selection_call *c) {
  c->flags[1] = DLPACK_FLAG_BITMASK_READ_ONLY;
  c->a->selection_flags = c->flags;
}
static void is_key(selection_call *c) {
  c->list[1].data = c->call.tensor[DIL_TENSOR_K].data;
}
static void is_output(selection_call *c) {
  c->list[0].data = c->call.tensor[DIL_TENSOR_O].data;
}
static void is_rows(selection_call *c) { c->list[1].data = c->rows; }

static const struct {
  void (*spoil)(selection_call *c);
  const char *words;
} refusals[] = {
    {count, "makes 2 lists of blocks: selection_count must be 0 or 2, got 1"},
    {negative, "selection_count must be 0 or 2, got -2"},
    {nowhere, "the list of selection is NULL, and its count is 2"},
    {no_memory, "selection[1] has no memory"},
    {type, "selection[0] must be i32, got int64 (DLPack code 0, lanes 1)"},
    {narrow, "selection[0] must be i32 [1, 2, 13], got u8 [1, 2, 13]"},
    {few, "selection[1] must be i32 [1, 2, 36], got i32 [1, 2, 35]"},
    {rank, "selection[0] must be i32 [1, 2, 13], got i32 [2, 13]"},
    {apart, "selection[1] must be contiguous"},
    {device, "selection[0] is on cuda:0, the kernel is on cpu"},
    {read_only, "selection[1] is an output and is read-only"},
    {is_key, "selection[1] is an output and shares memory with k"},
    {is_output, "selection[0] is an output and shares memory with o"},
    {is_rows, "selection[1] is an output and shares memory with selection[0]"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(refusals_name_what_is_wrong) {
  dil_kernel *k = host_kernel(NULL, chooses);
  selection_call c;
  make_call(&c, k);
  refusals[_i].spoil(&c);
  host_refused(dil_kernel_run(k, c.a), DIL_USAGE, refusals[_i].words);
  const float *o = c.call.tensor[DIL_TENSOR_O].data;
  for (int i = 0; i < ROWS * WIDTH; i++) ck_assert(isnan(o[i]));
  host_call_free(&c.call);
  dil_kernel_free(k);
}
END_TEST

/* ---- what a run leaves for its gradients --------------------------------- */

/* The lists that a selection has stand in `saved`, of a kernel with gradients. */
START_TEST(lists_are_saved) {
  static const char both[] =
      "pattern p { " SIZES "causal; keep top 3 by mean; branch { } } "
      "kernel p = p backward;";
  enum { ALIGN = 64, ROWS_BYTES = 256 };
  dil_kernel *k = host_kernel(NULL, both);
  selection_call c;
  int64_t bytes;
  make_call(&c, k);
  host_must(dil_kernel_run(k, c.a));
  host_must(dil_kernel_saved(k, &host_sizes, &bytes));
  ck_assert_int_ge(bytes, (int64_t)(sizeof c.rows + sizeof c.cols));
  char *saved = aligned_alloc(ALIGN, (size_t)bytes);
  c.a->saved = saved;
  c.a->saved_bytes = bytes;
  host_refused(dil_kernel_run(k, c.a), DIL_USAGE,
               "saved does not go with a selection: leave it NULL");
  c.a->selection = NULL;
  c.a->selection_count = 0;
  c.a->saved_bytes--;
  host_refused(dil_kernel_run(k, c.a), DIL_USAGE, "and this call takes");
  c.a->saved_bytes++;
  host_must(dil_kernel_run(k, c.a));
  ck_assert_mem_eq(saved, c.rows, sizeof c.rows);
  ck_assert_mem_eq(saved + ROWS_BYTES, c.cols, sizeof c.cols);
  free(saved);
  host_call_free(&c.call);
  dil_kernel_free(k);
}
END_TEST

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  Suite *suite = suite_create("selection_call");
  TCase *t = tcase_create("selection_call");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, shapes_are_told);
  tcase_add_test(t, lists_can_be_given_back);
  tcase_add_test(t, lists_may_be_left_out);
  tcase_add_test(t, no_rows_choose_nothing);
  tcase_add_test(t, cubes_are_those_of_vsa);
  tcase_add_test(t, lists_are_saved);
  tcase_add_loop_test(t, refusals_name_what_is_wrong, 0, REFUSALS);
  suite_add_tcase(suite, t);
  return suite_run(suite, CK_NOFORK);
}
