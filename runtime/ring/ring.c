/* ring.c - one rank's run over a ring: its messages, and the passes in between;
 * see ring.h. partition.c decides which rows travel, the link moves the bytes,
 * and a device computes (ring_device.h). */
#include "ring.h"
#include "ring_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/flight_recorder.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One message each way, in one step and phase. */
typedef struct ring_parcel {
  route *out, *in;
  bool posted;          /* the link may still use both messages */
  double since;         /* when they were posted */
  int64_t outgoing_bytes, incoming_bytes;
  void *outgoing, *incoming;
} ring_parcel;

/* One step's messages, and the sender's shard of keys, into which the received
 * rows are spread. No query reads the rows that did not travel. */
typedef struct exchange {
  ring_parcel phase[EXCHANGE_PHASES];
  void *k, *v;          /* [B, rows of the shard, Hkv, D] */
} exchange;

typedef struct ring_work {
  dil_ring *ring;
  ring_device *device;
  int64_t B;            /* batch rows here */
  flight_recorder flight;
  ring_state state;     /* of this rank's queries */
  exchange *exchange;   /* [ranks], by step; 0 is unused */
} ring_work;

/* ---- routes -------------------------------------------------------------- */

void ring_routes_free(ring_routes *r, ring_device *device) {
  for (int32_t i = 0; r->list && i < 2 * EXCHANGE_PHASES * r->shape.ranks;
       i++) {
    if (device) device->calls->forget(device, &r->list[i]);
    route_free(&r->list[i]);
  }
  free(r->list);
  *r = (ring_routes){0};
}

static bool same_shape(const ring_shape *a, const ring_shape *b) {
  return a->table == b->table && a->layout == b->layout &&
         a->ranks == b->ranks && a->N == b->N && a->M == b->M &&
         a->mask == b->mask && a->gathered == b->gathered;
}

/* In a step, a rank sends to rank + step and receives from rank - step. */
static route *route_out(const ring_routes *r, int32_t step,
                        exchange_phase phase) {
  return &r->list[2 * (EXCHANGE_PHASES * step + (int32_t)phase)];
}
static route *route_in(const ring_routes *r, int32_t step,
                       exchange_phase phase) {
  return route_out(r, step, phase) + 1;
}

static dil_status list_step(const ring_routes *r, int32_t step,
                            exchange_phase phase) {
  int32_t ranks = r->shape.ranks;
  int32_t to = (r->rank + step) % ranks;
  int32_t from = (r->rank - step + ranks) % ranks;
  dil_status status =
      route_new(&r->shape, r->rank, to, phase, route_out(r, step, phase));
  if (status) return status;
  return route_new(&r->shape, from, r->rank, phase, route_in(r, step, phase));
}

/* Lists the routes, unless the last run had the same shape. */
static dil_status list_routes(const dil_ring *ring) {
  ring_routes *r = ring->routes;
  int32_t rank = ring->link->rank, ranks = ring->link->ranks;
  dil_status status = DIL_OK;
  if (r->list && r->rank == rank && same_shape(&r->shape, &ring->shape))
    return DIL_OK;
  ring_routes_free(r, ring->device);
  *r = (ring_routes){.shape = ring->shape, .rank = rank};
  r->list = calloc(2 * EXCHANGE_PHASES * (size_t)ranks, sizeof *r->list);
  if (!r->list)
    return dil_fail(DIL_MEMORY, "no memory for %d steps", ranks);
  for (int32_t i = EXCHANGE_PHASES; i < EXCHANGE_PHASES * ranks && !status; i++)
    status = list_step(r, i / EXCHANGE_PHASES,
                       (exchange_phase)(i % EXCHANGE_PHASES));
  if (status) ring_routes_free(r, ring->device);
  return status;
}

static int64_t message_bytes(const ring_work *w, const route *r) {
  return r->rows * route_row_bytes(w->ring->shape.table) * w->B;
}

/* ---- passes -------------------------------------------------------------- */

typedef dil_status (*shard_step)(ring_device *d, const dil_call *call,
                                 const dil_shard *shard);

