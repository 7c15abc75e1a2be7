/* test_host.c - the public interface: contexts and their hooks, programs and
 * their diagnostics, kernels, and every refusal of a call, by its text. */
#include "host.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The status, and that the text of the failure has these words. */
static void refused(dil_status status, dil_status want, const char *words) {
  ck_assert_msg(status == want, "%s, wanted %s", dil_status_name(status),
                dil_status_name(want));
  ck_assert_msg(strstr(dil_last_error(), words) != NULL,
                "'%s' does not say '%s'", dil_last_error(), words);
}

/* ---- contexts -------------------------------------------------------------- */

START_TEST(versions_agree) {
  ck_assert_int_eq(dil_version(), DIL_VERSION_NUM);
  ck_assert_str_eq(dil_version_text(), DIL_VERSION);
  ck_assert_str_eq(dil_status_name(DIL_USAGE), "DIL_USAGE");
  ck_assert_str_eq(dil_status_text(DIL_USAGE), "the call is wrong");
}
END_TEST

START_TEST(devices_are_read) {
  static const struct {
    const char *device, *words;
  } wrong[] = {{"gpu", "no device 'gpu'"},
               {"cpu:1", "no such number"},
               {"cuda:x", "no such number"},
               {"cuda:", "no such number"},
               {"", "no device ''"}};
  dil_context *c;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
    o.device = wrong[i].device;
    refused(dil_context_new(&o, &c), DIL_USAGE, wrong[i].words);
    ck_assert_ptr_null(c);
  }
  host_must(dil_context_new(NULL, &c));
  ck_assert_str_eq(dil_context_device(c), "cpu");
  host_must(dil_context_wait(c, NULL));
  dil_context_free(c);
  dil_context_free(NULL);
}
END_TEST

static void *allocate(void *user, size_t size, size_t alignment) {
  ((int64_t *)user)[0]++;
  ((int64_t *)user)[1] += (int64_t)size;
  return aligned_alloc(alignment, size);
}

static void release(void *user, void *memory, size_t size) {
  ((int64_t *)user)[0]--;
  ((int64_t *)user)[1] -= (int64_t)size;
  free(memory);
}

START_TEST(structs_may_grow) {
  struct {
    dil_context_options known;
    int64_t more;
  } later = {DIL_CONTEXT_OPTIONS_INIT, 0};
  dil_context *c;
  later.known.size = sizeof later;
  host_must(dil_context_new(&later.known, &c));
  dil_stats stats = {.size = offsetof(dil_stats, calls)};
  stats.calls = 77; /* beyond what this size says it has */
  host_must(dil_context_stats(c, &stats));
  ck_assert_int_eq(stats.calls, 77);
  dil_context_free(c);
  later.more = 1;
  refused(dil_context_new(&later.known, &c), DIL_USAGE, "sets what this");
  later.known.size = 0;
  refused(dil_context_new(&later.known, &c), DIL_USAGE, "not initialised");
  dil_context_options half = DIL_CONTEXT_OPTIONS_INIT;
  half.allocate = allocate;
  refused(dil_context_new(&half, &c), DIL_USAGE, "both of allocate and");
}
END_TEST

static void hear(void *user, int32_t level, const char *text) {
  ck_assert_int_le(level, DIL_LOG_INFO);
  snprintf(user, 200, "%s", text);
}

/* Threads of the host: one for each task. */
typedef struct errand {
  dil_task task;
  void *context;
  int32_t index;
} errand;

static void *go(void *argument) {
  errand *e = argument;
  e->task(e->context, e->index);
  return NULL;
}

static void in_parallel(void *user, int32_t count, dil_task task,
                        void *context) {
  pthread_t thread[16];
  errand all[16];
  ck_assert_int_le(count, 16);
  atomic_fetch_add((atomic_int *)user, 1);
  for (int32_t i = 0; i < count; i++) {
    all[i] = (errand){task, context, i};
    pthread_create(&thread[i], NULL, go, &all[i]);
  }
  for (int32_t i = 0; i < count; i++) pthread_join(thread[i], NULL);
}

static void one_by_one(void *user, int32_t count, dil_task task,
                       void *context) {
  (void)user;
  for (int32_t i = count; i-- > 0;) task(context, i);
}

