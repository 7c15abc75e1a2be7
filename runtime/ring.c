/* ring.c - one rank's run over a ring: what it sends and receives, and the
 * passes in between. See ring.h; which rows travel is place.c's, how bytes
 * move the link's. */
#include "ring.h"
#include "flight.h"
#include "metrics.h"
#include "ring_state.h"
#include "trace.h"
#include "walk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One step's messages, and the keys that came in their places. Rows that did
 * not travel are never seen; they stay finite. */
typedef struct exchange {
  int32_t to, from;
  bool posted;          /* the link holds on to both messages */
  int64_t outgoing_bytes, incoming_bytes;
  char *outgoing, *incoming;
  char *k, *v;          /* [B, rows of the shard, Hkv, D] */
} exchange;

typedef struct ring_work {
  dil_ring *ring;
  int64_t B;            /* batch rows here */
  flight flight;
  ring_state state;     /* of this rank's queries */
  exchange *exchange;   /* [ranks], by step; 0 is unused */
} ring_work;

static double clock_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- sizes --------------------------------------------------------------- */

static int64_t row_bytes(const dil_table *t, int32_t width) {
  return width * (int64_t)dil_dtype_size(t->dtype);
}

static int64_t pair_bytes(const dil_table *t) { /* a row of K and one of V */
  return row_bytes(t, t->head_dim) + row_bytes(t, t->value_dim);
}

dil_status ring_bytes(const dil_ring *r, int32_t from, int32_t to,
                      int64_t *bytes) {
  const dil_table *t = r->shape.table;
  dil_status status = DIL_OK;
  *bytes = 0;
  for (int32_t kv = 0; kv < t->kv_heads && !status; kv++) {
    int64_t count;
    status = place_count(&r->shape, from, to, kv, &count);
    *bytes += count * pair_bytes(t) * r->rows->q[0].shape[0];
  }
  return status;
}

/* ---- packing and unpacking ----------------------------------------------- */

/* Rows of one K/V head and batch row, between places and a message. */
typedef struct mover {
  const dil_table *table;
  const shard *owned;         /* the sender's keys */
  char *message;              /* where the next row is, or goes */
  bool unpack;
  const dil_tensor *k, *v;    /* a view for each comb */
  int64_t b;
  int32_t kv;
} mover;