/* Progression i of the rank's queries over one progression of keys: its shard
 * and its call. */
static dil_shard shard_of(ring_work *w, int32_t i, dil_progression keys,
                        const dil_tensor *k, const dil_tensor *v,
                        dil_call *call) {
  const dil_ring *r = w->ring;
  *call = *r->call;
  call->q = r->rows->q[i];
  call->k = *k;
  call->v = *v;
  call->o = r->rows->o[i];
  call->lse = r->rows->lse[i];
  return (dil_shard){
      .queries = partition_queries(&r->shape, r->link->rank).progression[i],
      .keys = keys,
      .B = r->B,
      .N = r->shape.N,
      .M = r->shape.M,
      .batch = r->batch,
      .head = r->head,
      .o = w->state.o[i],
      .lse = w->state.lse[i],
      .state_stride = w->state.state_stride[i]};
}

static int32_t query_progressions(const ring_work *w) {
  return partition_queries(&w->ring->shape, w->ring->link->rank).count;
}

static dil_status advance(ring_work *w, int32_t i, dil_progression keys,
                          const dil_tensor *k, const dil_tensor *v) {
  dil_call call;
  dil_shard shard = shard_of(w, i, keys, k, v, &call);
  return w->device->calls->advance(w->device, &call, &shard);
}

/* The passes over all keys of rank `from`. `own`: these are the rank's own
 * keys, and an opened progression of queries has seen its own progression of
 * keys already. */
static dil_status pass_over(ring_work *w, int32_t from, const ring_keys *keys,
                            bool own) {
  positions owned = partition_keys(&w->ring->shape, from);
  double start = clock_seconds();
  dil_status status = DIL_OK;
  for (int32_t c = 0; c < owned.count; c++)
    for (int32_t i = 0; i < query_progressions(w) && !status; i++)
      if (!own || i != c || !w->state.state_stride[i])
        status = advance(w, i, owned.progression[c], &keys->k[c], &keys->v[c]);
  if (w->device->calls->on_host)
    w->ring->facts.computed += clock_seconds() - start;
  return status;
}

typedef dil_status (*shard_step)(ring_device *d, const dil_call *call,
                                 const dil_shard *shard);

/* Begin or finish, which look at no keys; opened progressions need neither of
 * them. */
static dil_status without_keys(ring_work *w, shard_step step) {
  const dil_table *t = w->ring->shape.table;
  int64_t ks[] = {w->B, 0, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, 0, t->kv_heads, t->value_dim};
  dil_tensor k = dil_tensor_make(NULL, t->dtype, 4, ks);
  dil_tensor v = dil_tensor_make(NULL, t->dtype, 4, vs);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < query_progressions(w) && !status; i++) {
    dil_call call;
    dil_shard shard = shard_of(w, i, (dil_progression){0, 1, 0}, &k, &v, &call);
    if (!w->state.state_stride[i]) status = step(w->device, &call, &shard);
  }
  return status;
}

/* Progression i of the rank's queries over progression i of its own keys. */
static dil_shard own_shard(ring_work *w, int32_t i, dil_call *call) {
  const ring_keys *keys = &w->ring->rows->keys;
  positions owned = partition_keys(&w->ring->shape, w->ring->link->rank);
  return shard_of(w, i, owned.progression[i], &keys->k[i], &keys->v[i], call);
}

/* Asks the device which progressions it can open (ring_device.h). In an opened
 * progression, rows that no other keys reach need no state. A checkpoint holds
 * the state of every row, so it rules out opening. */
static dil_status ask_opens(ring_work *w) {
  const dil_ring *r = w->ring;
  positions owned = partition_keys(&r->shape, r->link->rank);
  dil_status status = DIL_OK;
  if (!w->device->calls->opens || r->checkpoint.prefix) return DIL_OK;
  for (int32_t i = 0; i < query_progressions(w) && i < owned.count && !status;
       i++) {
    dil_call call;
    dil_shard shard = own_shard(w, i, &call);
    status = w->device->calls->opens(w->device, &call, &shard,
                                     &w->state.state_stride[i]);
  }
  return status;
}

