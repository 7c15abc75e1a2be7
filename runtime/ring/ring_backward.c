/* ring_backward.c - one rank's run backward over a ring.
 *
 * In: the rank's rows with their o and lse, and dO. Out: f32 sums of dQ, dK and
 * dV of the rank's rows, and of the gradients of inputs. Keys come step by step
 * as in the run forward, or queries do, whichever are fewer bytes (way.h). What a
 * rank adds to the keys or queries of another goes back by the route's reverse
 * while the next step computes, and the owner adds it to its sums, a step at a
 * time: the order of a sum is that of the ring.
 *
 * A run that resumes has the sums that each rank kept, of steps that may differ.
 * Ranks tell each other these steps. A rank makes again what a rank that kept an
 * earlier step still lacks, and it alone goes back. */
#include "ring_work.h"
#include "input_sums.h"
#include "way.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include <stdlib.h>

/* ---- routes -------------------------------------------------------------- */

static int64_t dkv_bytes(const ring_work *w, const route *r) {
  return r->rows * w->B * way_key_back(w->ring->shape.table);
}

/* Bytes of dK and dV, and of dQ behind them, of both phases. */
static int64_t return_bytes(const ring_work *w, int32_t step, bool in) {
  int64_t bytes = 0;
  for (int32_t p = 0; p < EXCHANGE_PHASES; p++) {
    bytes += dkv_bytes(w, ring_return_route(w->keys, step, p, in));
    if (w->queries)
      bytes += ring_dq_bytes(w, ring_return_route(w->queries, step, p, in));
  }
  return bytes;
}

/* The sets of routes: those of the run forward, unless queries come. */
static dil_status list_ways(ring_work *w) {
  const dil_ring *r = w->ring;
  ring_shape keys = way_keys(&r->shape, r->queries);
  ring_shape queries = way_queries(&r->shape, r->queries);
  ring_routes *of = r->routes;
  route_set *there = r->queries ? &of->keys : &of->all;
  dil_status status = ring_list_routes(r, &keys, there);
  if (!status) status = ring_list_returns(there);
  w->keys = there;
  if (status || !r->queries) return status;
  status = ring_list_routes(r, &queries, &of->queries);
  w->queries = &of->queries;
  return status ? status : ring_list_returns(&of->queries);
}

/* ---- passes -------------------------------------------------------------- */

/* Progression i of the rank's queries over one progression of keys. */
static dil_status pass_over(ring_work *w, int32_t i, dil_progression keys,
                            int32_t c, const ring_keys *from,
                            const ring_keys *sums, uint64_t left_out,
                            bool sinks, bool opens) {
  const ring_gradients *g = w->sums;
  dil_backward_call call = {.size = sizeof call,
                            .output = g->output[i],
                            .lse = g->lse[i],
                            .dq = g->dq[i],
                            .dk = sums->k[c],
                            .dv = sums->v[c]};
  dil_shard shard =
      ring_shard(w, i, keys, &from->k[c], &from->v[c], &call.forward);
  for (int32_t x = 0; x < call.forward.input_count; x++)
    call.inputs[x] = g->wanted[x];
  shard.inputs = g->inputs;
  shard.sinks = sinks;
  shard.opens = opens;
  if (w->numbers && !sinks && !w->device->calls->on_host)
    shard.numbers = w->own.numbers.k[i].data;
  shard.left_out = left_out;
  return w->device->calls->backward(w->device, &call, &shard);
}

/* Progressions of queries over those of keys. First each over its own number, which of
 * the rank's own rows is the same one: these passes may open the sums. */
static dil_status passes_over(ring_work *w, int32_t owner,
                              const ring_keys *keys, const ring_keys *sums) {
  positions owned = partition_keys(&w->ring->shape, owner);
  bool own = owner == w->ring->link->rank;
  uint64_t left_out = own ? 0 : w->ring->queries;
  double start = clock_seconds();
  dil_status status = DIL_OK;
  for (int32_t turn = 0; turn < 2; turn++)
    for (int32_t c = 0; c < owned.count; c++)
      for (int32_t i = 0; i < ring_query_progressions(w) && !status; i++)
        if ((i == c) == !turn)
          status = pass_over(w, i, owned.progression[c], c, keys, sums, left_out,
                             false, own && w->sums->opens && !turn);
  if (w->device->calls->on_host)
    w->ring->facts.computed += clock_seconds() - start;
  return status;
}

