/* test_cubin_cache.c - cubins by their sources (cubin_cache.c): plans that
 * differ share one, in a process and between processes, without NVRTC; what
 * differs in chip, compiler or content does not. An NVRTC that counts
 * (counting/) stands in for the real one, so that none is needed. */
#include "compiler/codegen/code_cache.h"
#include "compiler/codegen/deferred.h"
#include "compiler/plan/target.h"
#include "tests/support/host.h"
#include "tests/support/numeric.h"
#include "tests/support/real_thread.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64], library[128];

static void command(const char *format, const char *argument) {
  char line[400];
  snprintf(line, sizeof line, format, argument);
  ck_assert_msg(system(line) == 0, "%s", line);
}

/* The cache, and an NVRTC of its own that a test may change. */
static void set_up(void) {
  char line[300];
  strcpy(folder, "/tmp/dil-test-cubins-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(library, sizeof library, "%s/libnvrtc.so.13", folder);
  snprintf(line, sizeof line, "cp %s/counting/libnvrtc.so.13 %%s",
           getenv("DIL_MODULE_DIR"));
  command(line, library);
  snprintf(line, sizeof line, "%s/kept", folder);
  setenv("DIL_CACHE_DIR", line, 1);
  setenv("DIL_CACHE", "on", 1);
  unsetenv("COUNTING_REFUSES");
}

static void tear_down(void) { command("rm -rf %s", folder); }

/* ---- in a process of its own --------------------------------------------- */

/* The counting one is found by its name once it is loaded. */
static void load_counting(void) {
  ck_assert_msg(dlopen(library, RTLD_NOW) != NULL, "%s", dlerror());
}

static int counted(void) {
  void *library_open = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_NOLOAD);
  int (*count)(void);
  void *symbol = library_open ? dlsym(library_open, "counting_compiles") : NULL;
  memcpy(&count, &symbol, sizeof count);
  return symbol ? count() : -1;
}

/* No NVRTC has been opened in this process. */
static bool unopened(void) {
  return !dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_NOLOAD) &&
         !dlopen("libnvrtc.so.12", RTLD_NOW | RTLD_NOLOAD);
}

/* What `body` returns, in a process of its own: so no test may run in that of
 * the others (CK_FORK), since what fails there must end there. */
static int apart(int (*body)(void)) {
  enum { WHOLE = 100 }; /* what failed exits with less */
  int status;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) _exit(WHOLE + body());
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) >= WHOLE,
                "the process ended with %d", status);
  return WEXITSTATUS(status) - WHOLE;
}

typedef struct got {
  gpu_codes codes;
  dil_stats stats;
  double seconds;
} got;

#define PATTERN(name, size, type, more)                                        \
  "pattern " name " { heads 2; head_dim " size "; dtype " type "; " more " }"