static dil_status open_progressions(ring_work *w) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < query_progressions(w) && !status; i++) {
    dil_call call;
    if (!w->state.state_stride[i]) continue;
    dil_shard shard = own_shard(w, i, &call);
    status = w->device->calls->open(w->device, &call, &shard);
  }
  return status;
}

/* Step 0: the passes over the rank's own keys. */
static dil_status pass_over_own(ring_work *w) {
  dil_status status = open_progressions(w);
  if (!status) status = without_keys(w, w->device->calls->begin);
  if (status) return status;
  return pass_over(w, w->ring->link->rank, &w->ring->rows->keys, true);
}

/* ---- steps --------------------------------------------------------------- */

/* The slot of a message. If both phases have messages, EXCHANGE_GATHERED of a
 * step takes the next slot, which EXCHANGE_ROTATED of the next step uses later:
 * wait_step frees the slot before post_rest takes it. */
static int32_t slot_of(const ring_work *w, int32_t step, exchange_phase phase) {
  return step + (phase == EXCHANGE_GATHERED &&
                 !partition_gathers_all(&w->ring->shape));
}

static dil_status size_messages(ring_work *w, ring_parcel *p, int32_t step,
                                exchange_phase phase) {
  ring_device *d = w->device;
  p->out = route_out(w->ring->routes, step, phase);
  p->in = route_in(w->ring->routes, step, phase);
  p->outgoing_bytes = message_bytes(w, p->out);
  p->incoming_bytes = message_bytes(w, p->in);
  dil_status status =
      d->calls->take(d, p->outgoing_bytes, false, &p->outgoing);
  if (!status)
    status = d->calls->take(d, p->incoming_bytes, false, &p->incoming);
  return status;
}

/* Notes a message in the flight recorder; a peer of -1 means that there is no
 * message. */
static void note_message(ring_work *w, int32_t step, const char *what,
                         int32_t peer, int64_t bytes) {
  flight_recorder_note(&w->flight, step, what,
              peer < 0 ? peer : link_number(w->ring->link, peer), bytes);
}

/* Packs the rows for rank + step, and posts the messages both ways. */
static dil_status post_phase(ring_work *w, int32_t step, exchange_phase phase) {
  dil_ring *r = w->ring;
  ring_parcel *p = &w->exchange[step].phase[phase];
  int64_t begin = trace_begin();
  dil_status status = size_messages(w, p, step, phase);
  if (!status)
    status = w->device->calls->pack(w->device, p->out, &r->rows->keys,
                                    p->outgoing);
  trace_end(begin, "ring", "pack rows that travel", NULL, step);
  if (status) return status;
  const link_transfer t = {.to = p->outgoing_bytes ? p->out->to : -1,
                           .from = p->incoming_bytes ? p->in->from : -1,
                           .send = p->outgoing,
                           .receive = p->incoming,
                           .send_bytes = p->outgoing_bytes,
                           .receive_bytes = p->incoming_bytes};
  note_message(w, step, "send to", t.to, p->outgoing_bytes);
  r->facts.sent += p->outgoing_bytes;
  r->facts.received += p->incoming_bytes;
  p->posted = true;
  p->since = clock_seconds();
  return w->device->calls->post(w->device, r->link, slot_of(w, step, phase),
                                &t);
}

/* Posts the rows of branches that gather, for all steps. */
static dil_status post_first(ring_work *w) {
  dil_status status = DIL_OK;
  if (!w->ring->shape.gathered) return status;
  for (int32_t step = 1; step < w->ring->link->ranks && !status; step++)
    status = post_phase(w, step, EXCHANGE_GATHERED);
  return status;
}

/* Posts the rows of branches that rotate, for one step; past the last step it
 * does nothing. */
static dil_status post_rest(ring_work *w, int32_t step) {
  bool none =
      partition_gathers_all(&w->ring->shape) || step >= w->ring->link->ranks;
  return none ? DIL_OK : post_phase(w, step, EXCHANGE_ROTATED);
}

