/* stream.c - streams, events, and when their work is done. In: EMULATED_ORDER:
 *
 *   now      at once, as it is given (when nothing says otherwise)
 *   late     when somebody waits for it, and only what must come before: what
 *            waits for too little then finds that nothing has happened yet
 *   random   whenever the driver is called, some of any stream (EMULATED_SEED)
 *
 * Out: work that is run in an order which the streams and events allow. */
#include "driver.h"
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS_MOST = 16384 };

struct cu_stream {
  int device;
  bool blocking;           /* waits for the default stream, which waits for it */
  bool gone;
  uint64_t given, done;    /* pieces of work */
  work *first, **last;
  bool running;            /* it is being run, further up */
};
struct cu_event {
  cu_stream stream;        /* NULL: never recorded */
  uint64_t at;             /* how much of the stream's work it stands behind */
  int device, asked;
  double time;
};

/* Those of each device first: its default stream. They are never freed, so
 * that what is left of them is done, and a handle means one stream. */
static cu_stream streams[STREAMS_MOST];
static int count;

/* ---- orders ------------------------------------------------------------------- */

enum { NOW, LATE, RANDOM };

static int order(void) {
  static int known = -1;
  const char *text = getenv("EMULATED_ORDER");
  if (known < 0)
    known = !text || !strcmp(text, "now") ? NOW
            : !strcmp(text, "late")       ? LATE
                                          : RANDOM;
  return known;
}

