/* test_arguments.c - what a call is refused for, by its text: every tensor, its
 * type, shape, device, strides and memory, before anything starts. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct bent { /* a call, and its tensors to spoil */
  host_call call;
  DLTensor *q, *k, *v, *o, *lse;
  dil_arguments *a;
  int64_t strides[4];
  int64_t shape[4];
  DLTensor lengths;
  DLTensor offsets;
  int64_t offset_count;
} bent;

static void q_missing(bent *b) { b->a->q = NULL; }
static void q_nowhere(bent *b) { b->q->data = NULL; }
static void q_turned(bent *b) {
  b->q->shape[1] = 2;
  b->q->shape[2] = 96;
}
static void q_type(bent *b) { b->q->dtype.bits = 64; }
static void q_lanes(bent *b) { b->q->dtype.lanes = 4; }
static void k_type(bent *b) { b->k->dtype.bits = 16; }
static void k_device(bent *b) { b->k->device.device_type = kDLCUDA; }
static void v_rank(bent *b) { b->v->ndim = 3; }
static void v_ranks(bent *b) { b->v->ndim = 9; }
static void o_shape(bent *b) { b->o->shape[2] = 3; }
static void o_negative(bent *b) { b->o->shape[1] = -5; }
static void o_stride(bent *b) {
  memcpy(b->strides, (int64_t[]){0, 0, 16, 1}, sizeof b->strides);
  b->o->strides = b->strides;
}
static void q_stride(bent *b) {
  memcpy(b->strides, (int64_t[]){0, 64, 32, 2}, sizeof b->strides);
  b->q->strides = b->strides;
}
static void q_far(bent *b) {
  memcpy(b->strides, (int64_t[]){0, INT64_MAX / 8, 16, 1}, sizeof b->strides);
  b->q->strides = b->strides;
}
static void q_aligned(bent *b) { b->q->byte_offset = 2; }
static void o_read_only(bent *b) {
  b->a->o_flags = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void lse_read_only(bent *b) {
  b->a->lse_flags = DLPACK_FLAG_BITMASK_READ_ONLY;
}
static void lse_type(bent *b) { b->lse->dtype.bits = 16; }
static void lse_double(bent *b) { b->lse->dtype.bits = 64; }
static void lse_shape(bent *b) { b->lse->shape[1] = 3; }
static void lse_aligned(bent *b) { b->lse->byte_offset = 2; }
static void lse_nowhere(bent *b) { b->lse->data = NULL; }
static void o_is_k(bent *b) { b->o->data = b->k->data; }
static void lse_is_o(bent *b) { b->lse->data = b->o->data; }
static void inputs_more(bent *b) { b->a->input_count = 1; }
static void inputs_fewer(bent *b) { b->a->input_count = -1; }
static void a_scale(bent *b) { b->a->scale = 0.5; }
static void no_scale(bent *b) { b->a->scale = NAN; }
static void q_wraps(bent *b) { b->q->byte_offset = UINT64_MAX - 3; }
static void q_beyond(bent *b) { b->q->byte_offset = (uint64_t)1 << 62; }
/* The first byte would lie before address 0. */
static void q_below(bent *b) {
  int64_t row = -(int64_t)((uintptr_t)b->q->data / (95 * sizeof(float))) - 1;
  memcpy(b->strides, (int64_t[]){0, row, 16, 1}, sizeof b->strides);
  b->q->strides = b->strides;
}
static void streams(bent *b) { b->a->stream = b; }
static void not_ready(bent *b) { b->a->size = 3; }
static void garbage(bent *b) { b->a->size = 1000000000; }
static void lengths_of(bent *b, int32_t length, int32_t bits) {
  static int32_t value;
  value = length;
  b->shape[0] = 1;
  b->lengths = (DLTensor){.data = &value,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLInt, (uint8_t)bits, 1},
                          .shape = b->shape};
  b->a->lengths = &b->lengths;
}
static void lengths_long(bent *b) { lengths_of(b, 97, 32); }
static void lengths_type(bent *b) { lengths_of(b, 9, 64); }
static void lengths_float(bent *b) {
  lengths_of(b, 9, 32);
  b->lengths.dtype.code = kDLFloat;
}
static void lengths_nowhere(bent *b) {
  lengths_of(b, 9, 32);
  b->lengths.data = NULL;
}
static void lengths_many(bent *b) {
  lengths_of(b, 9, 32);
  b->shape[0] = 2;
}
/* Every second number, for two batch rows. */
static void lengths_apart(bent *b) {
  static int64_t apart = 2;
  lengths_of(b, 9, 32);
  b->shape[0] = 2;
  b->lengths.strides = &apart;
  for (int i = DIL_TENSOR_Q; i <= DIL_TENSOR_LSE; i++)
    b->call.tensor[i].shape[0] = 2;
}

