/* spans.c - a span of a GPU's work is the time between two events on a stream.
 *
 * In: work that is put on streams. Out: spans on the host's clock, a line for
 * each stream, written when their events have passed. The origin is an event
 * whose time on the host is known; all other times are counted from it. The
 * driver gives times as floats, which grow coarse, so the origin moves along.
 */
#include "spans.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPANS = 256, CAPTURING = 1, MOVE_MILLISECONDS = 1000 };

typedef struct gpu_span {
  cu_event begin, end;
  bool used, ended;
  const char *name;
  char text[80];
  int64_t pass;
  unsigned long long stream;
} gpu_span;

struct cuda_spans {
  const dil_cuda *device;
  pthread_mutex_t lock;
  cu_event origin;
  int64_t origin_time;     /* by dil_trace_now */
  int32_t next;            /* index of the oldest span, which is used next */
  gpu_span span[SPANS];    /* used in turn */
};

static bool spans_make_events(cuda_spans *s) {
  const cuda_driver *driver = s->device->driver;
  cu_result result = driver->event_new(&s->origin, 0);
  for (int32_t i = 0; i < SPANS && !result; i++) {
    result = driver->event_new(&s->span[i].begin, 0);
    if (!result) result = driver->event_new(&s->span[i].end, 0);
  }
  if (!result) result = driver->event_record(s->origin, NULL);
  if (!result) result = driver->event_wait(s->origin);
  s->origin_time = dil_trace_now();
  return result == 0;
}

static void spans_free_events(cuda_spans *s) {
  const cuda_driver *driver = s->device->driver;
  if (s->origin) driver->event_free(s->origin);
  for (int32_t i = 0; i < SPANS; i++) {
    if (s->span[i].begin) driver->event_free(s->span[i].begin);
    if (s->span[i].end) driver->event_free(s->span[i].end);
  }
}

cuda_spans *spans_new(const dil_cuda *device) {
  cuda_spans *s = tracing() ? calloc(1, sizeof *s) : NULL;
  if (!s) return NULL;
  s->device = device;
  pthread_mutex_init(&s->lock, NULL);
  if (spans_make_events(s)) return s;
  spans_free_events(s);
  pthread_mutex_destroy(&s->lock);
  free(s);
  return NULL;
}

/* ---- writing ------------------------------------------------------------- */

/* The end of this span becomes the origin; the span gets the old origin's
 * event. */
static void spans_move_origin(cuda_spans *s, gpu_span *span, int64_t end) {
  cu_event former = s->origin;
  s->origin = span->end;
  span->end = former;
  s->origin_time = end;
}

/* Writes a span whose events have passed. The caller holds the lock. */
static void spans_write(cuda_spans *s, gpu_span *span) {
  const cuda_driver *driver = s->device->driver;
  float since = 0, took = 0;
  char line[64];
  cu_result result = driver->event_time(&since, s->origin, span->begin);
  if (!result) result = driver->event_time(&took, span->begin, span->end);
  span->used = span->ended = false;
  if (result) return;
  int64_t begin = s->origin_time + (int64_t)(1e6 * (double)since);
  int64_t end = begin + (int64_t)(1e6 * (double)took);
  snprintf(line, sizeof line, "gpu %d stream %llu", (int)s->device->device,
           span->stream);
  dil_trace_add_line(line, begin, end, "gpu", span->name, span->text,
                     span->pass);
  if (since > MOVE_MILLISECONDS) spans_move_origin(s, span, end);
}

/* Writes the spans whose events have passed, from the oldest on. With `all` it
 * waits for the other spans and writes them, too. */
static void spans_write_done(cuda_spans *s, bool all) {
  const cuda_driver *driver = s->device->driver;
  for (int32_t i = 0; i < SPANS; i++) {
    gpu_span *span = &s->span[(s->next + i) % SPANS];
    if (!span->used || !span->ended) continue;
    if (all ? driver->event_wait(span->end) : driver->event_query(span->end))
      continue;
    spans_write(s, span);
  }
}

void spans_free(cuda_spans *s) {
  if (!s) return;
  spans_write_done(s, true);
  spans_free_events(s);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

/* ---- gathering ----------------------------------------------------------- */

/* Work on a captured stream runs later and any number of times, so it has no
 * span. */
static bool spans_is_captured(const dil_cuda *d, void *stream) {
  int capture = 0;
  cu_graph graph = NULL;
  return d->driver->capture(stream, &capture, NULL, &graph, NULL, NULL) ||
         capture == CAPTURING;
}

int32_t spans_begin(cuda_spans *s, void *stream) {
  if (!s || spans_is_captured(s->device, stream)) return -1;
  pthread_mutex_lock(&s->lock);
  int32_t number = s->next;
  gpu_span *span = &s->span[number];
  if (span->used) spans_write_done(s, false);
  if (span->used && span->ended && !s->device->driver->event_wait(span->end))
    spans_write(s, span);
  bool good = !span->used &&
              !s->device->driver->event_record(span->begin, stream);
  span->used |= good;
  if (good) s->next = (number + 1) % SPANS;
  pthread_mutex_unlock(&s->lock);
  return good ? number : -1;
}

void spans_end(cuda_spans *s, int32_t number, void *stream, const char *name,
               const char *text, int64_t pass) {
  if (number < 0) return;
  gpu_span *span = &s->span[number];
  pthread_mutex_lock(&s->lock);
  span->name = name;
  span->pass = pass;
  snprintf(span->text, sizeof span->text, "%s", text);
  s->device->driver->stream_number(stream, &span->stream);
  span->ended = !s->device->driver->event_record(span->end, stream);
  span->used = span->ended;
  pthread_mutex_unlock(&s->lock);
}
