/* progress.c - a line on standard error for work that takes long: a bar where
 * it is known how much there is, the time that has passed where it is not. It
 * is drawn on a terminal only, by a thread of its own that looks at a counter;
 * whoever works adds to the counter and never waits. In a pipe it is silent. */
#include "command.h"
#include <signal.h>
#include <unistd.h>

enum { BAR_WIDTH = 32, FIRST_MS = 500, EVERY_MS = 100 };

/* The work that was begun last: a run within a series of runs has the line. */
static _Atomic(progress *) innermost;

/* Of all rounds; negative: nobody knows. */
static double share_of(const progress *p) {
  int64_t total = atomic_load(&p->watch.total);
  int64_t done = atomic_load(&p->watch.done);
  double round = total > 0 ? (double)done / (double)total : 0;
  if (total <= 0 && p->rounds == 1) return -1;
  double share = ((double)atomic_load(&p->round) + round) / p->rounds;
  return share > 1 ? 1 : share;
}

static void draw_progress(const progress *p, double seconds) {
  double share = share_of(p);
  char bar[BAR_WIDTH + 1] = {0};
  if (share < 0) {
    fprintf(stderr, "\r%s, %.0f s\033[K", p->label, seconds);
    return;
  }
  for (int i = 0; i < BAR_WIDTH; i++)
    bar[i] = i < (int)(share * BAR_WIDTH) ? '#' : '.';
  fprintf(stderr, "\r%s [%s] %3.0f %%", p->label, bar, 100 * share);
  if (share > 0)
    fprintf(stderr, ", %.0f s left", seconds * (1 - share) / share);
  fputs("\033[K", stderr);
}

/* Until the work ends, at steady moments. */
static void *watch_progress(void *argument) {
  progress *p = argument;
  struct timespec until = p->began;
  int64_t wait = FIRST_MS;
  pthread_mutex_lock(&p->lock);
  while (!p->ended) {
    until.tv_nsec += wait * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!p->ended && !pthread_cond_timedwait(&p->end, &p->lock, &until))
      continue;
    wait = EVERY_MS;
    if (p->ended || atomic_load(&innermost) != p) continue;
    draw_progress(p, message_clock() - p->start);
    fflush(stderr);
    p->drawn = true;
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* Signals are for the threads that work. */
static bool start_progress_thread(progress *p) {
  sigset_t all, before;
  pthread_condattr_t steady;
  clock_gettime(CLOCK_MONOTONIC, &p->began);
  pthread_mutex_init(&p->lock, NULL);
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_cond_init(&p->end, &steady);
  pthread_condattr_destroy(&steady);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = !pthread_create(&p->thread, NULL, watch_progress, p);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

void progress_start(progress *p, const char *label, int64_t total,
                    int32_t rounds) {
  *p = (progress){.label = label, .rounds = rounds, .start = message_clock()};
  atomic_init(&p->watch.total, total);
  p->outer = atomic_load(&innermost);
  atomic_store(&innermost, p);
  p->shown = isatty(STDERR_FILENO) && start_progress_thread(p);
}

void progress_add(progress *p, int64_t count) {
  watch_add(&p->watch, count);
}

void progress_round(progress *p) {
  atomic_store(&p->watch.done, 0);
  atomic_fetch_add(&p->round, 1);
}

static void end_progress_thread(progress *p) {
  pthread_mutex_lock(&p->lock);
  p->ended = true;
  pthread_cond_signal(&p->end);
  pthread_mutex_unlock(&p->lock);
  pthread_join(p->thread, NULL);
  pthread_cond_destroy(&p->end);
  pthread_mutex_destroy(&p->lock);
  if (p->drawn) fputs("\r\033[K", stderr);
}

/* The line is empty before the outer work has it again, which would else be wiped. */
void progress_end(progress *p) {
  if (p->shown) end_progress_thread(p);
  atomic_store(&innermost, p->outer);
}
