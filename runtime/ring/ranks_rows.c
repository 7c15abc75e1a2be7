/* ranks_rows.c - the rows of a call that belong to a rank: their positions in
 * the call, views of them, and copies of them. */
#include "rank.h"
#include "runtime/cpu/pack.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

/* ---- a rank's rows ------------------------------------------------------- */

/* A view of a tensor [B, rows, H, D]: the rows at a progression's positions,
 * some batch rows and some heads. The tensor's row 0 has position `origin`. */
static dil_tensor view_rows(const dil_tensor *whole,
                            dil_progression progression, int64_t origin,
                            dil_progression batch, int32_t head,
                            int32_t heads) {
  dil_tensor t = *whole;
  int64_t at = batch.first * t.stride[0] +
               (progression.first - origin) * t.stride[1] + head * t.stride[2];
  if (t.data) t.data = (char *)t.data + at * (int64_t)dil_dtype_size(t.dtype);
  t.stride[1] *= progression.step;
  t.shape[0] = batch.count;
  t.shape[1] = progression.count;
  t.shape[2] = heads;
  return t;
}

static dil_tensor view_lse(const dil_tensor *whole, dil_progression progression,
                           int64_t origin, dil_progression batch, int32_t head,
                           int32_t heads) {
  dil_tensor t = *whole;
  if (t.data)
    t.data = (float *)t.data + batch.first * t.stride[0] + head * t.stride[1] +
             (progression.first - origin) * t.stride[2];
  t.stride[2] *= progression.step;
  t.shape[0] = batch.count;
  t.shape[1] = heads;
  t.shape[2] = progression.count;
  return t;
}

void rows_slice(const ring_rows *whole, int32_t progression,
                dil_progression these, dil_tensor *o, dil_tensor *lse) {
  const dil_tensor *all = &whole->o[progression];
  dil_progression batch = {0, 1, all->shape[0]};
  int32_t heads = (int32_t)all->shape[2];
  *o = view_rows(all, these, 0, batch, 0, heads);
  *lse = view_lse(&whole->lse[progression], these, 0, batch, 0, heads);
}

static void view_own(const dil_call *c, const ring_shape *r, int32_t rank,
                     dil_progression batch, head_partition s, ring_rows *out) {
  positions mine = partition_queries(r, rank), owned = partition_keys(r, rank);
  int64_t origin = r->M - r->N;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    dil_progression q =
        i < mine.count ? mine.progression[i] : (dil_progression){origin, 1, 0};
    dil_progression k =
        i < owned.count ? owned.progression[i] : (dil_progression){0, 1, 0};
    out->q[i] = view_rows(&c->q, q, origin, batch, s.head, s.heads);
    out->o[i] = view_rows(&c->o, q, origin, batch, s.head, s.heads);
    out->lse[i] = view_lse(&c->lse, q, origin, batch, s.head, s.heads);
    out->keys.k[i] = view_rows(&c->k, k, 0, batch, s.kv_head, s.kv_heads);
    out->keys.v[i] = view_rows(&c->v, k, 0, batch, s.kv_head, s.kv_heads);
  }
}

static int32_t rank_in_ring(const group_rank *m) {
  return m->rank % m->group->task.mesh.ring;
}

dil_progression rank_batch(const group_rank *m, const dil_call *call) {
  const mesh *all = &m->group->task.mesh;
  positions batch =
      partition_owned(DIL_CONTIGUOUS, call->q.shape[0], 0, all->batch,
                      m->rank / all->ring / all->heads);
  return batch.count ? batch.progression[0] : (dil_progression){0, 1, 0};
}

ring_shape rank_shape(const group_rank *m, const dil_call *call) {
  const rank_group_task *t = &m->group->task;
  return (ring_shape){.table = &m->table,
                      .layout = t->mesh.layout,
                      .ranks = t->mesh.ring,
                      .N = call->q.shape[1],
                      .M = call->k.shape[1],
                      .mask = m->mask.bounds ? &m->mask : NULL,
                      .gathered = t->mesh.gathered};
}

void rank_view_call(const group_rank *m, const dil_call *call, ring_rows *out) {
  ring_shape shape_of = rank_shape(m, call);
  view_own(call, &shape_of, rank_in_ring(m), rank_batch(m, call), m->share,
           out);
}

void rank_view(const group_rank *m, const dil_call *call, ring_rows *out) {
  if (m->holds) *out = m->held;
  else rank_view_call(m, call, out);
}

/* The positions of progression i among the rank's queries or keys, and that of
 * row 0. */
static dil_progression rank_progression(const group_rank *m,
                                        const dil_call *call, int32_t i,
                                        bool keys, int64_t *origin) {
  ring_shape shape = rank_shape(m, call);
  int32_t rank = rank_in_ring(m);
  positions p = keys ? partition_keys(&shape, rank)
                     : partition_queries(&shape, rank);
  *origin = keys ? 0 : shape.M - shape.N;
  return i < p.count ? p.progression[i] : (dil_progression){*origin, 1, 0};
}