/* The sinks of the rank's rows, once a row: a pass over no keys. */
static dil_status add_sinks(ring_work *w) {
  const dil_table *t = w->ring->shape.table;
  int64_t ks[] = {w->B, 0, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, 0, t->kv_heads, t->value_dim};
  ring_keys none = {{dil_tensor_make(NULL, t->dtype, 4, ks)},
                    {dil_tensor_make(NULL, t->dtype, 4, vs)}};
  ring_keys sums = {{dil_tensor_make(NULL, DIL_F32, 4, ks)},
                    {dil_tensor_make(NULL, DIL_F32, 4, vs)}};
  dil_status status = DIL_OK;
  if (!t->sinks || !w->ring->gradients->inputs) return DIL_OK;
  for (int32_t i = 0; i < ring_query_progressions(w) && !status; i++)
    status = pass_over(w, i, (dil_progression){0, 1, 0}, 0, &none, &sums, 0,
                       true, false);
  return status;
}

static dil_status pass_over_own(ring_work *w) {
  const dil_ring *r = w->ring;
  dil_status status = add_sinks(w);
  return status ? status
                : passes_over(w, r->link->rank, &r->rows->keys,
                              &r->gradients->keys);
}

/* ---- a step -------------------------------------------------------------- */

/* Whether the sums that a rank goes on from lack what comes back in a step. */
static bool lacks(const ring_work *w, int32_t rank, int32_t step) {
  return step >= w->kept[rank];
}

/* Whether the rank's own sums lack the passes of a step. */
static bool is_new(const ring_work *w, int32_t step) {
  return step > w->kept[w->ring->link->rank];
}

/* Clears the sums of the rows that go back in a step: others gain nothing. */
static dil_status clear_sums(const ring_work *w, const route_set *set,
                             int32_t step, const ring_keys *sums) {
  dil_status status = DIL_OK;
  for (int32_t p = 0; p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_return_route(set, step, p, false);
    if (r->rows) status = w->device->calls->clear(w->device, r, sums);
  }
  return status;
}

/* Cleared f32 sums for the keys of another rank. */
static dil_status take_sums(ring_work *w, int32_t step, const positions *owned,
                            ring_keys *sums) {
  ring_return *b = &w->back[step];
  const dil_table *t = w->ring->shape.table;
  ring_device *d = w->device;
  int64_t rows = w->B * positions_count(owned) * t->kv_heads;
  int64_t size = sizeof(float);
  dil_status status =
      d->calls->take(d, rows * t->head_dim * size, RING_TO_CLEAR, &b->dk);
  if (!status)
    status =
        d->calls->take(d, rows * t->value_dim * size, RING_TO_CLEAR, &b->dv);
  if (!status) ring_view_keys(w, b->dk, b->dv, DIL_F32, owned, sums);
  return status ? status : clear_sums(w, w->keys, step, sums);
}

static void give_sums(ring_work *w, ring_return *b) {
  if (b->dk) w->device->calls->give(w->device, b->dk);
  if (b->dv) w->device->calls->give(w->device, b->dv);
  if (b->dq) w->device->calls->give(w->device, b->dq);
  b->dk = b->dv = b->dq = NULL;
}

static dil_status pack_sums(const ring_work *w, route *r, const ring_keys *sums,
                            void *message) {
  return w->device->calls->pack(w->device, RING_SUMS, r, sums, message);
}

/* The rows that go back, in one message: those of both phases. */
static dil_status pack_returns(ring_work *w, int32_t step,
                               const ring_keys *keys, const ring_keys *dq) {
  char *at = w->back[step].outgoing;
  dil_status status = DIL_OK;
  for (int32_t p = 0; p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_return_route(w->keys, step, p, false);
    if (r->rows) status = pack_sums(w, r, keys, at);
    at += dkv_bytes(w, r);
  }
  for (int32_t p = 0; w->queries && p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_return_route(w->queries, step, p, false);
    if (r->rows) status = pack_sums(w, r, dq, at);
    at += ring_dq_bytes(w, r);
  }
  return status;
}

