/* test_thread.c - the pool of threads and the count of processors.
 *
 * Each index once, in rising order, with work that waits for lower indices; a
 * forked child that must not hang; quotas read from made-up control groups. */
#include "runtime/base/processors.h"
#include "runtime/pool/threads.h"
#include "tests/support/suite.h"
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

enum { ITEM_MAX = 3000, WORKER_MAX = 8 };

typedef struct record {
  _Atomic int32_t done[ITEM_MAX];
  _Atomic int32_t holders[WORKER_MAX]; /* threads in the role of a worker */
  int64_t last[WORKER_MAX];            /* index that the worker did last */
  _Atomic int32_t wrong;
  _Atomic int64_t finished;
} record;

static record *record_new(void) {
  record *r = calloc(1, sizeof *r);
  ck_assert_ptr_nonnull(r);
  for (int i = 0; i < WORKER_MAX; i++) r->last[i] = -1;
  return r;
}

static void note(void *context, int64_t index, int32_t worker) {
  record *r = context;
  if (atomic_fetch_add(&r->holders[worker], 1) != 0)
    atomic_fetch_add(&r->wrong, 1);
  if (r->last[worker] >= index) atomic_fetch_add(&r->wrong, 1);
  r->last[worker] = index;
  atomic_fetch_add(&r->done[index], 1);
  atomic_fetch_sub(&r->holders[worker], 1);
}

static dil_threads *pool(int32_t count) {
  dil_threads *t = dil_threads_new(count);
  ck_assert_msg(t != NULL, "%s", dil_last_error());
  ck_assert_int_eq(dil_threads_count(t), count);
  return t;
}

static void run(dil_threads *t, int64_t count,
                void (*work)(void *, int64_t, int32_t), void *context) {
  ck_assert_int_eq(dil_threads_run(t, count, work, context), DIL_OK);
}

START_TEST(each_index_is_done_once) {
  static const int64_t counts[] = {0, 1, 2, 7, 64, ITEM_MAX};
  for (int32_t threads = 1; threads <= WORKER_MAX; threads *= 2) {
    dil_threads *t = pool(threads);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
      record *r = record_new();
      run(t, counts[c], note, r);
      ck_assert_int_eq(r->wrong, 0);
      int wrong = 0;
      for (int i = 0; i < ITEM_MAX; i++) wrong += r->done[i] != (i < counts[c]);
      ck_assert_int_eq(wrong, 0);
      free(r);
    }
    dil_threads_free(t);
  }
}
END_TEST

/* Goes on only when all lower indices are finished: hangs, and so fails by
 * the time limit, when a thread holds two or the order is not rising. */
static void wait_for_lower(void *context, int64_t index, int32_t worker) {
  record *r = context;
  (void)worker;
  while (atomic_load(&r->finished) != index) sched_yield();
  atomic_fetch_add(&r->finished, 1);
}

START_TEST(work_may_wait_for_lower_indices) {
  for (int32_t threads = 1; threads <= WORKER_MAX; threads *= 2) {
    dil_threads *t = pool(threads);
    record *r = record_new();
    run(t, 2000, wait_for_lower, r);
    ck_assert_int_eq(r->finished, 2000);
    free(r);
    dil_threads_free(t);
  }
}
END_TEST

static void add_one(void *context, int64_t index, int32_t worker) {
  (void)worker;
  atomic_fetch_add((_Atomic int64_t *)context, index + 1);
}

START_TEST(many_small_runs) {
  for (int32_t threads = 1; threads <= WORKER_MAX; threads *= 2) {
    dil_threads *t = pool(threads);
    _Atomic int64_t sum = 0;
    int64_t want = 0;
    for (int64_t i = 0; i < 4000; i++) {
      int64_t count = i % 6;
      run(t, count, add_one, &sum);
      want += count * (count + 1) / 2;
      if (atomic_load(&sum) != want)
        ck_abort_msg("run %d: %d, not %d", (int)i, (int)sum, (int)want);
    }
    dil_threads_free(t);
  }
}
END_TEST

