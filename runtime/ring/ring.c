/* ring.c - one rank's run over a ring: its messages, and the passes in between;
 * see ring.h. partition.c decides which rows travel, the link moves the bytes,
 * and a device computes (ring_device.h). */
#include "ring_work.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <stdio.h>

/* ---- passes -------------------------------------------------------------- */

typedef dil_status (*shard_step)(ring_device *d, const dil_call *call,
                                 const dil_shard *shard);

dil_shard ring_shard(ring_work *w, int32_t i, dil_progression keys,
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
      .by_pass = w->state.by_pass,
      .state_stride = w->state.state_stride[i]};
}

int32_t ring_query_progressions(const ring_work *w) {
  return partition_queries(&w->ring->shape, w->ring->link->rank).count;
}

static dil_status advance(ring_work *w, int32_t i, dil_progression keys,
                          const dil_tensor *k, const dil_tensor *v) {
  dil_call call;
  dil_shard shard = ring_shard(w, i, keys, k, v, &call);
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
    for (int32_t i = 0; i < ring_query_progressions(w) && !status; i++)
      if (!own || i != c || !w->state.state_stride[i])
        status = advance(w, i, owned.progression[c], &keys->k[c], &keys->v[c]);
  if (w->device->calls->on_host)
    w->ring->facts.computed += clock_seconds() - start;
  return status;
}

/* Begin or finish, which look at no keys; opened progressions need neither of
 * them. */
static dil_status without_keys(ring_work *w, shard_step step) {
  const dil_table *t = w->ring->shape.table;
  int64_t ks[] = {w->B, 0, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, 0, t->kv_heads, t->value_dim};
  dil_tensor k = dil_tensor_make(NULL, t->dtype, 4, ks);
  dil_tensor v = dil_tensor_make(NULL, t->dtype, 4, vs);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < ring_query_progressions(w) && !status; i++) {
    dil_call call;
    dil_shard shard = ring_shard(w, i, (dil_progression){0, 1, 0}, &k, &v, &call);
    if (!w->state.state_stride[i]) status = step(w->device, &call, &shard);
  }
  return status;
}

/* Progression i of the rank's queries over progression i of its own keys. */
static dil_shard own_shard(ring_work *w, int32_t i, dil_call *call) {
  const ring_keys *keys = &w->ring->rows->keys;
  positions owned = partition_keys(&w->ring->shape, w->ring->link->rank);
  return ring_shard(w, i, owned.progression[i], &keys->k[i], &keys->v[i], call);
}

/* Asks the device which progressions it can open (ring_device.h). In an opened
 * progression, rows that no other keys reach need no state. A checkpoint holds
 * the state of every row, so it rules out opening. */
static dil_status ask_opens(ring_work *w) {
  const dil_ring *r = w->ring;
  positions owned = partition_keys(&r->shape, r->link->rank);
  dil_status status = DIL_OK;
  if (!w->device->calls->opens || r->checkpoint.prefix) return DIL_OK;
  for (int32_t i = 0; i < ring_query_progressions(w) && i < owned.count && !status;
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
  for (int32_t i = 0; i < ring_query_progressions(w) && !status; i++) {
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

/* The passes over the keys that came in a step. */
static dil_status compute_step(ring_work *w, int32_t step) {
  int32_t from = ring_sender(w, step);
  positions owned = partition_keys(&w->ring->shape, from);
  ring_keys keys = {0};
  if (!ring_arrived(w, w->keys, step)) return DIL_OK;
  dil_status status = ring_spread_step(w, step, &owned, &keys);
  return status ? status : pass_over(w, from, &keys, false);
}

static dil_status keep_state(ring_work *w) {
  ring_device *d = w->device;
  dil_status status = d->calls->settle(d, w->ring->link, &w->ring->facts);
  return status ? status : state_write(&w->state, w->ring, &w->digest);
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
    bool due = c->prefix && !r->gradients && (step + 1) % c->every == 0;
    if (!status && due) status = keep_state(w);
  }
  ring_exchange_free(w, &w->exchange[step]);
  return status;
}

/* Messages of rotating branches are posted one step ahead of the passes, so
 * that they travel while the device computes. */
static dil_status run_steps(ring_work *w) {
  const dil_ring *r = w->ring;
  dil_status status = ring_post_first(w);
  for (int32_t step = 0; step < r->link->ranks && !status; step++) {
    int64_t begin = trace_begin();
    if (step) status = ring_wait_step(w, step);
    if (!status) status = ring_post_rest(w, step + 1);
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

/* ---- the run ------------------------------------------------------------- */

static dil_status begin(ring_work *w) {
  dil_ring *r = w->ring;
  dil_status status = w->device->calls->start(w->device);
  if (!status) status = ring_list_routes(r, &r->shape, &r->routes->all);
  w->keys = &r->routes->all;
  if (!status) status = ask_opens(w);
  if (!status) status = state_new(&w->state, r);
  if (!status) status = ring_exchange_begin(w);
  if (status || !r->checkpoint.prefix) return status;
  status = ring_digest_of(r, &w->digest);
  if (status) return status;
  return r->checkpoint.resume ? state_read(&w->state, r, &w->digest)
                              : state_forget_gradients(r);
}

/* The steps of a run between its handshake and its end. */
static dil_status run_forward(ring_work *w) {
  dil_status status = begin(w);
  return status ? status : run_ring(w);
}

dil_status ring_states(ring_work *w) {
  dil_status status = state_new(&w->state, w->ring);
  if (!status) status = ring_exchange_begin(w);
  if (!status) status = run_steps(w);
  if (status) return status; /* ring_run tells the others before it waits */
  ring_exchange_end(w, false);
  w->state.step = -1;
  return DIL_OK;
}

dil_status ring_run(dil_ring *r) {
  ring_work w = {.ring = r, .device = r->device,
                 .B = r->rows->q[0].shape[0]};
  r->facts = (ring_facts){0};
  r->link->step = 0;
  dil_status status = flight_recorder_begin(&w.flight, r->checkpoint.prefix,
                                   r->checkpoint.name);
  if (!status && r->gradients) status = ring_choose_ways(&w);
  if (!status) status = ring_handshake(r, w.B);
  if (!status) status = r->gradients ? ring_backward(&w) : run_forward(&w);
  if (!status) status = w.device->calls->settle(w.device, r->link, &r->facts);
  if (!status) status = link_barrier(r->link);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (status) r->link->calls->revoke(r->link, why);
  if (r->gradients) ring_backward_end(&w, status != DIL_OK);
  ring_exchange_end(&w, status != DIL_OK);
  state_free(&w.state, w.device);
  flight_recorder_end(&w.flight, status != DIL_OK);
  ring_count_facts(&r->facts);
  return status ? dil_fail(status, "%s", why) : DIL_OK;
}
