/* stream.c - the run of a streamed call: a thread brings chunks in the order of
 * a walk, this one computes on them. See stream.h.
 *
 * A chunk's buffer is given to the passes when it is full, and back when they
 * are done with it; the order in between is that of a short queue. */
#include "stream.h"
#include "metrics.h"
#include "trace.h"
#include "walk.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { QUEUE = 4 };

/* One of two buffers, of keys or of queries. */
typedef struct buffer {
  void *memory[2];         /* q, or k and v */
  int32_t uses;            /* times it waits in the queue, or is computed on */
} buffer;

typedef struct arrival {
  bool keys;
  int32_t slot;
  int64_t batch, batches, M, first;
  dil_comb rows;
} arrival;

typedef struct stream_work {
  dil_stream *stream;
  ring_device *device;
  buffer buffer[2][2];     /* queries, keys */
  float *o_state, *lse_state;
  void *o;                 /* of a chunk; NULL: the call's own place will do */
  arrival queries;         /* that are being computed */
  bool open;
  pthread_t loader;
  pthread_mutex_t lock;    /* of what follows, and of uses */
  pthread_cond_t changed;
  arrival queue[QUEUE];
  int64_t put, taken;
  bool ended, stop;        /* nothing more comes; nothing more is wanted */
  dil_status status;       /* of the loader */
  char why[256];
} stream_work;

static double clock_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- views --------------------------------------------------------------- */

/* Batch rows and rows of an array, whose rows are its second axis. */
static dil_tensor view(const dil_tensor *t, int64_t batch, int64_t batches,
                       int64_t first, int64_t rows_here) {
  dil_tensor part = *t;
  int64_t at = batch * t->stride[0] + first * t->stride[1];
  part.data = (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
  part.shape[0] = batches;
  part.shape[1] = rows_here;
  return part;
}

static dil_tensor view_lse(const dil_tensor *t, const arrival *a) {
  dil_tensor part = *t;
  if (!t->data) return part;
  part.data = (float *)t->data + a->batch * t->stride[0] +
              a->first * t->stride[2];
  part.shape[0] = a->batches;
  part.shape[2] = a->rows.count;
  return part;
}

static dil_tensor chunk(void *memory, const dil_table *t, int64_t batches,
                        int64_t rows_here, int32_t heads, int32_t width) {
  const int64_t shape_of[] = {batches, rows_here, heads, width};
  return dil_tensor_make(memory, t->dtype, 4, shape_of);
}

/* ---- bringing ------------------------------------------------------------ */

/* Waits until the passes are done with a buffer; false: nobody wants it. */
static bool claim_buffer(stream_work *w, const buffer *b) {
  pthread_mutex_lock(&w->lock);
  while (b->uses && !w->stop) pthread_cond_wait(&w->changed, &w->lock);
  bool wanted = !w->stop;
  pthread_mutex_unlock(&w->lock);
  return wanted;
}

static dil_status load_queries(stream_work *w, const stream_job *j) {
  const dil_table *t = w->stream->shape.table;
  const dil_tensor *q = &w->stream->call->q;
  dil_tensor from = view(q, j->batch, j->batches, j->first, j->rows.count);
  dil_tensor to = chunk(w->buffer[0][j->slot].memory[0], t, j->batches,
                        j->rows.count, t->heads, t->head_dim);
  return stream_copy(w->stream->threads, &from, &to);
}

static dil_status load_keys(stream_work *w, const stream_job *j) {
  const dil_table *t = w->stream->shape.table;
  const dil_tensor *all[] = {&w->stream->call->k, &w->stream->call->v};
  const int32_t width[] = {t->head_dim, t->value_dim};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 2 && !status; i++) {
    dil_tensor from = view(all[i], j->batch, j->batches, 0, all[i]->shape[1]);
    dil_tensor to = chunk(w->buffer[1][j->slot].memory[i], t, j->batches,
                          j->rows.count, t->kv_heads, width[i]);
    status = stream_copy_route(w->stream->threads, &j->route, &from, &to,
                               j->first);
  }
  return status;
}

