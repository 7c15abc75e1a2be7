/* test_many_threads.c - the public interface from many threads at once: one
 * kernel that all run, programs and kernels that each makes of the same
 * context, the last use of which may be anybody's. Every result has the bits of
 * a run by itself. */
#include "tests/support/host.h"
#include "tests/support/suite.h"
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CROWD = 6, ROUNDS = 20, COMPILES = 2, BYTES = 96 * 2 * 16 * 4 };

typedef struct crowd {
  dil_context *context;
  dil_program *program;
  dil_kernel *kernel;
  host_call call;     /* what a run alone gave */
  atomic_int wrong;
  atomic_int here;    /* threads that have begun */
} crowd;

/* A call of its own on the shared inputs. */
static bool run_one(crowd *c, dil_kernel *kernel, float *o, float *lse) {
  DLTensor output = c->call.tensor[DIL_TENSOR_O];
  DLTensor denominators = c->call.tensor[DIL_TENSOR_LSE];
  dil_arguments a = c->call.arguments;
  output.data = o;
  denominators.data = lse;
  a.o = &output;
  a.lse = &denominators;
  memset(o, 0xFF, BYTES);
  return dil_kernel_run(kernel, &a) == DIL_OK &&
         !memcmp(o, c->call.tensor[DIL_TENSOR_O].data, BYTES);
}

static bool compile_one(crowd *c, float *o, float *lse) {
  dil_program *own = NULL;
  dil_kernel *first = NULL, *second = NULL;
  bool good = !dil_program_parse(c->context, "own", host_text,
                                 strlen(host_text), NULL, &own) &&
              !dil_program_kernel(own, NULL, NULL, &first) &&
              !dil_program_kernel(c->program, NULL, NULL, &second) &&
              run_one(c, first, o, lse) && run_one(c, second, o, lse);
  dil_program_free(own);
  dil_kernel_free(second);
  dil_kernel_free(first);
  return good;
}

/* Errors are each thread's own. */
static bool fail_one(crowd *c, int number) {
  char name[32], words[48];
  dil_kernel *none;
  snprintf(name, sizeof name, "k%d", number);
  snprintf(words, sizeof words, "has no kernel 'k%d'", number);
  return dil_program_kernel(c->program, name, NULL, &none) == DIL_USAGE &&
         strstr(dil_last_error(), words) != NULL;
}

static void *work(void *argument) {
  crowd *c = argument;
  int number = atomic_fetch_add(&c->here, 1);
  float *o = malloc(BYTES), *lse = malloc(96 * 2 * sizeof *lse);
  dil_stats stats = DIL_STATS_INIT;
  while (atomic_load(&c->here) < CROWD) usleep(100);
  for (int i = 0; i < ROUNDS; i++) {
    if (!run_one(c, c->kernel, o, lse)) atomic_fetch_add(&c->wrong, 1);
    if (!fail_one(c, number)) atomic_fetch_add(&c->wrong, 1);
    if (dil_context_stats(c->context, &stats)) atomic_fetch_add(&c->wrong, 1);
  }
  for (int i = 0; i < COMPILES; i++)
    if (!compile_one(c, o, lse)) atomic_fetch_add(&c->wrong, 1);
  free(o);
  free(lse);
  return NULL;
}

START_TEST(all_at_once) {
  pthread_t thread[CROWD];
  crowd c = {0};
  dil_context_options o = DIL_CONTEXT_OPTIONS_INIT;
  o.threads = 3;
  host_must(dil_context_new(&o, &c.context));
  host_open(c.context, &c.program, &c.kernel);
  host_call_make(&c.call, c.kernel, &host_sizes);
  host_must(dil_kernel_run(c.kernel, &c.call.arguments));
  for (int i = 0; i < CROWD; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, work, &c), 0);
  for (int i = 0; i < CROWD; i++) pthread_join(thread[i], NULL);
  ck_assert_int_eq(atomic_load(&c.wrong), 0);
  dil_stats stats = DIL_STATS_INIT;
  host_must(dil_context_stats(c.context, &stats));
  ck_assert_int_eq(stats.calls, 1 + CROWD * (ROUNDS + 2 * COMPILES));
  ck_assert_int_eq(stats.kernels, 1);
  ck_assert_int_eq(stats.pool_in_use, 0);
  host_call_free(&c.call);
  dil_kernel_free(c.kernel);
  dil_program_free(c.program);
  dil_context_free(c.context);
}
END_TEST

/* The first use of a kernel, which compiles it, by all at once; then each has
 * the last use of one of them. */
static void *race(void *argument) {
  crowd *c = argument;
  atomic_fetch_add(&c->here, 1);
  while (atomic_load(&c->here) < CROWD) continue;
  if (dil_kernel_prepare(c->kernel, &host_sizes))
    atomic_fetch_add(&c->wrong, 1);
  return NULL;
}

START_TEST(compiled_once) {
  pthread_t thread[CROWD];
  crowd c = {0};
  host_must(dil_context_new(NULL, &c.context));
  host_open(c.context, &c.program, &c.kernel);
  dil_program_free(c.program);
  for (int i = 0; i < CROWD; i++)
    ck_assert_int_eq(pthread_create(&thread[i], NULL, race, &c), 0);
  for (int i = 0; i < CROWD; i++) pthread_join(thread[i], NULL);
  dil_stats stats = DIL_STATS_INIT;
  host_must(dil_context_stats(c.context, &stats));
  ck_assert_int_eq(atomic_load(&c.wrong), 0);
  ck_assert_int_le(stats.compiles, 1);
  dil_context_free(c.context);
  dil_kernel_free(c.kernel);
}
END_TEST

int main(void) {
  host_modules();
  alarm(600); /* a hang is a failure */
  Suite *s = suite_create("crowd");
  TCase *t = tcase_create("crowd");
  tcase_set_timeout(t, 0);
  tcase_add_test(t, all_at_once);
  tcase_add_test(t, compiled_once);
  suite_add_tcase(s, t);
  return suite_run(s, CK_NOFORK);
}