static char *row_of(const dil_tensor *t, const mover *m, int64_t row) {
  int64_t at = m->b * t->stride[0] + row * t->stride[1] + m->kv * t->stride[2];
  return (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
}

static void move_row(mover *m, char *place, int32_t width) {
  size_t bytes = (size_t)row_bytes(m->table, width);
  if (m->unpack) memcpy(place, m->message, bytes);
  else memcpy(m->message, place, bytes);
  m->message += bytes;
}

static void move_stretch(void *context, const stretch_of_rows *s) {
  mover *m = context;
  dil_comb comb = m->owned->comb[s->comb];
  for (int64_t base = s->low; base < s->high; base += s->period)
    for (int32_t i = 0; i < s->count && base + s->offset[i] < s->high; i++) {
      int64_t row = (base + s->offset[i] - comb.first) / comb.step;
      move_row(m, row_of(&m->k[s->comb], m, row), m->table->head_dim);
      move_row(m, row_of(&m->v[s->comb], m, row), m->table->value_dim);
    }
}

/* All rows that travel from one rank to another, in the order of both. */
static dil_status move_rows(const dil_ring *r, int32_t from, int32_t to,
                            char *message, bool unpack, const dil_tensor *k,
                            const dil_tensor *v) {
  shard owned = place_keys(&r->shape, from);
  mover m = {.table = r->shape.table, .owned = &owned, .message = message,
             .unpack = unpack, .k = k, .v = v};
  dil_status status = DIL_OK;
  for (m.b = 0; m.b < r->rows->q[0].shape[0]; m.b++)
    for (m.kv = 0; m.kv < m.table->kv_heads && !status; m.kv++)
      status = place_rows(&r->shape, from, to, m.kv, move_stretch, &m);
  return status;
}

/* Views of another rank's keys, a comb each. */
static void view_arrived(const ring_work *w, const exchange *e,
                         const shard *owned, dil_tensor *k, dil_tensor *v) {
  const dil_table *t = w->ring->shape.table;
  int64_t all = shard_rows(owned), row = 0;
  int64_t ks[] = {w->B, all, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, all, t->kv_heads, t->value_dim};
  for (int32_t i = 0; i < owned->count; i++) {
    int64_t heads_before = row * t->kv_heads;
    k[i] = dil_tensor_make(e->k + heads_before * row_bytes(t, t->head_dim),
                           t->dtype, 4, ks);
    v[i] = dil_tensor_make(e->v + heads_before * row_bytes(t, t->value_dim),
                           t->dtype, 4, vs);
    k[i].shape[1] = v[i].shape[1] = owned->comb[i].count;
    row += owned->comb[i].count;
  }
}

/* ---- passes -------------------------------------------------------------- */

typedef dil_status (*part_step)(const dil_ring *r, const dil_call *call,
                                const dil_part *part);

static dil_status begin_part(const dil_ring *r, const dil_call *call,
                             const dil_part *part) {
  return cpu_kernel_begin(r->kernel, r->threads, call, part);
}

static dil_status advance_part(const dil_ring *r, const dil_call *call,
                               const dil_part *part) {
  return cpu_kernel_advance(r->kernel, r->threads, r->scratch, call, part);
}

static dil_status finish_part(const dil_ring *r, const dil_call *call,
                              const dil_part *part) {
  return cpu_kernel_finish(r->kernel, r->threads, call, part);
}

/* One step over each comb of the rank's queries with one comb of keys. */
static dil_status each_query_comb(ring_work *w, part_step step, dil_comb keys,
                                  const dil_tensor *k, const dil_tensor *v) {
  const dil_ring *r = w->ring;
  shard mine = place_queries(&r->shape, r->link->rank);
  dil_call call = *r->call;
  dil_status status = DIL_OK;
  call.k = *k;
  call.v = *v;
  for (int32_t i = 0; i < mine.count && !status; i++) {
    dil_part part = {.queries = mine.comb[i], .keys = keys, .B = r->B,
                     .N = r->shape.N, .M = r->shape.M, .batch = r->batch,
                     .head = r->head, .o = w->state.o[i],
                     .lse = w->state.lse[i]};
    call.q = r->rows->q[i];
    call.o = r->rows->o[i];
    call.lse = r->rows->lse[i];
    status = step(r, &call, &part);
  }
  return status;
}

static dil_status advance(ring_work *w, int32_t from, const dil_tensor *k,
                          const dil_tensor *v) {
  shard owned = place_keys(&w->ring->shape, from);
  double start = clock_seconds();
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < owned.count && !status; i++)
    status = each_query_comb(w, advance_part, owned.comb[i], &k[i], &v[i]);
  w->ring->facts.computed += clock_seconds() - start;
  return status;
}

/* A step that looks at no keys. */
static dil_status without_keys(ring_work *w, part_step step) {
  const dil_table *t = w->ring->shape.table;
  int64_t ks[] = {w->B, 0, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, 0, t->kv_heads, t->value_dim};
  dil_tensor k = dil_tensor_make(NULL, t->dtype, 4, ks);
  dil_tensor v = dil_tensor_make(NULL, t->dtype, 4, vs);
  return each_query_comb(w, step, (dil_comb){0, 1, 0}, &k, &v);
}

/* ---- steps --------------------------------------------------------------- */

static dil_status size_messages(const dil_ring *r, int32_t step, exchange *e) {
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  e->to = (rank + step) % ranks;
  e->from = (rank - step + ranks) % ranks;
  dil_status status = ring_bytes(r, rank, e->to, &e->outgoing_bytes);
  if (!status) status = ring_bytes(r, e->from, rank, &e->incoming_bytes);
  if (status) return status;
  e->outgoing = malloc((size_t)e->outgoing_bytes + 1);
  e->incoming = malloc((size_t)e->incoming_bytes + 1);
  if (e->outgoing && e->incoming) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %lld bytes of keys and values",
                  (long long)(e->outgoing_bytes + e->incoming_bytes));
}

