/* ring_queries.c - the queries that come to keys in a run backward over a ring.
 *
 * In: a rank's queries with dO, o and lse. Out: rows of q and dO, and the numbers
 * by which a row weighs, for the ranks whose keys these rows reach; and, of the
 * queries that came, the passes over this rank's keys. Such a pass adds to this
 * rank's sums of dK and dV, and to sums of dQ that go back to the queries' owner;
 * see ring_backward.c and way.h. */
#include "ring_work.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include "way.h"

/* ---- the way ------------------------------------------------------------- */

/* The first run of a shape counts, and later runs of the shape choose alike. */
static dil_status count_ways(const dil_ring *r, uint64_t *queries) {
  ring_routes *routes = r->routes;
  way_bytes bytes[DIL_BRANCH_MAX];
  if (!ring_same_shape(&routes->counted, &r->shape)) {
    dil_status status = way_count(&r->shape, r->B, bytes);
    if (status) return status;
    routes->chosen = way_cheaper(r->shape.table, bytes);
    routes->counted = r->shape;
  }
  *queries = routes->chosen;
  return DIL_OK;
}

dil_status ring_choose_ways(const ring_work *w) {
  dil_ring *r = w->ring;
  if (r->link->ranks == 1) {
    r->queries = 0;
    return DIL_OK;
  }
  if (!r->way_given) return count_ways(r, &r->queries);
  r->queries = way_settle(r->shape.table, r->queries);
  return DIL_OK;
}

/* ---- views --------------------------------------------------------------- */

static int64_t number_width(const ring_work *w) {
  return 2 * backward_states(w->ring->shape.table);
}

/* A tensor [B, rows, heads, width] at *at, which it moves on. */
static dil_tensor view(const ring_work *w, int64_t rows, int64_t width,
                       dil_dtype dtype, char **at) {
  int64_t shape[] = {w->B, rows, w->ring->shape.table->heads, width};
  dil_tensor t = dil_tensor_make(*at, dtype, 4, shape);
  *at += dil_tensor_count(&t) * (int64_t)dil_dtype_size(dtype);
  return t;
}

/* Rows alone, without rows beside them. */
static dil_tensor nothing(const ring_work *w, const dil_tensor *rows) {
  char *none = NULL;
  return view(w, rows->shape[1], 0, DIL_F32, &none);
}

static void view_numbers(const ring_work *w, const positions *owned, char *at,
                         ring_keys *numbers) {
  for (int32_t i = 0; i < owned->count; i++) {
    numbers->k[i] = view(w, owned->progression[i].count, number_width(w),
                         DIL_F32, &at);
    numbers->v[i] = nothing(w, &numbers->k[i]);
  }
}

static int64_t number_bytes(const ring_work *w, int64_t rows) {
  return rows * w->B * number_width(w) * (int64_t)sizeof(float);
}

/* Rows of all heads of a rank. */
static int64_t rows_of(const ring_work *w, const positions *owned) {
  return positions_count(owned) * w->ring->shape.table->heads;
}

/* ---- this rank's own queries --------------------------------------------- */

/* The numbers of one progression of the rank's rows. */
static dil_status make_numbers(ring_work *w, int32_t i) {
  const dil_table *t = w->ring->shape.table;
  const ring_gradients *g = w->ring->gradients;
  int64_t ks[] = {w->B, 0, t->kv_heads, t->head_dim};
  int64_t vs[] = {w->B, 0, t->kv_heads, t->value_dim};
  dil_tensor k = dil_tensor_make(NULL, t->dtype, 4, ks);
  dil_tensor v = dil_tensor_make(NULL, t->dtype, 4, vs);
  dil_backward_call call = {.size = sizeof call,
                            .output = g->output[i],
                            .lse = g->lse[i]};
  dil_shard shard = ring_shard(w, i, (dil_progression){0, 1, 0}, &k, &v,
                               &call.forward);
  return w->device->calls->number(w->device, &call, &shard,
                                  w->own.numbers.k[i].data);
}

dil_status ring_queries_begin(ring_work *w) {
  dil_ring *r = w->ring;
  positions owned = partition_queries(&r->shape, r->link->rank);
  dil_status status = w->device->calls->take(
      w->device, number_bytes(w, rows_of(w, &owned)), RING_ANY, &w->numbers);
  if (status) return status;
  view_numbers(w, &owned, w->numbers, &w->own.numbers);
  for (int32_t i = 0; i < owned.count && !status; i++) {
    w->own.rows.k[i] = r->rows->q[i];
    w->own.rows.v[i] = r->gradients->output[i];
    status = make_numbers(w, i);
  }
  return status;
}

void ring_queries_end(ring_work *w) {
  if (w->numbers) w->device->calls->give(w->device, w->numbers);
  w->numbers = NULL;
}

/* ---- messages: rows of q and dO, then their numbers ----------------------- */

static int64_t rows_bytes(const ring_work *w, const route *r) {
  return r->rows * w->B * route_row_bytes(w->ring->shape.table);
}

int64_t ring_query_bytes(const ring_work *w, const route *r) {
  return r->rows * w->B * way_query_bytes(w->ring->shape.table);
}

int64_t ring_dq_bytes(const ring_work *w, const route *r) {
  return r->rows * w->B * way_query_back(w->ring->shape.table);
}

