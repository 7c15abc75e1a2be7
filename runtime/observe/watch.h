/* watch.h - how far a call is, for a thread that looks on while others run it. */
#ifndef DIL_RUNTIME_OBSERVE_WATCH_H
#define DIL_RUNTIME_OBSERVE_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

/* Query rows of all passes, about, and how many of them are done. The total is
 * 0 until the call has begun, and always where a device does not say. */
typedef struct dil_watch {
  _Atomic int64_t total, done;
} dil_watch;

static inline void watch_add(dil_watch *w, int64_t count) {
  if (w) atomic_fetch_add_explicit(&w->done, count, memory_order_relaxed);
}

#endif