/* Packs what the rank `step` ahead needs, and posts both ways. */
static dil_status post_step(ring_work *w, int32_t step) {
  dil_ring *r = w->ring;
  exchange *e = &w->exchange[step];
  int64_t begin = trace_begin();
  dil_status status = size_messages(r, step, e);
  if (!status)
    status = move_rows(r, r->link->rank, e->to, e->outgoing, false, r->rows->k,
                       r->rows->v);
  trace_end(begin, "ring", "pack rows that travel", NULL, step);
  if (status) return status;
  const link_transfer t = {.to = e->outgoing_bytes ? e->to : -1,
                           .from = e->incoming_bytes ? e->from : -1,
                           .send = e->outgoing,
                           .receive = e->incoming,
                           .send_bytes = e->outgoing_bytes,
                           .receive_bytes = e->incoming_bytes};
  flight_note(&w->flight, step, "send to", t.to, e->outgoing_bytes);
  r->facts.sent += e->outgoing_bytes;
  r->facts.received += e->incoming_bytes;
  e->posted = true;
  return r->link->calls->post(r->link, step, &t);
}

static dil_status wait_step(ring_work *w, int32_t step) {
  dil_ring *r = w->ring;
  double start = clock_seconds();
  const exchange *e = &w->exchange[step];
  int64_t begin = trace_begin();
  r->link->step = step;
  flight_note(&w->flight, step, "wait for", e->from, e->incoming_bytes);
  dil_status status = r->link->calls->wait(r->link, step);
  flight_note(&w->flight, step, status ? "has failed" : "has come", -1, 0);
  w->exchange[step].posted = false;
  r->facts.waited += clock_seconds() - start;
  trace_end(begin, "ring", "wait", r->link->calls->name, step);
  return status;
}

static void exchange_free(exchange *e) {
  free(e->outgoing);
  free(e->incoming);
  free(e->k);
  free(e->v);
  *e = (exchange){0};
}

/* Keys that came, to their places, and the passes over them. */
static dil_status compute_step(ring_work *w, int32_t step) {
  dil_ring *r = w->ring;
  const dil_table *t = r->shape.table;
  exchange *e = &w->exchange[step];
  shard owned = place_keys(&r->shape, e->from);
  size_t heads_there = (size_t)(w->B * shard_rows(&owned) * t->kv_heads);
  dil_tensor k[SHARD_COMBS], v[SHARD_COMBS];
  if (!e->incoming_bytes) return DIL_OK;
  e->k = calloc(heads_there, (size_t)row_bytes(t, t->head_dim));
  e->v = calloc(heads_there, (size_t)row_bytes(t, t->value_dim));
  if (!e->k || !e->v)
    return dil_fail(DIL_MEMORY, "no memory for the keys of rank %d", e->from);
  view_arrived(w, e, &owned, k, v);
  dil_status status =
      move_rows(r, e->from, r->link->rank, e->incoming, true, k, v);
  return status ? status : advance(w, e->from, k, v);
}

/* A rank that resumed from a later state than others still sends, and leaves
 * out what it has seen already. */
static dil_status finish_step(ring_work *w, int32_t step) {
  const ring_checkpoint *c = &w->ring->checkpoint;
  dil_status status = DIL_OK;
  if (step > w->state.step) {
    status = step ? compute_step(w, step)
                  : advance(w, w->ring->link->rank, w->ring->rows->k,
                            w->ring->rows->v);
    w->state.step = step;
    flight_note(&w->flight, step, "computed", -1, 0);
    if (!status && c->prefix && (step + 1) % c->every == 0)
      status = state_write(&w->state, w->ring);
  }
  exchange_free(&w->exchange[step]);
  return status;
}

/* Transfers are one step ahead of the passes; all at once when gathering. */
static dil_status run_steps(ring_work *w) {
  const dil_ring *r = w->ring;
  int32_t last = r->link->ranks - 1, posted = 0;
  int32_t ahead = r->exchange == DIL_EXCHANGE_GATHER ? last : 1;
  dil_status status = DIL_OK;
  for (int32_t step = 0; step <= last && !status; step++) {
    int64_t begin = trace_begin();
    if (step) status = wait_step(w, step);
    while (!status && posted < last && posted < step + ahead)
      status = post_step(w, ++posted);
    if (!status) status = finish_step(w, step);
    metric_add(METRIC_ring_steps, 1);
    trace_end(begin, "ring", "ring step", NULL, step);
  }
  return status;
}

static void count_facts(const ring_facts *f) {
  metric_add(METRIC_ring_sent_bytes, f->sent);
  metric_add(METRIC_ring_received_bytes, f->received);
  metric_add_seconds(METRIC_ring_waited, f->waited);
}

/* ---- ranks must agree ---------------------------------------------------- */

