/* test_wisdom_apply.c - hosts and what `dil tune` remembers: a kernel takes the
 * schedule of its calls' size or of the largest, says so, and computes the
 * same; nobody is given what they did not ask for. */
#include "compiler/driver.h"
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 96, COUNT = ROWS * 2 * 16 };

static char folder[64], path[128];
static dil_context *context;
static dil_program *read_once;

/* "tile_keys N;" for calls of `size` queries and keys. */
static void remember_sizes(arena *a, const compilation *c,
                           const int64_t size[3], int32_t keys) {
  wisdom_record r = {.seconds = 0.001, .name = "p"};
  r.knobs.given = 1u << KNOB_TILE_KEYS;
  r.knobs.value[KNOB_TILE_KEYS][0] = keys;
  wisdom_query query = driver_wisdom_query(c);
  wisdom_apply_key(&query, context, size, &r.key);
  host_must(wisdom_add(a, path, &r));
}

static void remember(arena *a, const compilation *c, int64_t size,
                     int32_t keys) {
  remember_sizes(a, c, (const int64_t[]){1, size, size}, keys);
}

/* The pattern of host_text up to its schedule. */
static compilation compile_on(arena *a) {
  compilation c = {.arena = a, .diag = diag_new(a)};
  driver_request request = {.path = "p.dil",
                            .text = host_text,
                            .length = strlen(host_text),
                            .device = KNOB_CPU,
                            .last = STAGE_schedule};
  host_must(driver_compile(&request, &c));
  return c;
}

static void set_up(void) {
  strcpy(folder, "/tmp/dil-test-recall-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/wisdom", folder);
  setenv("DIL_WISDOM", path, 1);
  host_must(dil_context_new(NULL, &context));
  host_must(dil_program_parse(context, "p.dil", host_text, strlen(host_text),
                              NULL, &read_once));
  arena *a = arena_new();
  compilation c = compile_on(a);
  remember(a, &c, ROWS, 40);
  remember(a, &c, 4096, 56);
  arena_free(a);
}

static void tear_down(void) {
  dil_program_free(read_once);
  char lock[sizeof path + 8];
  dil_context_free(context);
  snprintf(lock, sizeof lock, "%s.lock", path);
  unlink(lock);
  unlink(path);
  ck_assert_msg(!rmdir(folder), "%s is not empty", folder);
}

/* The schedule of a kernel, and its result for one call. */
static dil_kernel_info make(const dil_kernel_options *o, float out[COUNT]) {
  static char knobs_of[160];
  dil_kernel *k;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_call call;
  host_must(dil_program_kernel(read_once, NULL, o, &k));
  host_must(dil_kernel_describe(k, &info));
  snprintf(knobs_of, sizeof knobs_of, "%s", info.schedule);
  info.schedule = knobs_of; /* the kernel is gone when it is looked at */
  host_call_make(&call, k, &host_sizes);
  host_must(dil_kernel_run(k, &call.arguments));
  memcpy(out, call.arguments.o->data, COUNT * sizeof *out);
  host_call_free(&call);
  dil_kernel_free(k);
  return info;
}

static void takes(const dil_kernel_options *o, const char *want) {
  float out[COUNT], plain[COUNT];
  dil_kernel_info info = make(o, out);
  ck_assert_str_eq(info.schedule, want);
  ck_assert_int_eq(info.remembered, *want != 0);
  setenv("DIL_WISDOM", "off", 1);
  info = make(NULL, plain);
  setenv("DIL_WISDOM", path, 1);
  ck_assert_str_eq(info.schedule, "");
  ck_assert_int_eq(info.remembered, 0);
  ck_assert_str_eq(info.device_reason, "");
  for (int i = 0; i < COUNT; i++)
    ck_assert_float_eq_tol(out[i], plain[i], 1e-6f);
}

START_TEST(the_largest_without_sizes) { takes(NULL, "tile_keys 56;"); }
END_TEST

START_TEST(sizes_choose) {
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  dil_sizes other = {1, 600, 600};
  o.sizes = &host_sizes;
  takes(&o, "tile_keys 40;");
  o.sizes = &other;
  takes(&o, "");
}
END_TEST

