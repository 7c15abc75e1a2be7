/* test_gradients.c - what a call for gradients is refused for, by its text, and
 * that nothing is written then; the tensors of a kernel with gradients. */
#include "runtime/api/context.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* `slope` has a gradient, `bare` and `doc` have none. */
static const char *text =
    "pattern p { heads 2; head_dim 16; dtype bf16;\n"
    " input doc : i32[B, M]; input slope : f32[H] gradient;\n"
    " input bare : f32[H]; score s - slope[h] + bare[h];\n"
    " branch { mask doc[b, i] == doc[b, j]; } }\n"
    "kernel k = p backward;\n";
enum { DOC, SLOPE, BARE, INPUTS };
enum { ROWS = 96 * 2 * 16, HEADS = 2 };

/* A kernel that takes calls for gradients, a call and its gradients. */
typedef struct bent_gradient {
  dil_kernel *kernel;
  host_call call;
  DLTensor d_o, dlse, dq, dk, dv, dslope;
  DLTensor *inputs[INPUTS];
  uint64_t flags[INPUTS];
  dil_gradients g;
  int64_t shape[4], strides[4];
  char *memory; /* of all gradients, one after the other */
} bent_gradient;

enum { PART = 32768, PARTS = 7 }; /* bytes; the last is the workspace */

static DLTensor gradient_like(const bent_gradient *b, int32_t of,
                              int32_t part) {
  DLTensor t = b->call.tensor[of];
  t.data = b->memory + (size_t)part * PART;
  return t;
}

/* bf16 numbers between a half and 2, of both signs. */
static void fill_halves(void *data, uint32_t seed) {
  uint16_t *to = data;
  for (uint32_t i = 0; i < ROWS; i++) {
    seed = seed * 1664525u + 1013904223u;
    to[i] = (uint16_t)(0x3F00 | (seed >> 8 & 0x80FF));
  }
}

static void bent_open(bent_gradient *b) {
  *b = (bent_gradient){.kernel = host_kernel(NULL, text),
                       .g = DIL_GRADIENTS_INIT};
  host_call_make(&b->call, b->kernel, &host_sizes);
  b->memory = aligned_alloc(256, PARTS * PART);
  ck_assert_ptr_nonnull(b->memory);
  memset(b->memory, 0x5A, PARTS * PART);
  memset(b->memory + PART, 0x3B, PART); /* dlse */
  fill_halves(b->memory, 9);
  for (uint32_t i = DIL_TENSOR_Q; i <= DIL_TENSOR_V; i++)
    fill_halves(b->call.tensor[i].data, i);
  b->d_o = gradient_like(b, DIL_TENSOR_O, 0);
  b->dlse = gradient_like(b, DIL_TENSOR_LSE, 1);
  b->dq = gradient_like(b, DIL_TENSOR_Q, 2);
  b->dk = gradient_like(b, DIL_TENSOR_K, 3);
  b->dv = gradient_like(b, DIL_TENSOR_V, 4);
  b->dslope = gradient_like(b, DIL_TENSOR_INPUT + SLOPE, 5);
  b->inputs[SLOPE] = &b->dslope;
  b->g.forward = &b->call.arguments;
  b->g.d_o = &b->d_o;
  b->g.dlse = &b->dlse;
  b->g.dq = &b->dq;
  b->g.dk = &b->dk;
  b->g.dv = &b->dv;
  b->g.inputs = b->inputs;
  b->g.input_count = INPUTS;
  b->g.input_flags = b->flags;
}

static void bent_close(bent_gradient *b) {
  host_call_free(&b->call);
  free(b->memory);
  dil_kernel_free(b->kernel);
}

/* ---- what is refused ------------------------------------------------------
 */

