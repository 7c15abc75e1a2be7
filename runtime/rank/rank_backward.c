/* rank_backward.c - the gradients of a rank's rows; see dilrt.h. In: a call that
 * ran forward, and dO. Out: dq, dk and dv of the rank's own rows, and the gradients
 * of inputs, the same on every rank. A ring adds to f32 sums: on a processor they
 * are copied to the gradients, on a GPU they are the gradients. */
#include "rank.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/ring/input_sums.h"
#include "runtime/ring/row_copy.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>

/* ---- sums ---------------------------------------------------------------- */

/* A call's q, k and v, and their gradients. */
typedef struct rank_triple {
  const dil_tensor *of[3], *gradient[3];
} rank_triple;

static rank_triple triple_of(const dil_backward_call *c) {
  const dil_call *f = &c->forward;
  return (rank_triple){{&f->q, &f->k, &f->v}, {&c->dq, &c->dk, &c->dv}};
}

/* Whether a gradient is its own sum. */
static bool sums_itself(const dil_rank *r, const dil_tensor *gradient) {
  return r->kernel->gpu && gradient->data;
}

static int64_t sum_bytes(const dil_tensor *t) {
  return dil_tensor_count(t) * (int64_t)sizeof(float);
}

static dil_status clear_own(const dil_rank *r, const dil_tensor *gradient) {
  const dil_context *c = r->kernel->context;
  int64_t bytes = sum_bytes(gradient);
  return bytes ? c->cuda->fill(c->gpu, gradient->data, 0, bytes) : DIL_OK;
}

/* Of several progressions the rows of a batch lie among each other. */
static bool opens_sums(const rank_run *run) {
  int32_t rank = run->ring.link->rank;
  return ring_opens_sums(&run->ring) &&
         partition_queries(&run->ring.shape, rank).count <= 1;
}

/* Sums of dq, dk and dv behind the sums of inputs, which are float64. */
static dil_status take_sums(const dil_rank *r, const dil_backward_call *c,
                            rank_run *run, dil_tensor sums[3]) {
  enum { ALIGN = 64 };
  const rank_triple t = triple_of(c);
  int64_t inputs = input_sums_count(c);
  int64_t first = round_up(inputs * (int64_t)sizeof(double), ALIGN);
  int64_t bytes = first;
  bool opens = run->gradients.opens = opens_sums(run);
  for (int i = 0; i < 3; i++)
    if (!sums_itself(r, t.gradient[i]))
      bytes += round_up(sum_bytes(t.of[i]), ALIGN);
  dil_status status =
      r->device->calls->take(r->device, bytes,
                             opens && !inputs ? RING_ANY : RING_ZEROS, &run->sums);
  char *at = run->sums;
  run->gradients.inputs = inputs ? (double *)run->sums : NULL;
  if (at) at += first;
  for (int i = 0; i < 3 && !status; i++) {
    if (sums_itself(r, t.gradient[i])) {
      sums[i] = *t.gradient[i];
      if (!opens) status = clear_own(r, t.gradient[i]);
      continue;
    }
    sums[i] = dil_tensor_make(at, DIL_F32, t.of[i]->rank, t.of[i]->shape);
    if (at) at += round_up(sum_bytes(t.of[i]), ALIGN);
  }
  return status;
}

static void view_gradients(const dil_backward_call *c, rank_run *run,
                           const dil_tensor sums[3]) {
  ring_gradients *g = &run->gradients;
  positions q = partition_queries(&run->ring.shape, run->ring.link->rank);
  positions k = partition_keys(&run->ring.shape, run->ring.link->rank);
  g->wanted = c->inputs;
  g->lse_given = c->lse.rank != 0;
  rank_slices(&c->output, 1, &q, g->output);
  rank_slices(&c->lse, 2, &q, g->lse);
  rank_slices(&sums[0], 1, &q, g->dq);
  rank_slices(&sums[1], 1, &k, g->keys.k);
  rank_slices(&sums[2], 1, &k, g->keys.v);
  run->ring.gradients = g;
}

static dil_status store_sums(const dil_rank *r, const dil_backward_call *c,
                             const dil_tensor sums[3]) {
  const rank_triple t = triple_of(c);
  dil_status status = DIL_OK;
  for (int i = 0; i < 3 && !status; i++)
    if (t.gradient[i]->data && !sums_itself(r, t.gradient[i]))
      status = row_copy(r->kernel->context->threads, &sums[i], t.gradient[i]);
  return status;
}

/* ---- gradients of inputs ------------------------------------------------- */

