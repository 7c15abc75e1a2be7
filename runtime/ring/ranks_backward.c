/* ranks_backward.c - the gradients of the ranks of a mesh. In: a call that ran
 * forward, and dO. Out: f32 sums of each rank's own rows; then the gradients of
 * the call. Ranks that share a K/V head (a group's query heads on several
 * ranks) each have sums of its keys: the first of these ranks owns the gradient
 * and adds the sums in the order of ranks. So do the sums of inputs. */
#include "rank.h"
#include "input_sums.h"
#include "row_copy.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* ---- sums of a rank ------------------------------------------------------ */

static int64_t tensor_bytes(const dil_tensor *t) {
  return round_up(dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype), 64);
}

/* Makes a view a row-major tensor of the same shape at *at, and moves *at on.
 * With *at NULL it only adds the size to *bytes. */
static void place(dil_tensor *t, dil_dtype dtype, char **at, int64_t *bytes) {
  *t = dil_tensor_make(*at, dtype, t->rank, t->shape);
  *bytes += tensor_bytes(t);
  if (*at) *at += tensor_bytes(t);
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
    place(&g->dq[i], DIL_F32, &at, &bytes);
    place(&g->keys.k[i], DIL_F32, &at, &bytes);
    place(&g->keys.v[i], DIL_F32, &at, &bytes);
  }
  int64_t inputs = input_sums_count(call);
  g->inputs = at && inputs ? (double *)(void *)at : NULL;
  return bytes + inputs * (int64_t)sizeof(double);
}

/* dO and dlse of the rank's rows: its own copies, on its GPU or here, or the
 * call's. */
static void view_given(const group_rank *m, const dil_backward_call *call,
                       dil_tensor output[PROGRESSIONS_MOST],
                       dil_tensor lse[PROGRESSIONS_MOST]) {
  if (m->resident.shared) {
    memcpy(output, m->resident.output, sizeof m->resident.output);
    memcpy(lse, m->resident.lse, sizeof m->resident.lse);
    return;
  }
  if (!m->gradient_store) {
    rank_view_rows(m, &call->forward, &call->output, false, output);
    rank_view_lse(m, &call->forward, &call->lse, lse);
    return;
  }
  memcpy(output, m->held_output, sizeof m->held_output);
  memcpy(lse, m->held_lse, sizeof m->held_lse);
}

dil_status rank_gradients_begin(group_rank *m, bool opens) {
  const dil_backward_call *call = m->group->backward;
  ring_device *d = rank_device(m);
  rank_gradients_free(m);
  m->sums = (ring_gradients){.wanted = call->inputs,
                             .lse_given = call->lse.data != NULL,
                             .opens = opens};
  int64_t bytes = lay_out(m, &m->sums, NULL);
  bool any = opens && !input_sums_count(call); /* these begin at 0 */
  dil_status status = d->calls->take(d, bytes, any ? RING_ANY : RING_ZEROS,
                                     &m->sum_memory);
  if (status) return status;
  lay_out(m, &m->sums, m->sum_memory);
  view_given(m, call, m->sums.output, m->sums.lse);
  return DIL_OK;
}

void rank_gradients_free(group_rank *m) {
  ring_device *d = rank_device(m);
  if (m->sum_memory && d) d->calls->give(d, m->sum_memory);
  free(m->fetched);
  m->sum_memory = m->fetched = NULL;
}

/* Brings the sums of a GPU to the host. */
static dil_status fetch_sums(group_rank *m) {
  ring_device *d = rank_device(m);
  ring_gradients sums = {0};
  if (d->calls->on_host || m->fetched || !m->sum_memory) return DIL_OK;
  int64_t bytes = lay_out(m, &sums, NULL);
  m->fetched = aligned_alloc(64, (size_t)round_up(bytes, 64) + 64);
  if (!m->fetched)
    return dil_fail(DIL_MEMORY, "no memory for the gradients of rank %d",
                    m->rank);
  dil_status status = d->calls->read(d, m->fetched, m->sum_memory, bytes);
  if (!status) lay_out(m, &m->sums, m->fetched);
  return status;
}

/* ---- dO of a rank that is a process --------------------------------------- */

/* Lays out the copies from `at` on (NULL: only counts) and returns their
 * bytes. */
static int64_t lay_out_given(group_rank *m, const dil_backward_call *call,
                             char *at) {
  int64_t bytes = 0;
  rank_view_rows(m, &call->forward, &call->output, false, m->held_output);
  rank_view_lse(m, &call->forward, &call->lse, m->held_lse);
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    place(&m->held_output[i], m->group->task.table->dtype, &at, &bytes);
    if (call->lse.data) place(&m->held_lse[i], DIL_F32, &at, &bytes);
  }
  return bytes;
}

