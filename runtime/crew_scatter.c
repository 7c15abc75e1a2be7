/* crew_scatter.c - ranks that are processes: each but the first holds its own
 * rows and no others. In: a call that is whole on rank 0 of the job. Out: every
 * rank's q, k and v in memory of its own. */
#include "crew_member.h"
#include "walk.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE = 8 << 20 }; /* bytes that travel at once */

/* ---- memory -------------------------------------------------------------- */

static int64_t tensor_bytes(const dil_tensor *t) {
  return round_up(dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype), 64);
}

/* A view becomes a row-major tensor of the same shape; *at moves on. */
static void hold(dil_tensor *t, char **at) {
  int64_t bytes = tensor_bytes(t);
  *t = dil_tensor_make(*at, t->dtype, t->rank, t->shape);
  if (*at) *at += bytes;
}

static int64_t held_bytes(const ring_rows *r, bool lse) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < SHARD_COMBS; i++)
    bytes += tensor_bytes(&r->q[i]) + tensor_bytes(&r->o[i]) +
             tensor_bytes(&r->keys.k[i]) + tensor_bytes(&r->keys.v[i]) +
             (lse ? tensor_bytes(&r->lse[i]) : 0);
  return bytes;
}

static void hold_rows(ring_rows *r, char *at, bool lse) {
  for (int32_t i = 0; i < SHARD_COMBS; i++) {
    hold(&r->q[i], &at);
    hold(&r->o[i], &at);
    hold(&r->keys.k[i], &at);
    hold(&r->keys.v[i], &at);
    if (lse) hold(&r->lse[i], &at);
  }
}

static dil_status member_hold(member *m, const dil_call *call) {
  ring_rows rows_here;
  bool lse = m->crew->task.table->lse_allowed;
  member_view(m, call, &rows_here);
  int64_t bytes = held_bytes(&rows_here, lse);
  char *store = aligned_alloc(64, (size_t)bytes + 64);
  if (!store)
    return dil_fail(DIL_MEMORY, "no memory for the %lld bytes of rank %d",
                    (long long)bytes, m->rank);
  memset(store, 0xFF, (size_t)bytes); /* NaN: what a run leaves out is seen */
  hold_rows(&rows_here, store, lse);
  m->held = rows_here;
  m->store = store;
  return DIL_OK;
}

/* ---- messages ------------------------------------------------------------ */

/* Some rows of one batch row: packed by rank 0, received where they belong. */
static dil_status move_piece(dil_link *world, int32_t rank, dil_tensor piece,
                             char *buffer) {
  int64_t bytes = dil_tensor_count(&piece) *
                  (int64_t)dil_dtype_size(piece.dtype);
  bool here = world->rank == 0;
  char *at = buffer;
  if (here) rows_copy(&piece, &at, false);
  const link_transfer t = {.to = here ? rank : -1,
                           .from = here ? -1 : 0,
                           .send = buffer,
                           .receive = piece.data,
                           .send_bytes = here ? bytes : 0,
                           .receive_bytes = here ? 0 : bytes};
  dil_status status = world->calls->post(world, 0, &t);
  return status ? status : world->calls->wait(world, 0);
}

static dil_status move_tensor(dil_link *world, int32_t rank, dil_tensor t,
                              char *buffer) {
  int64_t size = (int64_t)dil_dtype_size(t.dtype), batch = t.shape[0];
  int64_t row = t.shape[2] * t.shape[3] * size, count = t.shape[1];
  int64_t each = maximum(1, PIECE / maximum(row, 1));
  dil_status status = DIL_OK;
  for (int64_t b = 0; b < batch && row; b++)
    for (int64_t n = 0; n < count && !status; n += each) {
      dil_tensor piece = t;
      piece.data =
          (char *)t.data + (b * t.stride[0] + n * t.stride[1]) * size;
      piece.shape[0] = 1;
      piece.shape[1] = minimum(each, count - n);
      status = move_piece(world, rank, piece, buffer);
    }
  return status;
}

/* One rank's rows, at either end. */
static dil_status move_rows(member *m, dil_link *world, const dil_call *call,
                            char *buffer) {
  ring_rows r;
  dil_status status = DIL_OK;
  member_view(m, call, &r);
  for (int32_t i = 0; i < SHARD_COMBS && !status; i++) {
    status = move_tensor(world, m->rank, r.q[i], buffer);
    if (!status) status = move_tensor(world, m->rank, r.keys.k[i], buffer);
    if (!status) status = move_tensor(world, m->rank, r.keys.v[i], buffer);
  }
  return status;
}

dil_status crew_scatter(crew *c, dil_link *world, const dil_call *call) {
  int32_t self = world->rank;
  /* A row of all heads may be longer than a piece. */
  int64_t row = call->q.shape[2] * call->q.shape[3] * (int64_t)sizeof(float);
  char *buffer = self ? NULL : malloc((size_t)maximum(PIECE, row));
  dil_status status = DIL_OK;
  if (!self && !buffer)
    status = dil_fail(DIL_MEMORY, "no memory to send rows to their ranks");
  if (self) status = member_hold(&c->member[self], call);
  for (int32_t i = 1; i < world->ranks && !status; i++)
    if (self == 0 || self == i)
      status = move_rows(&c->member[i], world, call, buffer);
  free(buffer);
  return status;
}