/* What every rank must have alike: compared before any row moves. */
typedef struct greeting {
  uint64_t plan_hash;
  int64_t version, ranks, layout, exchange, B, N, M, batch, train, seed;
  double scale;
} greeting;

static const char *const greeting_words[] = {
    "plan", "version of dil", "number of ranks", "layout", "way of exchange",
    "number of batch rows", "number of queries", "number of keys",
    "first batch row", "word on training", "seed", "scale"};

static greeting greet(const dil_ring *r, int64_t B) {
  return (greeting){.plan_hash = r->plan_hash, .version = 1,
                    .ranks = r->link->ranks, .layout = r->shape.layout,
                    .exchange = r->exchange, .B = B, .N = r->shape.N,
                    .M = r->shape.M, .batch = r->batch,
                    .train = r->call->train, .seed = (int64_t)r->call->seed,
                    .scale = r->call->scale};
}

static dil_status compare(const greeting *mine, const greeting *theirs,
                          int32_t rank) {
  enum { FIELD = 8, FIELDS = sizeof *mine / FIELD };
  _Static_assert(FIELDS == sizeof greeting_words / sizeof *greeting_words,
                 "a word for each field");
  for (size_t i = 0; i < FIELDS; i++)
    if (memcmp((const char *)mine + i * FIELD, (const char *)theirs + i * FIELD,
               FIELD))
      return dil_fail(DIL_PEER, "rank %d has another %s", rank,
                      greeting_words[i]);
  return DIL_OK;
}

static dil_status agree(const dil_ring *r, int64_t B) {
  greeting mine = greet(r, B), theirs = {0};
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  dil_status status = DIL_OK;
  for (int32_t step = 1; step < ranks && !status; step++) {
    int32_t from = (rank - step + ranks) % ranks;
    const link_transfer t = {(rank + step) % ranks, from, &mine, &theirs,
                             sizeof mine, sizeof theirs};
    status = r->link->calls->post(r->link, step, &t);
    if (!status) status = r->link->calls->wait(r->link, step);
    if (!status) status = compare(&mine, &theirs, from);
  }
  return status;
}

/* Nobody is done before all are: a dissemination barrier (Hensgen, Finkel and
 * Manber, 1988). */
static dil_status part_company(const dil_ring *r) {
  int32_t rank = r->link->rank, ranks = r->link->ranks;
  int64_t mine = 0, theirs;
  dil_status status = DIL_OK;
  for (int32_t far = 1; far < ranks && !status; far *= 2) {
    const link_transfer t = {(rank + far) % ranks, (rank - far + ranks) % ranks,
                             &mine, &theirs, sizeof mine, sizeof theirs};
    status = r->link->calls->post(r->link, 0, &t);
    if (!status) status = r->link->calls->wait(r->link, 0);
  }
  return status;
}

/* ---- the run ------------------------------------------------------------- */

static dil_status begin(ring_work *w) {
  dil_ring *r = w->ring;
  dil_status status = state_new(&w->state, r);
  w->exchange = calloc((size_t)r->link->ranks, sizeof *w->exchange);
  if (!status && !w->exchange)
    status = dil_fail(DIL_MEMORY, "no memory for %d steps", r->link->ranks);
  if (!status && r->checkpoint.resume) return state_read(&w->state, r);
  return status ? status : without_keys(w, begin_part);
}

/* What the link still holds must stay until it lets go. */
static void end(ring_work *w) {
  for (int32_t i = 0; w->exchange && i < w->ring->link->ranks; i++) {
    if (w->exchange[i].posted) wait_step(w, i);
    exchange_free(&w->exchange[i]);
  }
  free(w->exchange);
  state_free(&w->state);
}

dil_status ring_run(dil_ring *r) {
  ring_work w = {.ring = r, .B = r->rows->q[0].shape[0]};
  r->facts = (ring_facts){0};
  dil_status status = flight_begin(&w.flight, r->checkpoint.prefix,
                                   r->checkpoint.name);
  if (!status) status = agree(r, w.B);
  if (!status) status = begin(&w);
  if (!status) status = run_steps(&w);
  if (!status) status = without_keys(&w, finish_part);
  if (!status) status = part_company(r);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (status) r->link->calls->revoke(r->link, why);
  end(&w);
  flight_end(&w.flight, status != DIL_OK);
  count_facts(&r->facts);
  return status ? dil_fail(status, "%s", why) : DIL_OK;
}