static void no_forward(bent_gradient *b) {
  b->g.forward = NULL;
}
static void no_size(bent_gradient *b) {
  b->g.size = 3;
}
static void no_do(bent_gradient *b) {
  b->g.d_o = NULL;
}
static void forward_bad(bent_gradient *b) {
  b->call.arguments.q = NULL;
}
static void forward_stream(bent_gradient *b) {
  b->call.arguments.stream = b;
}
static void do_type(bent_gradient *b) {
  b->d_o.dtype = (DLDataType){kDLFloat, 32, 1};
}
static void do_shape(bent_gradient *b) {
  memcpy(b->shape, (int64_t[]){1, 95, 2, 16}, sizeof b->shape);
  b->d_o.shape = b->shape;
}
static void do_nowhere(bent_gradient *b) {
  b->d_o.data = NULL;
}
static void do_stride(bent_gradient *b) {
  memcpy(b->strides, (int64_t[]){0, 64, 32, 2}, sizeof b->strides);
  b->d_o.strides = b->strides;
}
static void do_device(bent_gradient *b) {
  b->d_o.device.device_type = kDLCUDA;
}
static void dlse_type(bent_gradient *b) {
  b->dlse.dtype.bits = 16;
}
static void dlse_shape(bent_gradient *b) {
  b->dlse.shape = b->d_o.shape;
}
static void dlse_rank(bent_gradient *b) {
  b->dlse.ndim = 2;
}
static void dq_type(bent_gradient *b) {
  b->dq.dtype = (DLDataType){kDLFloat, 16, 1};
}
static void dq_double(bent_gradient *b) {
  b->dq.dtype = (DLDataType){kDLFloat, 64, 1};
}
static void dk_shape(bent_gradient *b) {
  memcpy(b->shape, (int64_t[]){1, 2, 96, 16}, sizeof b->shape);
  b->dk.shape = b->shape;
}
static void dk_nowhere(bent_gradient *b) {
  b->dk.data = NULL;
}
static void dv_stride(bent_gradient *b) {
  memcpy(b->strides, (int64_t[]){0, 0, 16, 1}, sizeof b->strides);
  b->dv.strides = b->strides;
}
static void dv_aligned(bent_gradient *b) {
  b->dv.byte_offset = 1;
}
static void dq_read_only(bent_gradient *b) {
  b->g.dq_flags = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void dk_read_only(bent_gradient *b) {
  b->g.dk_flags = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void dv_read_only(bent_gradient *b) {
  b->g.dv_flags = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void dslope_read_only(bent_gradient *b) {
  b->flags[SLOPE] = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void dslope_type(bent_gradient *b) {
  b->dslope.dtype = (DLDataType){kDLBfloat, 16, 1};
}
static void dslope_shape(bent_gradient *b) {
  b->shape[0] = 3;
  b->dslope.shape = b->shape;
}
static void doc_wanted(bent_gradient *b) {
  b->inputs[DOC] = &b->dslope;
}
static void bare_wanted(bent_gradient *b) {
  b->inputs[BARE] = &b->dslope;
}
static void inputs_fewer(bent_gradient *b) {
  b->g.input_count = 1;
}
static void inputs_nowhere(bent_gradient *b) {
  b->g.inputs = NULL;
}
static void dq_is_q(bent_gradient *b) {
  b->dq.data = b->call.tensor[DIL_TENSOR_Q].data;
}
static void dq_is_dk(bent_gradient *b) {
  b->dq.data = b->dk.data;
}
static void dk_is_do(bent_gradient *b) {
  b->dk.data = b->d_o.data;
}
static void dv_is_o(bent_gradient *b) {
  b->dv.data = b->call.tensor[DIL_TENSOR_O].data;
}
static void dv_is_lse(bent_gradient *b) {
  b->dv.data = b->call.tensor[DIL_TENSOR_LSE].data;
}
static void dk_is_dlse(bent_gradient *b) {
  b->dk.data = b->dlse.data;
}
static void dslope_is_slope(bent_gradient *b) {
  b->dslope.data = b->call.tensor[DIL_TENSOR_INPUT + SLOPE].data;
}
static void dslope_is_dv(bent_gradient *b) {
  b->dslope.data = b->dv.data;
}
static void workspace_of(bent_gradient *b, size_t at, int64_t bytes) {
  b->g.workspace = b->memory + at;
  b->g.workspace_bytes = bytes;
}
static void workspace_odd(bent_gradient *b) {
  workspace_of(b, (PARTS - 1) * PART + 64, 8);
}
static void workspace_is_dq(bent_gradient *b) {
  workspace_of(b, 2 * PART, 8);
}
static void workspace_minus(bent_gradient *b) {
  workspace_of(b, (PARTS - 1) * PART, -1);
}
static void workspace_nowhere(bent_gradient *b) {
  b->g.workspace_bytes = 64;
}

static const struct {
  void (*spoil)(bent_gradient *b);
  const char *words;
} refusals[] = {
    {no_size, "dil_gradients is not initialised: its size is 3"},
    {no_forward, "there is no forward call"},
    {forward_bad, "q is not given"},
    {forward_stream, "the processor has no streams"},
    {no_do, "do is not given"},
    {do_type, "do must be bf16, got f32"},
    {do_shape, "do must have the shape of o, bf16 [1, 96, 2, 16], got bf16 "
               "[1, 95, 2, 16]"},
    {do_nowhere, "do has no memory"},
    {do_stride, "the last dimension of do must be contiguous, its stride is 2"},
    {do_device, "do is on cuda:0, the kernel is on cpu"},
    {dlse_type, "dlse must be f32, got f16"},
    {dlse_shape, "dlse must have the shape of lse, f32 [1, 2, 96], got f32 "},
    {dlse_rank, "dlse must have the shape of lse, f32 [1, 2, 96], got f32 "},
    {dq_type, "dq must be bf16 or f32, got f16"},
    {dq_double, "dq must be bf16, got float64"},
    {dk_shape, "dk must have the shape of k, bf16 [1, 96, 2, 16], got bf16 "
               "[1, 2, 96, 16]"},
    {dk_nowhere, "dk has no memory"},
    {dv_stride, "dv is an output and its strides let elements share memory"},
    {dv_aligned, "dv is not aligned to its elements"},
    {dq_read_only, "dq is an output and is read-only"},
    {dk_read_only, "dk is an output and is read-only"},
    {dv_read_only, "dv is an output and is read-only"},
    {dslope_read_only, "the gradient of input 'slope' is an output and is "
                       "read-only"},
    {dslope_type, "the gradient of input 'slope' must be f32, got bf16"},
    {dslope_shape, "the gradient of input 'slope' must have the shape of input "
                   "'slope', f32 [2], got f32 [3]"},
    {doc_wanted, "input 'doc' of kernel 'p' is i32 and has no gradient"},
    {bare_wanted, "input 'bare' of kernel 'p' has no gradient: its "
                  "declaration would end with `gradient;`"},
    {inputs_fewer, "kernel 'p' takes 3 inputs"},
    {inputs_nowhere, "the list of gradients of inputs is NULL"},
    {dq_is_q, "dq is an output and shares memory with q"},
    {dq_is_dk, "dq is an output and shares memory with dk"},
    {dk_is_do, "dk is an output and shares memory with do"},
    {dv_is_o, "dv is an output and shares memory with o"},
    {dv_is_lse, "dv is an output and shares memory with lse"},
    {dk_is_dlse, "dk is an output and shares memory with dlse"},
    {dslope_is_slope, "the gradient of input 'slope' is an output and shares "
                      "memory with input 'slope'"},
    {dslope_is_dv, "dv is an output and shares memory with the gradient of "
                   "input 'slope'"},
    {workspace_odd, "workspace is not aligned to 256 bytes"},
    {workspace_is_dq, "dq is an output and shares memory with workspace"},
    {workspace_minus, "workspace must have 0 to "},
    {workspace_nowhere, "workspace is NULL and has 64 bytes"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

static bool is_written(const bent_gradient *b, int32_t part) {
  for (size_t i = 0; i < PART; i++)
    if (b->memory[(size_t)part * PART + i] != 0x5A) return true;
  return false;
}

START_TEST(refusals_name_the_gradient) {
  bent_gradient b;
  bent_open(&b);
  host_call clean = b.call;
  refusals[_i].spoil(&b);
  host_refused(dil_kernel_backward(b.kernel, &b.g), DIL_USAGE,
               refusals[_i].words);
  for (int32_t part = 2; part < PARTS; part++) ck_assert(!is_written(&b, part));
  memcpy(b.call.tensor, clean.tensor, sizeof clean.tensor);
  bent_close(&b);
}
END_TEST

START_TEST(kernels_without_gradients_refuse) {
  int64_t bytes = 7;
  bent_gradient b;
  bent_open(&b);
  b.kernel->source.direction = DIL_FORWARD;
  host_refused(dil_kernel_backward(b.kernel, &b.g), DIL_USAGE,
               "kernel 'p' was made without gradients: set `backward`");
  host_refused(dil_kernel_backward_workspace(b.kernel, &host_sizes, &bytes),
               DIL_USAGE, "kernel 'p' was made without gradients");
  ck_assert_int_eq(bytes, 0);
  bytes = 7;
  host_refused(dil_kernel_saved(b.kernel, &host_sizes, &bytes), DIL_USAGE,
               "kernel 'p' was made without gradients");
  ck_assert_int_eq(bytes, 0);
  bent_close(&b);
}
END_TEST

START_TEST(no_lse_has_no_gradient) {
  bent_gradient b;
  bent_open(&b);
  dil_table table = *b.kernel->source.table;
  table.lse_allowed = false;
  b.kernel->source.table = &table;
  host_refused(dil_kernel_backward(b.kernel, &b.g), DIL_USAGE,
               "kernel 'p' has no lse, and none of its gradient");
  bent_close(&b);
}
END_TEST

/* ---- what is written ------------------------------------------------------
 */

/* Parts 2 to 5 are dq, dk, dv and the slope's. */
START_TEST(only_what_is_wanted_is_written) {
  bent_gradient b;
  bent_open(&b);
  host_must(dil_kernel_run(b.kernel, &b.call.arguments));
  b.g.dk = NULL;
  b.inputs[SLOPE] = NULL;
  b.call.arguments.o_flags = DLPACK_FLAG_BITMASK_READ_ONLY; /* it is read */
  host_must(dil_kernel_backward(b.kernel, &b.g));
  ck_assert(is_written(&b, 2) && is_written(&b, 4));
  ck_assert(!is_written(&b, 3) && !is_written(&b, 5) && !is_written(&b, 6));
  b.g.input_count = 0;
  b.g.dk = &b.dk;
  host_must(dil_kernel_backward(b.kernel, &b.g));
  ck_assert(is_written(&b, 3) && !is_written(&b, 5));
  bent_close(&b);
}
END_TEST

/* The host's own workspace, a lse that is made again, gradients as f32: all of
 * the same bits but for the last, which are those before they are rounded. */
START_TEST(ways_to_ask_agree) {
  static float wide[ROWS];
  static uint16_t narrow[ROWS];
  bent_gradient b;
  int64_t bytes;
  bent_open(&b);
  host_must(dil_kernel_run(b.kernel, &b.call.arguments));
  host_must(dil_kernel_backward(b.kernel, &b.g));
  memcpy(narrow, b.dq.data, sizeof narrow);
  host_must(dil_kernel_backward_workspace(b.kernel, &host_sizes, &bytes));
  ck_assert_int_gt(bytes, 0);
  b.g.workspace = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
  b.g.workspace_bytes = bytes;
  memset(b.dq.data, 0, sizeof narrow);
  host_must(dil_kernel_backward(b.kernel, &b.g));
  ck_assert_mem_eq(b.dq.data, narrow, sizeof narrow);
  free(b.g.workspace);
  b.g.workspace = NULL;
  b.g.workspace_bytes = 0;
  b.dq.data = wide;
  b.dq.dtype = (DLDataType){kDLFloat, 32, 1};
  host_must(dil_kernel_backward(b.kernel, &b.g));
  for (int i = 0; i < ROWS; i++)
    ck_assert_int_eq(dil_f32_to_bf16(wide[i]), narrow[i]);
  bent_close(&b);
}
END_TEST

/* As many bytes as the kernel asks for are enough, also where lse is made again;
 * nothing is written behind them, and one less is refused at once. */
START_TEST(workspaces_are_exact) {
  enum { BEHIND = 4096 };
  bent_gradient b;
  int64_t bytes;
  char words[100], *memory;
  bent_open(&b);
  host_must(dil_kernel_run(b.kernel, &b.call.arguments));
  b.call.arguments.lse = NULL;
  host_must(dil_kernel_backward_workspace(b.kernel, &host_sizes, &bytes));
  memory = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256 + BEHIND);
  ck_assert_ptr_nonnull(memory);
  memset(memory + bytes, 0x5A, BEHIND);
  b.g.workspace = memory;
  b.g.workspace_bytes = bytes - 1;
  snprintf(words, sizeof words,
           "workspace has %lld bytes, the gradients of this call take %lld",
           (long long)bytes - 1, (long long)bytes);
  host_refused(dil_kernel_backward(b.kernel, &b.g), DIL_USAGE, words);
  for (int32_t part = 2; part < PARTS; part++) ck_assert(!is_written(&b, part));
  b.g.workspace_bytes = bytes;
  host_must(dil_kernel_backward(b.kernel, &b.g));
  for (int32_t part = 2; part < PARTS - 1; part++)
    ck_assert(is_written(&b, part));
  for (int i = 0; i < BEHIND; i++) ck_assert_int_eq(memory[bytes + i], 0x5A);
  free(memory);
  bent_close(&b);
}
END_TEST

/* ---- what a kernel with gradients says of itself --------------------------
 */

START_TEST(gradients_are_tensors_of_a_kernel) {
  static const struct {
    int32_t index;
    const char *name;
    int32_t rank;
    int64_t shape[4];
    uint8_t code, bits;
  } tensors[] = {
      {DIL_TENSOR_DO, "do", 4, {1, 90, 2, 16}, kDLBfloat, 16},
      {DIL_TENSOR_DQ, "dq", 4, {1, 90, 2, 16}, kDLBfloat, 16},
      {DIL_TENSOR_DK, "dk", 4, {1, 80, 2, 16}, kDLBfloat, 16},
      {DIL_TENSOR_DV, "dv", 4, {1, 80, 2, 16}, kDLBfloat, 16},
      {DIL_TENSOR_DLSE, "dlse", 3, {1, 2, 90, 0}, kDLFloat, 32},
      {DIL_TENSOR_INPUT_GRADIENT + SLOPE, "slope", 1, {2}, kDLFloat, 32},
  };
  const dil_sizes sizes = {1, 90, 80};
  dil_kernel_info kernel = DIL_KERNEL_INFO_INIT;
  bent_gradient b;
  bent_open(&b);
  host_must(dil_kernel_describe(b.kernel, &kernel));
  ck_assert_int_eq(kernel.has_backward, 1);
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
    dil_tensor_info info = DIL_TENSOR_INFO_INIT;
    host_must(dil_kernel_tensor(b.kernel, tensors[i].index, &sizes, &info));
    ck_assert_str_eq(info.name, tensors[i].name);
    ck_assert_int_eq(info.rank, tensors[i].rank);
    ck_assert_mem_eq(info.shape, tensors[i].shape, sizeof info.shape);
    ck_assert_int_eq(info.dtype.code, tensors[i].code);
    ck_assert_int_eq(info.dtype.bits, tensors[i].bits);
  }
  bent_close(&b);
}
END_TEST

START_TEST(other_numbers_are_no_tensors) {
  static const int32_t none[] = {-1,
                                 DIL_TENSOR_LENGTHS,
                                 DIL_TENSOR_SEED,
                                 DIL_TENSOR_DELTA,
                                 DIL_TENSOR_LSE_LOW,
                                 DIL_TENSOR_INPUT + INPUTS,
                                 DIL_TENSOR_INPUT_GRADIENT + DOC,
                                 DIL_TENSOR_INPUT_GRADIENT + BARE,
                                 DIL_TENSOR_INPUT_GRADIENT + INPUTS,
                                 INT32_MAX};
  dil_tensor_info info = DIL_TENSOR_INFO_INIT;
  bent_gradient b;
  bent_open(&b);
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    host_refused(dil_kernel_tensor(b.kernel, none[i], &host_sizes, &info),
                 DIL_USAGE, "kernel 'p' has no tensor of number");
  b.kernel->source.direction = DIL_FORWARD;
  host_refused(dil_kernel_tensor(b.kernel, DIL_TENSOR_DQ, &host_sizes, &info),
               DIL_USAGE, "kernel 'p' has no tensor of number");
  bent_close(&b);
}
END_TEST

static Suite *gradients_suite(void) {
  Suite *s = suite_create("gradients");
  TCase *t = tcase_create("gradients");
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, refusals_name_the_gradient, 0, REFUSALS);
  tcase_add_test(t, kernels_without_gradients_refuse);
  tcase_add_test(t, no_lse_has_no_gradient);
  tcase_add_test(t, only_what_is_wanted_is_written);
  tcase_add_test(t, ways_to_ask_agree);
  tcase_add_test(t, workspaces_are_exact);
  tcase_add_test(t, gradients_are_tensors_of_a_kernel);
  tcase_add_test(t, other_numbers_are_no_tensors);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  return suite_run(gradients_suite(), CK_NOFORK);
}