static dil_status size_returns(ring_work *w, int32_t step) {
  ring_return *b = &w->back[step];
  ring_device *d = w->device;
  if (lacks(w, ring_sender(w, step), step))
    b->outgoing_bytes = return_bytes(w, step, false);
  if (lacks(w, w->ring->link->rank, step))
    b->incoming_bytes = return_bytes(w, step, true);
  dil_status status =
      d->calls->take(d, b->outgoing_bytes, RING_ANY, &b->outgoing);
  return status ? status
                : d->calls->take(d, b->incoming_bytes, RING_ANY, &b->incoming);
}

/* The rows that came in a step, and what the step adds to them. */
typedef struct step_rows {
  ring_keys keys, dkv;
  ring_queries queries;
  ring_keys dq;
} step_rows;

static dil_status passes_of_step(ring_work *w, int32_t step,
                                 const step_rows *rows) {
  int32_t owner = ring_sender(w, step);
  dil_status status = DIL_OK;
  if (ring_arrived(w, w->keys, step))
    status = passes_over(w, owner, &rows->keys, &rows->dkv);
  if (!status && ring_arrived(w, w->queries, step))
    status = ring_passes_of_queries(w, owner, &rows->queries, &rows->dq);
  return status;
}

/* Makes *t row-major f32 memory of the same shape at *at, which it moves on. At
 * NULL it only counts. */
static void set_aside(dil_tensor *t, float **at, int64_t *floats) {
  *t = dil_tensor_make(*at, DIL_F32, t->rank, t->shape);
  *floats += dil_tensor_count(t);
  if (*at) *at += dil_tensor_count(t);
}

static int64_t lay_aside(ring_gradients *g, float *at) {
  int64_t floats = 0;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    set_aside(&g->dq[i], &at, &floats);
    set_aside(&g->keys.k[i], &at, &floats);
    set_aside(&g->keys.v[i], &at, &floats);
  }
  return floats;
}

/* Passes of a step that the rank's own sums include: what they add there goes
 * nowhere. */
static dil_status passes_again(ring_work *w, int32_t step,
                               const step_rows *rows) {
  const ring_gradients *own = w->ring->gradients;
  ring_gradients aside = *own;
  int64_t inputs = own->inputs ? input_sums_elements(w->ring->call, own->wanted)
                               : 0;
  int64_t bytes = inputs * (int64_t)sizeof(double) +
                  lay_aside(&aside, NULL) * (int64_t)sizeof(float);
  void *memory = NULL;
  dil_status status = w->device->calls->take(w->device, bytes, RING_ZEROS, &memory);
  if (status) return status;
  if (own->inputs) aside.inputs = memory;
  lay_aside(&aside, (float *)memory + 2 * inputs);
  w->sums = &aside;
  status = passes_of_step(w, step, rows);
  w->sums = own;
  w->device->calls->give(w->device, memory);
  return status;
}

/* Spreads what came in a step, and clears the sums for it. */
static dil_status open_step(ring_work *w, int32_t step, step_rows *rows) {
  int32_t owner = ring_sender(w, step);
  positions owned = partition_keys(&w->ring->shape, owner);
  ring_return *b = &w->back[step];
  dil_status status = DIL_OK;
  if (ring_arrived(w, w->keys, step)) {
    status = ring_spread_step(w, step, &owned, &rows->keys);
    if (!status) status = take_sums(w, step, &owned, &rows->dkv);
  }
  if (!status && ring_arrived(w, w->queries, step)) {
    status = ring_spread_queries(w, step, &rows->queries);
    if (!status) status = ring_take_dq(w, owner, &b->dq, &rows->dq);
    if (!status) status = clear_sums(w, w->queries, step, &rows->dq);
  }
  return status;
}

/* The passes over what came in a step, and what they add to it. */
static dil_status compute_step(ring_work *w, int32_t step) {
  step_rows rows = {0};
  dil_status status = size_returns(w, step);
  if (status ||
      !(ring_arrived(w, w->keys, step) || ring_arrived(w, w->queries, step)))
    return status;
  if (!is_new(w, step) && !lacks(w, ring_sender(w, step), step)) return status;
  status = open_step(w, step, &rows);
  if (!status)
    status = (is_new(w, step) ? passes_of_step : passes_again)(w, step, &rows);
  if (!status && w->back[step].outgoing_bytes)
    status = pack_returns(w, step, &rows.dkv, &rows.dq);
  give_sums(w, &w->back[step]);
  return status;
}