static dil_status wait_phase(ring_work *w, int32_t step, exchange_phase phase) {
  dil_ring *r = w->ring;
  double start = clock_seconds();
  ring_parcel *p = &w->exchange[step].phase[phase];
  if (!p->posted) return DIL_OK;
  note_message(w, step, "wait for", p->in->from, p->incoming_bytes);
  dil_status status =
      w->device->calls->wait(w->device, r->link, slot_of(w, step, phase));
  flight_recorder_note(&w->flight, step, status ? "has failed" : "has come", -1,
                       0);
  p->posted = false;
  if (!w->device->calls->on_host) return status;
  double now = clock_seconds();
  r->facts.waited += now - start;
  if (metering() && !status)
    dil_metrics_step(r->checkpoint.name, step, p->incoming_bytes, now - start,
                     now - p->since);
  return status;
}

static dil_status wait_step(ring_work *w, int32_t step) {
  int64_t begin = trace_begin();
  w->ring->link->step = step;
  dil_status first = wait_phase(w, step, EXCHANGE_GATHERED);
  dil_status rest = wait_phase(w, step, EXCHANGE_ROTATED);
  trace_end(begin, "ring", "wait", w->ring->link->calls->name, step);
  return first ? first : rest;
}

static void exchange_free(ring_work *w, exchange *e) {
  void *const memory[] = {e->phase[0].outgoing, e->phase[0].incoming,
                          e->phase[1].outgoing, e->phase[1].incoming,
                          e->k, e->v};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    if (memory[i]) w->device->calls->give(w->device, memory[i]);
  *e = (exchange){0};
}

/* Views of another rank's keys, one for each progression. */
static void view_arrived(const ring_work *w, const exchange *e,
                         const positions *owned, ring_keys *keys) {
  const dil_table *t = w->ring->shape.table;
  int64_t all = positions_count(owned), row = 0;
  int64_t size = (int64_t)dil_dtype_size(t->dtype) * t->kv_heads;
  int64_t ks[] = {w->B, all, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, all, t->kv_heads, t->value_dim};
  for (int32_t i = 0; i < owned->count; i++) {
    keys->k[i] = dil_tensor_make((char *)e->k + row * size * t->head_dim,
                                 t->dtype, 4, ks);
    keys->v[i] = dil_tensor_make((char *)e->v + row * size * t->value_dim,
                                 t->dtype, 4, vs);
    keys->k[i].shape[1] = keys->v[i].shape[1] = owned->progression[i].count;
    row += owned->progression[i].count;
  }
}

/* Allocates the sender's shard and spreads the received rows into it. On the
 * host the shard is cleared, so that rows that did not travel are finite. */
static dil_status spread_step(ring_work *w, exchange *e, const positions *owned,
                              ring_keys *keys) {
  const dil_table *t = w->ring->shape.table;
  ring_device *d = w->device;
  int64_t there = w->B * positions_count(owned) * t->kv_heads *
                  (int64_t)dil_dtype_size(t->dtype);
  bool zero = d->calls->on_host;
  dil_status status = d->calls->take(d, there * t->head_dim, zero, &e->k);
  if (!status) status = d->calls->take(d, there * t->value_dim, zero, &e->v);
  if (!status) view_arrived(w, e, owned, keys);
  for (int32_t i = 0; i < EXCHANGE_PHASES && !status; i++)
    if (e->phase[i].incoming_bytes)
      status = d->calls->spread(d, e->phase[i].in, e->phase[i].incoming, keys);
  return status;
}

/* The passes over the keys that came in a step. */
static dil_status compute_step(ring_work *w, int32_t step) {
  const dil_ring *r = w->ring;
  exchange *e = &w->exchange[step];
  int32_t ranks = r->link->ranks, from = (r->link->rank - step + ranks) % ranks;
  positions owned = partition_keys(&r->shape, from);
  ring_keys keys = {0};
  int64_t bytes = 0;
  for (int32_t i = 0; i < EXCHANGE_PHASES; i++)
    bytes += e->phase[i].incoming_bytes;
  if (!bytes) return DIL_OK;
  dil_status status = spread_step(w, e, &owned, &keys);
  return status ? status : pass_over(w, from, &keys, false);
}

