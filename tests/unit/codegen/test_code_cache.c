/* test_code_cache.c - kernels through the cache: the same code without a compiler,
 * a start in milliseconds, and memory that is never both writable and executable. */
#include "compiler/codegen/code_cache.h"
#include "compiler/codegen/deferred.h"
#include "tests/support/host.h"
#include "tests/support/numeric.h"
#include "tests/support/suite.h"
#include <check.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64];

static void set_up(void) {
  strcpy(folder, "/tmp/dil-test-keep-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("DIL_CACHE_DIR", folder, 1);
  setenv("DIL_CACHE", "on", 1);
}

static void tear_down(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  ck_assert_int_eq(system(command), 0);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether some mapping of this process has all of `marks` in its line. */
static bool mapped(const char *marks) {
  char line[4096];
  bool found = false;
  FILE *f = fopen("/proc/self/maps", "r");
  ck_assert_ptr_nonnull(f);
  while (fgets(line, sizeof line, f)) found |= strstr(line, marks) != NULL;
  fclose(f);
  return found;
}

/* ---- the processor ------------------------------------------------------- */

enum { ELEMENTS = 96 * 2 * 16 };

/* One run of the test's kernel in a new context; its statistics. */
static dil_stats run_once(float out[ELEMENTS]) {
  dil_context *c;
  dil_program *p;
  dil_kernel *k;
  host_call call;
  dil_stats stats = DIL_STATS_INIT;
  host_must(dil_context_new(NULL, &c));
  host_open(c, &p, &k);
  host_call_make(&call, k, &host_sizes);
  host_must(dil_kernel_run(k, &call.arguments));
  memcpy(out, call.arguments.o->data, ELEMENTS * sizeof *out);
  host_must(dil_context_stats(c, &stats));
  host_call_free(&call);
  dil_kernel_free(k);
  dil_program_free(p);
  dil_context_free(c);
  return stats;
}

START_TEST(the_second_context_compiles_nothing) {
  float cold[ELEMENTS], warm[ELEMENTS];
  dil_stats first = run_once(cold), second = run_once(warm);
  ck_assert_int_eq(first.compiles, 1);
  ck_assert_int_eq(first.cache_misses, 1);
  ck_assert_int_eq(first.cache_hits, 0);
  ck_assert_int_eq(second.compiles, 0);
  ck_assert_int_eq(second.cache_hits, 1);
  ck_assert_double_eq(second.cache_hit_rate, 1);
  ck_assert_double_gt(second.cache_seconds_saved, 0);
  ck_assert_int_gt(second.cache_memory_bytes, 0);
  ck_assert_mem_eq(cold, warm, sizeof cold);
}
END_TEST

START_TEST(a_wrong_setting_is_an_error_of_the_kernel) {
  dil_context *c;
  dil_program *p;
  dil_kernel *k;
  setenv("DIL_CACHE", "maybe", 1);
  host_must(dil_context_new(NULL, &c));
  host_open(c, &p, &k);
  ck_assert_int_eq(dil_kernel_prepare(k, &host_sizes), DIL_USAGE);
  ck_assert_str_eq(dil_last_error(),
                   "DIL_CACHE is 'maybe', not one of on, ro, off");
  dil_kernel_free(k);
  dil_program_free(p);
  dil_context_free(c);
}
END_TEST

START_TEST(nothing_is_writable_and_executable) {
  float out[ELEMENTS];
  for (int turn = 0; turn < 2; turn++) { /* compiled, then kept */
    dil_context *c;
    dil_program *p;
    dil_kernel *k;
    host_call call;
    host_must(dil_context_new(NULL, &c));
    host_open(c, &p, &k);
    host_call_make(&call, k, &host_sizes);
    host_must(dil_kernel_run(k, &call.arguments));
    ck_assert(!mapped(" rwx"));
    host_call_free(&call);
    dil_kernel_free(k);
    dil_program_free(p);
    dil_context_free(c);
  }
  run_once(out);
  ck_assert(!mapped(" rwx"));
}
END_TEST

/* ---- for GPUs, without one ----------------------------------------------- */

static tested_pattern *read_example(const char *name) {
  const char *examples = getenv("EXAMPLES");
  char path[1000];
  snprintf(path, sizeof path, "%s/%s.dil", examples ? examples : "examples",
           name);
  tested_pattern *s = tested_pattern_read(path, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  return s;
}

static double get_codes(const tested_pattern *s, gpu_codes *codes,
                        dil_stats *stats) {
  dil_context *c;
  code_request made = {0};
  gpu_request request = {.arch = 80, .only = "general"};
  made.plan = request.common.plan =
      plan_make(s->memory, diag_new(s->memory), s->pattern, FORCE_GENERAL);
  host_must(dil_context_new(NULL, &c));
  made.context = c;
  double start = now();
  host_must(code_cache_codes(&made, &request, codes));
  double seconds = now() - start;
  *stats = (dil_stats)DIL_STATS_INIT;
  host_must(dil_context_stats(c, stats));
  dil_context_free(c);
  return seconds;
}

static void free_codes(gpu_codes *codes) {
  while (codes->count > 0) free(codes->code[--codes->count].cubin);
}

/* The same facts and the same bytes. */
static void check_same(const gpu_codes *a, const gpu_codes *b) {
  ck_assert_int_eq(a->count, b->count);
  for (int32_t i = 0; i < a->count; i++) {
    dil_cuda_code x = a->code[i], y = b->code[i];
    ck_assert_str_eq(x.family, y.family);
    ck_assert_uint_eq(x.size, y.size);
    ck_assert_mem_eq(x.cubin, y.cubin, x.size);
    ck_assert_str_eq(x.variant, y.variant);
    ck_assert_int_eq(x.arch, y.arch);
    ck_assert_uint_eq(x.passes, y.passes);
    ck_assert_int_eq(x.threads, y.threads);
    ck_assert_int_eq(x.shared, y.shared);
    ck_assert_int_eq(x.tile_rows, y.tile_rows);
    ck_assert_int_eq(x.tile_keys, y.tile_keys);
    ck_assert_mem_eq(x.knob, y.knob, sizeof x.knob);
  }
}

/* In a process of its own: NVRTC is not loaded in this one, and never by a
 * hit. */
START_TEST(cubins_come_back_without_nvrtc) {
  gpu_codes cold = {0}, warm = {0};
  dil_stats stats;
  tested_pattern *s = read_example("longnet");
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    const gpu_backend *gpu;
    if (gpu_backend_open(&gpu) || !gpu->common.versions()) _exit(77);
    get_codes(s, &cold, &stats);
    _exit(stats.compiles == 1 && mapped("libnvrtc") ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    puts("skipped: there is no NVRTC");
    tested_pattern_free(s);
    return;
  }
  ck_assert_int_eq(status, 0);
  double best = 1;
  for (int i = 0; i < (best < 0.005 ? 20 : 2000); i++) {
    if (i) free_codes(&warm);
    double seconds = get_codes(s, &warm, &stats);
    ck_assert_int_eq(stats.compiles, 0);
    ck_assert_int_eq(stats.cache_hits, 1);
    ck_assert_int_ge(warm.count, 1);
    if (seconds < best) best = seconds;
  }
  ck_assert(!mapped("libnvrtc"));
  printf("%d cubins from disk in %.2f ms\n", (int)warm.count, 1e3 * best);
  ck_assert_double_lt(best, SANITIZED ? 0.5 : 0.005);
  setenv("DIL_CACHE", "off", 1);
  get_codes(s, &cold, &stats);
  ck_assert_int_eq(stats.compiles, 1);
  check_same(&cold, &warm);
  free_codes(&cold);
  free_codes(&warm);
  tested_pattern_free(s);
}
END_TEST

/* What one of these changes is another code: so is its key. */
static void turn_knob(code_request *c, gpu_request *r) {
  (void)r;
  c->knobs.given = 1u << KNOB_STAGES;
  c->knobs.value[KNOB_STAGES][0] = 3;
}
static void turn_force(code_request *c, gpu_request *r) {
  (void)r;
  ((plan *)(uintptr_t)c->plan)->force = FORCE_CHAIN;
}
static void turn_arch(code_request *c, gpu_request *r) {
  (void)c, r->arch = 86;
}
static void turn_only(code_request *c, gpu_request *r) {
  (void)c, r->only = "general";
}

START_TEST(keys_tell_codes_apart) {
  static void (*const turns[])(code_request *, gpu_request *) = {
      turn_knob, turn_force, turn_arch, turn_only};
  tested_pattern *s = read_example("longnet");
  for (int32_t i = 0; i < (int32_t)(sizeof turns / sizeof *turns); i++) {
    code_request c = {0};
    gpu_request request = {.arch = 80};
    size_t size, other_size;
    c.plan = request.common.plan =
        plan_make(s->memory, diag_new(s->memory), s->pattern, 0);
    char *key = code_cache_key(&c, &request, &size);
    char *again = code_cache_key(&c, &request, &other_size);
    ck_assert_ptr_nonnull(key);
    ck_assert(size == other_size && !memcmp(key, again, size));
    free(again);
    turns[i](&c, &request);
    char *other = code_cache_key(&c, &request, &other_size);
    ck_assert_msg(size != other_size || memcmp(key, other, size),
                  "turn %d has the same key", (int)i);
    free(key);
    free(other);
  }
  tested_pattern_free(s);
}
END_TEST

/* ---- codes that come after the kernel ------------------------------------ */

/* Microseconds after which its compiler is surely at work, and not yet done. */
enum { AT_WORK = 1200000 };
enum { LATE = 2 }; /* codes that come late */

/* causal for sm_90a: the Hopper kernel comes first; that for few rows and the
 * general one come late. */
typedef struct later {
  tested_pattern *s;
  dil_context *context;
  code_request made;
  gpu_request request;
  gpu_codes codes;
  deferred *late;
} later;

static bool open_later(later *l) {
  const gpu_backend *gpu;
  if (gpu_backend_open(&gpu) || !gpu->common.versions()) {
    puts("skipped: there is no NVRTC");
    return false;
  }
  *l = (later){.s = read_example("causal"), .request = {.arch = 90}};
  l->made.plan = l->request.common.plan =
      plan_make(l->s->memory, diag_new(l->s->memory), l->s->pattern, 0);
  host_must(dil_context_new(NULL, &l->context));
  l->made.context = l->context;
  host_must(deferred_begin(&l->made, &l->request, &l->codes, &l->late));
  return true;
}

static dil_stats close_later(later *l) {
  dil_stats stats = DIL_STATS_INIT;
  deferred_end(l->late);
  host_must(dil_context_stats(l->context, &stats));
  free_codes(&l->codes);
  dil_context_free(l->context);
  tested_pattern_free(l->s);
  return stats;
}

static void expect_late(const later *l) {
  ck_assert_ptr_nonnull(l->late);
  static const char *const families[LATE + 1] = {"hopper", "decode", "general"};
  ck_assert_int_eq(l->codes.count, LATE + 1);
  for (int32_t i = 0; i <= LATE; i++) {
    ck_assert_str_eq(l->codes.code[i].family, families[i]);
    ck_assert_int_eq(l->codes.code[i].size > 0, i == 0);
  }
}

/* Waits until the thread has kept all of them. */
static void wait_kept(later *l) {
  bool found = false;
  for (int i = 0; i < 3000 && !found; i++) {
    gpu_codes whole = {0};
    host_must(code_cache_find_codes(&l->made, &l->request, &whole, &found));
    free_codes(&whole);
    usleep(10000);
  }
  ck_assert_msg(found, "the whole list was never kept");
}

START_TEST(what_few_calls_take_comes_late_and_is_kept) {
  later l, again;
  gpu_codes whole = {0}, at_once = {0};
  if (!open_later(&l)) return;
  expect_late(&l);
  for (int32_t i = 1; i <= LATE; i++) {
    dil_cuda_code promised = l.codes.code[i], made;
    host_must(deferred_take(l.late, i, true, &made));
    ck_assert_str_eq(made.variant, promised.variant);
    ck_assert_mem_eq(made.cubin, "\177ELF", 4);
    free(made.cubin);
  }
  wait_kept(&l);
  ck_assert_int_eq(close_later(&l).compiles, 1);
  ck_assert(open_later(&again));
  ck_assert_ptr_null(again.late);
  whole = again.codes;
  again.codes.count = 0;
  setenv("DIL_CACHE", "off", 1);
  ck_assert_int_eq(close_later(&again).compiles, 0);
  ck_assert(open_later(&again)); /* as if no cache were there */
  host_must(code_cache_codes(&again.made, &again.request, &at_once));
  close_later(&again);
  check_same(&whole, &at_once);
  free_codes(&whole);
  free_codes(&at_once);
}
END_TEST

START_TEST(a_wait_leaves_nothing_to_wait_for) {
  later l;
  dil_cuda_code made;
  deferred_wait(NULL);
  if (!open_later(&l)) return;
  expect_late(&l);
  host_must(deferred_take(l.late, 1, false, &made));
  ck_assert_ptr_null(made.cubin);
  deferred_wait(l.late);
  for (int32_t i = 1; i <= LATE; i++) {
    host_must(deferred_take(l.late, i, false, &made));
    ck_assert_ptr_nonnull(made.cubin);
    free(made.cubin);
  }
  wait_kept(&l);
  close_later(&l);
}
END_TEST

START_TEST(what_came_first_is_kept_by_itself) {
  later l, again;
  dil_cuda_code made;
  if (!open_later(&l)) return;
  expect_late(&l);
  usleep(AT_WORK);
  double begin = now();
  ck_assert_int_eq(close_later(&l).compiles, 1);
  printf("a compiler at work ends in %.0f ms\n", 1e3 * (now() - begin));
  ck_assert(open_later(&again));
  expect_late(&again);
  for (int32_t i = 1; i <= LATE; i++) {
    host_must(deferred_take(again.late, i, true, &made));
    free(made.cubin);
  }
  dil_stats stats = close_later(&again);
  ck_assert_int_eq(stats.compiles, 0);
  ck_assert_int_ge(stats.cache_hits, 1);
}
END_TEST

/* exit() while a compiler works: it ends before its library does. */
START_TEST(a_process_ends_while_codes_are_made) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    later l;
    if (open_later(&l)) usleep(AT_WORK);
    exit(0);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* ---- a process from its start -------------------------------------------- */

typedef struct times {
  double wall, processor; /* of the whole process; by the clock, and used */
} times;

static double seconds_of(struct timeval t) {
  return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static times run_program(const char *path, const char *example) {
  const char *const words[] = {path,    "run",      example, "-D", "w=4",
                               "--seq", "8",        "--random", "1",  NULL};
  posix_spawn_file_actions_t quiet;
  pid_t child;
  int status;
  struct rusage used;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
  double start = now();
  ck_assert_int_eq(posix_spawn(&child, path, &quiet, NULL,
                               (char *const *)(uintptr_t)words, environ), 0);
  ck_assert_int_eq(wait4(child, &status, 0, &used), child);
  times t = {now() - start,
             seconds_of(used.ru_utime) + seconds_of(used.ru_stime)};
  posix_spawn_file_actions_destroy(&quiet);
  ck_assert_int_eq(status, 0);
  return t;
}

/* The least of many tries. Of the time by the clock others take their share
 * where they want more than the machine has: it is tried until a process met
 * none of them, for a minute at most. */
START_TEST(a_warm_start_to_the_result_in_5_ms) {
  char path[4200], example[1000];
  const char *examples = getenv("EXAMPLES");
  snprintf(path, sizeof path, "%s/dil", getenv("DIL_MODULE_DIR"));
  if (access(path, X_OK)) return; /* only the suites are here */
  snprintf(example, sizeof example, "%s/longnet.dil",
           examples ? examples : "examples");
  const double limit = SANITIZED ? 0.5 : 0.005, start = now();
  times cold = run_program(path, example), best = cold;
  int tries = 0;
  while (tries < 60 || (best.wall > limit && now() - start < 60)) {
    times t = run_program(path, example);
    if (t.wall < best.wall) best.wall = t.wall;
    if (t.processor < best.processor) best.processor = t.processor;
    tries++;
  }
  printf("a process: %.1f ms cold; warm %.2f ms, of processors %.2f ms, the "
         "least of %d\n", 1e3 * cold.wall, 1e3 * best.wall,
         1e3 * best.processor, tries);
  ck_assert_double_lt(best.processor, limit);
  ck_assert_double_lt(best.wall, limit);
}
END_TEST

int main(void) {
  host_modules();
  alarm(300);
  Suite *suite = suite_create("keep");
  TCase *c = tcase_create("keep");
  tcase_add_checked_fixture(c, set_up, tear_down);
  tcase_set_timeout(c, 120);
  tcase_add_test(c, cubins_come_back_without_nvrtc);
  tcase_add_test(c, keys_tell_codes_apart);
  tcase_add_test(c, what_few_calls_take_comes_late_and_is_kept);
  tcase_add_test(c, a_wait_leaves_nothing_to_wait_for);
  tcase_add_test(c, what_came_first_is_kept_by_itself);
  tcase_add_test(c, a_process_ends_while_codes_are_made);
  tcase_add_test(c, the_second_context_compiles_nothing);
  tcase_add_test(c, a_wrong_setting_is_an_error_of_the_kernel);
  tcase_add_test(c, nothing_is_writable_and_executable);
  tcase_add_test(c, a_warm_start_to_the_result_in_5_ms);
  suite_add_tcase(suite, c);
  return suite_run(suite, CK_NOFORK);
}