dil_status ring_pack_queries(const ring_work *w, route *r, char *message) {
  ring_device *d = w->device;
  if (!r->rows) return DIL_OK;
  dil_status status = d->calls->pack(d, RING_ROWS, r, &w->own.rows, message);
  return status ? status
                : d->calls->pack(d, RING_ROWS, r, &w->own.numbers,
                                 message + rows_bytes(w, r));
}

static dil_status spread(ring_work *w, route *r, const char *message,
                         const ring_queries *queries) {
  ring_device *d = w->device;
  dil_status status = d->calls->spread(d, r, message, &queries->rows);
  return status ? status
                : d->calls->spread(d, r, message + rows_bytes(w, r),
                                   &queries->numbers);
}

/* A row that did not travel is finite. */
static dil_status take_queries(ring_work *w, exchange *e,
                               const positions *owned, ring_queries *queries) {
  const dil_table *t = w->ring->shape.table;
  int64_t rows = rows_of(w, owned);
  int64_t bytes = rows * w->B * route_row_bytes(t);
  dil_status status =
      w->device->calls->take(w->device, bytes + number_bytes(w, rows),
                             RING_OLD_ROWS, &e->queries);
  char *at = e->queries;
  if (status) return status;
  view_numbers(w, owned, at, &queries->numbers);
  at += number_bytes(w, rows);
  for (int32_t i = 0; i < owned->count; i++) {
    int64_t count = owned->progression[i].count;
    queries->rows.k[i] = view(w, count, t->head_dim, t->dtype, &at);
    queries->rows.v[i] = view(w, count, t->value_dim, t->dtype, &at);
  }
  return DIL_OK;
}

dil_status ring_spread_queries(ring_work *w, int32_t step,
                               ring_queries *queries) {
  exchange *e = &w->exchange[step];
  positions owned =
      partition_queries(&w->ring->shape, ring_sender(w, step));
  dil_status status = take_queries(w, e, &owned, queries);
  for (int32_t p = 0; p < EXCHANGE_PHASES && !status; p++) {
    route *r = ring_route_in(w->queries, step, (exchange_phase)p);
    route *keys = ring_route_in(w->keys, step, (exchange_phase)p);
    const char *message = e->phase[p].incoming;
    if (r->rows)
      status = spread(w, r, message + ring_key_bytes(w, keys), queries);
  }
  return status;
}

/* ---- dQ ------------------------------------------------------------------ */

dil_status ring_take_dq(ring_work *w, int32_t owner, void **memory,
                        ring_keys *sums) {
  const dil_table *t = w->ring->shape.table;
  positions owned = partition_queries(&w->ring->shape, owner);
  int64_t bytes = rows_of(w, &owned) * w->B * way_query_back(t);
  dil_status status = w->device->calls->take(w->device, bytes, RING_TO_CLEAR, memory);
  char *at = *memory;
  for (int32_t i = 0; i < owned.count && !status; i++) {
    sums->k[i] =
        view(w, owned.progression[i].count, t->head_dim, DIL_F32, &at);
    sums->v[i] = nothing(w, &sums->k[i]);
  }
  return status;
}

ring_keys ring_own_dq(const ring_work *w) {
  ring_keys sums = {0};
  for (int32_t i = 0; i < ring_query_progressions(w); i++) {
    sums.k[i] = w->ring->gradients->dq[i];
    sums.v[i] = nothing(w, &sums.k[i]);
  }
  return sums;
}

/* ---- passes -------------------------------------------------------------- */

/* Progression i of the queries that came over progression c of the rank's keys.
 * Nothing reads o and lse: the numbers stand for them. */
static dil_status pass_of(ring_work *w, dil_progression asking, int32_t i,
                          int32_t c, const ring_queries *queries,
                          const ring_keys *dq) {
  const dil_ring *r = w->ring;
  const ring_gradients *g = w->sums;
  positions owned = partition_keys(&r->shape, r->link->rank);
  dil_backward_call call = {.size = sizeof call,
                            .forward = *r->call,
                            .output = queries->rows.v[i],
                            .dq = dq->k[i],
                            .dk = g->keys.k[c],
                            .dv = g->keys.v[c]};
  dil_shard shard = {.queries = asking,
                     .keys = owned.progression[c],
                     .B = r->B,
                     .N = r->shape.N,
                     .M = r->shape.M,
                     .batch = r->batch,
                     .head = r->head,
                     .inputs = g->inputs,
                     .numbers = queries->numbers.k[i].data,
                     .left_out = ~r->queries};
  call.forward.q = queries->rows.k[i];
  call.forward.o = queries->rows.v[i];
  call.forward.k = r->rows->keys.k[c];
  call.forward.v = r->rows->keys.v[c];
  call.forward.lse = (dil_tensor){0};
  for (int32_t x = 0; x < call.forward.input_count; x++)
    call.inputs[x] = g->wanted[x];
  return w->device->calls->backward(w->device, &call, &shard);
}

dil_status ring_passes_of_queries(ring_work *w, int32_t owner,
                                  const ring_queries *queries,
                                  const ring_keys *dq) {
  const ring_shape *shape = &w->ring->shape;
  positions asking = partition_queries(shape, owner);
  positions owned = partition_keys(shape, w->ring->link->rank);
  double start = clock_seconds();
  dil_status status = DIL_OK;
  for (int32_t c = 0; c < owned.count; c++)
    for (int32_t i = 0; i < asking.count && !status; i++)
      status = pass_of(w, asking.progression[i], i, c, queries, dq);
  if (w->device->calls->on_host)
    w->ring->facts.computed += clock_seconds() - start;
  return status;
}