/* ---- gradients that go back ---------------------------------------------- */

/* The slot of a step's rows is free once they have come. */
static dil_status post_return(ring_work *w, int32_t step) {
  dil_ring *r = w->ring;
  ring_return *b = &w->back[step];
  const link_transfer t = {
      .to = b->outgoing_bytes ? ring_sender(w, step) : -1,
      .from = b->incoming_bytes ? ring_receiver(w, step) : -1,
      .send = b->outgoing,
      .receive = b->incoming,
      .send_bytes = b->outgoing_bytes,
      .receive_bytes = b->incoming_bytes};
  ring_note(w, step, "return to", t.to, b->outgoing_bytes);
  r->facts.sent += b->outgoing_bytes;
  r->facts.received += b->incoming_bytes;
  b->posted = true;
  return w->device->calls->post(w->device, RING_SUMS, r->link, step, &t);
}

static dil_status wait_return(ring_work *w, int32_t step) {
  dil_ring *r = w->ring;
  ring_return *b = &w->back[step];
  double start = clock_seconds();
  if (!b->posted) return DIL_OK;
  r->link->step = step;
  ring_note(w, step, "wait for gradients of", ring_receiver(w, step),
            b->incoming_bytes);
  dil_status status = w->device->calls->wait(w->device, r->link, step);
  b->posted = false;
  flight_recorder_note(&w->flight, step, status ? "have failed" : "have come",
                       -1, 0);
  if (w->device->calls->on_host) r->facts.waited += clock_seconds() - start;
  return status;
}

static void free_return(ring_work *w, ring_return *b) {
  give_sums(w, b);
  if (b->outgoing) w->device->calls->give(w->device, b->outgoing);
  if (b->incoming) w->device->calls->give(w->device, b->incoming);
  *b = (ring_return){0};
}

/* Adds what has come back to the rank's own sums. */
static dil_status add_returns(ring_work *w, int32_t step) {
  const char *at = w->back[step].incoming;
  ring_device *d = w->device;
  ring_keys dq = ring_own_dq(w);
  dil_status status = DIL_OK;
  if (!w->back[step].incoming_bytes) return DIL_OK;
  for (int32_t p = 0; p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_return_route(w->keys, step, p, true);
    if (r->rows)
      status = d->calls->reduce(d, r, at, &w->ring->gradients->keys);
    at += dkv_bytes(w, r);
  }
  for (int32_t p = 0; w->queries && p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_return_route(w->queries, step, p, true);
    if (r->rows) status = d->calls->reduce(d, r, at, &dq);
    at += ring_dq_bytes(w, r);
  }
  return status;
}

/* Waits for what this rank's rows have gained in a step, and adds it. */
static dil_status finish_return(ring_work *w, int32_t step) {
  int64_t begin = trace_begin();
  if (step < 1) return DIL_OK;
  dil_status status = wait_return(w, step);
  trace_end(begin, "ring", "wait for gradients", w->ring->link->calls->name,
            step);
  begin = trace_begin();
  if (!status) status = add_returns(w, step);
  trace_end(begin, "ring", "sum gradients", NULL, step);
  free_return(w, &w->back[step]);
  return status;
}

/* ---- steps --------------------------------------------------------------- */

/* All messages of one rank to another keep their order on every link. Rows that
 * gather are all waited for in step 1: gradients follow them on the way
 * back. */
static dil_status wait_keys(ring_work *w, int32_t step) {
  dil_status status = DIL_OK;
  int32_t until = step == 1 ? w->ring->link->ranks : 0;
  w->ring->link->step = step;
  for (int32_t i = 1; i < until && !status; i++)
    status = ring_wait_phase(w, i, EXCHANGE_GATHERED);
  return status ? status : ring_wait_step(w, step);
}

static dil_status compute(ring_work *w, int32_t step) {
  if (step) return compute_step(w, step);
  return is_new(w, 0) ? pass_over_own(w) : DIL_OK;
}