static dil_status fill_given(const group_rank *m, dil_threads *threads,
                             const dil_backward_call *call, uint32_t number) {
  const dil_call *f = &call->forward;
  resident_shard whole = rank_shard(m, f);
  dil_tensor output[PROGRESSIONS_MOST], lse[PROGRESSIONS_MOST];
  dil_status status = DIL_OK;
  rank_view_rows(m, f, &call->output, false, output);
  rank_view_lse(m, f, &call->lse, lse);
  for (int32_t i = 0; i < PROGRESSIONS_MOST && !status; i++) {
    dil_normal_place place = shard_normals(&whole, 0, i);
    place.tensor = number;
    status = rank_hold_rows(threads, &place, &output[i], &m->held_output[i]);
    char *at = m->held_lse[i].data;
    if (call->lse.data) lse_copy(lse[i], &at, false);
  }
  return status;
}

dil_status rank_group_hold_gradients(rank_group *c,
                                     const dil_backward_call *call,
                                     uint32_t number) {
  group_rank *m = c->rank[c->task.rank];
  if (c->task.gpu) return DIL_OK;
  dil_threads *threads = dil_threads_new(c->task.threads);
  if (!threads) return dil_fail_text(DIL_MEMORY, dil_last_error());
  int64_t bytes = lay_out_given(m, call, NULL);
  free(m->gradient_store);
  m->gradient_store = aligned_alloc(64, (size_t)bytes + 64);
  dil_status status = DIL_OK;
  if (!m->gradient_store)
    status = dil_fail(DIL_MEMORY, "no memory for the %lld bytes of rank %d",
                      (long long)bytes, m->rank);
  if (!status) lay_out_given(m, call, m->gradient_store);
  if (!status) status = fill_given(m, threads, call, number);
  dil_threads_free(threads);
  return status;
}

static dil_status load_given(group_rank *m, const dil_backward_call *call,
                             uint32_t number) {
  resident_shard shard = rank_shard(m, &call->forward);
  dil_tensor output[PROGRESSIONS_MOST], lse[PROGRESSIONS_MOST];
  rank_view_rows(m, &call->forward, &call->output, false, output);
  rank_view_lse(m, &call->forward, &call->lse, lse);
  return resident_place_gradients(&m->resident, &shard, number, output, lse);
}

dil_status rank_group_load_gradients(rank_group *c,
                                     const dil_backward_call *call,
                                     uint32_t number) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if ((!c->task.link || i == c->task.rank) && !status)
      status = load_given(c->rank[i], call, number);
  return status;
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

/* The gradients of inputs: sums of rank 0, and those of the others in order. */
static void add_inputs(rank_group *c) {
  double *sums = c->rank[0]->sums.inputs;
  int64_t count = input_sums_count(c->backward);
  for (int32_t i = 1; sums && i < mesh_ranks(&c->task.mesh); i++)
    for (int64_t n = 0; n < count; n++)
      sums[n] += c->rank[i]->sums.inputs[n];
  if (sums) input_sums_store(c->backward, sums);
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
  for (int32_t i = 0; i < ranks && !status; i++) status = fetch_sums(c->rank[i]);
  for (int32_t i = 0; i < ranks && !status; i++) {
    int32_t owner = owner_of(c->rank[i]);
    if (owner != i)
      add_keys(&c->rank[i]->sums.keys, &c->rank[owner]->sums.keys);
  }
  if (!status) add_inputs(c);
  for (int32_t i = 0; i < ranks && !status; i++)
    status = store_rank(c->rank[i], threads);
  dil_threads_free(threads);
  return status;
}

/* ---- ranks that are processes -------------------------------------------- */

/* Whether ranks share the sums of a K/V head. */
static bool shares_heads(const rank_group *c) {
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++)
    if (owner_of(c->rank[i]) != i) return true;
  return false;
}

/* Rank 0's sums of the keys of all ranks, f32 and as large as dk and dv; data
 * NULL: no ranks share a head, and the sums go to dk and dv themselves. */
typedef struct key_sums {
  dil_tensor dk, dv;
} key_sums;

