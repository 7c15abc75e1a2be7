/* clock.h - seconds of a clock that only goes forward, and the pace of a wait
 * that looks again and again: at first without sleep, since most messages are
 * there soon. */
#ifndef DIL_RUNTIME_BASE_CLOCK_H
#define DIL_RUNTIME_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline double clock_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void clock_rest(int64_t turns) {
  const struct timespec moment = {0, 50000};
  if (turns > 1000) nanosleep(&moment, NULL);
}

#endif