/* The codes that a kernel of `text` begins with, in a new context. */
static void get(const char *text, int32_t arch, const char *only, got *out) {
  struct timespec begin, end;
  tested_pattern *s = tested_pattern_new("cubins", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  code_request made = {0};
  gpu_request request = {.arch = arch, .only = only, .deferred = !only};
  made.plan = request.common.plan =
      plan_make(s->memory, diag_new(s->memory), s->pattern, 0);
  *out = (got){.stats = DIL_STATS_INIT};
  host_must(dil_context_new(NULL, &made.context));
  clock_gettime(CLOCK_MONOTONIC, &begin);
  host_must(only ? code_cache_codes(&made, &request, &out->codes)
                 : code_cache_make_codes(&made, &request, &out->codes));
  clock_gettime(CLOCK_MONOTONIC, &end);
  out->seconds = (double)(end.tv_sec - begin.tv_sec) +
                 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  host_must(dil_context_stats(made.context, &out->stats));
  dil_context_free(made.context);
  tested_pattern_free(s);
}

static void let_go(got *g) {
  while (g->codes.count > 0) free(g->codes.code[--g->codes.count].cubin);
}

/* How often NVRTC compiles for it here. */
static int compiles_of(const char *text, int32_t arch, const char *only) {
  got g;
  int before = counted();
  get(text, arch, only, &g);
  ck_assert_mem_eq(g.codes.code[0].cubin, "\177ELF", 4);
  let_go(&g);
  return counted() - before;
}

static const char plain[] =
    PATTERN("one_a", "64", "bf16", "segments 512, 1024; dilations 1, 2;");
static const char causal[] = PATTERN(
    "one_b", "64", "bf16", "causal; segments 256, 1024; dilations 1, 4;");
static const char wide[] =
    PATTERN("one_c", "128", "bf16", "segments 512, 1024; dilations 1, 2;");
static const char half[] =
    PATTERN("one_d", "64", "f16", "segments 512, 1024; dilations 1, 2;");

/* ---- shared, and not ----------------------------------------------------- */

static int compile_plain(void) {
  load_counting();
  return compiles_of(plain, 90, NULL);
}

/* Contexts share what is on disk alone. */
static int share_in_process(void) {
  got first, second;
  load_counting();
  get(plain, 90, NULL, &first);
  get(causal, 90, NULL, &second);
  ck_assert_int_eq(counted(), 1);
  ck_assert_int_eq(first.stats.compiles, 1);
  ck_assert_int_eq(second.stats.compiles, 0);
  ck_assert_int_eq(second.stats.cache_hits, 1);
  ck_assert_uint_eq(first.codes.code[0].size, second.codes.code[0].size);
  ck_assert_mem_eq(first.codes.code[0].cubin, second.codes.code[0].cubin,
                   first.codes.code[0].size);
  ck_assert_int_eq(compiles_of(wide, 90, NULL), 1);
  ck_assert_int_eq(compiles_of(half, 90, NULL), 1);
  ck_assert_int_eq(compiles_of(causal, 90, NULL), 0);
  let_go(&first);
  let_go(&second);
  return 0;
}

static int share_with_another(void) {
  double best = 1;
  for (int i = 0; i < (best < 0.005 ? 20 : 2000); i++) {
    got g;
    get(causal, 90, NULL, &g);
    ck_assert_int_eq(g.stats.compiles, 0);
    ck_assert_str_eq(g.codes.code[0].family, "hopper");
    ck_assert_mem_eq(g.codes.code[0].cubin, "\177ELF", 4);
    if (g.seconds < best) best = g.seconds;
    let_go(&g);
  }
  printf("a pattern that was never compiled, %.2f ms\n", 1e3 * best);
  fflush(stdout);
  ck_assert_double_lt(best, SANITIZED ? 0.5 : 0.005);
  return !unopened();
}

START_TEST(patterns_of_one_source_share_a_cubin) {
  ck_assert_int_eq(apart(share_in_process), 0);
  command("rm -r %s/kept", folder);
  ck_assert_int_eq(apart(compile_plain), 1);
  ck_assert_int_eq(apart(share_with_another), 0);
}
END_TEST

/* The general kernel's source has nothing of the chip, its options have. */
static int compile_for_chips(void) {
  load_counting();
  ck_assert_int_gt(compiles_of(plain, 80, "general"), 0);
  ck_assert_int_gt(compiles_of(plain, 86, "general"), 0);
  ck_assert_int_eq(compiles_of(plain, 80, "general"), 0);
  return 0;
}

START_TEST(chips_share_nothing) {
  ck_assert_int_eq(apart(compile_for_chips), 0);
}
END_TEST

START_TEST(another_compiler_in_its_place_shares_nothing) {
  ck_assert_int_eq(apart(compile_plain), 1);
  ck_assert_int_eq(apart(compile_plain), 0);
  command("touch -d 2001-01-01 %s", library);
  ck_assert_int_eq(apart(compile_plain), 1);
  ck_assert_int_eq(apart(compile_plain), 0);
  command("echo changed >>%s", library);
  ck_assert_int_eq(apart(compile_plain), 1);
}
END_TEST

static int compile_damaged(void) {
  got g;
  load_counting();
  get(causal, 90, NULL, &g);
  ck_assert_int_eq(g.stats.cache_refused, 1);
  ck_assert_int_eq(g.stats.compiles, 1);
  let_go(&g);
  return counted();
}

START_TEST(a_damaged_cubin_is_made_anew) {
  ck_assert_int_eq(apart(compile_plain), 1);
  command("for f in %s/kept/*.kernel; do truncate -s -1 $f && "
          "printf x >>$f; done", folder);
  ck_assert_int_eq(apart(compile_damaged), 1);
  ck_assert_int_eq(apart(compile_plain), 0);
}
END_TEST

static int compile_unkept(void) {
  setenv("DIL_CACHE", "off", 1);
  return compile_plain();
}

START_TEST(without_a_cache_all_is_compiled) {
  ck_assert_int_eq(apart(compile_plain), 1);
  ck_assert_int_eq(apart(compile_unkept), 1);
  ck_assert_int_eq(apart(compile_plain), 0);
}
END_TEST

static int compile_wished(void) {
  setenv("DIL_NVRTC_OPTIONS", "-lineinfo -DX=1", 1);
  return compile_plain();
}

START_TEST(what_other_options_make_is_kept_apart) {
  ck_assert_int_eq(apart(compile_plain), 1);
  ck_assert_int_eq(apart(compile_wished), 1);
  ck_assert_int_eq(apart(compile_wished), 0);
  ck_assert_int_eq(apart(compile_plain), 0);
}
END_TEST

/* ---- the gate ------------------------------------------------------------ */

static const char widest[] = PATTERN("one_e", "192", "bf16", "branch { }");
static const char widest_causal[] =
    PATTERN("one_f", "192", "bf16", "causal; branch { }");

static int compile_refused(void) {
  load_counting();
  return compiles_of(widest, 90, NULL);
}

static int share_refused(void) {
  got g;
  get(widest_causal, 90, NULL, &g);
  ck_assert_int_eq(g.codes.code[0].tile_keys, 96);
  let_go(&g);
  return !unopened();
}

START_TEST(what_the_gate_refused_is_refused_again) {
  setenv("COUNTING_REFUSES", "TILE_KEYS 112\n", 1);
  ck_assert_int_eq(apart(compile_refused), 2);
  ck_assert_int_eq(apart(share_refused), 0);
}
END_TEST

/* ---- codes that come late ------------------------------------------------ */

/* All codes of `plain`, of which those for few rows and the general ones come
 * late; with a depth of its own the Hopper kernel is another. */
static int all_codes(int32_t stages, bool loads, int32_t *hits) {
  dil_stats stats = DIL_STATS_INIT;
  tested_pattern *s = tested_pattern_new("cubins", plain, NULL, 0);
  code_request made = {0};
  gpu_request request = {.arch = 90, .knobs = &made.knobs};
  gpu_codes codes = {0};
  dil_cuda_code code;
  deferred *late;
  if (loads) load_counting();
  if (stages) made.knobs.given = 1u << KNOB_STAGES;
  made.knobs.value[KNOB_STAGES][0] = stages;
  made.plan = request.common.plan =
      plan_make(s->memory, diag_new(s->memory), s->pattern, 0);
  host_must(dil_context_new(NULL, &made.context));
  host_must(deferred_begin(&made, &request, &codes, &late));
  static const char *const families[] = {"hopper", "decode", "general"};
  for (int32_t i = 1; late && i < 3; i++) {
    host_must(deferred_take(late, i, true, &code));
    ck_assert_str_eq(code.family, families[i]);
    free(code.cubin);
  }
  bool listed = false;
  for (int i = 0; i < 1000 && !listed; i++) {
    gpu_codes whole = {0};
    host_must(code_cache_find_codes(&made, &request, &whole, &listed));
    while (whole.count > 0) free(whole.code[--whole.count].cubin);
    usleep(10000);
  }
  ck_assert(listed);
  bool was_late = late != NULL;
  deferred_end(late);
  host_must(dil_context_stats(made.context, &stats));
  *hits = (int32_t)stats.cache_hits;
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  dil_context_free(made.context);
  tested_pattern_free(s);
  return was_late;
}

static int make_all(void) {
  int32_t hits;
  ck_assert_int_eq(all_codes(0, true, &hits), 1);
  return counted();
}
static int make_deeper(void) {
  int32_t hits;
  ck_assert_int_eq(all_codes(3, true, &hits), 1);
  return counted();
}
static int list_again(void) {
  int32_t hits;
  ck_assert_int_eq(all_codes(0, false, &hits), 1);
  ck_assert_int_eq(all_codes(0, false, &hits), 0);
  return !unopened();
}

START_TEST(what_comes_late_is_shared_too) {
  ck_assert_int_eq(apart(make_all), 3);
  ck_assert_int_eq(apart(make_deeper), 1);
  /* The lists alone are lost. */
  command("cd %s/kept && for f in *.kernel; do grep -qaF ' cubin' $f || "
          "rm $f; done", folder);
  ck_assert_int_eq(apart(list_again), 0);
}
END_TEST

/* The codes of a kernel for gradients that come late, by family. */
static void expect_late(const char *text, const char *expected) {
  const gpu_backend *gpu;
  tested_pattern *s = tested_pattern_new("gradients", text, NULL, 0);
  ck_assert_msg(s->pattern != NULL, "%s", s->problem);
  gpu_request request = {.arch = 90};
  request.common.plan =
      plan_make_for(s->memory, diag_new(s->memory), s->pattern, 0, DIL_BACKWARD,
                    &plan_target_gpu);
  gpu_codes all;
  char found[300] = "";
  bool urgent;
  host_must(gpu_backend_open(&gpu));
  host_must(gpu->estimate(&request, &all));
  uint32_t late = gpu->deferred(&request, &urgent);
  for (int32_t i = 0; i < all.count; i++) {
    size_t length = strlen(found);
    if (late >> all.variant[i] & 1)
      snprintf(found + length, sizeof found - length, "%s%s%s",
               length ? ", " : "", all.code[i].family,
               all.code[i].knob[GRADIENT_KNOB_DROPS] ? " dropout" : "");
  }
  ck_assert_str_eq(found, expected);
  tested_pattern_free(s);
}

/* A call that the fast kernels take does not wait for the others. */
START_TEST(rare_gradients_come_late) {
  expect_late(PATTERN("p", "64", "bf16", "causal; branch { }"),
              "gradient, gradient keys, general");
  expect_late(PATTERN("p", "64", "bf16", "dropout 0.1; branch { }"),
              "hopper gradient, hopper gradient, gradient, gradient keys, "
              "general");
  expect_late(PATTERN("p", "64", "bf16", "combine mean; segments 32, 64; "
                                         "dilations 1, 2;"),
              "general");
  expect_late("pattern p { input z : f32[H] gradient; heads 2; head_dim 64; "
              "dtype bf16; sink z[h]; branch { } }",
              "general");
  expect_late(PATTERN("p", "64", "f32", "branch { }"), "general");
}
END_TEST

/* ---- a forked child ------------------------------------------------------ */

/* While `holds_threads` is set, a thread of this program's own code waits before
 * it starts; `is_held` says that one does. Threads of dil-gpu.so do not. */
static atomic_bool holds_threads, is_held;

static const void *code_of(void *(*begin)(void *)) {
  Dl_info about = {0};
  void *address;
  memcpy(&address, &begin, sizeof address);
  dladdr(address, &about);
  return about.dli_fbase;
}

static void *make_deeper_later(void *context);

/* Takes the place of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *how,
                   void *(*begin)(void *), void *context) {
  bool own = code_of(begin) == code_of(make_deeper_later);
  while (own && atomic_load(&holds_threads)) {
    atomic_store(&is_held, true);
    usleep(1000);
  }
  return real_pthread_create(thread, how, begin, context);
}

static void *make_deeper_later(void *context) {
  (void)context;
  while (!atomic_load(&holds_threads)) usleep(1000);
  int32_t hits;
  all_codes(3, false, &hits);
  return NULL;
}

/* A child is forked while another thread starts a deferred compilation, and
 * leaves by exit(). */
static int leave_a_fork(void) {
  int32_t hits;
  pthread_t maker;
  int status = 0;
  setenv("DIL_THREADS", "1", 1); /* contexts start none */
  all_codes(0, true, &hits); /* from now on exit() ends compilations */
  ck_assert_int_eq(pthread_create(&maker, NULL, make_deeper_later, NULL), 0);
  atomic_store(&holds_threads, true);
  while (!atomic_load(&is_held)) usleep(1000);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(10);
    exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  atomic_store(&holds_threads, false);
  ck_assert_int_eq(pthread_join(maker, NULL), 0);
  return !WIFEXITED(status) || WEXITSTATUS(status);
}

START_TEST(a_forked_child_leaves_beside_a_compilation) {
  ck_assert_int_eq(apart(leave_a_fork), 0);
}
END_TEST

int main(void) {
  host_modules();
  alarm(300);
  Suite *suite = suite_create("cubins");
  TCase *c = tcase_create("cubins");
  tcase_add_checked_fixture(c, set_up, tear_down);
  tcase_set_timeout(c, 120);
  tcase_add_test(c, patterns_of_one_source_share_a_cubin);
  tcase_add_test(c, chips_share_nothing);
  tcase_add_test(c, another_compiler_in_its_place_shares_nothing);
  tcase_add_test(c, a_damaged_cubin_is_made_anew);
  tcase_add_test(c, without_a_cache_all_is_compiled);
  tcase_add_test(c, what_other_options_make_is_kept_apart);
  tcase_add_test(c, what_the_gate_refused_is_refused_again);
  tcase_add_test(c, what_comes_late_is_shared_too);
  tcase_add_test(c, rare_gradients_come_late);
  if (!SANITIZED) /* the child has the memory of a thread that it has not */
    tcase_add_test(c, a_forked_child_leaves_beside_a_compilation);
  suite_add_tcase(suite, c);
  return suite_run(suite, CK_FORK);
}
