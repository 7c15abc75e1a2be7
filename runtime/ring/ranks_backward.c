/* ranks_backward.c - the gradients of the ranks of a mesh. In: a call that ran
 * forward, and dO. Out: f32 sums of each rank's own rows; then the gradients of
 * the call. Ranks that share a K/V head (a group's query heads on several
 * ranks) each have sums of its keys: the first of these ranks owns the gradient
 * and adds the sums in the order of ranks. So do the sums of inputs. */
#include "rank.h"
#include "row_copy.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* ---- sums of a rank ------------------------------------------------------ */

static int64_t tensor_bytes(const dil_tensor *t) {
  return round_up(dil_tensor_count(t) * (int64_t)sizeof(float), 64);
}

/* Makes a view an f32 tensor of the same shape at *at, and moves *at on. With
 * *at NULL it only adds the size to *bytes. */
static void place(dil_tensor *t, char **at, int64_t *bytes) {
  *t = dil_tensor_make(*at, DIL_F32, t->rank, t->shape);
  *bytes += tensor_bytes(t);
  if (*at) *at += tensor_bytes(t);
}

/* Elements of all wanted gradients of inputs. */
static int64_t input_elements(const dil_backward_call *call) {
  int64_t count = 0;
  for (int32_t x = 0; x < call->forward.input_count; x++)
    if (call->inputs[x].data) count += dil_tensor_count(&call->inputs[x]);
  return count;
}

/* Lays out all sums from `at` on (NULL: only counts) and returns their bytes. */
static int64_t lay_out(const group_rank *m, ring_gradients *g, char *at) {
  const dil_backward_call *call = m->group->backward;
  const dil_call *f = &call->forward;
  int64_t bytes = 0;
  rank_view_rows(m, f, &f->q, false, g->dq);
  rank_view_rows(m, f, &f->k, true, g->keys.k);
  rank_view_rows(m, f, &f->v, true, g->keys.v);
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    place(&g->dq[i], &at, &bytes);
    place(&g->keys.k[i], &at, &bytes);
    place(&g->keys.v[i], &at, &bytes);
  }
  int64_t inputs = input_elements(call);
  g->inputs = at && inputs ? (double *)(void *)at : NULL;
  return bytes + inputs * (int64_t)sizeof(double);
}

dil_status rank_gradients_begin(group_rank *m) {
  const dil_backward_call *call = m->group->backward;
  ring_device *d = rank_device(m);
  rank_gradients_free(m);
  m->sums = (ring_gradients){.wanted = call->inputs};
  int64_t bytes = lay_out(m, &m->sums, NULL);
  dil_status status = d->calls->take(d, bytes, true, &m->sum_memory);
  if (status) return status;
  lay_out(m, &m->sums, m->sum_memory);
  rank_view_rows(m, &call->forward, &call->output, false, m->sums.output);
  rank_view_lse(m, &call->forward, &call->lse, m->sums.lse);
  return DIL_OK;
}

void rank_gradients_free(group_rank *m) {
  ring_device *d = rank_device(m);
  if (m->sum_memory && d) d->calls->give(d, m->sum_memory);
  m->sum_memory = NULL;
}

/* ---- sums of several ranks ----------------------------------------------- */

/* The first rank that has the K/V heads of rank `m`, at the same place of its
 * ring. */
static int32_t owner_of(const group_rank *m) {
  const mesh *all = &m->group->task.mesh;
  int32_t first = m->rank - m->rank / all->ring % all->heads * all->ring;
  while (m->group->rank[first]->share.kv_head != m->share.kv_head)
    first += all->ring;
  return first;
}

static void add_tensor(const dil_tensor *more, const dil_tensor *to) {
  const float *from = more->data;
  float *sums = to->data;
  int64_t count = dil_tensor_count(to);
  for (int64_t i = 0; i < count; i++) sums[i] += from[i];
}

static void add_keys(const ring_keys *more, const ring_keys *to) {
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    add_tensor(&more->k[i], &to->k[i]);
    add_tensor(&more->v[i], &to->v[i]);
  }
}

/* Writes a gradient of an input from its sums. */
static void store_input(const dil_tensor *t, const double *sums) {
  int64_t count = dil_tensor_count(t);
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = i, at = 0;
    for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
      at += rest % t->shape[axis] * t->stride[axis];
      rest /= t->shape[axis];
    }
    dil_element_write(t->data, t->dtype, at, sums[i]);
  }
}

static void store_inputs(const dil_backward_call *call, const double *sums) {
  for (int32_t x = 0; x < call->forward.input_count; x++) {
    if (!call->inputs[x].data) continue;
    store_input(&call->inputs[x], sums);
    sums += dil_tensor_count(&call->inputs[x]);
  }
}

/* The gradients of inputs: sums of rank 0, and those of the others in order. */
static void add_inputs(rank_group *c) {
  double *sums = c->rank[0]->sums.inputs;
  int64_t count = input_elements(c->backward);
  for (int32_t i = 1; sums && i < mesh_ranks(&c->task.mesh); i++)
    for (int64_t n = 0; n < count; n++)
      sums[n] += c->rank[i]->sums.inputs[n];
  if (sums) store_inputs(c->backward, sums);
}

/* ---- gradients of the call ----------------------------------------------- */

static dil_status store_rows(const group_rank *m, dil_threads *threads,
                             const dil_tensor *whole, bool keys,
                             const dil_tensor sums[PROGRESSIONS_MOST]) {
  dil_tensor views[PROGRESSIONS_MOST];
  dil_status status = DIL_OK;
  if (!whole->data) return DIL_OK;
  rank_view_rows(m, m->group->call, whole, keys, views);
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++)
    status = row_copy(threads, &sums[i], &views[i]);
  return status;
}

static dil_status store_rank(const group_rank *m, dil_threads *threads) {
  const dil_backward_call *call = m->group->backward;
  const ring_gradients *g = &m->sums;
  dil_status status = store_rows(m, threads, &call->dq, false, g->dq);
  if (status || owner_of(m) != m->rank) return status;
  status = store_rows(m, threads, &call->dk, true, g->keys.k);
  return status ? status : store_rows(m, threads, &call->dv, true, g->keys.v);
}

dil_status rank_gradients_store(rank_group *c) {
  int32_t ranks = mesh_ranks(&c->task.mesh);
  dil_status status = DIL_OK;
  dil_threads *threads = dil_threads_new(ranks * c->task.threads);
  if (!threads) return dil_fail_text(DIL_MEMORY, dil_last_error());
  for (int32_t i = 0; i < ranks; i++) {
    int32_t owner = owner_of(c->rank[i]);
    if (owner != i)
      add_keys(&c->rank[i]->sums.keys, &c->rank[owner]->sums.keys);
  }
  add_inputs(c);
  for (int32_t i = 0; i < ranks && !status; i++)
    status = store_rank(c->rank[i], threads);
  dil_threads_free(threads);
  return status;
}