static uint32_t chance(void) {
  static uint32_t state;
  if (!state) state = (uint32_t)wish("EMULATED_SEED", 1) * 2654435761u + 1;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

/* ---- running -------------------------------------------------------------------- */

static void run_first(cu_stream s) {
  work *w = s->first;
  s->first = w->next;
  if (!s->first) s->last = &s->first;
  if (!driver_broken()) {
    memory_open();
    w->run(w);
    if (!driver_broken() && !memory_intact()) driver_break(memory_problem());
    memory_close();
  }
  if (w->drop) w->drop(w);
  free(w);
  s->done++;
}

static bool is_ready(work *w) {
  return driver_broken() || !w->ready || w->ready(w);
}

static void run_until(cu_stream s, uint64_t at) {
  if (s->running) return; /* a wait for its own past */
  s->running = true;
  while (s->done < at && s->first && is_ready(s->first)) run_first(s);
  s->running = false;
}

/* The same, for who does not go on before: others bring what is missing. */
static void finish_until(cu_stream s, uint64_t at) {
  const struct timespec moment = {0, 50000};
  for (run_until(s, at); s->done < at && !s->running; run_until(s, at)) {
    driver_unlock();
    nanosleep(&moment, NULL);
    driver_lock();
  }
}

void work_push(work *w) { run_until(w->stream, w->at); }

static void run_some(void) {
  for (uint32_t n = chance() % 4; n && count; n--) {
    cu_stream s = streams[chance() % (uint32_t)count];
    run_until(s, s->done + chance() % 3);
  }
}

/* ---- streams ---------------------------------------------------------------------- */

static cu_stream stream_make(int device, bool blocking) {
  if (count == STREAMS_MOST) return NULL;
  cu_stream s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->device = device;
  s->blocking = blocking;
  s->last = &s->first;
  return streams[count++] = s;
}

static cu_stream stream_default(int device) {
  for (int i = 0; i < count && i <= device; i++)
    if (i == device) return streams[i];
  while (count <= device) stream_make(count, true);
  return streams[device];
}

/* What a handle means: NULL is the default stream of the current device, and so
 * are the two that have names. */
static cu_stream stream_of(cu_stream handle, cu_result *result) {
  int device = device_now();
  *result = driver_broken();
  if (device < 0) *result = INVALID_CONTEXT;
  if (*result) return NULL;
  stream_default(device_count() - 1);
  if ((uintptr_t)handle <= 2) return stream_default(device);
  if (!handle->gone) return handle;
  *result = driver_refuse(INVALID_HANDLE, "the stream is gone");
  return NULL;
}

static bool is_default(const struct cu_stream *s) {
  return s == streams[s->device];
}

work *work_new(size_t size, void (*run)(work *)) {
  size_t bytes = (sizeof(work) + size + 63) / 64 * 64;
  work *w = aligned_alloc(64, bytes);
  if (!w) abort();
  memset(w, 0, bytes);
  w->run = run;
  return w;
}

static void append(cu_stream s, work *w) {
  w->next = NULL;
  w->device = s->device;
  w->stream = s;
  w->at = ++s->given;
  *s->last = w;
  s->last = &w->next;
}

typedef struct wait_for {
  cu_stream stream;
  uint64_t at;
} wait_for;

static bool is_over(work *w) {
  const wait_for *x = (const wait_for *)(const void *)w->data;
  run_until(x->stream, x->at);
  return x->stream->done >= x->at;
}

static void run_nothing(work *w) { (void)w; }

static void append_wait(cu_stream s, cu_stream other, uint64_t at) {
  if (other == s || other->done >= at) return;
  work *w = work_new(sizeof(wait_for), run_nothing);
  w->ready = is_over;
  *(wait_for *)(void *)w->data = (wait_for){other, at};
  append(s, w);
}

/* The default stream follows all blocking ones, and they follow it. */
static void append_default_waits(cu_stream s) {
  if (!s->blocking) return;
  if (!is_default(s)) {
    append_wait(s, streams[s->device], streams[s->device]->given);
    return;
  }
  for (int i = 0; i < count; i++)
    if (streams[i]->device == s->device && streams[i]->blocking)
      append_wait(s, streams[i], streams[i]->given);
}

static void keep_order(cu_stream s) {
  if (order() == NOW) run_until(s, s->given);
  if (order() == RANDOM) run_some();
}

cu_result work_put(cu_stream stream, work *w) {
  cu_result result;
  cu_stream s = stream_of(stream, &result);
  if (s && s->device != device_now())
    result = driver_refuse(INVALID_HANDLE, "the stream belongs to another "
                           "device than the context");
  if (result) {
    if (w->drop) w->drop(w);
    free(w);
    return result;
  }
  append_default_waits(s);
  append(s, w);
  keep_order(s);
  return driver_broken();
}

cu_result stream_finish(cu_stream stream) {
  cu_result result;
  cu_stream s = stream_of(stream, &result);
  if (!s) return result;
  append_default_waits(s);
  finish_until(s, s->given);
  return driver_broken();
}

void streams_finish(int device) {
  for (int i = 0; i < count; i++)
    if (device < 0 || streams[i]->device == device)
      finish_until(streams[i], streams[i]->given);
}

/* ---- the driver's functions: streams ------------------------------------------------ */

CUDA(cuStreamCreateWithPriority, cu_stream *stream, unsigned flags,
     int priority) {
  (void)priority;
  if (device_now() < 0) return INVALID_CONTEXT;
  driver_lock();
  stream_default(device_count() - 1);
  *stream = stream_make(device_now(), !(flags & 1));
  driver_unlock();
  return *stream ? 0 : OUT_OF_MEMORY;
}
CUDA(cuStreamCreate, cu_stream *stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}
CUDA(cuStreamDestroy_v2, cu_stream stream) {
  return stream->gone = true, 0;
}
CUDA(cuStreamSynchronize, cu_stream stream) { LOCKED(stream_finish(stream)); }

CUDA(cuStreamGetId, cu_stream stream, unsigned long long *number) {
  cu_result result;
  driver_lock();
  cu_stream s = stream_of(stream, &result);
  for (int i = 0; s && i < count; i++)
    if (streams[i] == s) *number = (unsigned long long)i + 1;
  driver_unlock();
  return result;
}

/* Asking often makes it so. A host that asks while another rank has still to come
 * gives it the processor. */
static cu_result query(cu_stream s, uint64_t at, int *asked) {
  enum { PATIENCE = 3 };
  const struct timespec moment = {0, 50000};
  uint64_t before = s->done;
  if (before >= at) return 0;
  if (order() == RANDOM) run_some();
  if (s->done < at && ++*asked > PATIENCE) run_until(s, s->done + 1);
  if (s->done == before && *asked > PATIENCE) {
    driver_unlock();
    nanosleep(&moment, NULL);
    driver_lock();
  }
  return s->done >= at ? driver_broken() : NOT_READY;
}

CUDA(cuStreamQuery, cu_stream stream) {
  static int asked;
  cu_result result;
  driver_lock();
  cu_stream s = stream_of(stream, &result);
  if (s) result = query(s, s->given, &asked);
  driver_unlock();
  return result;
}

static cu_result finish_device(void) {
  if (device_now() < 0) return INVALID_CONTEXT;
  streams_finish(device_now());
  return driver_broken();
}
CUDA(cuCtxSynchronize, void) { LOCKED(finish_device()); }

/* ---- the driver's functions: events --------------------------------------------------- */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void run_record(work *w) {
  cu_event e;
  memcpy(&e, w->data, sizeof e);
  e->time = now();
}

CUDA(cuEventCreate, cu_event *event, unsigned flags) {
  (void)flags;
  if (device_now() < 0) return INVALID_CONTEXT;
  *event = calloc(1, sizeof **event);
  if (!*event) return OUT_OF_MEMORY;
  (*event)->device = device_now();
  return 0;
}
/* Work may still name it: it is left. */
CUDA(cuEventDestroy_v2, cu_event event) {
  (void)event;
  return 0;
}

static cu_result record(cu_event event, cu_stream stream) {
  cu_result result;
  cu_stream s = stream_of(stream, &result);
  if (!s) return result;
  if (s->device != event->device)
    return driver_refuse(INVALID_HANDLE, "the event belongs to another device "
                         "than the stream");
  work *w = work_new(sizeof event, run_record);
  memcpy(w->data, &event, sizeof event);
  append_default_waits(s);
  append(s, w);
  event->stream = s;
  event->at = s->given;
  event->asked = 0;
  keep_order(s);
  return driver_broken();
}
CUDA(cuEventRecord, cu_event event, cu_stream stream) {
  LOCKED(record(event, stream));
}

static cu_result wait_event(cu_event event) {
  if (event->stream) finish_until(event->stream, event->at);
  return driver_broken();
}
CUDA(cuEventSynchronize, cu_event event) { LOCKED(wait_event(event)); }

static cu_result query_event(cu_event event) {
  if (!event->stream) return driver_broken();
  return query(event->stream, event->at, &event->asked);
}
CUDA(cuEventQuery, cu_event event) { LOCKED(query_event(event)); }

static cu_result stream_wait(cu_stream stream, cu_event event) {
  cu_result result;
  cu_stream s = stream_of(stream, &result);
  if (!s || !event->stream) return result;
  append_wait(s, event->stream, event->at);
  keep_order(s);
  return driver_broken();
}
CUDA(cuStreamWaitEvent, cu_stream stream, cu_event event, unsigned flags) {
  (void)flags;
  LOCKED(stream_wait(stream, event));
}

static cu_result elapsed(float *milliseconds, cu_event from, cu_event to) {
  const cu_event both[] = {from, to};
  for (int i = 0; i < 2; i++) {
    if (!both[i]->stream)
      return driver_refuse(INVALID_HANDLE, "the event was never recorded");
    if (both[i]->stream->done < both[i]->at) return NOT_READY;
  }
  *milliseconds = (float)(to->time - from->time) + 1e-3f;
  return driver_broken();
}
CUDA(cuEventElapsedTime, float *milliseconds, cu_event from, cu_event to) {
  LOCKED(elapsed(milliseconds, from, to));
}

/* ---- the driver's functions: the host's own work ---------------------------------------- */

typedef struct stream_host_call {
  void (*function)(void *);
  void *user;
} stream_host_call;

static void run_host(work *w) {
  const stream_host_call *h = (const stream_host_call *)(const void *)w->data;
  h->function(h->user);
}

CUDA(cuLaunchHostFunc, cu_stream stream, void (*function)(void *),
     void *user) {
  work *w = work_new(sizeof(stream_host_call), run_host);
  *(stream_host_call *)(void *)w->data = (stream_host_call){function, user};
  LOCKED(work_put(stream, w));
}

/* Nothing is captured here. */
CUDA(cuStreamGetCaptureInfo_v2, cu_stream stream, int *status,
     unsigned long long *number, void **graph, const void **nodes,
     size_t *nodes_count) {
  (void)stream, (void)number, (void)graph, (void)nodes, (void)nodes_count;
  return *status = 0, 0;
}
CUDA(cuThreadExchangeStreamCaptureMode, int *mode) {
  (void)mode;
  return 0;
}
CUDA(cuStreamIsCapturing, cu_stream stream, int *status) {
  (void)stream;
  return *status = 0, 0;
}
