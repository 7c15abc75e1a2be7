/* rank.c - one rank of a ring, for hosts whose ranks are processes; see dilrt.h.
 *
 * In: a kernel, where the ranks meet, and calls of the rank's own rows. Out: o
 * and lse, or gradients, of these rows; or an error that every rank hears of: a
 * rank that cannot go on revokes the link. */
#include "runtime/api/context.h"
#include "runtime/api/usage.h"
#include "runtime/base/status.h"
#include "runtime/ring/input_sums.h"
#include "runtime/ring/ring.h"
#include "runtime/ring/row_copy.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dil_rank {
  dil_kernel *kernel;      /* the host's */
  dil_link *link;
  ring_device *device;
  ring_routes routes;      /* of the last shape */
  dil_layout layout;
  bool gathers;
};

/* ---- making -------------------------------------------------------------- */

enum { TIMEOUT = 60, RANKS_MOST = 1 << 20 }; /* seconds of a wait; ranks */

static dil_status check_options(const dil_rank_options *o) {
  dil_status status = dil_usage_given("place to meet (meet)", o->meet, NULL);
  if (status) return status;
  if (o->ranks < 1 || o->ranks > RANKS_MOST)
    return dil_fail(DIL_USAGE, "ranks must be within 1 and %d, got %d",
                    RANKS_MOST, o->ranks);
  if (o->rank < 0 || o->rank >= o->ranks)
    return dil_fail(DIL_USAGE, "rank must be within 0 and %d, got %d",
                    o->ranks - 1, o->rank);
  if (o->layout < 0 || o->layout >= DIL_LAYOUT_COUNT)
    return dil_fail(DIL_USAGE, "layout must be within 0 and %d, got %d",
                    DIL_LAYOUT_COUNT - 1, o->layout);
  if (isfinite(o->timeout) && o->timeout >= 0) return DIL_OK;
  return dil_fail(DIL_USAGE, "timeout must be 0 or a number of seconds, got %g",
                  o->timeout);
}

static dil_status open_link(const dil_rank_options *o, dil_link **link) {
  double timeout = o->timeout > 0 ? o->timeout : TIMEOUT;
  return socket_is_address(o->meet)
             ? socket_link_new(o->meet, o->rank, o->ranks, timeout, timeout,
                               link)
             : file_link_new(o->meet, o->rank, o->ranks, timeout, link);
}

static dil_status rank_make(dil_kernel *k, const dil_rank_options *o,
                            dil_rank **made) {
  dil_rank *r = calloc(1, sizeof *r);
  if (!r) return dil_fail(DIL_MEMORY, "no memory for a rank");
  r->kernel = k;
  r->layout = (dil_layout)o->layout;
  r->gathers = o->gather != 0;
  dil_status status = ring_cpu_new(
      k->cpu, dil_threads_count(k->context->threads), &r->device);
  if (!status) status = open_link(o, &r->link);
  if (!status) *made = r;
  else dil_rank_free(r);
  return status;
}

dil_status dil_rank_new(dil_kernel *kernel, const dil_rank_options *options,
                        dil_rank **made) {
  dil_rank_options o;
  dil_status status = dil_usage_given("place for the rank", made, "kernel",
                                      kernel, NULL);
  if (made) *made = NULL;
  if (status) return status;
  dil_call_begin();
  status = dil_context_check(kernel->context);
  if (!status)
    status = dil_struct_read(&o, sizeof o, options, "dil_rank_options");
  if (!status) status = check_options(&o);
  if (!status && !kernel->cpu)
    status = dil_fail(DIL_UNSUPPORTED, "kernel '%s' is on %s: in this build "
                      "ranks of a host are on processors",
                      kernel->source.table->name, kernel->context->device);
  if (!status) status = rank_make(kernel, &o, made);
  return dil_call_end(status);
}

void dil_rank_free(dil_rank *r) {
  if (!r) return;
  ring_routes_free(&r->routes, r->device);
  link_free(r->link);
  ring_device_free(r->device);
  free(r);
}

/* ---- which rows ---------------------------------------------------------- */

static dil_status check_length(int64_t length) {
  if (length >= 0 && length <= DIL_LENGTH_MAX) return DIL_OK;
  return dil_fail(DIL_USAGE, "the length of a sequence must be within 0 and %d, "
                  "got %lld", DIL_LENGTH_MAX, (long long)length);
}

