/* ring_exchange.c - the keys that travel in a run over a ring. In: routes, and
 * the rank's own keys. Out: messages, and the keys of the other ranks in shards
 * of their own; see ring_work.h. */
#include "ring_work.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

/* ---- routes -------------------------------------------------------------- */

void ring_routes_free(ring_routes *r, ring_device *device) {
  for (int32_t i = 0; r->list && i < 2 * EXCHANGE_PHASES * r->shape.ranks;
       i++) {
    if (device) device->calls->forget(device, &r->list[i]);
    route_free(&r->list[i]);
  }
  for (int32_t i = 0; r->back && i < 2 * EXCHANGE_PHASES * r->shape.ranks;
       i++) {
    if (device) device->calls->forget(device, &r->back[i]);
    route_free(&r->back[i]);
  }
  free(r->list);
  free(r->back);
  *r = (ring_routes){0};
}

static bool same_shape(const ring_shape *a, const ring_shape *b) {
  return a->table == b->table && a->layout == b->layout &&
         a->ranks == b->ranks && a->N == b->N && a->M == b->M &&
         a->mask == b->mask && a->gathered == b->gathered;
}

route *ring_route_out(const ring_routes *r, int32_t step,
                      exchange_phase phase) {
  return &r->list[2 * (EXCHANGE_PHASES * step + (int32_t)phase)];
}
route *ring_route_in(const ring_routes *r, int32_t step,
                     exchange_phase phase) {
  return ring_route_out(r, step, phase) + 1;
}

static dil_status list_step(const ring_routes *r, int32_t step,
                            exchange_phase phase) {
  int32_t ranks = r->shape.ranks;
  int32_t to = (r->rank + step) % ranks;
  int32_t from = (r->rank - step + ranks) % ranks;
  dil_status status =
      route_new(&r->shape, r->rank, to, phase, ring_route_out(r, step, phase));
  if (status) return status;
  return route_new(&r->shape, from, r->rank, phase,
                   ring_route_in(r, step, phase));
}