static void not_at_all(void *user, int32_t count, dil_task task,
                       void *context) {
  (void)user;
  (void)count;
  (void)task;
  (void)context;
}

static const float *output(const host_call *c) {
  return c->tensor[DIL_TENSOR_O].data;
}

/* The same call on own threads and on the host's gives the same bits. */
START_TEST(hooks_are_used) {
  int64_t memory[2] = {0, 0};
  char heard[200] = "";
  atomic_int runs = 0;
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  o.threads = 3;
  o.allocate = allocate;
  o.release = release;
  o.memory_user = memory;
  o.log = hear;
  o.log_user = heard;
  o.log_level = DIL_LOG_INFO;
  dil_kernel *plain = host_kernel(&o, host_text);
  o.parallel = in_parallel;
  o.parallel_user = &runs;
  dil_kernel *hosted = host_kernel(&o, host_text);
  o.parallel = one_by_one;
  dil_kernel *serial = host_kernel(&o, host_text);
  host_call a, b, c;
  host_call_make(&a, plain, &host_sizes);
  host_call_make(&b, hosted, &host_sizes);
  host_call_make(&c, serial, &host_sizes);
  host_must(dil_kernel_run(plain, &a.arguments));
  ck_assert_ptr_nonnull(strstr(heard, "kernel 'p': tiles for"));
  ck_assert_int_gt(memory[0], 0);
  host_must(dil_kernel_run(hosted, &b.arguments));
  host_must(dil_kernel_run(serial, &c.arguments));
  ck_assert_int_gt(atomic_load(&runs), 0);
  ck_assert_mem_eq(output(&a), output(&b), 96 * 2 * 16 * sizeof(float));
  ck_assert_mem_eq(output(&a), output(&c), 96 * 2 * 16 * sizeof(float));
  ck_assert(isfinite(output(&a)[100]));
  host_call_free(&a);
  host_call_free(&b);
  host_call_free(&c);
  dil_kernel_free(plain);
  dil_kernel_free(hosted);
  dil_kernel_free(serial);
  ck_assert_int_eq(memory[0], 0);
  ck_assert_int_eq(memory[1], 0);
}
END_TEST

