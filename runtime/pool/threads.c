/* threads.c - a persistent pool of threads that share numbered work.
 *
 * In: a count and a function of an index. Out: each index done once, handed
 * out in rising order by one atomic counter. A thread that has nothing to do
 * spins for a moment, then sleeps in the kernel; a run waits only for threads
 * that took part in it, so a small run never waits for a sleeper. */
#include "threads.h"
#include "runtime/arch.h"
#include "runtime/base/process.h"
#include "runtime/base/processors.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  SPIN_NANOSECONDS = 50000, /* a wake-up costs about half of that */
  CACHE_LINE = 64
};
#define GATE_OPEN 0x80000000u

typedef struct worker {
  dil_threads *pool;
  pthread_t thread;
  int32_t index;
} worker;

struct dil_threads {
  int32_t count;   /* threads, the caller included */
  int32_t started; /* workers that exist: at most count - 1 */
  pid_t process;   /* threads do not survive a fork */
  int64_t spin;    /* nanoseconds before a sleep */
  dil_parallel_hook parallel; /* NULL: own workers */
  void *parallel_user;
  pthread_mutex_t run;

  /* The run: written while the gate is shut and nobody is inside. */
  void (*work)(void *context, int64_t index, int32_t worker);
  void *context;
  int64_t total;

  /* GATE_OPEN while workers may enter, plus how many are inside. */
  _Alignas(CACHE_LINE) _Atomic uint32_t gate;
  _Atomic bool caller_sleeps;     /* on gate */
  /* Changes at every run and at the end; workers sleep on it. */
  _Alignas(CACHE_LINE) _Atomic uint32_t generation;
  _Atomic int32_t sleepers;
  _Atomic bool stop;
  _Alignas(CACHE_LINE) _Atomic int64_t next; /* index to hand out */
  _Alignas(CACHE_LINE) worker workers[];
};

/* The pool whose work this thread is doing: a run inside of it would wait for
 * itself. */
static _Thread_local const dil_threads *busy_with;

/* ---- waiting ------------------------------------------------------------- */

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int32_t count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static int64_t nanoseconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Waits a while for the word to change from `value`; true when it did. */
static bool spin_until_changed(const dil_threads *t, _Atomic uint32_t *word,
                               uint32_t value) {
  if (atomic_load(word) != value) return true;
  if (t->spin == 0) return false;
  int64_t end = nanoseconds_now() + t->spin;
  do {
    for (int i = 0; i < 32; i++) {
      if (atomic_load_explicit(word, memory_order_acquire) != value)
        return true;
      dil_host_arch.pause();
    }
  } while (nanoseconds_now() < end);
  return false;
}

/* ---- taking part --------------------------------------------------------- */

static void take_part(dil_threads *t, int32_t index) {
  const dil_threads *outer = busy_with;
  int64_t begin = trace_begin(), done = 0;
  busy_with = t;
  for (int64_t next; (next = atomic_fetch_add(&t->next, 1)) < t->total; done++)
    t->work(t->context, next, index);
  busy_with = outer;
  trace_end(begin, "thread", "items of work", NULL, done);
}

static bool gate_enter(dil_threads *t) {
  uint32_t gate = atomic_load(&t->gate);
  while (gate & GATE_OPEN)
    if (atomic_compare_exchange_weak(&t->gate, &gate, gate + 1)) return true;
  return false;
}

static void gate_leave(dil_threads *t) {
  if (atomic_fetch_sub(&t->gate, 1) == 1 && atomic_load(&t->caller_sleeps))
    futex_wake(&t->gate, 1);
}

/* Shuts the gate and waits until nobody is inside. */
static void gate_shut(dil_threads *t) {
  uint32_t gate = atomic_fetch_and(&t->gate, ~GATE_OPEN) & ~GATE_OPEN;
  while (gate != 0) {
    if (!spin_until_changed(t, &t->gate, gate)) {
      atomic_store(&t->caller_sleeps, true);
      /* The last to leave either is seen here or sees the flag. */
      if (atomic_load(&t->gate) == gate) futex_wait(&t->gate, gate);
      atomic_store(&t->caller_sleeps, false);
    }
    gate = atomic_load(&t->gate);
  }
}

static void wait_for_generation(dil_threads *t, uint32_t seen) {
  if (spin_until_changed(t, &t->generation, seen)) return;
  atomic_fetch_add(&t->sleepers, 1);
  while (atomic_load(&t->generation) == seen)
    futex_wait(&t->generation, seen);
  atomic_fetch_sub(&t->sleepers, 1);
}

static void *worker_main(void *argument) {
  worker *w = argument;
  dil_threads *t = w->pool;
  uint32_t seen = 0;
  char name[16];
  snprintf(name, sizeof name, "dil-%d", (int)w->index);
  pthread_setname_np(pthread_self(), name);
  dil_trace_name_thread(name);
  dil_host_arch.flush_subnormals();
  for (;;) {
    wait_for_generation(t, seen);
    seen = atomic_load(&t->generation);
    if (atomic_load(&t->stop)) return NULL;
    if (!gate_enter(t)) continue;
    take_part(t, w->index);
    gate_leave(t);
  }
}

/* ---- a run --------------------------------------------------------------- */

