/* test_host.c - the public interface: contexts and their hooks, programs and
 * their diagnostics, kernels. */
#include "runtime/cpu/peak.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- contexts ------------------------------------------------------------ */

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
    host_refused(dil_context_new(&o, &c), DIL_USAGE, wrong[i].words);
    ck_assert_ptr_null(c);
  }
  dil_context_options fewer = DIL_CONTEXT_OPTIONS_INIT;
  fewer.threads = -1;
  host_refused(dil_context_new(&fewer, &c), DIL_USAGE, "-1 threads");
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
  host_refused(dil_context_new(&later.known, &c), DIL_USAGE, "sets what this");
  later.known.size = 0;
  host_refused(dil_context_new(&later.known, &c), DIL_USAGE, "not initialised");
  dil_context_options half = DIL_CONTEXT_OPTIONS_INIT;
  half.allocate = allocate;
  host_refused(dil_context_new(&half, &c), DIL_USAGE, "both of allocate and");
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
  char told[40];
  snprintf(told, sizeof told, "kernel 'p' for %s tiles", dil_host_isa());
  ck_assert_msg(strstr(heard, told) != NULL, "%s: %s", told, heard);
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
  host_refused(dil_kernel_run(k, &c.arguments), DIL_USAGE,
               "parallel hook returned");
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

/* ---- programs ------------------------------------------------------------ */

START_TEST(diagnostics_are_the_text) {
  static const char *wrong = "pattern p { heads 4; head_dim 8; dtype f32;\n"
                             "branch { dilaton 2; } }\n";
  dil_context *c;
  dil_program *p;
  dil_program_options o = DIL_PROGRAM_OPTIONS_INIT;
  host_must(dil_context_new(NULL, &c));
  host_refused(dil_program_parse(c, "w.dil", wrong, strlen(wrong), &o, &p),
          DIL_INPUT, "w.dil:2:10: error: ");
  ck_assert_ptr_null(p);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "\n         ^^^^^^^"));
  o.json = 1;
  host_refused(dil_program_parse(c, "w.dil", wrong, strlen(wrong), &o, &p),
          DIL_INPUT, "{\"file\":\"w.dil\",\"line\":2,\"column\":10,");
  host_refused(dil_program_read(c, "/no/such.dil", NULL, &p), DIL_ENVIRONMENT,
          "cannot read '/no/such.dil'");
  host_refused(dil_program_read(NULL,
               "x.dil", NULL, &p), DIL_USAGE, "no context");
  host_refused(dil_program_read(c, NULL, NULL, &p), DIL_USAGE, "no path");
  host_refused(dil_program_parse(c, "w.dil", NULL, 0, NULL, &p), DIL_USAGE,
               "no text");
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
  host_refused(dil_program_kernel(p, NULL, NULL, &k), DIL_USAGE,
               "has 2 kernels");
  host_refused(dil_program_kernel(p, "tow", NULL, &k), DIL_USAGE,
          "did you mean 'two'");
  dil_kernel_options isa = DIL_KERNEL_OPTIONS_INIT;
  isa.isa = "sse9";
  host_refused(dil_program_kernel(p, "two", &isa, &k), DIL_USAGE, "sse9");
  isa.isa = "avx2";
  isa.force = DIL_FORCE_FUSE | DIL_FORCE_CHAIN;
  host_refused(dil_program_kernel(p, "two", &isa, &k), DIL_USAGE,
               "fuse and chain exclude each other");
  isa.force = 64;
  host_refused(dil_program_kernel(p, "two", &isa, &k), DIL_USAGE, "0x40");
  isa.force = DIL_FORCE_GENERAL;
  host_must(dil_program_kernel(p, "two", &isa, &k));
  int64_t bytes;
  host_refused(dil_kernel_workspace(k, NULL, &bytes), DIL_USAGE, "no sizes");
  host_refused(dil_kernel_prepare(k, NULL), DIL_USAGE, "no sizes");
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

/* ---- kernels ------------------------------------------------------------- */

START_TEST(a_second_run_allocates_nothing) {
  dil_context *c;
  dil_program *p;
  dil_kernel *k;
  dil_stats before = DIL_STATS_INIT, after = DIL_STATS_INIT;
  host_must(dil_context_new(NULL, &c));
  host_open(c, &p, &k);
  host_call call;
  host_call_make(&call, k, &host_sizes);
  int64_t bytes;
  host_must(dil_kernel_prepare(k, &host_sizes));
  host_must(dil_kernel_workspace(k, &host_sizes, &bytes));
  host_must(dil_context_stats(c, &before));
  ck_assert_int_ge(before.pool_bytes, bytes);
  ck_assert_int_le(before.pool_bytes, bytes + bytes / 8 + 4096);
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
  host_refused(dil_kernel_run(k, &a), DIL_USAGE,
               "o is an output and shares memory "
               "with v");
  free(woven);
  host_call_free(&c);
  dil_kernel_free(k);
}
END_TEST

START_TEST(sizes_are_checked) {
  dil_kernel *k = host_kernel(NULL, host_text);
  dil_sizes wrong = {1, -1, 8};
  int64_t bytes;
  host_refused(dil_kernel_prepare(k, &wrong), DIL_USAGE, "queries -1");
  wrong = (dil_sizes){1, 8, INT64_MAX};
  host_refused(dil_kernel_workspace(k, &wrong, &bytes), DIL_USAGE,
               "must be within");
  wrong = (dil_sizes){INT32_MAX, INT32_MAX / 2, 8};
  host_refused(dil_kernel_workspace(k, &wrong, &bytes), DIL_USAGE,
               "further than memory does");
  wrong = (dil_sizes){INT32_MAX / 64, 8, INT32_MAX / 2};
  host_refused(dil_kernel_prepare(k, &wrong), DIL_USAGE,
               "further than memory does");
  dil_sizes none = {1, 0, 8};
  host_must(dil_kernel_workspace(k, &none, &bytes));
  ck_assert_int_eq(bytes, 0);
  host_refused(dil_kernel_run(NULL, NULL), DIL_USAGE, "no kernel");
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
  host_refused(dil_memory_take(c, -1, &memory), DIL_USAGE, "bytes, got -1");
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
  tcase_add_test(t, sizes_are_checked);
  tcase_add_test(t, memory_is_given_and_taken);
  suite_add_tcase(s, t);
  return s;
}

int main(void) {
  host_modules();
  alarm(300); /* a hang is a failure */
  return suite_run(host_suite(), CK_NOFORK);
}