static void rest(int64_t microseconds) {
  struct timespec time = {0, microseconds * 1000};
  nanosleep(&time, NULL);
}

/* Gaps longer than the spin, so that workers are asleep or falling asleep. */
START_TEST(runs_after_rests) {
  dil_threads *t = pool(3);
  _Atomic int64_t sum = 0;
  for (int i = 0; i < 300; i++) {
    run(t, 4, add_one, &sum);
    rest(i % 7 * 25);
  }
  ck_assert_int_eq(sum, 3000);
  dil_threads_free(t);
}
END_TEST

static void long_item(void *context, int64_t index, int32_t worker) {
  if (index > 0) rest(3000);
  note(context, index, worker);
}

START_TEST(the_caller_waits_for_long_items) {
  dil_threads *t = pool(4);
  for (int i = 0; i < 20; i++) {
    record *r = record_new();
    run(t, 4, long_item, r);
    for (int k = 0; k < 4; k++) ck_assert_int_eq(r->done[k], 1);
    free(r);
  }
  dil_threads_free(t);
}
END_TEST

START_TEST(pools_come_and_go) {
  for (int i = 0; i < 100; i++) {
    dil_threads *t = pool(1 + i % 5);
    _Atomic int64_t sum = 0;
    if (i % 2) run(t, 3, add_one, &sum);
    dil_threads_free(t);
  }
  dil_threads_free(NULL);
}
END_TEST

typedef struct thread_host {
  dil_threads *pool;
  record *record;
} thread_host;

static void note_any(void *context, int64_t index, int32_t worker) {
  record *r = context;
  if (atomic_fetch_add(&r->holders[worker], 1) != 0)
    atomic_fetch_add(&r->wrong, 1);
  atomic_fetch_add(&r->done[index], 1);
  atomic_fetch_sub(&r->holders[worker], 1);
}

static void *host_main(void *argument) {
  thread_host *h = argument;
  for (int i = 0; i < 300; i++)
    if (dil_threads_run(h->pool, 10, note_any, h->record))
      atomic_fetch_add(&h->record->wrong, 1);
  return NULL;
}

START_TEST(hosts_share_a_pool) {
  thread_host h = {pool(3), record_new()};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, host_main, &h), 0);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  ck_assert_int_eq(h.record->wrong, 0);
  for (int i = 0; i < 10; i++) ck_assert_int_eq(h.record->done[i], 900);
  dil_threads_free(h.pool);
  free(h.record);
}
END_TEST

/* ---- what a run does to its surroundings --------------------------------- */

static void note_control(void *context, int64_t index, int32_t worker) {
  record *r = context;
  (void)worker;
  if ((_mm_getcsr() & 0x8040) != 0x8040) atomic_fetch_add(&r->wrong, 1);
  if (index < 4) rest(500); /* so that every worker takes part */
}

START_TEST(subnormals_are_flushed_only_within_a_run) {
  unsigned before = _mm_getcsr();
  for (int32_t threads = 1; threads <= 4; threads *= 2) {
    dil_threads *t = pool(threads);
    record *r = record_new();
    run(t, 40, note_control, r);
    ck_assert_int_eq(r->wrong, 0);
    ck_assert_uint_eq(_mm_getcsr() & 0x8040, before & 0x8040);
    free(r);
    dil_threads_free(t);
  }
}
END_TEST

typedef struct nest {
  dil_threads *outer, *inner;
  _Atomic int32_t refused, served;
} nest;

static void run_inside(void *context, int64_t index, int32_t worker) {
  nest *n = context;
  _Atomic int64_t sum = 0;
  (void)index, (void)worker;
  if (dil_threads_run(n->outer, 3, add_one, &sum) == DIL_USAGE)
    atomic_fetch_add(&n->refused, 1);
  if (dil_threads_run(n->inner, 3, add_one, &sum) == DIL_OK && sum == 6)
    atomic_fetch_add(&n->served, 1);
}