/* Into the queue, once there is room. */
static void put(stream_work *w, const stream_job *j) {
  pthread_mutex_lock(&w->lock);
  while (w->put - w->taken == QUEUE && !w->stop)
    pthread_cond_wait(&w->changed, &w->lock);
  w->queue[w->put++ % QUEUE] =
      (arrival){j->keys, j->slot, j->batch, j->batches, j->M, j->first, j->rows};
  w->buffer[j->keys][j->slot].uses++;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static dil_status bring(stream_work *w, const stream_job *j) {
  int64_t begin = trace_begin();
  dil_status status = j->keys ? load_keys(w, j) : load_queries(w, j);
  trace_end(begin, "stream", j->keys ? "load chunk of keys"
                                     : "load chunk of queries", NULL, j->first);
  w->stream->facts.loaded += j->bytes;
  metric_add(METRIC_stream_loaded_bytes, j->bytes);
  return status;
}

static void tell(const dil_stream *s, int64_t pairs) {
  if (s->progress && pairs) s->progress(s->user, pairs);
}

static dil_status bring_all(stream_work *w, stream_walk *order) {
  dil_stream *s = w->stream;
  dil_status status;
  while (stream_walk_next(order, &status)) {
    const stream_job *j = &order->job;
    const buffer *b = &w->buffer[j->keys][j->slot];
    s->facts.skipped += j->skipped;
    tell(s, j->skipped);
    if (!j->there && !claim_buffer(w, b)) return DIL_OK;
    if (!j->there) status = bring(w, j);
    if (status) return status;
    put(w, j);
  }
  s->facts.skipped += order->job.skipped;
  tell(s, order->job.skipped);
  return status;
}

static void *run_loader(void *context) {
  stream_work *w = context;
  stream_walk order;
  dil_trace_name_thread("loader");
  stream_walk_begin(&order, &w->stream->shape);
  dil_status status = bring_all(w, &order);
  stream_walk_end(&order);
  pthread_mutex_lock(&w->lock);
  w->status = status;
  snprintf(w->why, sizeof w->why, "%s", status ? dil_last_error() : "");
  w->ended = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

/* ---- computing ----------------------------------------------------------- */

static bool take_next(stream_work *w, arrival *a) {
  double start = clock_seconds();
  int64_t begin = trace_begin();
  pthread_mutex_lock(&w->lock);
  while (w->put == w->taken && !w->ended)
    pthread_cond_wait(&w->changed, &w->lock);
  bool some = w->put > w->taken;
  if (some) *a = w->queue[w->taken++ % QUEUE];
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  trace_end(begin, "stream", "wait for a chunk", NULL, -1);
  w->stream->facts.waited += clock_seconds() - start;
  return some;
}

static void release(stream_work *w, const arrival *a) {
  pthread_mutex_lock(&w->lock);
  w->buffer[a->keys][a->slot].uses--;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

typedef dil_status (*part_step)(ring_device *d, const dil_call *call,
                                const dil_part *part);

/* A step over the open queries with some keys, or none. */
static dil_status run_part(stream_work *w, part_step do_step,
                           const arrival *keys) {
  const dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  const arrival *q = &w->queries;
  void *const *memory = w->buffer[1][keys ? keys->slot : 0].memory;
  int64_t count = keys ? keys->rows.count : 0;
  dil_call call = *s->call;
  call.lengths = NULL;
  call.q = chunk(w->buffer[0][q->slot].memory[0], t, q->batches, q->rows.count,
                 t->heads, t->head_dim);
  call.k = chunk(memory[0], t, q->batches, count, t->kv_heads, t->head_dim);
  call.v = chunk(memory[1], t, q->batches, count, t->kv_heads, t->value_dim);
  call.o = w->o ? chunk(w->o, t, q->batches, q->rows.count, t->heads,
                        t->value_dim)
                : view(&call.o, q->batch, q->batches, q->first, q->rows.count);
  call.lse = view_lse(&call.lse, q);
  dil_part part = {.queries = q->rows,
                   .keys = keys ? keys->rows : (dil_comb){0, 1, 0},
                   .B = s->shape.B, .N = s->shape.N, .M = q->M,
                   .batch = (int32_t)q->batch, .o = w->o_state,
                   .lse = w->lse_state, .longest = s->shape.M};
  return do_step(w->device, &call, &part);
}

/* The finished rows of a chunk, to their place in the call. */
static dil_status store(stream_work *w) {
  dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  const arrival *q = &w->queries;
  dil_status status = run_part(w, w->device->calls->finish, NULL);
  int64_t elements = q->batches * q->rows.count * t->heads * t->value_dim;
  if (!status && w->o) {
    int64_t begin = trace_begin();
    dil_tensor from = chunk(w->o, t, q->batches, q->rows.count, t->heads,
                            t->value_dim);
    dil_tensor to = view(&s->call->o, q->batch, q->batches, q->first,
                         q->rows.count);
    status = stream_copy(s->threads, &from, &to);
    trace_end(begin, "stream", "store chunk", NULL, q->first);
  }
  s->facts.stored += elements * (int64_t)dil_dtype_size(s->call->o.dtype);
  return status;
}

static dil_status close_queries(stream_work *w) {
  if (!w->open) return DIL_OK;
  dil_status status = store(w);
  w->open = false;
  release(w, &w->queries);
  return status;
}

static dil_status open_queries(stream_work *w, const arrival *a) {
  dil_status status = close_queries(w);
  w->queries = *a;
  w->open = true;
  return status ? status : run_part(w, w->device->calls->begin, NULL);
}

static dil_status compute_pair(stream_work *w, const arrival *keys) {
  dil_stream *s = w->stream;
  int64_t begin = trace_begin();
  dil_status status = run_part(w, w->device->calls->advance, keys);
  trace_end(begin, "stream", "pass over a chunk", NULL, keys->first);
  release(w, keys);
  s->facts.chunks++;
  metric_add(METRIC_stream_chunks, 1);
  tell(s, 1);
  return status;
}

static dil_status compute_all(stream_work *w) {
  arrival a;
  dil_status status = DIL_OK;
  while (!status && take_next(w, &a)) {
    double start = clock_seconds();
    status = a.keys ? compute_pair(w, &a) : open_queries(w, &a);
    w->stream->facts.computed += clock_seconds() - start;
  }
  return status ? status : close_queries(w);
}

/* ---- the run ------------------------------------------------------------- */

static dil_status take(stream_work *w, int64_t bytes, void **memory) {
  return w->device->calls->take(w->device, bytes, true, memory);
}

/* Rows that are not brought are never seen; they stay finite. */
static dil_status take_buffers(stream_work *w) {
  const dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  stream_chunks c = s->shape.chunks;
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  int64_t asking = c.batch * c.queries * t->heads;
  int64_t keys = c.batch * c.keys * t->kv_heads * size;
  int64_t state = w->device->calls->states(w->device) * asking *
                  (int64_t)sizeof(float);
  void *o = NULL, *lse = NULL;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 2 && !status; i++) {
    status = take(w, asking * t->head_dim * size, &w->buffer[0][i].memory[0]);
    if (!status)
      status = take(w, keys * t->head_dim, &w->buffer[1][i].memory[0]);
    if (!status)
      status = take(w, keys * t->value_dim, &w->buffer[1][i].memory[1]);
  }
  if (!status) status = take(w, state * t->value_dim, &o);
  if (!status) status = take(w, state, &lse);
  w->o_state = o;
  w->lse_state = lse;
  if (!status && s->call->o.dtype != t->dtype)
    status = take(w, asking * t->value_dim * size, &w->o);
  return status;
}

static void give_buffers(stream_work *w) {
  void *const memory[] = {
      w->buffer[0][0].memory[0], w->buffer[0][1].memory[0],
      w->buffer[1][0].memory[0], w->buffer[1][0].memory[1],
      w->buffer[1][1].memory[0], w->buffer[1][1].memory[1],
      w->o_state, w->lse_state, w->o};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    if (memory[i]) w->device->calls->give(w->device, memory[i]);
}

static dil_status run_both(stream_work *w) {
  if (pthread_create(&w->loader, NULL, run_loader, w))
    return dil_fail(DIL_ENVIRONMENT, "no thread to load chunks");
  dil_status status = compute_all(w);
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->loader, NULL);
  return status || !w->status ? status : dil_fail(w->status, "%s", w->why);
}

dil_status stream_run(dil_stream *s) {
  stream_work w = {.stream = s, .device = s->device};
  s->facts = (stream_facts){0};
  pthread_mutex_init(&w.lock, NULL);
  pthread_cond_init(&w.changed, NULL);
  dil_status status = s->device->calls->start(s->device);
  if (!status) status = take_buffers(&w);
  if (!status) status = run_both(&w);
  give_buffers(&w);
  pthread_cond_destroy(&w.changed);
  pthread_mutex_destroy(&w.lock);
  metric_add_seconds(METRIC_stream_waited, s->facts.waited);
  return status;
}
