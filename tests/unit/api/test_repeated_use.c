/* test_repeated_use.c - contexts, programs and kernels made, run and freed over
 * and over: memory, descriptors and threads stay what they were. A few times
 * with the compiler, many times with kernels that were kept. In: DIL_CYCLES,
 * how often the latter; a small number when it is not set. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMPILED = 100, KEPT = 3000, WARM = 40, GROWTH_MOST = 1 << 20 };

typedef struct use_footprint {
  long bytes, descriptors, threads;
} use_footprint;

static long entries(const char *path) {
  long count = 0;
  DIR *folder = opendir(path);
  ck_assert_ptr_nonnull(folder);
  while (readdir(folder)) count++;
  count -= 2; /* . and .. */
  closedir(folder);
  return count;
}

static use_footprint measure(void) {
  use_footprint f = {0};
  malloc_trim(0);
  FILE *file = fopen("/proc/self/statm", "r");
  ck_assert(file && fscanf(file, "%*d %ld", &f.bytes) == 1);
  fclose(file);
  f.bytes *= sysconf(_SC_PAGESIZE);
  f.descriptors = entries("/proc/self/fd");
  f.threads = entries("/proc/self/task");
  return f;
}

/* Everything, in an order of freeing that changes from time to time. */
static void cycle(int number) {
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  dil_context *context;
  dil_program *program, *wrong;
  dil_kernel *kernel;
  host_call call;
  o.threads = 2;
  host_must(dil_context_new(&o, &context));
  host_open(context, &program, &kernel);
  if (number % 3 == 0) dil_context_free(context);
  if (number % 2 == 0) dil_program_free(program);
  ck_assert_int_eq(dil_program_parse(number % 3 ? context : NULL, "x", "x", 1,
                                     NULL, &wrong),
                   number % 3 ? DIL_INPUT : DIL_USAGE);
  host_call_make(&call, kernel, &host_sizes);
  host_must(dil_kernel_run(kernel, &call.arguments));
  call.arguments.q = NULL;
  ck_assert_int_eq(dil_kernel_run(kernel, &call.arguments), DIL_USAGE);
  host_call_free(&call);
  dil_kernel_free(kernel);
  if (number % 2) dil_program_free(program);
  if (number % 3) dil_context_free(context);
}

static void repeat(int count) {
  for (int i = 0; i < WARM; i++) cycle(i);
  use_footprint before = measure();
  for (int i = 0; i < count; i++) cycle(i);
  use_footprint after = measure();
  printf("%d cycles: %+ld bytes, %ld descriptors, %ld threads\n", count,
         after.bytes - before.bytes, after.descriptors, after.threads);
  ck_assert_int_eq(after.descriptors, before.descriptors);
  ck_assert_int_eq(after.threads, before.threads);
  if (!SANITIZED) /* where what is freed stays in quarantine */
    ck_assert_int_le(after.bytes - before.bytes, GROWTH_MOST);
}

START_TEST(compiling_leaves_nothing) {
  setenv("DIL_CACHE", "off", 1);
  repeat(COMPILED);
}
END_TEST

/* In a folder of its own, so that the first one is compiled. */
START_TEST(running_leaves_nothing) {
  char folder[] = "/tmp/dil-cycles-XXXXXX", line[64];
  const char *wish = getenv("DIL_CYCLES");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  setenv("DIL_CACHE", "on", 1);
  setenv("DIL_CACHE_DIR", folder, 1);
  repeat(wish ? atoi(wish) : KEPT);
  snprintf(line, sizeof line, "rm -r %s", folder);
  ck_assert_int_eq(system(line), 0);
}
END_TEST

int main(void) {
  host_modules();
  Suite *s = suite_create("cycles");
  TCase *t = tcase_create("cycles");
  tcase_set_timeout(t, 0);
  tcase_add_test(t, compiling_leaves_nothing);
  tcase_add_test(t, running_leaves_nothing);
  suite_add_tcase(s, t);
  return suite_run(s, CK_NOFORK);
}