dil_status dil_rank_positions(const dil_rank *r, int64_t length,
                              int64_t *positions_of, int64_t *count) {
  dil_status status =
      dil_usage_given("rank", r, "place for the count", count, NULL);
  if (count) *count = 0;
  if (!status) status = check_length(length);
  if (status) return status;
  positions own =
      partition_owned(r->layout, length, 0, r->link->ranks, r->link->rank);
  *count = positions_count(&own);
  for (int32_t i = 0; i < own.count && positions_of; i++)
    for (int64_t n = 0; n < own.progression[i].count; n++)
      *positions_of++ = own.progression[i].first + n * own.progression[i].step;
  return DIL_OK;
}

/* ---- a call -------------------------------------------------------------- */

/* A run: the ring, and the views that it borrows. */
typedef struct rank_run {
  dil_ring ring;
  ring_rows rows;
  ring_gradients gradients;
  void *sums, *again;      /* of gradients; o and lse made again */
} rank_run;

/* Rows first..first+count-1 along an axis. */
static dil_tensor slice(const dil_tensor *t, int32_t axis, int64_t first,
                        int64_t count) {
  dil_tensor part = *t;
  if (part.data)
    part.data = (char *)part.data +
                first * t->stride[axis] * (int64_t)dil_dtype_size(t->dtype);
  part.shape[axis] = count;
  return part;
}

/* The rows of each progression stand one after the other. */
static void slices(const dil_tensor *t, int32_t axis, const positions *p,
                   dil_tensor parts[PROGRESSIONS_MOST]) {
  int64_t first = 0;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    int64_t count = i < p->count ? p->progression[i].count : 0;
    parts[i] = slice(t, axis, first, count);
    first += count;
  }
}

static dil_status check_rows(const char *name, const dil_tensor *t,
                             const positions *own, int64_t length) {
  int64_t want = positions_count(own);
  if (t->rank == 4 && t->shape[1] == want) return DIL_OK;
  return dil_fail(DIL_USAGE, "of a sequence of %lld this rank has %lld rows, and "
                  "%s has %lld: dil_rank_positions says which",
                  (long long)length, (long long)want, name,
                  (long long)(t->rank > 1 ? t->shape[1] : 0));
}

static dil_status refuse_parts(const dil_call *c) {
  const char *what = c->lengths          ? "lengths of batch rows"
                     : c->packed.queries ? "offsets of documents"
                     : c->pages.number   ? "pages"
                     : c->seed_at        ? "a seed tensor"
                                         : NULL;
  if (!what) return DIL_OK;
  return dil_fail(DIL_UNSUPPORTED, "%s cannot be used on ranks", what);
}

static dil_status describe(dil_rank *r, const dil_sizes *whole,
                           const dil_call *c, rank_run *run) {
  const dil_table *t = r->kernel->source.table;
  ring_shape shape = {.table = t,
                      .layout = r->layout,
                      .ranks = r->link->ranks,
                      .N = whole->queries,
                      .M = whole->keys,
                      .gathered = r->gathers ? ~(uint64_t)0 : 0};
  positions q = partition_queries(&shape, r->link->rank);
  positions k = partition_keys(&shape, r->link->rank);
  dil_status status = refuse_parts(c);
  if (!status) status = check_rows("q", &c->q, &q, whole->queries);
  if (!status) status = check_rows("k", &c->k, &k, whole->keys);
  if (!status) status = check_rows("v", &c->v, &k, whole->keys);
  if (!status && c->q.shape[0] != whole->batch)
    return dil_fail(DIL_USAGE, "the sizes have %lld batch rows, and q has %lld",
                    (long long)whole->batch, (long long)c->q.shape[0]);
  if (status) return status;
  run->ring = (dil_ring){.shape = shape,
                         .B = whole->batch,
                         .link = r->link,
                         .device = r->device,
                         .routes = &r->routes,
                         .call = c,
                         .rows = &run->rows,
                         .plan_hash = r->kernel->source.plan_hash,
                         .checkpoint = {.name = r->link->rank}};
  slices(&c->q, 1, &q, run->rows.q);
  slices(&c->o, 1, &q, run->rows.o);
  slices(&c->lse, 2, &q, run->rows.lse);
  slices(&c->k, 1, &k, run->rows.keys.k);
  slices(&c->v, 1, &k, run->rows.keys.v);
  return DIL_OK;
}

