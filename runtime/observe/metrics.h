/* metrics.h - counting what happens in this process, for Prometheus.
 *
 * Counters are the process's, always on: one relaxed addition each. What has
 * to be timed is counted while DIL_METRICS=FILE is set. */
#ifndef DIL_RUNTIME_OBSERVE_METRICS_H
#define DIL_RUNTIME_OBSERVE_METRICS_H

#include "runtime/dilrt.h"
#include <stdatomic.h>
#include <stdio.h>

typedef enum metric {
#define METRIC(field, kind, name, labels, help) METRIC_##field,
#include "metrics.def"
  METRIC_COUNT
} metric;

typedef enum histogram {
#define HISTOGRAM(id, name, labels, help) HISTOGRAM_##id,
#include "metrics.def"
  HISTOGRAM_COUNT
} histogram;

#pragma GCC visibility push(default) /* the parts of dil share it */

extern _Atomic int64_t dil_metric_value[METRIC_COUNT];

static inline void metric_add(metric which, int64_t amount) {
  atomic_fetch_add_explicit(&dil_metric_value[which], amount,
                            memory_order_relaxed);
}
static inline void metric_add_seconds(metric which, double seconds) {
  metric_add(which, (int64_t)(seconds * 1e9));
}

/* For a gauge that is the most of something. */
static inline void metric_at_least(metric which, int64_t amount) {
  int64_t now = atomic_load_explicit(&dil_metric_value[which],
                                     memory_order_relaxed);
  while (now < amount &&
         !atomic_compare_exchange_weak(&dil_metric_value[which], &now, amount))
    continue;
}

/* Reads DIL_METRICS, once a process. DIL_USAGE when it cannot be followed. */
dil_status metrics_open(void);
/* Replaces the file, at once; nothing when there is none to write. */
dil_status metrics_write(void);

extern atomic_bool dil_metrics_on;
#define metering()                                                            \
  __builtin_expect(                                                           \
      atomic_load_explicit(&dil_metrics_on, memory_order_relaxed), 0)
/* Adds a time to a histogram; now and then the file is written by it. */
void dil_metrics_observe(histogram which, int64_t nanoseconds);

/* The bytes that a rank received in a step of a ring, how long it waited, and
 * how long the bytes were under way; only while metering. */
void dil_metrics_step(int32_t rank, int32_t step, int64_t bytes, double waited,
                      double moving);
/* metrics_ring.c: their series. */
void metrics_put_steps(FILE *out);

#pragma GCC visibility pop

#endif