START_TEST(a_run_within_itself_is_refused) {
  nest n = {.outer = pool(2), .inner = pool(2)};
  run(n.outer, 20, run_inside, &n);
  ck_assert_int_eq(n.refused, 20);
  ck_assert_int_eq(n.served, 20);
  dil_threads_free(n.outer);
  dil_threads_free(n.inner);
}
END_TEST

static int child_of_fork(dil_threads *t) {
  _Atomic int64_t sum = 0;
  alarm(20);
  if (dil_threads_run(t, 5, add_one, &sum) != DIL_USAGE) return 1;
  if (!strstr(dil_last_error(), "fork") || sum != 0) return 2;
  dil_threads_free(t);
#ifndef __SANITIZE_THREAD__ /* which ends a child that starts threads */
  dil_threads *fresh = dil_threads_new(3);
  if (!fresh || dil_threads_run(fresh, 5, add_one, &sum) || sum != 15)
    return 3;
  dil_threads_free(fresh);
#endif
  return 0;
}

START_TEST(a_forked_child_gets_an_error) {
  dil_threads *t = pool(3);
  _Atomic int64_t sum = 0;
  run(t, 5, add_one, &sum);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) _exit(child_of_fork(t));
  int state;
  ck_assert_int_eq(waitpid(child, &state, 0), child);
  ck_assert_msg(WIFEXITED(state), "the child ended by signal %d",
                WTERMSIG(state));
  ck_assert_int_eq(WEXITSTATUS(state), 0);
  run(t, 5, add_one, &sum);
  ck_assert_int_eq(sum, 30);
  dil_threads_free(t);
}
END_TEST

/* ---- how many ------------------------------------------------------------ */

START_TEST(the_environment_gives_the_count) {
  static const char *const bad[] = {"0", "-1", "x", "4x", "", "5000", " ",
                                    "99999999999999999999", "2.5"};
  setenv("DIL_THREADS", "3", 1);
  dil_threads *t = dil_threads_new(0);
  ck_assert_ptr_nonnull(t);
  ck_assert_int_eq(dil_threads_count(t), 3);
  dil_threads_free(t);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    setenv("DIL_THREADS", bad[i], 1);
    ck_assert_ptr_null(dil_threads_new(0));
    ck_assert_ptr_nonnull(strstr(dil_last_error(), "DIL_THREADS"));
  }
  t = dil_threads_new(2); /* a count that is given does not ask */
  ck_assert_ptr_nonnull(t);
  dil_threads_free(t);
  unsetenv("DIL_THREADS");
  ck_assert_ptr_null(dil_threads_new(-1));
  ck_assert_ptr_null(dil_threads_new(THREADS_MAX + 1));
}
END_TEST

START_TEST(affinity_limits_the_count) {
  cpu_set_t before, one;
  unsetenv("DIL_THREADS");
  ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
  dil_threads *t = dil_threads_new(0);
  ck_assert_int_eq(sched_setaffinity(0, sizeof before, &before), 0);
  ck_assert_ptr_nonnull(t);
  ck_assert_int_eq(dil_threads_count(t), 1);
  dil_threads_free(t);
  ck_assert_int_le(processors_count(), CPU_COUNT(&before));
}
END_TEST

static char folder[] = "/tmp/dil-thread-XXXXXX";
static const char *const group_folders[] = {"/a", "/a/b", "/cpu", "/cpu/g"};

/* Writes text to a file under the made-up /sys/fs/cgroup. */
static const char *put(const char *name, const char *text) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
  return path;
}

static void make_groups(void) {
  char path[128];
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s%s", folder, group_folders[i]);
    ck_assert_int_eq(mkdir(path, 0700), 0);
  }
}

static void drop_groups(void) {
  static const char *const files[] = {
      "cpu.max", "a/cpu.max", "a/b/cpu.max", "cpu/g/cpu.cfs_quota_us",
      "cpu/g/cpu.cfs_period_us", "membership"};
  char path[128];
  for (int i = 0; i < 6; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i]);
    unlink(path);
  }
  for (int i = 4; i-- > 0;) {
    snprintf(path, sizeof path, "%s%s", folder, group_folders[i]);
    rmdir(path);
  }
  rmdir(folder);
}