/* Each rank sends its sums, which are its part of `all`, to every other. */
static dil_status swap_inputs(const dil_rank *r, double *all, int64_t count) {
  dil_link *link = r->link;
  int64_t bytes = count * (int64_t)sizeof(double);
  dil_status status = DIL_OK;
  for (int32_t step = 1; step < link->ranks && !status; step++) {
    int32_t from = (link->rank - step + link->ranks) % link->ranks;
    const link_transfer t = {.to = (link->rank + step) % link->ranks,
                             .from = from,
                             .send = all + link->rank * count,
                             .receive = all + from * count,
                             .send_bytes = bytes,
                             .receive_bytes = bytes};
    status = link->calls->post(link, step, &t);
    if (!status) status = link->calls->wait(link, step);
  }
  return status;
}

static dil_status store_inputs(const dil_rank *r, const dil_backward_call *c,
                               const double *sums) {
  dil_status status = DIL_OK;
  if (r->kernel->gpu) status = rank_gpu_store_inputs(r, c, sums);
  else input_sums_store(c, sums);
  return status ? rank_give_up(r, status) : DIL_OK;
}

/* The sums of inputs of all ranks, added in the order of ranks: every rank has
 * the same bits. */
static dil_status add_inputs(const dil_rank *r, const dil_backward_call *c,
                             const double *sums) {
  int64_t count = input_sums_count(c);
  int32_t ranks = r->link->ranks;
  double *all = calloc((size_t)(count * ranks) + 1, sizeof *all);
  if (!all)
    return rank_give_up(
        r, dil_fail(DIL_MEMORY, "no memory for gradients of inputs"));
  dil_status status =
      r->device->calls->read(r->device, all + r->link->rank * count, sums,
                             count * (int64_t)sizeof *all);
  status = status ? rank_give_up(r, status) : swap_inputs(r, all, count);
  for (int64_t n = 0; n < count && !status; n++)
    for (int32_t i = 1; i < ranks; i++) all[n] += all[i * count + n];
  if (!status) status = store_inputs(r, c, all);
  free(all);
  return status;
}

/* ---- a call -------------------------------------------------------------- */

/* Makes o and lse again where the host did not keep lse; all ranks alike. An lse
 * of a rank without rows is given without memory. */
static dil_status run_again(dil_rank *r, dil_backward_call *c, rank_run *run) {
  dil_call *f = &c->forward;
  const dil_table *t = run->ring.shape.table;
  const int64_t rows[] = {f->q.shape[0], t->heads, f->q.shape[1]};
  positions q = partition_queries(&run->ring.shape, run->ring.link->rank);
  if (f->lse.rank || combine_is_additive(t)) return DIL_OK;
  f->lse = dil_tensor_make(NULL, DIL_F32, 3, rows);
  f->o = dil_tensor_make(NULL, t->dtype, 4, f->o.shape);
  int64_t sums = round_up(sum_bytes(&f->lse), 64);
  int64_t bytes = sums + dil_tensor_count(&f->o) *
                             (int64_t)dil_dtype_size(t->dtype);
  dil_status status =
      r->device->calls->take(r->device, bytes, RING_ZEROS, &run->again);
  if (status) return rank_give_up(r, status);
  f->lse.data = run->again;
  f->o.data = run->again ? (char *)run->again + sums : NULL;
  rank_slices(&f->o, 1, &q, run->rows.o);
  rank_slices(&f->lse, 2, &q, run->rows.lse);
  return rank_run_ring(r, run);
}

static dil_status run_backward(dil_rank *r, dil_backward_call *c,
                               rank_run *run) {
  dil_tensor sums[3];
  dil_status status = take_sums(r, c, run, sums);
  if (status) return rank_give_up(r, status);
  status = run_again(r, c, run);
  if (status) return status;
  view_gradients(c, run, sums);
  status = rank_run_ring(r, run);
  if (!status && run->gradients.inputs)
    status = add_inputs(r, c, run->gradients.inputs);
  if (status) return status;
  status = store_sums(r, c, sums);
  return status ? rank_give_up(r, status) : DIL_OK;
}

static dil_status check_direction(const dil_kernel *k) {
  if (k->source.direction == DIL_BACKWARD) return DIL_OK;
  return dil_fail(DIL_USAGE, "kernel '%s' was made without gradients: set "
                  "`backward` in its options", k->source.table->name);
}

static void give_memory(const dil_rank *r, void *memory) {
  if (memory) r->device->calls->give(r->device, memory);
}

dil_status dil_rank_backward(dil_rank *r, const dil_sizes *whole,
                             const dil_gradients *given) {
  gradients g;
  rank_run run = {.sums = NULL};
  dil_status status = rank_call_begin(r, whole);
  if (status) return dil_call_end(status);
  status = check_direction(r->kernel);
  if (!status) status = gradients_read(r->kernel, given, &g);
  if (!status && r->kernel->gpu) status = rank_gpu_check(&g.call);
  status = rank_run_make(r, whole, &g.call.forward, g.forward.stream, status,
                         &run);
  if (!status) status = run_backward(r, &g.call, &run);
  give_memory(r, run.sums);
  give_memory(r, run.again);
  return dil_call_end(status);
}