/* Two documents of the 96 rows. */
static void offsets_of(bent *b, int32_t border, int32_t bits) {
  static int32_t value[3];
  value[1] = border;
  value[2] = 96;
  b->offset_count = 3;
  b->offsets = (DLTensor){.data = value,
                          .device = {kDLCPU, 0},
                          .ndim = 1,
                          .dtype = {kDLInt, (uint8_t)bits, 1},
                          .shape = &b->offset_count};
  b->a->offsets_q = &b->offsets;
  b->a->longest_q = 90;
}
static void offsets_fall(bent *b) { offsets_of(b, 97, 32); }
static void offsets_long(bent *b) { offsets_of(b, 5, 32); }
static void offsets_longest(bent *b) {
  offsets_of(b, 50, 32);
  b->a->longest_q = 97;
}
static void offsets_type(bent *b) { offsets_of(b, 9, 64); }
static void offsets_empty(bent *b) {
  offsets_of(b, 9, 32);
  b->offset_count = 0;
}
static void offsets_nowhere(bent *b) {
  offsets_of(b, 9, 32);
  b->offsets.data = NULL;
}
static void offsets_apart(bent *b) {
  static int64_t apart = 2;
  offsets_of(b, 9, 32);
  b->offsets.strides = &apart;
}
static void offsets_batch(bent *b) {
  offsets_of(b, 48, 32);
  for (int i = DIL_TENSOR_Q; i <= DIL_TENSOR_LSE; i++)
    b->call.tensor[i].shape[0] = 2;
}
static void offsets_lengths(bent *b) {
  offsets_of(b, 48, 32);
  lengths_of(b, 9, 32);
}
static void offsets_of_keys_alone(bent *b) {
  offsets_of(b, 48, 32);
  b->a->offsets_k = b->a->offsets_q;
  b->a->offsets_q = NULL;
}
static void offsets_of_fewer_keys(bent *b) {
  static DLTensor keys;
  static int64_t count = 2;
  offsets_of(b, 48, 32);
  keys = b->offsets;
  keys.shape = &count;
  b->a->offsets_k = &keys;
}
static void longest_alone(bent *b) { b->a->longest_k = 4; }
static void longest_differs(bent *b) {
  offsets_of(b, 48, 32);
  b->a->longest_k = 4;
}
static void o_is_offsets(bent *b) {
  offsets_of(b, 48, 32);
  b->offsets.data = b->o->data;
}

static char saved[256] __attribute__((aligned(64)));
static void saved_of(bent *b, size_t at, int64_t bytes) {
  b->a->saved = saved + at;
  b->a->saved_bytes = bytes;
}
static void saved_odd(bent *b) { saved_of(b, 32, 8); }
static void saved_minus(bent *b) { saved_of(b, 0, -1); }
static void saved_nowhere(bent *b) { b->a->saved_bytes = 64; }
static void saved_alone(bent *b) { saved_of(b, 0, 64); }
static void saved_of_documents(bent *b) {
  offsets_of(b, 48, 32);
  saved_of(b, 0, 64);
}