static int32_t quota(const char *membership) {
  return processors_quota(put("membership", membership), folder);
}

START_TEST(quotas_of_control_groups) {
  ck_assert_ptr_nonnull(mkdtemp(folder));
  make_groups();
  ck_assert_int_eq(quota("0::/a/b\n"), THREADS_MAX);
  put("a/b/cpu.max", "max 100000\n");
  ck_assert_int_eq(quota("0::/a/b\n"), THREADS_MAX);
  put("a/cpu.max", "250000 100000\n");
  ck_assert_int_eq(quota("0::/a/b\n"), 3);
  put("a/b/cpu.max", "50000 100000\n");
  ck_assert_int_eq(quota("0::/a/b\n"), 1);
  ck_assert_int_eq(quota("0::/a\n"), 3);
  put("cpu.max", "200000 100000\n");
  ck_assert_int_eq(quota("0::/not/seen/here\n"), 2);
  put("cpu/g/cpu.cfs_quota_us", "-1\n");
  put("cpu/g/cpu.cfs_period_us", "100000\n");
  ck_assert_int_eq(quota("4:cpuset:/a\n3:cpu,cpuacct:/g\n"), THREADS_MAX);
  put("cpu/g/cpu.cfs_quota_us", "400000\n");
  ck_assert_int_eq(quota("4:cpuset:/a\n3:cpuacct,cpu:/g\n"), 4);
  ck_assert_int_eq(quota("damaged"), THREADS_MAX);
  put("cpu.max", "x y");
  ck_assert_int_eq(quota("0::/\n"), THREADS_MAX);
  ck_assert_int_eq(processors_quota("/nonexistent", folder), THREADS_MAX);
  drop_groups();
}
END_TEST

/* ---- latency, told and not judged ---------------------------------------- */

static double seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void meet(void *context, int64_t index, int32_t worker) {
  (void)index, (void)worker;
  _Atomic int32_t *arrived = context;
  atomic_fetch_add(arrived, 1);
  while (atomic_load(arrived) < 2) _mm_pause();
}

START_TEST(dispatch_latency) {
  if (processors_count() < 2) return;
  dil_threads *t = pool(2);
  double awake = 1, asleep = 1;
  for (int i = 0; i < 400; i++) {
    _Atomic int32_t arrived = 0;
    if (i % 4 == 0) rest(300);
    double start = seconds();
    run(t, 2, meet, &arrived);
    double taken = seconds() - start;
    double *best = i % 4 ? &awake : &asleep;
    if (taken < *best) *best = taken;
  }
  printf("dispatch to a second thread: %.2f us spinning, %.2f us asleep\n",
         awake * 1e6, asleep * 1e6);
  dil_threads_free(t);
}
END_TEST

static Suite *thread_suite(void) {
  Suite *suite = suite_create("thread");
  TCase *work = tcase_create("work"), *around = tcase_create("around");
  TCase *count = tcase_create("count");
  tcase_add_test(work, each_index_is_done_once);
  tcase_add_test(work, work_may_wait_for_lower_indices);
  tcase_add_test(work, many_small_runs);
  tcase_add_test(work, runs_after_rests);
  tcase_add_test(work, the_caller_waits_for_long_items);
  tcase_add_test(work, pools_come_and_go);
  tcase_add_test(work, hosts_share_a_pool);
  tcase_add_test(around, subnormals_are_flushed_only_within_a_run);
  tcase_add_test(around, a_run_within_itself_is_refused);
  tcase_add_test(around, a_forked_child_gets_an_error);
  tcase_add_test(around, dispatch_latency);
  tcase_add_test(count, the_environment_gives_the_count);
  tcase_add_test(count, affinity_limits_the_count);
  tcase_add_test(count, quotas_of_control_groups);
  suite_add_tcase(suite, work);
  suite_add_tcase(suite, around);
  suite_add_tcase(suite, count);
  return suite;
}

int main(void) {
  alarm(300); /* a hang is a failure */
  return suite_run(thread_suite(), CK_NOFORK);
}
