/* ring_exchange.c - the messages of a run over a ring. In: routes, and the rank's
 * own keys; ring_queries.c adds its queries. Out: messages, and the keys of the
 * other ranks in shards of their own; see ring_work.h. */
#include "ring_work.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

/* ---- routes -------------------------------------------------------------- */

static void set_free(route_set *r, ring_device *device) {
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
  *r = (route_set){0};
}

void ring_routes_free(ring_routes *r, ring_device *device) {
  set_free(&r->all, device);
  set_free(&r->keys, device);
  set_free(&r->queries, device);
  r->counted = (ring_shape){0};
}

bool ring_same_shape(const ring_shape *a, const ring_shape *b) {
  return a->table == b->table && a->layout == b->layout &&
         a->ranks == b->ranks && a->N == b->N && a->M == b->M &&
         a->mask == b->mask && a->gathered == b->gathered &&
         a->left_out == b->left_out && a->queries == b->queries;
}

route *ring_route_out(const route_set *r, int32_t step,
                      exchange_phase phase) {
  return &r->list[2 * (EXCHANGE_PHASES * step + (int32_t)phase)];
}
route *ring_route_in(const route_set *r, int32_t step,
                     exchange_phase phase) {
  return ring_route_out(r, step, phase) + 1;
}

static dil_status list_step(const route_set *r, int32_t step,
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

dil_status ring_list_routes(const dil_ring *ring, const ring_shape *shape,
                            route_set *r) {
  int32_t rank = ring->link->rank, ranks = ring->link->ranks;
  dil_status status = DIL_OK;
  if (r->list && r->rank == rank && ring_same_shape(&r->shape, shape))
    return DIL_OK;
  set_free(r, ring->device);
  *r = (route_set){.shape = *shape, .rank = rank};
  r->list = calloc(2 * EXCHANGE_PHASES * (size_t)ranks, sizeof *r->list);
  if (!r->list)
    return dil_fail(DIL_MEMORY, "no memory for %d steps", ranks);
  for (int32_t i = EXCHANGE_PHASES; i < EXCHANGE_PHASES * ranks && !status; i++)
    status = list_step(r, i / EXCHANGE_PHASES,
                       (exchange_phase)(i % EXCHANGE_PHASES));
  if (status) set_free(r, ring->device);
  return status;
}

dil_status ring_list_returns(route_set *r) {
  int32_t count = 2 * EXCHANGE_PHASES * r->shape.ranks;
  dil_status status = DIL_OK;
  if (r->back) return DIL_OK;
  r->back = calloc((size_t)count, sizeof *r->back);
  if (!r->back)
    return dil_fail(DIL_MEMORY, "no memory for %d steps", r->shape.ranks);
  for (int32_t i = 2 * EXCHANGE_PHASES; i < count && !status; i++)
    status = route_reverse(&r->list[i], &r->back[i]);
  if (!status) return DIL_OK;
  for (int32_t i = 0; i < count; i++) route_free(&r->back[i]);
  free(r->back);
  r->back = NULL;
  return status;
}

route *ring_return_route(const route_set *r, int32_t step,
                         exchange_phase phase, bool in) {
  const route *there = in ? ring_route_out(r, step, phase)
                          : ring_route_in(r, step, phase);
  return &r->back[there - r->list];
}

int64_t ring_key_bytes(const ring_work *w, const route *r) {
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
  p->outgoing_bytes = ring_key_bytes(w, ring_route_out(w->keys, step, phase));
  p->incoming_bytes = ring_key_bytes(w, ring_route_in(w->keys, step, phase));
  if (w->queries) {
    p->outgoing_bytes +=
        ring_query_bytes(w, ring_route_out(w->queries, step, phase));
    p->incoming_bytes +=
        ring_query_bytes(w, ring_route_in(w->queries, step, phase));
  }
  dil_status status =
      d->calls->take(d, p->outgoing_bytes, RING_ANY, &p->outgoing);
  if (!status)
    status = d->calls->take(d, p->incoming_bytes, RING_ANY, &p->incoming);
  return status;
}

void ring_note(ring_work *w, int32_t step, const char *what, int32_t peer,
               int64_t bytes) {
  flight_recorder_note(&w->flight, step, what,
                       peer < 0 ? peer : link_number(w->ring->link, peer),
                       bytes);
}

static dil_status pack_message(const ring_work *w, int32_t step,
                               exchange_phase phase, char *message) {
  route *keys = ring_route_out(w->keys, step, phase);
  dil_status status =
      w->device->calls->pack(w->device, RING_ROWS, keys,
                             &w->ring->rows->keys, message);
  if (status || !w->queries) return status;
  return ring_pack_queries(w, ring_route_out(w->queries, step, phase),
                           message + ring_key_bytes(w, keys));
}

/* Packs the rows for rank + step, and posts the messages both ways. */
static dil_status post_phase(ring_work *w, int32_t step, exchange_phase phase) {
  dil_ring *r = w->ring;
  ring_parcel *p = &w->exchange[step].phase[phase];
  int64_t begin = trace_begin();
  dil_status status = size_messages(w, p, step, phase);
  if (!status) status = pack_message(w, step, phase, p->outgoing);
  trace_end(begin, "ring", "pack rows that travel", NULL, step);
  if (status) return status;
  const link_transfer t = {.to = p->outgoing_bytes ? ring_receiver(w, step) : -1,
                           .from = p->incoming_bytes ? ring_sender(w, step) : -1,
                           .send = p->outgoing,
                           .receive = p->incoming,
                           .send_bytes = p->outgoing_bytes,
                           .receive_bytes = p->incoming_bytes};
  ring_note(w, step, "send to", t.to, p->outgoing_bytes);
  r->facts.sent += p->outgoing_bytes;
  r->facts.received += p->incoming_bytes;
  p->posted = true;
  p->since = clock_seconds();
  return w->device->calls->post(w->device, RING_ROWS, r->link,
                                slot_of(w, step, phase), &t);
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
  ring_note(w, step, "wait for", ring_sender(w, step), p->incoming_bytes);
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
                          e->k, e->v, e->queries};
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

dil_status ring_spread_step(ring_work *w, int32_t step, const positions *owned,
                            ring_keys *keys) {
  const dil_table *t = w->ring->shape.table;
  exchange *e = &w->exchange[step];
  ring_device *d = w->device;
  int64_t there = w->B * positions_count(owned) * t->kv_heads *
                  (int64_t)dil_dtype_size(t->dtype);
  dil_status status =
      d->calls->take(d, there * t->head_dim, RING_OLD_ROWS, &e->k);
  if (!status)
    status = d->calls->take(d, there * t->value_dim, RING_OLD_ROWS, &e->v);
  if (!status) ring_view_keys(w, e->k, e->v, t->dtype, owned, keys);
  for (int32_t i = 0; i < EXCHANGE_PHASES && !status; i++) {
    route *r = ring_route_in(w->keys, step, (exchange_phase)i);
    if (r->rows) status = d->calls->spread(d, r, e->phase[i].incoming, keys);
  }
  return status;
}

int32_t ring_sender(const ring_work *w, int32_t step) {
  const dil_link *link = w->ring->link;
  return (link->rank - step + link->ranks) % link->ranks;
}

int32_t ring_receiver(const ring_work *w, int32_t step) {
  const dil_link *link = w->ring->link;
  return (link->rank + step) % link->ranks;
}

bool ring_arrived(const ring_work *w, const route_set *set, int32_t step) {
  int64_t rows = 0;
  for (int32_t i = 0; set && i < EXCHANGE_PHASES; i++)
    rows += ring_route_in(set, step, (exchange_phase)i)->rows;
  return rows * w->B > 0;
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