void rank_view_rows(const group_rank *m, const dil_call *call,
                    const dil_tensor *whole, bool keys,
                    dil_tensor views[PROGRESSIONS_MOST]) {
  int32_t head = keys ? m->share.kv_head : m->share.head;
  int32_t heads = keys ? m->share.kv_heads : m->share.heads;
  int64_t origin;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    dil_progression p = rank_progression(m, call, i, keys, &origin);
    views[i] =
        view_rows(whole, p, origin, rank_batch(m, call), head, heads);
  }
}

void rank_view_lse(const group_rank *m, const dil_call *call,
                   const dil_tensor *whole,
                   dil_tensor views[PROGRESSIONS_MOST]) {
  int64_t origin;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    dil_progression p = rank_progression(m, call, i, false, &origin);
    views[i] = view_lse(whole, p, origin, rank_batch(m, call), m->share.head,
                        m->share.heads);
  }
}

resident_shard rank_shard(const group_rank *m, const dil_call *call) {
  const dil_table *t = m->group->task.table;
  ring_shape shape_of = rank_shape(m, call);
  resident_shard shard = {.queries =
                              partition_queries(&shape_of, rank_in_ring(m)),
                          .keys = partition_keys(&shape_of, rank_in_ring(m)),
                          .N = shape_of.N,
                          .M = shape_of.M,
                          .batch = (int32_t)rank_batch(m, call).first,
                          .head = m->share.head,
                          .kv_head = m->share.kv_head,
                          .heads = t->heads,
                          .kv_heads = t->kv_heads,
                          .dtype = t->dtype,
                          .seed = call->random};
  rank_view(m, call, &shard.rows);
  return shard;
}

dil_normal_place shard_normals(const resident_shard *p, int32_t tensor,
                            int32_t progression) {
  const positions *s = tensor ? &p->keys : &p->queries;
  dil_normal_place place = {.seed = p->seed,
                            .tensor = (uint32_t)tensor,
                            .rows = progression < s->count
                                        ? s->progression[progression]
                                        : (dil_progression){0, 1, 0},
                            .whole_rows = tensor ? p->M : p->N,
                            .batch = p->batch,
                            .head = tensor ? p->kv_head : p->head,
                            .whole_heads = tensor ? p->kv_heads : p->heads};
  if (!tensor) place.rows.first -= p->M - p->N;
  return place;
}

/* Index of position t in a progression; -1: it is not there. */
static int64_t row_in(dil_progression progression, int64_t t) {
  int64_t from = t - progression.first;
  bool there = from >= 0 && from % progression.step == 0 &&
               from / progression.step < progression.count;
  return there ? from / progression.step : -1;
}

bool rank_find(const group_rank *m, const dil_call *call, output_row at,
               row_place *found) {
  ring_shape shape_of = rank_shape(m, call);
  positions mine = partition_queries(&shape_of, rank_in_ring(m));
  dil_progression batch = rank_batch(m, call);
  *found = (row_place){.b = at.b - batch.first, .h = at.h - m->share.head};
  if (found->b < 0 || found->b >= batch.count || found->h < 0 ||
      found->h >= m->share.heads)
    return false;
  for (; found->progression < mine.count; found->progression++) {
    found->row = row_in(mine.progression[found->progression],
                        at.n + shape_of.M - shape_of.N);
    if (found->row >= 0) return true;
  }
  return false;
}

/* ---- copies -------------------------------------------------------------- */

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

/* Writes all rows contiguously in another float type. */
static void convert_rows(const dil_tensor *t, dil_dtype dtype, char *to) {
  float wide[DIL_HEAD_DIM_MAX];
  int32_t width = (int32_t)t->shape[3];
  int64_t n[3];
  for (n[0] = 0; n[0] < t->shape[0]; n[0]++)
    for (n[1] = 0; n[1] < t->shape[1]; n[1]++)
      for (n[2] = 0; n[2] < t->shape[2]; n[2]++) {
        int64_t at = n[0] * t->stride[0] + n[1] * t->stride[1] +
                     n[2] * t->stride[2];
        row_to_f32((const char *)t->data + at * (int64_t)dil_dtype_size(t->dtype),
                   t->dtype, width, wide);
        row_from_f32(wide, dtype, width, to);
        to += width * (int32_t)dil_dtype_size(dtype);
      }
}

void rows_pack(const dil_tensor *t, dil_dtype dtype, char *to) {
  if (t->dtype == dtype) rows_copy(t, &to, false);
  else convert_rows(t, dtype, to);
}

/* lse is [B, H, N]: each number is copied as a row of one element. */
void lse_copy(dil_tensor t, char **at, bool unpack) {
  if (!t.data) return;
  t.shape[3] = 1;
  rows_copy(&t, at, unpack);
}