static dil_status keep_sums(ring_work *w, int32_t step) {
  const ring_checkpoint *c = &w->ring->checkpoint;
  if (!c->prefix || !is_new(w, step) || (step + 1) % c->every) return DIL_OK;
  dil_status status = w->device->calls->settle(w->device, w->ring->link,
                                               &w->ring->facts);
  return status ? status : state_write_gradients(w->ring, &w->digest, step);
}

static dil_status run_step(ring_work *w, int32_t step) {
  dil_status status = step ? wait_keys(w, step) : DIL_OK;
  if (!status) status = ring_post_rest(w, step + 1);
  if (!status) status = compute(w, step);
  if (!status) status = w->device->calls->mark(w->device, step);
  flight_recorder_note(&w->flight, step, "computed", -1, 0);
  ring_exchange_free(w, &w->exchange[step]);
  if (!status) status = finish_return(w, step - 1);
  if (!status && step) status = post_return(w, step);
  return status ? status : keep_sums(w, step);
}

static dil_status run_steps(ring_work *w) {
  const dil_ring *r = w->ring;
  dil_status status = ring_post_first(w);
  for (int32_t step = 0; step < r->link->ranks && !status; step++) {
    int64_t begin = trace_begin();
    status = run_step(w, step);
    metric_add(METRIC_ring_steps, 1);
    if (r->stepped && !status) r->stepped(r->watcher);
    trace_end(begin, "ring", "ring step backward", NULL, step);
  }
  return status ? status : finish_return(w, r->link->ranks - 1);
}

/* ---- the run ------------------------------------------------------------- */

/* Where a branch has a softmax or a delta of its own, its lse and its o come
 * from a run forward. */
static dil_status make_states(ring_work *w) {
  const dil_ring *r = w->ring;
  w->state.by_pass = w->device->calls->asks_states(w->device);
  if (!w->state.by_pass) return DIL_OK;
  dil_status status = ring_list_routes(r, &r->shape, &r->routes->all);
  w->keys = &r->routes->all;
  return status ? status : ring_states(w);
}

/* The sums that each rank goes on from. All ranks resume, or none. */
static dil_status begin_sums(ring_work *w) {
  const dil_ring *r = w->ring;
  int32_t ranks = r->link->ranks, step = -1;
  dil_status status = DIL_OK;
  w->sums = r->gradients;
  w->back = calloc((size_t)ranks, sizeof *w->back);
  w->kept = calloc((size_t)ranks, sizeof *w->kept);
  if (!w->back || !w->kept)
    return dil_fail(DIL_MEMORY, "no memory for %d steps", ranks);
  if (r->checkpoint.prefix) status = ring_digest_of(r, &w->digest);
  if (!status && r->checkpoint.resume)
    status = state_read_gradients(r, &w->digest, &step);
  for (int32_t i = 0; i < ranks; i++) w->kept[i] = step;
  if (status || !r->checkpoint.resume) return status;
  return ring_tell_step(r, step, w->kept);
}

bool ring_opens_sums(const dil_ring *r) {
  int32_t rank = r->link->rank;
  return r->device->calls->opens_sums && !r->checkpoint.resume &&
         partition_queries(&r->shape, rank).count ==
             partition_keys(&r->shape, rank).count;
}

dil_status ring_backward(ring_work *w) {
  dil_status status = w->device->calls->start(w->device);
  if (!status) status = begin_sums(w);
  if (!status) status = make_states(w);
  if (!status) status = list_ways(w);
  if (!status && (w->queries || !w->device->calls->on_host))
    status = ring_queries_begin(w);
  if (!status) status = ring_exchange_begin(w);
  return status ? status : run_steps(w);
}

void ring_backward_end(ring_work *w, bool failed) {
  int32_t ranks = w->ring->link->ranks;
  for (int32_t i = 0; w->back && i < ranks; i++) wait_return(w, i);
  if (failed) w->device->calls->drain(w->device);
  for (int32_t i = 0; w->back && i < ranks; i++) free_return(w, &w->back[i]);
  ring_queries_end(w);
  free(w->back);
  free(w->kept);
  w->back = NULL;
  w->kept = NULL;
}