static const struct {
  void (*spoil)(bent *b);
  const char *words;
} refusals[] = {
    {q_missing, "q is not given"},
    {q_nowhere, "q is not given"},
    {q_type, "q must be f32, got float64 (DLPack code 2, lanes 1)"},
    {q_lanes, ", lanes 4)"},
    {k_type, "k must be f32, got f16"},
    {k_device, "k is on cuda:0, the kernel is on cpu"},
    {v_rank, "v must have 4 dimensions, got 3"},
    {v_ranks, "v must have 0 to 4 dimensions with a shape, got 9"},
    {q_turned, "q must be [1, 2, 2, 16], got [1, 2, 96, 16]: rows come "
               "before heads"},
    {o_shape, "o must be [1, 96, 2, 16], got [1, 96, 3, 16]"},
    {o_negative, "o has a negative extent"},
    {o_stride, "o is an output and its strides let elements share memory"},
    {q_stride, "the last dimension of q must be contiguous, its stride is 2"},
    {q_far, "q has a negative extent, or reaches further than memory does"},
    {q_aligned, "q is not aligned to its elements"},
    {o_read_only, "o is an output and is read-only"},
    {lse_read_only, "lse is an output and is read-only"},
    {lse_type, "lse must be f32 [1, 2, 96], got f16 [1, 2, 96]"},
    {lse_double, "lse must be f32, got float64 ("},
    {lse_shape, "lse must be f32 [1, 2, 96], got f32 [1, 3, 96]"},
    {lse_aligned, "lse is not aligned to its elements"},
    {lse_nowhere, "lse has no memory"},
    {o_is_k, "o is an output and shares memory with k"},
    {lse_is_o, "o is an output and shares memory with lse"},
    {inputs_more, "kernel 'p' takes no inputs, got 1"},
    {inputs_fewer, "kernel 'p' takes no inputs, got -1"},
    {a_scale, "kernel 'p' fixes its scale, got 0.5: that wants `scale "
              "runtime;` in its pattern"},
    {no_scale, "kernel 'p' fixes its scale, got nan"},
    {q_wraps, "q reaches further than memory does: its byte_offset is "
              "18446744073709551612"},
    {q_beyond, "q reaches further than memory does: its byte_offset is"},
    {q_below, "q has a negative extent, or reaches further than memory"},
    {streams, "the processor has no streams"},
    {not_ready, "dil_arguments is not initialised: its size is 3"},
    {garbage, "dil_arguments is not initialised: its size is 1000000000"},
    {lengths_long, "lengths[0] must be within 0 and 96, got 97"},
    {lengths_type, "lengths must be i32, got int64 (DLPack code 0, lanes 1)"},
    {lengths_float, "lengths must be i32 [1], got f32 [1]"},
    {lengths_many, "lengths must be i32 [1], got i32 [2]"},
    {lengths_nowhere, "lengths has no memory"},
    {lengths_apart, "lengths must be contiguous, the stride is 2"},
    {offsets_fall, "offsets_q falls at element 2, from 97 to 96: offsets are "
                   "sums of lengths"},
    {offsets_long, "document 1 of offsets_q has 91 rows, and longest_q is 90"},
    {offsets_longest, "longest_q must be the rows of the longest document, "
                      "within 0 and 96, got 97"},
    {offsets_type, "offsets_q must be i32, got int64 (DLPack code 0, lanes 1)"},
    {offsets_empty, "offsets_q must be i32 [B + 1], got i32 [0]"},
    {offsets_nowhere, "offsets_q has no memory"},
    {offsets_apart, "offsets_q must be contiguous, the stride is 2"},
    {offsets_batch, "the batch of q and k must be 1 in a packed call, got 2 "
                    "and 2"},
    {offsets_lengths, "lengths cannot be used with offsets_q"},
    {offsets_of_keys_alone, "offsets_k is given, and offsets_q is not"},
    {offsets_of_fewer_keys, "offsets_k has 2 elements, and offsets_q 3"},
    {longest_alone, "longest_k is given, and offsets_q is not"},
    {longest_differs, "longest_k is 4 and longest_q 90: offsets_q serves both"},
    {o_is_offsets, "o is an output and shares memory with offsets_q"},
    {saved_odd, "saved is not aligned to 64 bytes"},
    {saved_minus, "saved must have 0 to "},
    {saved_nowhere, "saved is NULL and has 64 bytes"},
    {saved_alone, "was made without gradients, and saved is for these"},
    {saved_of_documents, "saved does not go with offsets: leave it NULL"},
};
enum { REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(refusals_name_the_tensor) {
  dil_kernel *k = host_kernel(NULL, host_text);
  bent b = {0};
  host_call_make(&b.call, k, &host_sizes);
  host_call clean = b.call;
  b.q = &b.call.tensor[DIL_TENSOR_Q];
  b.k = &b.call.tensor[DIL_TENSOR_K];
  b.v = &b.call.tensor[DIL_TENSOR_V];
  b.o = &b.call.tensor[DIL_TENSOR_O];
  b.lse = &b.call.tensor[DIL_TENSOR_LSE];
  b.a = &b.call.arguments;
  dil_arguments arguments = b.call.arguments;
  refusals[_i].spoil(&b);
  host_refused(dil_kernel_run(k, b.a), DIL_USAGE, refusals[_i].words);
  const float *o = clean.tensor[DIL_TENSOR_O].data;
  for (int i = 0; i < 96 * 2 * 16; i++) ck_assert(isnan(o[i]));
  memcpy(b.call.tensor, clean.tensor, sizeof clean.tensor);
  memcpy(b.call.shape, clean.shape, sizeof clean.shape);
  *b.a = arguments;
  host_must(dil_kernel_run(k, b.a));
  host_call_free(&b.call);
  dil_kernel_free(k);
}
END_TEST

START_TEST(inputs_are_checked) {
  static const char *text = "pattern p { heads 2; head_dim 16; dtype f32;\n"
                            " input doc : i32[B, M]; branch { mask\n"
                            " doc[b, i] == doc[b, j]; } }\n";
  dil_kernel *k = host_kernel(NULL, text);
  host_call c;
  host_call_make(&c, k, &host_sizes);
  dil_tensor_info info = DIL_TENSOR_INFO_INIT;
  host_must(dil_kernel_tensor(k, DIL_TENSOR_INPUT, &host_sizes, &info));
  ck_assert_str_eq(info.name, "doc");
  ck_assert_int_eq(info.shape[1], 96);
  host_refused(dil_kernel_tensor(k, 6, &host_sizes, &info), DIL_USAGE,
          "no tensor of number 6");
  host_must(dil_kernel_run(k, &c.arguments));
  c.tensor[DIL_TENSOR_INPUT].shape[1] = 95;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "of input 'doc' must be "
               "96, got 95");
  c.tensor[DIL_TENSOR_INPUT].shape[1] = 96;
  c.tensor[DIL_TENSOR_INPUT].byte_offset = 1;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "input 'doc' is not aligned to its elements");
  c.tensor[DIL_TENSOR_INPUT].byte_offset = 0;
  void *doc = c.tensor[DIL_TENSOR_INPUT].data;
  c.tensor[DIL_TENSOR_INPUT].data = c.tensor[DIL_TENSOR_O].data;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE, "shares memory with "
               "input 'doc'");
  c.arguments.input_count = 0;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "kernel 'p' takes 1 input ('doc'), got 0");
  c.arguments.input_count = 1;
  c.arguments.inputs = NULL;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "the list of inputs is NULL, and its count is 1");
  c.arguments.inputs = c.inputs;
  c.inputs[0] = NULL;
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "input 'doc' is not");
  c.tensor[DIL_TENSOR_INPUT].data = doc;
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

/* Libraries of tensors give an empty one no address. */
START_TEST(an_empty_batch_has_no_lengths) {
  dil_kernel *k = host_kernel(NULL, host_text);
  const dil_sizes none = {0, 96, 96};
  int64_t shape[] = {0};
  DLTensor lengths = {.device = {kDLCPU, 0},
                      .ndim = 1,
                      .dtype = {kDLInt, 32, 1},
                      .shape = shape};
  host_call c;
  host_call_make(&c, k, &none);
  c.arguments.lengths = &lengths;
  host_must(dil_kernel_run(k, &c.arguments));
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

static Suite *arguments_suite(void) {
  Suite *s = suite_create("arguments");
  TCase *t = tcase_create("arguments");
  tcase_set_timeout(t, 60);
  tcase_add_loop_test(t, refusals_name_the_tensor, 0, REFUSALS);
  tcase_add_test(t, inputs_are_checked);
  tcase_add_test(t, an_empty_batch_has_no_lengths);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  return suite_run(arguments_suite(), CK_NOFORK);
}