START_TEST(a_hook_that_does_nothing_is_told) {
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  o.parallel = not_at_all;
  o.threads = 2;
  dil_kernel *k = host_kernel(&o, host_text);
  host_call c;
  host_call_make(&c, k, &host_sizes);
  refused(dil_kernel_run(k, &c.arguments), DIL_USAGE, "parallel hook returned");
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

START_TEST(a_child_is_refused) {
  dil_kernel *k = host_kernel(NULL, host_text);
  host_call c;
  host_call_make(&c, k, &host_sizes);
  host_must(dil_kernel_run(k, &c.arguments));
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int said = dil_kernel_run(k, &c.arguments) == DIL_USAGE &&
               strstr(dil_last_error(), "before a fork") != NULL;
    dil_kernel_free(k);
    _exit(said ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  host_must(dil_kernel_run(k, &c.arguments));
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

/* ---- programs -------------------------------------------------------------- */

START_TEST(diagnostics_are_the_text) {
  static const char *wrong = "pattern p { heads 4; head_dim 8; dtype f32;\n"
                             "branch { dilaton 2; } }\n";
  dil_context *c;
  dil_program *p;
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  host_must(dil_context_new(NULL, &c));
  refused(dil_program_parse(c, "w.dil", wrong, strlen(wrong), &o, &p),
          DIL_INPUT, "w.dil:2:10: error: ");
  ck_assert_ptr_null(p);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "\n         ^^^^^^^"));
  o.json = 1;
  refused(dil_program_parse(c, "w.dil", wrong, strlen(wrong), &o, &p),
          DIL_INPUT, "{\"file\":\"w.dil\",\"line\":2,\"column\":10,");
  refused(dil_program_read(c, "/no/such.dil", NULL, &p), DIL_ENVIRONMENT,
          "cannot read '/no/such.dil'");
  refused(dil_program_read(NULL, "x.dil", NULL, &p), DIL_USAGE, "no context");
  dil_context_free(c);
}
END_TEST

START_TEST(kernels_are_chosen_by_name) {
  static const char *two = "let n = 8; pattern a { heads n; head_dim 8;\n"
                           " dtype f32; branch { } }\n"
                           "kernel one = a; kernel two = a;";
  char text[200];
  dil_context *c;
  dil_program *p;
  dil_kernel *k;
  dil_define heads = {"n", "4"};
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  o.defines = &heads;
  o.define_count = 1;
  snprintf(text, sizeof text, "%s", two);
  host_must(dil_context_new(NULL, &c));
  host_must(dil_program_parse(c, "two.dil", text, strlen(text), &o, &p));
  memset(text, '#', sizeof text); /* the host's own again */
  ck_assert_int_eq(dil_program_kernel_count(p), 2);
  ck_assert_str_eq(dil_program_kernel_name(p, 1), "two");
  ck_assert_ptr_null(dil_program_kernel_name(p, 2));
  ck_assert_str_eq(dil_program_warnings(p), "");
  refused(dil_program_kernel(p, NULL, NULL, &k), DIL_USAGE, "has 2 kernels");
  refused(dil_program_kernel(p, "tow", NULL, &k), DIL_USAGE,
          "did you mean 'two'");
  dil_kernel_options isa = DIL_KERNEL_OPTIONS_INIT;
  isa.isa = "sse9";
  refused(dil_program_kernel(p, "two", &isa, &k), DIL_USAGE, "sse9");
  isa.isa = "avx2";
  isa.force = DIL_FORCE_GENERAL;
  host_must(dil_program_kernel(p, "two", &isa, &k));
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_kernel_describe(k, &info));
  ck_assert_str_eq(info.target, "avx2");
  ck_assert_int_eq(info.heads, 4);
  char variant[16];
  host_must(dil_kernel_variant(k, &host_sizes, variant, sizeof variant));
  ck_assert_str_eq(variant, "rows");
  dil_context_free(c);
  dil_program_free(p);
  dil_kernel_free(k);
}
END_TEST

START_TEST(warnings_are_kept) {
  static const char *text = "pattern a { heads 4; head_dim 8; dtype f32;\n"
                            " branch { segment 64; dilation 4; heads 0..1; }\n"
                            "}\n";
  dil_context *c;
  dil_program *p;
  host_must(dil_context_new(NULL, &c));
  host_must(dil_program_parse(c, "a.dil", text, strlen(text), NULL, &p));
  ck_assert_ptr_nonnull(strstr(dil_program_warnings(p), "warning: "));
  dil_program_free(p);
  dil_context_free(c);
}
END_TEST

/* ---- kernels --------------------------------------------------------------- */

START_TEST(a_second_run_allocates_nothing) {
  dil_context *c;
  dil_program *p;
  dil_kernel *k;
  dil_stats before = DIL_STATS_INIT, after = DIL_STATS_INIT;
  host_must(dil_context_new(NULL, &c));
  host_must(dil_program_parse(c, "p.dil", host_text, strlen(host_text), NULL,
                              &p));
  host_must(dil_program_kernel(p, NULL, NULL, &k));
  host_call call;
  host_call_make(&call, k, &host_sizes);
  int64_t bytes;
  host_must(dil_kernel_prepare(k, &host_sizes));
  host_must(dil_kernel_workspace(k, &host_sizes, &bytes));
  host_must(dil_context_stats(c, &before));
  ck_assert_int_ge(before.pool_bytes, bytes);
  ck_assert_int_eq(before.compiles, 1);
  ck_assert(before.compile_seconds > 0);
  for (int i = 0; i < 5; i++) host_must(dil_kernel_run(k, &call.arguments));
  host_must(dil_context_stats(c, &after));
  ck_assert_int_eq(after.pool_fresh, before.pool_fresh);
  ck_assert_int_eq(after.pool_takes, before.pool_takes + 5);
  ck_assert_int_eq(after.pool_in_use, 0);
  ck_assert_int_eq(after.calls, 5);
  ck_assert_int_eq(after.kernels, 1);
  ck_assert_int_eq(after.compiles, 1);
  dil_program_free(p);
  host_call_free(&call);
  dil_kernel_free(k);
  host_must(dil_context_stats(c, &after));
  ck_assert_int_eq(after.kernels, 0);
  dil_context_free(c);
}
END_TEST