/* A rank that cannot even begin tells the others. */
static dil_status give_up(const dil_rank *r, dil_status status) {
  char why[256];
  if (r->link->ranks == 1) return status; /* there are no others */
  snprintf(why, sizeof why, "%s", dil_last_error());
  r->link->calls->revoke(r->link, why);
  return dil_fail(status, "%s", why);
}

/* The first of a call, whose end is dil_call_end. */
static dil_status begin_call(const dil_rank *r, const dil_sizes *whole) {
  dil_call_begin();
  dil_status status = dil_usage_given("rank", r, "sizes", whole, NULL);
  if (!status) status = dil_context_check(r->kernel->context);
  return status ? status : dil_usage_sizes(whole);
}

/* Makes a run of a call that was read with `status`; a failure of either is for
 * all ranks. */
static dil_status make_run(dil_rank *r, const dil_sizes *whole,
                           const dil_call *call, dil_status status,
                           rank_run *run) {
  if (!status) status = describe(r, whole, call, run);
  return status ? give_up(r, status) : DIL_OK;
}

dil_status dil_rank_run(dil_rank *r, const dil_sizes *whole,
                        const dil_arguments *given) {
  arguments a;
  rank_run run = {.sums = NULL};
  dil_status status = begin_call(r, whole);
  if (status) return dil_call_end(status);
  status = arguments_read(r->kernel, given, &a);
  status = make_run(r, whole, &a.call, status, &run);
  return dil_call_end(status ? status : ring_run(&run.ring));
}

/* ---- gradients ----------------------------------------------------------- */

/* An f32 tensor of the same shape at *at, which moves on; *at NULL: none. */
static dil_tensor sums_like(const dil_tensor *t, float **at) {
  dil_tensor sums = dil_tensor_make(*at, DIL_F32, t->rank, t->shape);
  if (*at) *at += dil_tensor_count(t);
  return sums;
}

/* Sums of dq, dk and dv as large as q, k and v, and behind them the inputs'. */
static dil_status take_sums(const dil_backward_call *c, rank_run *run,
                            dil_tensor sums[3]) {
  int64_t rows = dil_tensor_count(&c->forward.q) +
                 dil_tensor_count(&c->forward.k) +
                 dil_tensor_count(&c->forward.v);
  int64_t inputs = input_sums_count(c);
  rows += rows & 1; /* float64 follows */
  run->sums = calloc((size_t)rows + 2 * (size_t)inputs + 2, sizeof(float));
  if (!run->sums) return dil_fail(DIL_MEMORY, "no memory for gradients");
  float *at = run->sums;
  run->gradients.inputs = inputs ? (double *)(void *)(at + rows) : NULL;
  sums[0] = sums_like(&c->forward.q, &at);
  sums[1] = sums_like(&c->forward.k, &at);
  sums[2] = sums_like(&c->forward.v, &at);
  return DIL_OK;
}

static void view_gradients(const dil_backward_call *c, rank_run *run,
                           const dil_tensor sums[3]) {
  ring_gradients *g = &run->gradients;
  positions q = partition_queries(&run->ring.shape, run->ring.link->rank);
  positions k = partition_keys(&run->ring.shape, run->ring.link->rank);
  g->wanted = c->inputs;
  g->lse_given = c->lse.rank != 0;
  slices(&c->output, 1, &q, g->output);
  slices(&c->lse, 2, &q, g->lse);
  slices(&sums[0], 1, &q, g->dq);
  slices(&sums[1], 1, &k, g->keys.k);
  slices(&sums[2], 1, &k, g->keys.v);
  run->ring.gradients = g;
}

/* The sums of inputs of all ranks, added in the order of ranks: every rank has
 * the same bits. */