dil_status ring_list_routes(const dil_ring *ring) {
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

/* ---- messages ------------------------------------------------------------ */

/* The slot of a message. If both phases have messages, EXCHANGE_GATHERED of a
 * step takes the next slot, which EXCHANGE_ROTATED of the next step uses later:
 * ring_wait_step frees the slot before ring_post_rest takes it. */
static int32_t slot_of(const ring_work *w, int32_t step, exchange_phase phase) {
  return step + (phase == EXCHANGE_GATHERED &&
                 !partition_gathers_all(&w->ring->shape));
}

static dil_status size_messages(ring_work *w, ring_parcel *p, int32_t step,
                                exchange_phase phase) {
  ring_device *d = w->device;
  p->out = ring_route_out(w->ring->routes, step, phase);
  p->in = ring_route_in(w->ring->routes, step, phase);
  p->outgoing_bytes = message_bytes(w, p->out);
  p->incoming_bytes = message_bytes(w, p->in);
  dil_status status =
      d->calls->take(d, p->outgoing_bytes, false, &p->outgoing);
  if (!status)
    status = d->calls->take(d, p->incoming_bytes, false, &p->incoming);
  return status;
}

void ring_note(ring_work *w, int32_t step, const char *what, int32_t peer,
               int64_t bytes) {
  flight_recorder_note(&w->flight, step, what,
                       peer < 0 ? peer : link_number(w->ring->link, peer),
                       bytes);
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
  ring_note(w, step, "send to", t.to, p->outgoing_bytes);
  r->facts.sent += p->outgoing_bytes;
  r->facts.received += p->incoming_bytes;
  p->posted = true;
  p->since = clock_seconds();
  return w->device->calls->post(w->device, r->link, slot_of(w, step, phase),
                                &t);
}

dil_status ring_post_first(ring_work *w) {
  dil_status status = DIL_OK;
  if (!w->ring->shape.gathered) return status;
  for (int32_t step = 1; step < w->ring->link->ranks && !status; step++)
    status = post_phase(w, step, EXCHANGE_GATHERED);
  return status;
}

dil_status ring_post_rest(ring_work *w, int32_t step) {
  bool none =
      partition_gathers_all(&w->ring->shape) || step >= w->ring->link->ranks;
  return none ? DIL_OK : post_phase(w, step, EXCHANGE_ROTATED);
}

dil_status ring_wait_phase(ring_work *w, int32_t step, exchange_phase phase) {
  dil_ring *r = w->ring;
  double start = clock_seconds();
  ring_parcel *p = &w->exchange[step].phase[phase];
  if (!p->posted) return DIL_OK;
  ring_note(w, step, "wait for", p->in->from, p->incoming_bytes);
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

dil_status ring_wait_step(ring_work *w, int32_t step) {
  int64_t begin = trace_begin();
  w->ring->link->step = step;
  dil_status first = ring_wait_phase(w, step, EXCHANGE_GATHERED);
  dil_status rest = ring_wait_phase(w, step, EXCHANGE_ROTATED);
  trace_end(begin, "ring", "wait", w->ring->link->calls->name, step);
  return first ? first : rest;
}

void ring_exchange_free(ring_work *w, exchange *e) {
  void *const memory[] = {e->phase[0].outgoing, e->phase[0].incoming,
                          e->phase[1].outgoing, e->phase[1].incoming,
                          e->k, e->v};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
    if (memory[i]) w->device->calls->give(w->device, memory[i]);
  *e = (exchange){0};
}

void ring_view_keys(const ring_work *w, void *k, void *v, dil_dtype dtype,
                    const positions *owned, ring_keys *keys) {
  const dil_table *t = w->ring->shape.table;
  int64_t all = positions_count(owned), row = 0;
  int64_t size = (int64_t)dil_dtype_size(dtype) * t->kv_heads;
  int64_t ks[] = {w->B, all, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, all, t->kv_heads, t->value_dim};
  for (int32_t i = 0; i < owned->count; i++) {
    keys->k[i] =
        dil_tensor_make((char *)k + row * size * t->head_dim, dtype, 4, ks);
    keys->v[i] =
        dil_tensor_make((char *)v + row * size * t->value_dim, dtype, 4, vs);
    keys->k[i].shape[1] = keys->v[i].shape[1] = owned->progression[i].count;
    row += owned->progression[i].count;
  }
}

dil_status ring_spread_step(ring_work *w, exchange *e, const positions *owned,
                              ring_keys *keys) {
  const dil_table *t = w->ring->shape.table;
  ring_device *d = w->device;
  int64_t there = w->B * positions_count(owned) * t->kv_heads *
                  (int64_t)dil_dtype_size(t->dtype);
  bool zero = d->calls->on_host;
  dil_status status = d->calls->take(d, there * t->head_dim, zero, &e->k);
  if (!status) status = d->calls->take(d, there * t->value_dim, zero, &e->v);
  if (!status) ring_view_keys(w, e->k, e->v, t->dtype, owned, keys);
  for (int32_t i = 0; i < EXCHANGE_PHASES && !status; i++)
    if (e->phase[i].incoming_bytes)
      status = d->calls->spread(d, e->phase[i].in, e->phase[i].incoming, keys);
  return status;
}

int32_t ring_sender(const ring_work *w, int32_t step) {
  const dil_link *link = w->ring->link;
  return (link->rank - step + link->ranks) % link->ranks;
}

int64_t ring_arrived(const ring_work *w, int32_t step) {
  const exchange *e = &w->exchange[step];
  int64_t bytes = 0;
  for (int32_t i = 0; i < EXCHANGE_PHASES; i++)
    bytes += e->phase[i].incoming_bytes;
  return bytes;
}

dil_status ring_exchange_begin(ring_work *w) {
  int32_t ranks = w->ring->link->ranks;
  w->exchange = calloc((size_t)ranks, sizeof *w->exchange);
  return w->exchange ? DIL_OK
                     : dil_fail(DIL_MEMORY, "no memory for %d steps", ranks);
}

void ring_exchange_end(ring_work *w, bool failed) {
  int32_t ranks = w->ring->link->ranks;
  for (int32_t i = 0; w->exchange && i < ranks; i++) {
    ring_wait_phase(w, i, EXCHANGE_GATHERED);
    ring_wait_phase(w, i, EXCHANGE_ROTATED);
  }
  if (failed) w->device->calls->drain(w->device);
  for (int32_t i = 0; w->exchange && i < ranks; i++)
    ring_exchange_free(w, &w->exchange[i]);
  free(w->exchange);
  w->exchange = NULL;
}

void ring_count_facts(const ring_facts *f) {
  metric_add(METRIC_ring_sent_bytes, f->sent);
  metric_add(METRIC_ring_received_bytes, f->received);
  metric_add_seconds(METRIC_ring_waited, f->waited);
}