static void wake_workers(dil_threads *t, int64_t wanted) {
  atomic_fetch_add(&t->generation, 1);
  int32_t sleepers = atomic_load(&t->sleepers);
  if (sleepers > 0 && wanted > 0)
    futex_wake(&t->generation, wanted < sleepers ? (int32_t)wanted : sleepers);
}

static void run_locked(dil_threads *t, int64_t count) {
  t->total = count;
  atomic_store(&t->next, 0);
  bool shared = t->started > 0 && count > 1;
  if (shared) {
    atomic_store(&t->gate, GATE_OPEN);
    wake_workers(t, count - 1);
  }
  take_part(t, 0);
  if (shared) gate_shut(t);
}

/* The work that the host runs on threads of its own. */
static void hosted_task(void *context, int32_t index) {
  dil_threads *t = context;
  uint32_t mode = dil_host_arch.flush_subnormals();
  dil_call_begin();
  take_part(t, index);
  dil_call_end(DIL_OK);
  dil_host_arch.restore_mode(mode);
  atomic_fetch_sub(&t->gate, 1);
}

/* The gate counts the tasks that are not done. */
static dil_status run_hosted(dil_threads *t, int64_t count) {
  int32_t tasks = count < t->count ? (int32_t)count : t->count;
  t->total = count;
  atomic_store(&t->next, 0);
  atomic_store(&t->gate, (uint32_t)tasks);
  t->parallel(t->parallel_user, tasks, hosted_task, t);
  if (atomic_load(&t->gate) == 0) return DIL_OK;
  return dil_fail(DIL_USAGE, "the host's parallel hook returned with %u of %d "
                  "tasks not done", atomic_load(&t->gate), (int)tasks);
}

/* Items of work inside of an item, in the mode that the outer one set. */
static void run_alone(int64_t count,
                      void (*work)(void *context, int64_t index,
                                   int32_t worker),
                      void *context) {
  for (int64_t index = 0; index < count; index++) work(context, index, 0);
}

dil_status dil_threads_run(dil_threads *t, int64_t count,
                           void (*work)(void *context, int64_t index,
                                        int32_t worker),
                           void *context) {
  if (!t) {
    run_alone(count, work, context);
    return DIL_OK;
  }
  if (t->process != process_own())
    return dil_fail(DIL_USAGE, "this pool of threads was made before a fork; "
                    "make a new one in the child");
  if (busy_with == t)
    return dil_fail(DIL_USAGE, "a work item runs its own pool of threads");
  if (count <= 0) return DIL_OK;
  pthread_mutex_lock(&t->run);
  uint32_t mode = dil_host_arch.flush_subnormals();
  t->work = work;
  t->context = context;
  dil_status status = DIL_OK;
  if (t->parallel) status = run_hosted(t, count);
  else run_locked(t, count);
  dil_host_arch.restore_mode(mode);
  pthread_mutex_unlock(&t->run);
  return status;
}

/* ---- the pool ------------------------------------------------------------ */

static void stop_workers(dil_threads *t) {
  atomic_store(&t->stop, true);
  wake_workers(t, THREADS_MAX);
  for (int32_t i = 0; i < t->started; i++)
    pthread_join(t->workers[i].thread, NULL);
}

/* Workers take no signals: those are for the host's own threads. */
static dil_status start_workers(dil_threads *t) {
  sigset_t all, before;
  int error = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (!error && t->started < t->count - 1) {
    worker *w = &t->workers[t->started];
    w->pool = t;
    w->index = t->started + 1;
    error = pthread_create(&w->thread, NULL, worker_main, w);
    if (!error) t->started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "cannot start thread %d of %d: %s",
                  (int)t->started + 2, (int)t->count, strerror(error));
}

/* A pool without workers yet. */
static dil_threads *make_pool(int32_t asked) {
  int32_t count;
  if (processors_choose(asked, &count)) return NULL;
  size_t size = sizeof(dil_threads) + (size_t)count * sizeof(worker);
  size = (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
  dil_threads *t = aligned_alloc(CACHE_LINE, size);
  if (!t) {
    dil_fail(DIL_MEMORY, "no memory for %d threads", (int)count);
    return NULL;
  }
  memset(t, 0, size);
  t->count = count;
  t->process = process_own();
  /* Spinning where threads outnumber processors takes time from the work. */
  t->spin = count <= processors_count() ? SPIN_NANOSECONDS : 0;
  pthread_mutex_init(&t->run, NULL);
  return t;
}

dil_threads *dil_threads_new(int32_t asked) {
  dil_threads *t = make_pool(asked);
  if (!t || !start_workers(t)) return t;
  dil_threads_free(t);
  return NULL;
}

dil_threads *dil_threads_hosted(int32_t asked, dil_parallel_hook parallel,
                                void *user) {
  dil_threads *t = make_pool(asked);
  if (!t) return NULL;
  t->parallel = parallel;
  t->parallel_user = user;
  return t;
}

void dil_threads_free(dil_threads *t) {
  if (!t) return;
  if (t->process == process_own()) {
    stop_workers(t);
    pthread_mutex_destroy(&t->run);
  }
  free(t);
}

int32_t dil_threads_count(const dil_threads *t) {
  return t ? t->count : 1;
}