/* q, k and v as slices of one [B, N, 3, H, D] array, o in a fourth of it. */
START_TEST(strides_may_weave) {
  enum { N = 96, H = 2, D = 16, ROW = 4 * H * D };
  dil_kernel *k = host_kernel(NULL, host_text);
  host_call c;
  host_call_make(&c, k, &host_sizes);
  host_must(dil_kernel_run(k, &c.arguments));
  float *woven = calloc(N * ROW, sizeof *woven);
  int64_t strides[] = {N * ROW, ROW, D, 1};
  DLTensor slice[4];
  for (int i = 0; i < 4; i++) {
    const float *from = c.tensor[i].data;
    for (int n = 0; n < N; n++)
      memcpy(woven + n * ROW + i * H * D, from + n * H * D,
             H * D * sizeof *woven);
    slice[i] = c.tensor[i];
    slice[i].data = woven;
    slice[i].byte_offset = (uint64_t)i * H * D * sizeof *woven;
    slice[i].strides = strides;
  }
  for (int n = 0; n < N; n++)
    memset(woven + n * ROW + 3 * H * D, 0xFF, H * D * sizeof *woven);
  dil_arguments a = c.arguments;
  a.q = &slice[0];
  a.k = &slice[1];
  a.v = &slice[2];
  a.o = &slice[3];
  host_must(dil_kernel_run(k, &a));
  for (int n = 0; n < N; n++)
    ck_assert_mem_eq(woven + n * ROW + 3 * H * D, output(&c) + n * H * D,
                     H * D * sizeof *woven);
  slice[3].byte_offset -= 4; /* its first element is v's last */
  refused(dil_kernel_run(k, &a), DIL_USAGE, "o is an output and shares memory "
                                            "with v");
  free(woven);
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

/* ---- refusals -------------------------------------------------------------- */

typedef struct bent { /* a call, and its tensors to spoil */
  host_call call;
  DLTensor *q, *k, *v, *o, *lse;
  dil_arguments *a;
  int64_t strides[4];
  int64_t shape[4];
  DLTensor lengths;
} bent;

static void q_missing(bent *b) { b->a->q = NULL; }
static void q_nowhere(bent *b) { b->q->data = NULL; }
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
static void lse_nowhere(bent *b) { b->lse->data = NULL; }
static void o_is_k(bent *b) { b->o->data = b->k->data; }
static void lse_is_o(bent *b) { b->lse->data = b->o->data; }
static void inputs_more(bent *b) { b->a->input_count = 1; }
static void streams(bent *b) { b->a->stream = b; }
static void not_ready(bent *b) { b->a->size = 3; }
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
static void lengths_many(bent *b) {
  lengths_of(b, 9, 32);
  b->shape[0] = 2;
}

static const struct {
  void (*spoil)(bent *b);
  const char *words;
} refusals[] = {
    {q_missing, "q is not given"},
    {q_nowhere, "q is not given"},
    {q_type, "q has an element type that no kernel takes: DLPack code 2, 64"},
    {q_lanes, "bits, 4 lanes"},
    {k_type, "k must be f32, got f16"},
    {k_device, "k is on DLPack device 2:0, the kernel is on cpu"},
    {v_rank, "v must have 4 dimensions, got 3"},
    {v_ranks, "v must have 0 to 4 dimensions with a shape, got 9"},
    {o_shape, "o must be [1, 96, 2, 16], got [1, 96, 3, 16]"},
    {o_negative, "o has a negative extent"},
    {o_stride, "o is an output and its strides let elements share memory"},
    {q_stride, "the last dimension of q must be contiguous, its stride is 2"},
    {q_far, "q has a negative extent, or reaches further than memory does"},
    {q_aligned, "q is not aligned to its elements"},
    {o_read_only, "o is an output and is read-only"},
    {lse_read_only, "lse is an output and is read-only"},
    {lse_type, "lse must be f32 [1, 2, 96]"},
    {lse_nowhere, "lse has no memory"},
    {o_is_k, "o is an output and shares memory with k"},
    {lse_is_o, "o is an output and shares memory with lse"},
    {inputs_more, "the kernel takes 0 inputs, got"},
    {streams, "the processor has no streams"},
    {not_ready, "dil_arguments is not initialised"},
    {lengths_long, "lengths[0] must be within 0 and 96, got 97"},
    {lengths_type, "lengths has an element type that no kernel takes"},
    {lengths_many, "lengths must be i32 [1]"},
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
  refused(dil_kernel_run(k, b.a), DIL_USAGE, refusals[_i].words);
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
  refused(dil_kernel_tensor(k, 6, &host_sizes, &info), DIL_USAGE,
          "has 6 tensors");
  host_must(dil_kernel_run(k, &c.arguments));
  c.tensor[DIL_TENSOR_INPUT].shape[1] = 95;
  refused(dil_kernel_run(k, &c.arguments), DIL_USAGE, "of input 'doc' must be "
                                                      "96, got 95");
  c.tensor[DIL_TENSOR_INPUT].shape[1] = 96;
  c.tensor[DIL_TENSOR_O].data = c.tensor[DIL_TENSOR_INPUT].data;
  void *o = (void *)(uintptr_t)output(&c);
  refused(dil_kernel_run(k, &c.arguments), DIL_USAGE, "shares memory with "
                                                      "input 'doc'");
  c.inputs[0] = NULL;
  refused(dil_kernel_run(k, &c.arguments), DIL_USAGE, "input 'doc' is not");
  (void)o;
  c.tensor[DIL_TENSOR_O].data = NULL;
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

START_TEST(sizes_are_checked) {
  dil_kernel *k = host_kernel(NULL, host_text);
  dil_sizes wrong = {1, -1, 8};
  int64_t bytes;
  refused(dil_kernel_prepare(k, &wrong), DIL_USAGE, "queries -1");
  wrong = (dil_sizes){1, 8, INT64_MAX};
  refused(dil_kernel_workspace(k, &wrong, &bytes), DIL_USAGE, "must be within");
  dil_sizes none = {1, 0, 8};
  host_must(dil_kernel_workspace(k, &none, &bytes));
  ck_assert_int_eq(bytes, 0);
  refused(dil_kernel_run(NULL, NULL), DIL_USAGE, "no kernel");
  dil_kernel_free(k);
  dil_kernel_free(NULL);
}
END_TEST

START_TEST(memory_is_given_and_taken) {
  dil_context *c;
  void *memory;
  char text[] = "abc", back[4];
  host_must(dil_context_new(NULL, &c));
  host_must(dil_memory_take(c, 4, &memory));
  ck_assert_uint_eq((uintptr_t)memory % 256, 0);
  host_must(dil_memory_write(c, memory, text, 4));
  host_must(dil_memory_read(c, back, memory, 4));
  ck_assert_str_eq(back, "abc");
  dil_memory_give(c, memory);
  dil_memory_give(c, NULL);
  refused(dil_memory_take(c, -1, &memory), DIL_USAGE, "-1 bytes");
  dil_context_free(c);
}
END_TEST

static Suite *host_suite(void) {
  Suite *s = suite_create("host");
  TCase *t = tcase_create("host");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, versions_agree);
  tcase_add_test(t, devices_are_read);
  tcase_add_test(t, structs_may_grow);
  tcase_add_test(t, hooks_are_used);
  tcase_add_test(t, a_hook_that_does_nothing_is_told);
  tcase_add_test(t, a_child_is_refused);
  tcase_add_test(t, diagnostics_are_the_text);
  tcase_add_test(t, kernels_are_chosen_by_name);
  tcase_add_test(t, warnings_are_kept);
  tcase_add_test(t, a_second_run_allocates_nothing);
  tcase_add_test(t, strides_may_weave);
  tcase_add_loop_test(t, refusals_name_the_tensor, 0, REFUSALS);
  tcase_add_test(t, inputs_are_checked);
  tcase_add_test(t, sizes_are_checked);
  tcase_add_test(t, memory_is_given_and_taken);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  SRunner *runner = srunner_create(host_suite());
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
