/* crew_rows.c - which rows of a call are a rank's: views of them, copies of
 * them, and those of processes brought to rank 0. */
#include "crew_member.h"
#include "walk.h"
#include <stdlib.h>
#include <string.h>

/* ---- a rank's rows ------------------------------------------------------- */

/* Rows of a comb, heads and batch rows of a tensor [B, rows, H, D]. */
static dil_tensor view_rows(const dil_tensor *whole, dil_comb comb,
                            int64_t origin, dil_comb batch, int32_t head,
                            int32_t heads) {
  dil_tensor t = *whole;
  int64_t at = batch.first * t.stride[0] +
               (comb.first - origin) * t.stride[1] + head * t.stride[2];
  if (t.data) t.data = (char *)t.data + at * (int64_t)dil_dtype_size(t.dtype);
  t.stride[1] *= comb.step;
  t.shape[0] = batch.count;
  t.shape[1] = comb.count;
  t.shape[2] = heads;
  return t;
}

static dil_tensor view_lse(const dil_tensor *whole, dil_comb comb,
                           int64_t origin, dil_comb batch, int32_t head,
                           int32_t heads) {
  dil_tensor t = *whole;
  if (t.data)
    t.data = (float *)t.data + batch.first * t.stride[0] + head * t.stride[1] +
             (comb.first - origin) * t.stride[2];
  t.stride[2] *= comb.step;
  t.shape[0] = batch.count;
  t.shape[1] = heads;
  t.shape[2] = comb.count;
  return t;
}

static void view_own(const dil_call *c, const ring_shape *r, int32_t rank,
                     dil_comb batch, head_share s, ring_rows *out) {
  shard mine = place_queries(r, rank), owned = place_keys(r, rank);
  int64_t origin = r->M - r->N;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    dil_comb q = i < mine.count ? mine.comb[i] : (dil_comb){origin, 1, 0};
    dil_comb k = i < owned.count ? owned.comb[i] : (dil_comb){0, 1, 0};
    out->q[i] = view_rows(&c->q, q, origin, batch, s.head, s.heads);
    out->o[i] = view_rows(&c->o, q, origin, batch, s.head, s.heads);
    out->lse[i] = view_lse(&c->lse, q, origin, batch, s.head, s.heads);
    out->keys.k[i] = view_rows(&c->k, k, 0, batch, s.kv_head, s.kv_heads);
    out->keys.v[i] = view_rows(&c->v, k, 0, batch, s.kv_head, s.kv_heads);
  }
}

dil_comb member_batch(const member *m, const dil_call *call) {
  const mesh *all = &m->crew->task.mesh;
  shard batch = place_shard(DIL_CONTIGUOUS, call->q.shape[0], 0, all->batch,
                            m->rank / all->ring / all->heads);
  return batch.count ? batch.comb[0] : (dil_comb){0, 1, 0};
}

ring_shape member_shape(const member *m, const dil_call *call) {
  const crew_task *t = &m->crew->task;
  return (ring_shape){.table = &m->table,
                      .layout = t->mesh.layout,
                      .ranks = t->mesh.ring,
                      .N = call->q.shape[1],
                      .M = call->k.shape[1],
                      .mask = m->mask.judge ? &m->mask : NULL};
}

void member_view(const member *m, const dil_call *call, ring_rows *out) {
  if (m->store) {
    *out = m->held;
    return;
  }
  ring_shape shape_of = member_shape(m, call);
  view_own(call, &shape_of, m->rank % m->crew->task.mesh.ring,
           member_batch(m, call), m->share, out);
}

/* ---- copies -------------------------------------------------------------- */

/* Rows of all heads of a tensor, to a message or from it. */
void rows_copy(const dil_tensor *t, char **at, bool unpack) {
  size_t size = dil_dtype_size(t->dtype), row = (size_t)t->shape[3] * size;
  int64_t n[3];
  for (n[0] = 0; n[0] < t->shape[0]; n[0]++)
    for (n[1] = 0; n[1] < t->shape[1]; n[1]++)
      for (n[2] = 0; n[2] < t->shape[2]; n[2]++, *at += row) {
        char *place = (char *)t->data + (n[0] * t->stride[0] +
                                         n[1] * t->stride[1] +
                                         n[2] * t->stride[2]) *
                                            (int64_t)size;
        memcpy(unpack ? place : *at, unpack ? *at : place, row);
      }
}

/* lse is [B, H, N]: each number a row of its own. */
void lse_copy(dil_tensor t, char **at, bool unpack) {
  if (!t.data) return;
  t.shape[3] = 1;
  rows_copy(&t, at, unpack);
}

/* ---- ranks that are processes: their rows to rank 0 ---------------------- */

/* What a rank has written, and its report. */
static void move_result(member *m, const dil_call *call, char *message,
                        bool unpack) {
  ring_rows owned;
  member_view(m, call, &owned);
  if (unpack) memcpy(&m->report, message, sizeof m->report);
  else memcpy(message, &m->report, sizeof m->report);
  message += sizeof m->report;
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    rows_copy(&owned.o[i], &message, unpack);
    lse_copy(owned.lse[i], &message, unpack);
  }
}

static int64_t result_bytes(const member *m, const dil_call *call) {
  int64_t bytes = (int64_t)sizeof m->report;
  ring_rows owned;
  member_view(m, call, &owned);
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    const dil_tensor *o = &owned.o[i], *lse = &owned.lse[i];
    bytes += dil_tensor_count(o) * (int64_t)dil_dtype_size(o->dtype);
    if (lse->data) bytes += dil_tensor_count(lse) * (int64_t)sizeof(float);
  }
  return bytes;
}

/* One rank's message, at either end. */
static dil_status collect_one(crew *c, dil_link *world, const dil_call *call,
                              int32_t rank) {
  member *m = &c->member[rank];
  int64_t bytes = result_bytes(m, call);
  bool here = world->rank == 0;
  char *message = malloc((size_t)bytes);
  if (!message)
    return dil_fail(DIL_MEMORY, "no memory for the rows of rank %d", rank);
  if (!here) move_result(m, call, message, false);
  const link_transfer t = {.to = here ? -1 : 0,
                           .from = here ? rank : -1,
                           .send = message,
                           .receive = message,
                           .send_bytes = here ? 0 : bytes,
                           .receive_bytes = here ? bytes : 0};
  dil_status status = world->calls->post(world, 0, &t);
  if (!status) status = world->calls->wait(world, 0);
  if (!status && here) move_result(m, call, message, true);
  free(message);
  return status;
}

dil_status crew_collect(crew *c, dil_link *world, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 1; i < world->ranks && !status; i++)
    if (world->rank == 0 || world->rank == i)
      status = collect_one(c, world, call, i);
  return status;
}
