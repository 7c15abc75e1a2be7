/* rank.c - one rank of a ring, for hosts whose ranks are processes; see dilrt.h.
 *
 * In: a kernel, where the ranks meet, and calls of the rank's own rows. Out: o
 * and lse, or gradients (rank_backward.c), of these rows; or an error that every
 * rank hears of: a rank that cannot go on revokes the link. */
#include "rank.h"
#include "runtime/api/usage.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Behind the link: the others hear where a rank has no device. */
static dil_status open_device(dil_rank *r) {
  const dil_kernel *k = r->kernel;
  dil_status status =
      k->gpu ? rank_gpu_open(r)
             : ring_cpu_new(k->cpu, dil_threads_count(k->context->threads),
                            &r->device);
  return status ? rank_give_up(r, status) : DIL_OK;
}

static dil_status rank_make(dil_kernel *k, const dil_rank_options *o,
                            dil_rank **made) {
  dil_rank *r = calloc(1, sizeof *r);
  if (!r) return dil_fail(DIL_MEMORY, "no memory for a rank");
  r->kernel = k;
  r->layout = (dil_layout)o->layout;
  r->gathers = o->gather != 0;
  dil_status status = open_link(o, &r->link);
  if (!status) status = open_device(r);
  if (!status && k->gpu && o->ranks > 1) status = rank_gpu_join(r);
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
  if (!status) status = rank_make(kernel, &o, made);
  return dil_call_end(status);
}

void dil_rank_free(dil_rank *r) {
  if (!r) return;
  ring_routes_free(&r->routes, r->device);
  rank_gpu_close(r);
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

void rank_slices(const dil_tensor *t, int32_t axis, const positions *p,
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
  rank_slices(&c->q, 1, &q, run->rows.q);
  rank_slices(&c->o, 1, &q, run->rows.o);
  rank_slices(&c->lse, 2, &q, run->rows.lse);
  rank_slices(&c->k, 1, &k, run->rows.keys.k);
  rank_slices(&c->v, 1, &k, run->rows.keys.v);
  return DIL_OK;
}

dil_status rank_give_up(const dil_rank *r, dil_status status) {
  char why[256];
  if (r->link->ranks == 1) return status; /* there are no others */
  snprintf(why, sizeof why, "%s", dil_last_error());
  r->link->calls->revoke(r->link, why);
  return dil_fail(status, "%s", why);
}

dil_status rank_call_begin(const dil_rank *r, const dil_sizes *whole) {
  dil_call_begin();
  dil_status status = dil_usage_given("rank", r, "sizes", whole, NULL);
  if (!status) status = dil_context_check(r->kernel->context);
  return status ? status : dil_usage_sizes(whole);
}

dil_status rank_run_make(dil_rank *r, const dil_sizes *whole,
                         const dil_call *call, void *stream, dil_status status,
                         rank_run *run) {
  const dil_context *c = r->kernel->context;
  if (!status) status = describe(r, whole, call, run);
  if (!status && c->gpu) status = c->cuda->wait(c->gpu, stream);
  return status ? rank_give_up(r, status) : DIL_OK;
}

dil_status rank_run_ring(dil_rank *r, rank_run *run) {
  return r->kernel->gpu ? rank_gpu_run(r, &run->ring) : ring_run(&run->ring);
}

dil_status dil_rank_run(dil_rank *r, const dil_sizes *whole,
                        const dil_arguments *given) {
  arguments a;
  rank_run run = {.sums = NULL};
  dil_status status = rank_call_begin(r, whole);
  if (status) return dil_call_end(status);
  status = arguments_read(r->kernel, given, &a);
  status = rank_run_make(r, whole, &a.call, a.stream, status, &run);
  return dil_call_end(status ? status : rank_run_ring(r, &run));
}