static dil_status add_inputs(const dil_rank *r, const rank_run *run,
                             int64_t count) {
  dil_link *link = run->ring.link;
  int64_t bytes = count * (int64_t)sizeof(double);
  double *all = calloc((size_t)(count * link->ranks) + 1, sizeof *all);
  double *sums = run->gradients.inputs;
  dil_status status = DIL_OK;
  if (!all)
    status = give_up(
        r, dil_fail(DIL_MEMORY, "no memory for gradients of inputs"));
  if (all && count) memcpy(all + link->rank * count, sums, (size_t)bytes);
  for (int32_t step = 1; step < link->ranks && !status; step++) {
    int32_t from = (link->rank - step + link->ranks) % link->ranks;
    const link_transfer t = {.to = (link->rank + step) % link->ranks,
                             .from = from,
                             .send = sums,
                             .receive = all + from * count,
                             .send_bytes = bytes,
                             .receive_bytes = bytes};
    status = link->calls->post(link, step, &t);
    if (!status) status = link->calls->wait(link, step);
  }
  for (int64_t n = 0; n < count && !status; n++) {
    double sum = 0;
    for (int32_t i = 0; i < link->ranks; i++) sum += all[i * count + n];
    sums[n] = sum;
  }
  free(all);
  return status;
}

static dil_status store_sums(const dil_rank *r, const dil_backward_call *c,
                             const dil_tensor sums[3]) {
  const dil_tensor *to[3] = {&c->dq, &c->dk, &c->dv};
  dil_status status = DIL_OK;
  for (int i = 0; i < 3 && !status; i++)
    if (to[i]->data)
      status = row_copy(r->kernel->context->threads, &sums[i], to[i]);
  return status;
}

/* Makes o and lse again where the host did not keep lse; all ranks alike. An lse
 * of a rank without rows is given without memory. */
static dil_status run_again(const dil_rank *r, dil_backward_call *c,
                            rank_run *run) {
  dil_call *f = &c->forward;
  const dil_table *t = run->ring.shape.table;
  const int64_t rows[] = {f->q.shape[0], t->heads, f->q.shape[1]};
  positions q = partition_queries(&run->ring.shape, run->ring.link->rank);
  if (f->lse.rank || combine_is_additive(t)) return DIL_OK;
  f->lse = dil_tensor_make(NULL, DIL_F32, 3, rows);
  f->o = dil_tensor_make(NULL, t->dtype, 4, f->o.shape);
  size_t sums = (size_t)dil_tensor_count(&f->lse) * sizeof(float);
  run->again = calloc(sums + 1 + (size_t)dil_tensor_count(&f->o) *
                                     dil_dtype_size(t->dtype), 1);
  if (!run->again) return give_up(r, dil_fail(DIL_MEMORY, "no memory for lse"));
  f->lse.data = run->again;
  f->o.data = (char *)run->again + sums;
  slices(&f->o, 1, &q, run->rows.o);
  slices(&f->lse, 2, &q, run->rows.lse);
  return ring_run(&run->ring);
}

static dil_status run_backward(dil_rank *r, dil_backward_call *c,
                               rank_run *run) {
  dil_tensor sums[3];
  int64_t inputs = input_sums_count(c);
  dil_status status = take_sums(c, run, sums);
  if (status) return give_up(r, status);
  status = run_again(r, c, run);
  if (status) return status;
  view_gradients(c, run, sums);
  status = ring_run(&run->ring);
  if (!status && inputs) status = add_inputs(r, run, inputs);
  if (!status) status = store_sums(r, c, sums);
  if (!status && inputs) input_sums_store(c, run->gradients.inputs);
  return status;
}

static dil_status check_direction(const dil_kernel *k) {
  if (k->source.direction == DIL_BACKWARD) return DIL_OK;
  return dil_fail(DIL_USAGE, "kernel '%s' was made without gradients: set "
                  "`backward` in its options", k->source.table->name);
}

dil_status dil_rank_backward(dil_rank *r, const dil_sizes *whole,
                             const dil_gradients *given) {
  gradients g;
  rank_run run = {.sums = NULL};
  dil_status status = begin_call(r, whole);
  if (status) return dil_call_end(status);
  status = check_direction(r->kernel);
  if (!status) status = gradients_read(r->kernel, given, &g);
  status = make_run(r, whole, &g.call.forward, status, &run);
  if (!status) status = run_backward(r, &g.call, &run);
  free(run.sums);
  free(run.again);
  return dil_call_end(status);
}