/* Calls with few queries have one schedule, whatever the batch. */
START_TEST(few_queries_forget_the_batch) {
  arena *a = arena_new();
  compilation c = compile_on(a);
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  remember_sizes(a, &c, (const int64_t[]){2, 20, 8192}, 48);
  remember_sizes(a, &c, (const int64_t[]){2, 128, 8192}, 72);
  arena_free(a);
  for (int64_t batch = 1; batch <= 64; batch *= 4) {
    dil_sizes few = {batch, 20, 8192}, many = {batch, 128, 8192};
    o.sizes = &few;
    takes(&o, "tile_keys 48;");
    o.sizes = &many;
    takes(&o, "");
  }
}
END_TEST

/* Of calls as large as each other, what was tuned last. */
START_TEST(the_last_of_equal_ones) {
  arena *a = arena_new();
  compilation c = compile_on(a);
  remember_sizes(a, &c, (const int64_t[]){2, 2048, 2048}, 32);
  takes(NULL, "tile_keys 56;");
  remember_sizes(a, &c, (const int64_t[]){4, 2048, 2048}, 48);
  arena_free(a);
  takes(NULL, "tile_keys 48;");
}
END_TEST

/* By whole words of the device's name. */
START_TEST(a_chip_is_asked_for_by_its_name) {
  arena *a = arena_new();
  compilation c = compile_on(a);
  ck_assert(!driver_apply_wisdom_chip(&c, c.isa + 1));
  ck_assert(!driver_apply_wisdom_chip(&c, "neon"));
  ck_assert(driver_apply_wisdom_chip(&c, c.isa));
  ck_assert_int_eq(c.knobs.value[KNOB_TILE_KEYS][0], 56);
  arena_free(a);
}
END_TEST

START_TEST(a_forced_plan_takes_none) {
  dil_kernel_options o = DIL_KERNEL_OPTIONS_INIT;
  o.force = DIL_FORCE_CHAIN;
  takes(&o, "");
}
END_TEST

static const char *scheduled =
    "schedule tiles { tile_keys 64; }\n"
    "pattern q { heads 2; head_dim 16; dtype f32; branch { segment 32; }\n"
    "            branch { segment 64; dilation 2; } }\n"
    "kernel p = q with tiles;\n";

START_TEST(a_schedule_of_its_own_is_told) {
  dil_program *p;
  dil_kernel *k;
  dil_kernel_info info = DIL_KERNEL_INFO_INIT;
  host_must(dil_program_parse(context, "s.dil", scheduled, strlen(scheduled),
                              NULL, &p));
  host_must(dil_program_kernel(p, NULL, NULL, &k));
  host_must(dil_kernel_describe(k, &info));
  ck_assert_str_eq(info.schedule, "tile_keys 64;");
  ck_assert_int_eq(info.remembered, 0);
  dil_kernel_free(k);
  dil_program_free(p);
}
END_TEST

static int heard;
static void hear(void *user, int32_t level, const char *text) {
  (void)user;
  heard += level == DIL_LOG_WARNING &&
           strstr(text, "line 3 is ignored: it is no record") != NULL;
}

START_TEST(a_bad_record_is_logged_once) {
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  FILE *file = fopen(path, "a");
  ck_assert_ptr_nonnull(file);
  fputs("nonsense\n", file);
  fclose(file);
  o.log = hear;
  o.log_level = DIL_LOG_WARNING;
  for (int i = 0; i < 2; i++) {
    dil_kernel *k = host_kernel(&o, host_text);
    dil_kernel_info info = DIL_KERNEL_INFO_INIT;
    host_must(dil_kernel_describe(k, &info));
    ck_assert_str_eq(info.schedule, "tile_keys 56;");
    dil_kernel_free(k);
  }
  ck_assert_int_eq(heard, 1);
}
END_TEST

int main(void) {
  host_modules();
  alarm(120); /* a hang is a failure */
  Suite *s = suite_create("recall");
  TCase *t = tcase_create("recall");
  tcase_set_timeout(t, 60);
  tcase_add_checked_fixture(t, set_up, tear_down);
  tcase_add_test(t, few_queries_forget_the_batch);
  tcase_add_test(t, the_largest_without_sizes);
  tcase_add_test(t, sizes_choose);
  tcase_add_test(t, the_last_of_equal_ones);
  tcase_add_test(t, a_chip_is_asked_for_by_its_name);
  tcase_add_test(t, a_forced_plan_takes_none);
  tcase_add_test(t, a_schedule_of_its_own_is_told);
  tcase_add_test(t, a_bad_record_is_logged_once);
  suite_add_tcase(s, t);
  return suite_run(s, CK_NOFORK);
}