static dil_status take_key_sums(const rank_group *c,
                                const dil_backward_call *call, key_sums *all) {
  *all = (key_sums){0};
  if (!shares_heads(c)) return DIL_OK;
  all->dk = dil_tensor_make(NULL, DIL_F32, 4, call->dk.shape);
  all->dv = dil_tensor_make(NULL, DIL_F32, 4, call->dv.shape);
  all->dk.data = calloc((size_t)dil_tensor_count(&all->dk) + 1, sizeof(float));
  all->dv.data = calloc((size_t)dil_tensor_count(&all->dv) + 1, sizeof(float));
  return all->dk.data && all->dv.data
             ? DIL_OK
             : dil_fail(DIL_MEMORY, "no memory for the sums of ranks");
}

static void add_rows(const dil_tensor *more, const dil_tensor *to) {
  const float *from = more->data;
  for (int64_t row = 0; row < to->shape[0] * to->shape[1] * to->shape[2];
       row++) {
    int64_t h = row % to->shape[2], n = row / to->shape[2] % to->shape[1];
    int64_t b = row / to->shape[2] / to->shape[1], width = to->shape[3];
    float *at = (float *)to->data + b * to->stride[0] + n * to->stride[1] +
                h * to->stride[2];
    for (int64_t d = 0; d < width; d++) at[d] += *from++;
  }
}

/* One rank's sums of keys to those of all ranks. */
static void add_shared(const group_rank *m, const key_sums *all,
                       const ring_gradients *g) {
  dil_tensor dk[PROGRESSIONS_MOST], dv[PROGRESSIONS_MOST];
  rank_view_rows(m, m->group->call, &all->dk, true, dk);
  rank_view_rows(m, m->group->call, &all->dv, true, dv);
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    add_rows(&g->keys.k[i], &dk[i]);
    add_rows(&g->keys.v[i], &dv[i]);
  }
}

/* At rank 0: what the sums of one rank give. */
static dil_status take_rank(group_rank *m, dil_threads *threads,
                            const key_sums *all, const ring_gradients *g) {
  const dil_backward_call *call = m->group->backward;
  double *inputs = m->group->rank[0]->sums.inputs;
  dil_status status = store_rows(m, threads, &call->dq, false, g->dq);
  for (int64_t n = 0; inputs && m->rank && n < input_sums_count(call); n++)
    inputs[n] += g->inputs[n];
  if (all->dk.data) {
    add_shared(m, all, g);
    return status;
  }
  if (!status) status = store_rows(m, threads, &call->dk, true, g->keys.k);
  return status ? status : store_rows(m, threads, &call->dv, true, g->keys.v);
}

/* The sums of a rank, from its process to rank 0. */
static dil_status collect_rank(group_rank *m, dil_link *world,
                               dil_threads *threads, const key_sums *all) {
  ring_gradients g = {0};
  int64_t bytes = lay_out(m, &g, NULL);
  bool own = m->rank == world->rank;
  dil_status status = own ? fetch_sums(m) : DIL_OK;
  if (status) return status;
  char *kept = m->fetched ? m->fetched : m->sum_memory;
  char *memory = own ? kept : malloc((size_t)bytes + 1);
  if (!memory)
    return dil_fail(DIL_MEMORY, "no memory for the gradients of rank %d",
                    m->rank);
  link_heartbeat(world);
  lay_out(m, &g, memory);
  status = rank_send_first(world, m->rank, memory, bytes);
  if (!status && world->rank == 0) status = take_rank(m, threads, all, &g);
  if (!own) free(memory);
  return status;
}

/* Rank 0's work: the sums of all ranks in their order. */
static dil_status collect_all(rank_group *c, dil_link *world,
                              dil_threads *threads) {
  const dil_backward_call *call = c->backward;
  key_sums all;
  dil_status status = take_key_sums(c, call, &all);
  for (int32_t i = 0; i < world->ranks && !status; i++)
    status = collect_rank(c->rank[i], world, threads, &all);
  if (!status && c->rank[0]->sums.inputs)
    input_sums_store(call, c->rank[0]->sums.inputs);
  if (!status && all.dk.data) status = row_copy(threads, &all.dk, &call->dk);
  if (!status && all.dv.data) status = row_copy(threads, &all.dv, &call->dv);
  free(all.dk.data);
  free(all.dv.data);
  return status;
}

dil_status rank_group_collect_gradients(rank_group *c, dil_link *world,
                                        const dil_backward_call *call) {
  dil_threads *threads = dil_threads_new(c->task.threads);
  if (!threads) return dil_fail_text(DIL_MEMORY, dil_last_error());
  c->call = &call->forward;
  c->backward = call;
  world->is_awaited = world->rank == 0;
  dil_status status =
      world->rank == 0
          ? collect_all(c, world, threads)
          : collect_rank(c->rank[world->rank], world, threads, NULL);
  world->is_awaited = false;
  dil_threads_free(threads);
  return status;
}