static dil_status keep_state(ring_work *w) {
  ring_device *d = w->device;
  dil_status status = d->calls->settle(d, w->ring->link, &w->ring->facts);
  return status ? status : state_write(&w->state, w->ring);
}

/* Computes a step and writes a checkpoint when one is due. A rank that resumed
 * from a later step than others still sends, but does not compute again. */
static dil_status finish_step(ring_work *w, int32_t step) {
  const dil_ring *r = w->ring;
  const ring_checkpoint *c = &r->checkpoint;
  dil_status status = DIL_OK;
  if (step > w->state.step) {
    status = step ? compute_step(w, step) : pass_over_own(w);
    if (!status) status = w->device->calls->mark(w->device, step);
    w->state.step = step;
    flight_recorder_note(&w->flight, step, "computed", -1, 0);
    if (!status && c->prefix && (step + 1) % c->every == 0)
      status = keep_state(w);
  }
  exchange_free(w, &w->exchange[step]);
  return status;
}

/* Messages of rotating branches are posted one step ahead of the passes, so
 * that they travel while the device computes. */
static dil_status run_steps(ring_work *w) {
  const dil_ring *r = w->ring;
  dil_status status = post_first(w);
  for (int32_t step = 0; step < r->link->ranks && !status; step++) {
    int64_t begin = trace_begin();
    if (step) status = wait_step(w, step);
    if (!status) status = post_rest(w, step + 1);
    if (!status) status = finish_step(w, step);
    metric_add(METRIC_ring_steps, 1);
    if (r->stepped && !status) r->stepped(r->watcher);
    trace_end(begin, "ring", "ring step", NULL, step);
  }
  return status;
}

static dil_status run_ring(ring_work *w) {
  dil_status status = run_steps(w);
  return status ? status : without_keys(w, w->device->calls->finish);
}

static void count_facts(const ring_facts *f) {
  metric_add(METRIC_ring_sent_bytes, f->sent);
  metric_add(METRIC_ring_received_bytes, f->received);
  metric_add_seconds(METRIC_ring_waited, f->waited);
}

/* ---- the run ------------------------------------------------------------- */

static dil_status begin(ring_work *w) {
  dil_ring *r = w->ring;
  dil_status status = w->device->calls->start(w->device);
  if (!status) status = list_routes(r);
  if (!status) status = ask_opens(w);
  if (!status) status = state_new(&w->state, r);
  w->exchange = calloc((size_t)r->link->ranks, sizeof *w->exchange);
  if (!status && !w->exchange)
    status = dil_fail(DIL_MEMORY, "no memory for %d steps", r->link->ranks);
  if (!status && r->checkpoint.resume) return state_read(&w->state, r);
  return status;
}

/* The link may still use messages, so they are freed after a wait. */
static void end(ring_work *w, bool failed) {
  for (int32_t i = 0; w->exchange && i < w->ring->link->ranks; i++) {
    wait_phase(w, i, EXCHANGE_GATHERED);
    wait_phase(w, i, EXCHANGE_ROTATED);
  }
  if (failed) w->device->calls->drain(w->device);
  for (int32_t i = 0; w->exchange && i < w->ring->link->ranks; i++)
    exchange_free(w, &w->exchange[i]);
  free(w->exchange);
  state_free(&w->state, w->device);
}

dil_status ring_run(dil_ring *r) {
  ring_work w = {.ring = r, .device = r->device,
                 .B = r->rows->q[0].shape[0]};
  r->facts = (ring_facts){0};
  r->link->step = 0;
  dil_status status = flight_recorder_begin(&w.flight, r->checkpoint.prefix,
                                   r->checkpoint.name);
  if (!status) status = ring_handshake(r, w.B);
  if (!status) status = begin(&w);
  if (!status) status = run_ring(&w);
  if (!status) status = w.device->calls->settle(w.device, r->link, &r->facts);
  if (!status) status = link_barrier(r->link);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (status) r->link->calls->revoke(r->link, why);
  end(&w, status != DIL_OK);
  flight_recorder_end(&w.flight, status != DIL_OK);
  count_facts(&r->facts);
  return status ? dil_fail(status, "%s", why) : DIL_OK;
}
