/* metrics.c - the numbers of metrics.def as Prometheus text (exposition format
 * 0.0.4). In: additions from any thread. Out: a file that is written aside and
 * renamed, so that a collector never sees a part of it. */
#include "metrics.h"
#include "log.h"
#include "trace.h"
#include "runtime/base/environment.h"
#include "runtime/base/file_limit.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
  BUCKETS = 8,          /* 1 us .. 10 s, each ten times the one before */
  EACH_SECONDS = 10     /* at least between two writings on the way */
};

_Atomic int64_t dil_metric_value[METRIC_COUNT];
atomic_bool dil_metrics_on;

typedef enum metric_kind { KIND_COUNTER, KIND_GAUGE, KIND_SECONDS } metric_kind;

typedef struct row {
  const char *name, *labels, *help;
  metric_kind kind;
} row;

static const row rows[METRIC_COUNT] = {
#define METRIC(field, kind, name, labels, help) \
  {name, labels, help, KIND_##kind},
#include "metrics.def"
};

static const row histograms[HISTOGRAM_COUNT] = {
#define HISTOGRAM(id, name, labels, help) {name, labels, help, KIND_SECONDS},
#include "metrics.def"
};

static struct {
  _Atomic int64_t bucket[BUCKETS]; /* each by itself; the rest is above all */
  _Atomic int64_t count, nanoseconds;
} observed[HISTOGRAM_COUNT];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dil_status opened;
static char path[PATH_MAX], reason[512];
static _Atomic int64_t written;    /* when, by dil_trace_now */

/* ---- opening ------------------------------------------------------------- */

static void metrics_open_once(void) {
  const char *text = environment_text("DIL_METRICS");
  if (!text) return;
  opened = environment_path("DIL_METRICS", text, path, sizeof path);
  if (opened) snprintf(reason, sizeof reason, "%s", dil_last_error());
  atomic_store(&written, dil_trace_now());
  atomic_store(&dil_metrics_on, !opened);
}

dil_status metrics_open(void) {
  pthread_once(&once, metrics_open_once);
  return opened ? dil_fail(opened, "%s", reason) : DIL_OK;
}

/* ---- counting ------------------------------------------------------------ */

void dil_metrics_observe(histogram which, int64_t nanoseconds) {
  int32_t bucket = 0;
  for (int64_t bound = 1000; nanoseconds > bound && bucket < BUCKETS;
       bound *= 10)
    bucket++;
  if (bucket < BUCKETS) atomic_fetch_add(&observed[which].bucket[bucket], 1);
  atomic_fetch_add(&observed[which].nanoseconds, nanoseconds);
  atomic_fetch_add(&observed[which].count, 1);
  int64_t now = dil_trace_now(), last = atomic_load(&written);
  if (now - last > EACH_SECONDS * INT64_C(1000000000) &&
      atomic_compare_exchange_strong(&written, &last, now) && metrics_write())
    LOG(NULL, DIL_LOG_WARNING, "%s", dil_last_error());
}

/* ---- writing ------------------------------------------------------------- */

static void put_heading(FILE *out, const row *r, const char *type) {
  fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", r->name, r->help, r->name, type);
}

static void metrics_put_value(FILE *out, const row *r, int64_t value) {
  bool labels = *r->labels != 0;
  fprintf(out, "%s%s%s%s ", r->name, labels ? "{" : "", r->labels,
          labels ? "}" : "");
  if (r->kind == KIND_SECONDS) fprintf(out, "%.9f\n", (double)value * 1e-9);
  else fprintf(out, "%lld\n", (long long)value);
}

static void put_histogram(FILE *out, histogram which) {
  const row *r = &histograms[which];
  int64_t sum = 0, count = atomic_load(&observed[which].count);
  double bound = 1e-6;
  for (int32_t b = 0; b < BUCKETS; b++, bound *= 10) {
    sum += atomic_load(&observed[which].bucket[b]);
    fprintf(out, "%s_bucket{%s,le=\"%g\"} %lld\n", r->name, r->labels, bound,
            (long long)sum);
  }
  fprintf(out, "%s_bucket{%s,le=\"+Inf\"} %lld\n", r->name, r->labels,
          (long long)(count > sum ? count : sum));
  fprintf(out, "%s_sum{%s} %.9f\n", r->name, r->labels,
          (double)atomic_load(&observed[which].nanoseconds) * 1e-9);
  fprintf(out, "%s_count{%s} %lld\n", r->name, r->labels,
          (long long)(count > sum ? count : sum));
}

static void measure_process(void) {
  struct rusage used;
  if (!getrusage(RUSAGE_SELF, &used))
    metric_at_least(METRIC_process_peak_bytes, used.ru_maxrss * 1024);
}

static void metrics_put_all(FILE *out) {
  measure_process();
  fputs("# HELP dil_build_info The version of dil.\n"
        "# TYPE dil_build_info gauge\n"
        "dil_build_info{version=\"" DIL_VERSION "\"} 1\n",
        out);
  for (int32_t i = 0; i < METRIC_COUNT; i++) {
    if (i == 0 || strcmp(rows[i].name, rows[i - 1].name))
      put_heading(out, &rows[i],
                  rows[i].kind == KIND_GAUGE ? "gauge" : "counter");
    metrics_put_value(out, &rows[i], atomic_load(&dil_metric_value[i]));
  }
  for (int32_t i = 0; i < HISTOGRAM_COUNT; i++) {
    if (i == 0 || strcmp(histograms[i].name, histograms[i - 1].name))
      put_heading(out, &histograms[i], "histogram");
    put_histogram(out, (histogram)i);
  }
  metrics_put_steps(out);
}

/* Ends the stream in any case. */
static bool metrics_put_file(FILE *out) {
  file_limit limit;
  file_limit_begin(&limit);
  metrics_put_all(out);
  bool bad = fflush(out) || ferror(out);
  bad |= fclose(out) != 0;
  file_limit_end(&limit);
  return !bad;
}

static dil_status cannot_write(void) {
  return dil_fail(DIL_ENVIRONMENT, "cannot write the metrics '%s': %s", path,
                  strerror(errno));
}

dil_status metrics_write(void) {
  static atomic_uint number;
  char aside[PATH_MAX + 32];
  if (!metering()) return DIL_OK;
  snprintf(aside, sizeof aside, "%s.%ld-%u", path, (long)getpid(),
           atomic_fetch_add(&number, 1));
  int file = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  FILE *out = file < 0 ? NULL : fdopen(file, "w");
  if (!out) {
    dil_status status = cannot_write();
    if (file >= 0) close(file);
    return status;
  }
  if (metrics_put_file(out) && !rename(aside, path)) return DIL_OK;
  dil_status status = cannot_write();
  unlink(aside);
  return status;
}
