/* stream.c - the run of a streamed call: one thread brings chunks in the order
 * of a walk, this one has passes run over them, and one takes finished rows
 * back. See stream.h.
 *
 * There are two buffers of each kind. One is given on when it is full, and back
 * when it is free; the order in between is that of a short queue. On a device
 * with memory of its own (transfer.h) all of it is only asked for here, and
 * done later. */
#include "stream_work.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "runtime/ring/checkpoint.h"
#include <stdio.h>

/* ---- between threads ----------------------------------------------------- */

/* The first failure is the one that is told; every thread stops. */
static void stream_fail(stream_work *w, dil_status status) {
  if (!status) return;
  pthread_mutex_lock(&w->lock);
  if (!w->status) {
    w->status = status;
    snprintf(w->why, sizeof w->why, "%s", dil_last_error());
  }
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

bool work_claim(stream_work *w, stream_kind of, int32_t slot) {
  const stream_buffer *b = &w->buffer[of][slot];
  pthread_mutex_lock(&w->lock);
  while (b->uses && !w->status) pthread_cond_wait(&w->changed, &w->lock);
  bool free_now = !w->status;
  pthread_mutex_unlock(&w->lock);
  return free_now;
}

static void release_buffer(stream_work *w, stream_kind of, int32_t slot) {
  pthread_mutex_lock(&w->lock);
  w->buffer[of][slot].uses--;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static void queue_put(stream_work *w, queue *q, arrival a) {
  pthread_mutex_lock(&w->lock);
  while (q->put - q->taken == QUEUE && !w->status)
    pthread_cond_wait(&w->changed, &w->lock);
  q->of[q->put++ % QUEUE] = a;
  w->buffer[a.kind][a.slot].uses++;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static bool queue_take(stream_work *w, queue *q, arrival *a) {
  pthread_mutex_lock(&w->lock);
  while (q->put == q->taken && !q->ended && !w->status)
    pthread_cond_wait(&w->changed, &w->lock);
  bool some = q->put > q->taken && !w->status;
  if (some) *a = q->of[q->taken++ % QUEUE];
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  return some;
}

static void queue_end(stream_work *w, queue *q) {
  pthread_mutex_lock(&w->lock);
  q->ended = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

/* ---- between streams of a device ----------------------------------------- */

static int32_t arrival_slot(const arrival *a) {
  return 2 * (int32_t)a->kind + a->slot;
}

static dil_status transfer_use(stream_work *w, const arrival *a) {
  device_transfer *l = w->stream->transfer;
  return l ? l->calls->use(l, arrival_slot(a), a->kind != QUERIES) : DIL_OK;
}

static dil_status transfer_release(stream_work *w, const arrival *a) {
  device_transfer *l = w->stream->transfer;
  return l ? l->calls->release(l, arrival_slot(a)) : DIL_OK;
}

static dil_status transfer_follow(stream_work *w, transfer_lane lane,
                                  const arrival *a) {
  device_transfer *l = w->stream->transfer;
  return l ? l->calls->follow(l, lane, arrival_slot(a)) : DIL_OK;
}

static dil_status transfer_came(stream_work *w, const arrival *a) {
  device_transfer *l = w->stream->transfer;
  return l ? l->calls->came(l, arrival_slot(a)) : DIL_OK;
}

/* ---- views --------------------------------------------------------------- */

/* Batch rows and rows of an array, whose rows are its second axis. */
static dil_tensor view_chunk(const dil_tensor *t, const arrival *a,
                             int64_t first, int64_t rows_here) {
  dil_tensor part = *t;
  int64_t at = a->batch * t->stride[0] + first * t->stride[1];
  part.data = (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
  part.shape[0] = a->batches;
  part.shape[1] = rows_here;
  return part;
}

static dil_tensor view_chunk_lse(const dil_tensor *t, const arrival *a) {
  dil_tensor part = *t;
  if (!t->data) return part;
  part.data = (float *)t->data + a->batch * t->stride[0] +
              a->first * t->stride[2];
  part.shape[0] = a->batches;
  part.shape[2] = a->rows.count;
  return part;
}

static dil_tensor chunk_tensor(void *memory, const dil_table *t,
                               int64_t batches, int64_t rows_here,
                               int32_t heads, int32_t width) {
  const int64_t shape_of[] = {batches, rows_here, heads, width};
  return dil_tensor_make(memory, t->dtype, 4, shape_of);
}

/* ---- bringing ------------------------------------------------------------ */

static dil_status load_queries(stream_work *w, const arrival *a) {
  const dil_table *t = w->stream->shape.table;
  dil_tensor from = view_chunk(&w->stream->call->q, a, a->first, a->rows.count);
  dil_tensor to =
      chunk_tensor(w->buffer[QUERIES][a->slot].memory[0], t, a->batches,
                   a->rows.count, t->heads, t->head_dim);
  return carry_up(&w->carry[TRANSFER_UP], &from, &to);
}

static dil_status load_keys(stream_work *w, const arrival *a, route *r) {
  const dil_table *t = w->stream->shape.table;
  const dil_call *c = w->stream->call;
  void *const *memory = w->buffer[KEYS][a->slot].memory;
  ring_keys from = {.k = {view_chunk(&c->k, a, 0, c->k.shape[1])},
                    .v = {view_chunk(&c->v, a, 0, c->v.shape[1])}};
  ring_keys to = {.k = {chunk_tensor(memory[0], t, a->batches, a->rows.count,
                                     t->kv_heads, t->head_dim)},
                  .v = {chunk_tensor(memory[1], t, a->batches, a->rows.count,
                                     t->kv_heads, t->value_dim)}};
  return carry_route(&w->carry[TRANSFER_UP], r, &from, &to, a->first,
                     w->message);
}

static dil_status bring_chunk(stream_work *w, const arrival *a, stream_job *j) {
  int64_t begin = trace_begin();
  dil_status status = transfer_follow(w, TRANSFER_UP, a);
  if (!status)
    status = j->keys ? load_keys(w, a, &j->route) : load_queries(w, a);
  if (!status) status = transfer_came(w, a);
  trace_end(begin, "stream", j->keys ? "load chunk of keys"
                                     : "load chunk of queries", NULL, j->first);
  w->stream->facts.loaded += j->bytes;
  metric_add(METRIC_stream_loaded_bytes, j->bytes);
  return status;
}

static void tell_progress(const dil_stream *s, int64_t pairs) {
  if (s->progress && pairs) s->progress(s->user, pairs);
}

static dil_status bring_chunks(stream_work *w, stream_walk *order) {
  dil_stream *s = w->stream;
  dil_status status;
  while (stream_walk_next(order, &status)) {
    stream_job *j = &order->job;
    arrival a = {j->keys ? KEYS : QUERIES, j->slot,  j->batch, j->batches,
                 j->M,                     j->first, j->rows,  j->at};
    s->facts.skipped += j->skipped;
    tell_progress(s, j->skipped);
    if (!j->there && !work_claim(w, a.kind, a.slot)) return DIL_OK;
    if (!j->there) status = bring_chunk(w, &a, j);
    if (status) return status;
    queue_put(w, &w->arrived, a);
  }
  s->facts.skipped += order->job.skipped;
  tell_progress(s, order->job.skipped);
  return status;
}

static void *run_loader(void *context) {
  stream_work *w = context;
  stream_walk order;
  dil_trace_name_thread("loader");
  stream_walk_begin(&order, &w->stream->shape, w->from);
  stream_fail(w, bring_chunks(w, &order));
  stream_walk_end(&order);
  queue_end(w, &w->arrived);
  return NULL;
}

/* ---- taking back --------------------------------------------------------- */

static dil_tensor output_chunk(const stream_work *w, const arrival *a,
                               int32_t slot) {
  const dil_table *t = w->stream->shape.table;
  return chunk_tensor(w->buffer[OUTPUTS][slot].memory[0], t, a->batches,
                      a->rows.count, t->heads, t->value_dim);
}

static dil_tensor lse_chunk(const stream_work *w, const arrival *a,
                            int32_t slot) {
  const int64_t shape_of[] = {a->batches, w->stream->shape.table->heads,
                              a->rows.count};
  return dil_tensor_make(w->buffer[OUTPUTS][slot].memory[1], DIL_F32, 3,
                         shape_of);
}

/* Finished rows to their places in the call. */
static dil_status store_chunk(stream_work *w, const arrival *a) {
  const dil_call *c = w->stream->call;
  int64_t begin = trace_begin();
  dil_tensor from = output_chunk(w, a, a->slot), lse = lse_chunk(w, a, a->slot);
  dil_tensor to = view_chunk(&c->o, a, a->first, a->rows.count);
  dil_tensor lse_to = view_chunk_lse(&c->lse, a);
  dil_status status = transfer_follow(w, TRANSFER_DOWN, a);
  if (!status) status = carry_down(&w->carry[TRANSFER_DOWN], &from, &to);
  if (!status && lse.data && lse_to.data)
    status = carry_down(&w->carry[TRANSFER_DOWN], &lse, &lse_to);
  trace_end(begin, "stream", "store chunk", NULL, a->first);
  return status;
}

static void *run_storer(void *context) {
  stream_work *w = context;
  arrival a;
  dil_trace_name_thread("storer");
  while (queue_take(w, &w->finished, &a)) {
    stream_fail(w, store_chunk(w, &a));
    release_buffer(w, OUTPUTS, a.slot);
  }
  return NULL;
}

/* ---- computing ----------------------------------------------------------- */

typedef dil_status (*shard_step)(ring_device *d, const dil_call *call,
                                 const dil_shard *shard);

static void view_outputs(const stream_work *w, dil_call *call) {
  const arrival *q = &w->open;
  int32_t slot = (int32_t)(w->closed % 2);
  dil_tensor lse = view_chunk_lse(&call->lse, q);
  call->o = w->buffers_output
                ? output_chunk(w, q, slot)
                : view_chunk(&call->o, q, q->first, q->rows.count);
  call->lse = w->stream->transfer && lse.data ? lse_chunk(w, q, slot) : lse;
}

/* A step over the open queries with some keys, or none. */
static dil_status run_shard(stream_work *w, shard_step do_step,
                            const arrival *keys) {
  const dil_stream *s = w->stream;
  const dil_table *t = s->shape.table;
  const arrival *q = &w->open;
  void *const *memory = w->buffer[KEYS][keys ? keys->slot : 0].memory;
  int64_t count = keys ? keys->rows.count : 0;
  dil_call call = *s->call;
  call.lengths = NULL;
  if (s->transfer) call.inputs = w->inputs;
  call.q = chunk_tensor(w->buffer[QUERIES][q->slot].memory[0], t, q->batches,
                        q->rows.count, t->heads, t->head_dim);
  call.k =
      chunk_tensor(memory[0], t, q->batches, count, t->kv_heads, t->head_dim);
  call.v =
      chunk_tensor(memory[1], t, q->batches, count, t->kv_heads, t->value_dim);
  view_outputs(w, &call);
  dil_shard shard = {.queries = q->rows,
                     .keys = keys ? keys->rows : (dil_progression){0, 1, 0},
                     .B = s->shape.B, .N = s->shape.N, .M = q->M,
                     .batch = (int32_t)q->batch, .o = w->o_state,
                     .lse = w->lse_state, .longest = s->shape.M};
  return do_step(w->device, &call, &shard);
}

/* Rounds the state of the open queries to o, and hands that on. */
static dil_status close_queries(stream_work *w) {
  dil_stream *s = w->stream;
  arrival done = w->open;
  if (!w->is_open) return DIL_OK;
  w->is_open = false;
  done.kind = OUTPUTS;
  done.slot = (int32_t)(w->closed % 2);
  if (w->buffers_output && !work_claim(w, OUTPUTS, done.slot)) return DIL_OK;
  dil_status status = transfer_use(w, &done);
  if (!status) status = run_shard(w, w->device->calls->finish, NULL);
  if (!status) status = transfer_release(w, &done);
  if (!status) status = transfer_release(w, &w->open);
  release_buffer(w, QUERIES, w->open.slot);
  s->facts.stored += done.batches * done.rows.count * s->call->o.shape[2] *
                     s->call->o.shape[3] *
                     (int64_t)dil_dtype_size(s->call->o.dtype);
  w->closed++;
  if (!status && w->buffers_output) queue_put(w, &w->finished, done);
  return status;
}

static dil_status open_queries(stream_work *w, const arrival *a) {
  dil_status status = close_queries(w);
  w->open = *a;
  w->is_open = true;
  if (!status) status = transfer_use(w, a);
  bool begun = w->resumed;
  w->resumed = false;
  return status || begun ? status
                         : run_shard(w, w->device->calls->begin, NULL);
}

static dil_status compute_pair(stream_work *w, const arrival *keys) {
  dil_stream *s = w->stream;
  int64_t begin = trace_begin();
  dil_status status = transfer_use(w, keys);
  if (!status) status = run_shard(w, w->device->calls->advance, keys);
  if (!status) status = transfer_release(w, keys);
  trace_end(begin, "stream", "pass over a chunk", NULL, keys->first);
  release_buffer(w, KEYS, keys->slot);
  s->facts.chunks++;
  metric_add(METRIC_stream_chunks, 1);
  tell_progress(s, 1);
  return status ? status : work_checkpoint(w, keys->at);
}

static bool wait_for_chunk(stream_work *w, arrival *a) {
  double start = clock_seconds();
  int64_t begin = trace_begin();
  bool some = queue_take(w, &w->arrived, a);
  trace_end(begin, "stream", "wait for a chunk", NULL, -1);
  w->stream->facts.waited += clock_seconds() - start;
  return some;
}

static dil_status compute_all(stream_work *w) {
  arrival a;
  dil_status status = DIL_OK;
  while (!status && wait_for_chunk(w, &a)) {
    double start = clock_seconds();
    status = a.kind == KEYS ? compute_pair(w, &a) : open_queries(w, &a);
    w->stream->facts.computed += clock_seconds() - start;
  }
  return status ? status : close_queries(w);
}

/* ---- the run ------------------------------------------------------------- */

/* Lanes come after the passes' stream has cleared the buffers. */
static dil_status stream_begin_slots(stream_work *w) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 2 * KINDS && !status; i++) {
    arrival a = {.kind = (stream_kind)(i / 2), .slot = i % 2};
    status = transfer_release(w, &a);
  }
  return status;
}

static dil_status start_thread(stream_work *w, pthread_t *thread,
                               void *(*work)(void *)) {
  if (!pthread_create(thread, NULL, work, w)) return DIL_OK;
  dil_status status = dil_fail(DIL_ENVIRONMENT, "no thread to stream with");
  stream_fail(w, status);
  return status;
}

static void run_threads(stream_work *w) {
  if (start_thread(w, &w->loader, run_loader)) return;
  bool stores = w->buffers_output && !start_thread(w, &w->storer, run_storer);
  stream_fail(w, compute_all(w));
  queue_end(w, &w->finished);
  pthread_join(w->loader, NULL);
  if (stores) pthread_join(w->storer, NULL);
}

/* The device has done its work; its own clock tells how long that took. */
static void read_device_clock(stream_work *w, double start) {
  dil_stream *s = w->stream;
  if (!s->transfer) return;
  s->facts.computed = 0;
  stream_fail(w, s->transfer->calls->finish(s->transfer, &s->facts.computed));
  s->facts.waited = clock_seconds() - start - s->facts.computed;
}

dil_status stream_run(dil_stream *s) {
  stream_work w = {.stream = s, .device = s->device, .sum = CHECKPOINT_SUM};
  s->facts = (stream_facts){0};
  pthread_mutex_init(&w.lock, NULL);
  pthread_cond_init(&w.changed, NULL);
  for (int32_t i = 0; i < TRANSFER_LANES; i++)
    w.carry[i] = (stream_carry){.transfer = s->transfer, .threads = s->threads};
  dil_status status = s->device->calls->start(s->device);
  if (!status) status = work_take(&w);
  if (!status && s->checkpoint.resume) status = work_resume(&w);
  if (!status) status = stream_begin_slots(&w);
  double start = clock_seconds();
  stream_fail(&w, status);
  if (!status) run_threads(&w);
  read_device_clock(&w, start);
  work_give(&w);
  pthread_cond_destroy(&w.changed);
  pthread_mutex_destroy(&w.lock);
  metric_add_seconds(METRIC_stream_waited, s->facts.waited);
  return w.status ? dil_fail(w.status, "%s", w.why) : DIL_OK;
}
