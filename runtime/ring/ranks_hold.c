/* ranks_hold.c - the rows of a rank that is a process. In: a call whose q, k
 * and v every rank can read, or which have no data and stand for random
 * numbers. Out: copies of the rank's own rows, and memory for its o and lse. */
#include "rank.h"
#include "row_copy.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

static int64_t tensor_bytes(const dil_tensor *t) {
  return round_up(dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype), 64);
}

/* Makes a view a row-major tensor of the same shape at *at, and moves *at on.
 * With *at NULL it only adds the size to *bytes. */
static void hold(dil_tensor *t, dil_dtype dtype, char **at, int64_t *bytes) {
  *t = dil_tensor_make(*at, dtype, t->rank, t->shape);
  *bytes += tensor_bytes(t);
  if (*at) *at += tensor_bytes(t);
}

/* Lays out all held tensors from `at` on (NULL: only counts) and returns their
 * bytes. o and lse come last; *inputs is the bytes before them. */
static int64_t hold_rows(ring_rows *r, const dil_table *t, bool on_gpu,
                         char *at, int64_t *inputs) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !on_gpu; i++) {
    hold(&r->q[i], t->dtype, &at, &bytes);
    hold(&r->keys.k[i], t->dtype, &at, &bytes);
    hold(&r->keys.v[i], t->dtype, &at, &bytes);
  }
  *inputs = bytes;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    hold(&r->o[i], t->dtype, &at, &bytes);
    if (t->lse_allowed) hold(&r->lse[i], DIL_F32, &at, &bytes);
  }
  return bytes;
}

/* Allocates the held tensors. On the processor o and lse start as NaN, so that
 * rows that a run leaves out show up. On a GPU the device's tensors do so, and
 * this memory stays untouched until rows are fetched. */
static dil_status make_room(group_rank *m) {
  const rank_group_task *t = &m->group->task;
  ring_rows measured = m->held;
  int64_t inputs;
  int64_t bytes = hold_rows(&measured, t->table, t->gpu, NULL, &inputs);
  char *store = aligned_alloc(64, (size_t)bytes + 64);
  if (!store)
    return dil_fail(DIL_MEMORY, "no memory for the %lld bytes of rank %d",
                    (long long)bytes, m->rank);
  if (!t->gpu) memset(store + inputs, 0xFF, (size_t)(bytes - inputs));
  hold_rows(&m->held, t->table, t->gpu, store, &inputs);
  m->store = store;
  return DIL_OK;
}

/* ---- its own rows -------------------------------------------------------- */

typedef struct normals {
  const dil_tensor *to;
  dil_normal_place place;
} normals;

/* Makes the random numbers of one row, all heads. */
static void make_normals(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const normals *n = context;
  const dil_normal_place *p = &n->place;
  const dil_tensor *to = n->to;
  int64_t b = index / to->shape[1], row = index % to->shape[1];
  int64_t there = p->rows.first + row * p->rows.step;
  int64_t width = to->shape[3], count = to->shape[2] * width;
  uint64_t first = (uint64_t)((((b + p->batch) * p->whole_rows + there) *
                                   p->whole_heads + p->head) * width);
  for (int64_t e = 0; e < count; e++)
    dil_element_write(to->data, to->dtype, index * count + e,
                      dil_normal(p->seed, p->tensor, first + (uint64_t)e));
}

dil_status rank_hold_rows(dil_threads *threads, const dil_normal_place *place,
                          const dil_tensor *from, const dil_tensor *to) {
  if (from->data) return row_copy(threads, from, to);
  normals n = {to, *place};
  return dil_threads_run(threads, to->shape[0] * to->shape[1], make_normals,
                         &n);
}

static dil_status fill_one(dil_threads *threads, const resident_shard *whole,
                           int32_t tensor, int32_t progression,
                           const dil_tensor *from, const dil_tensor *to) {
  dil_normal_place place = shard_normals(whole, tensor, progression);
  return rank_hold_rows(threads, &place, from, to);
}

static dil_status fill_rows(group_rank *m, const resident_shard *whole) {
  dil_threads *threads = dil_threads_new(m->group->task.threads);
  if (!threads) return dil_fail_text(DIL_MEMORY, dil_last_error());
  const ring_rows *from = &whole->rows, *to = &m->held;
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++) {
    status = fill_one(threads, whole, 0, i, &from->q[i], &to->q[i]);
    if (!status)
      status = fill_one(threads, whole, 1, i, &from->keys.k[i], &to->keys.k[i]);
    if (!status)
      status = fill_one(threads, whole, 2, i, &from->keys.v[i], &to->keys.v[i]);
  }
  dil_threads_free(threads);
  return status;
}

dil_status rank_group_hold(rank_group *c, const dil_call *call) {
  group_rank *m = c->rank[c->task.rank];
  resident_shard whole = rank_shard(m, call);
  m->held = whole.rows;
  dil_status status = make_room(m);
  if (!status && !c->task.gpu) status = fill_rows(m, &whole);
  m->holds = !status;
  return status;
}
