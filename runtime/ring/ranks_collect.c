/* ranks_collect.c - a gather to rank 0, for ranks that are processes. In: every
 * rank's own o and lse, and which rows are wanted. Out: these rows in the call
 * of rank 0, and the reports of all ranks. */
#include "rank.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

/* The message of one rank, at its sender or at rank 0. */
typedef struct collect_parcel {
  group_rank *of;
  dil_link *world;
  const dil_call *call;
  const wanted_rows *wanted;
  ring_rows rows;          /* views of the sender's rows in this process */
} collect_parcel;

/* ---- wanted rows --------------------------------------------------------- */

static int64_t width_of(const dil_tensor *o) {
  return o->shape[3] * (int64_t)dil_dtype_size(o->dtype);
}

static bool find_wanted(const collect_parcel *p, int64_t index, row_place *at) {
  output_row row;
  p->wanted->row(p->wanted->owner, index, &row);
  return rank_find(p->of, p->call, row, at);
}

static int64_t count_wanted(const collect_parcel *p) {
  row_place at;
  int64_t count = 0;
  for (int64_t i = 0; i < p->wanted->count; i++) count += find_wanted(p, i, &at);
  return count;
}

static void move(void *here, char **message, int64_t bytes, bool unpack) {
  memcpy(unpack ? here : *message, unpack ? *message : here, (size_t)bytes);
  *message += bytes;
}

static void move_row(const collect_parcel *p, const row_place *at,
                     char **message, bool unpack) {
  const dil_tensor *o = &p->rows.o[at->progression],
                   *lse = &p->rows.lse[at->progression];
  int64_t place = at->b * o->stride[0] + at->row * o->stride[1] +
                  at->h * o->stride[2];
  move((char *)o->data + place * (int64_t)dil_dtype_size(o->dtype), message,
       width_of(o), unpack);
  if (!lse->data) return;
  place = at->b * lse->stride[0] + at->h * lse->stride[1] +
          at->row * lse->stride[2];
  move((float *)lse->data + place, message, sizeof(float), unpack);
}

/* ---- messages ------------------------------------------------------------ */

static int64_t parcel_bytes(const collect_parcel *p) {
  int64_t bytes = 0, lse = p->rows.lse[0].data ? sizeof(float) : 0;
  if (p->wanted->count >= 0)
    return count_wanted(p) * (width_of(&p->rows.o[0]) + lse);
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++) {
    const dil_tensor *o = &p->rows.o[i];
    bytes += o->shape[0] * o->shape[1] * o->shape[2] * (width_of(o) + lse);
  }
  return bytes;
}

/* Copies all rows of a progression in slices, with heartbeats between them. */
static void move_progression(const collect_parcel *p, int32_t progression,
                             char **message, bool unpack) {
  enum { SLICE = 1 << 24 }; /* bytes; copied well within a heartbeat's time */
  const dil_tensor *all = &p->rows.o[progression];
  int64_t row = all->shape[0] * all->shape[2] * width_of(all);
  int64_t most = row > 0 && row < SLICE ? SLICE / row : 1;
  dil_tensor o, lse;
  for (int64_t first = 0; first < all->shape[1]; first += most) {
    int64_t left = all->shape[1] - first;
    rows_slice(&p->rows, progression,
               (dil_progression){first, 1, left < most ? left : most}, &o,
               &lse);
    rows_copy(&o, message, unpack);
    lse_copy(lse, message, unpack);
    link_heartbeat(p->world);
  }
}

/* Copies the wanted rows to the message, or from it. */
static void move_rows(const collect_parcel *p, char *message, bool unpack) {
  row_place at;
  for (int64_t i = 0; i < p->wanted->count; i++) {
    if (find_wanted(p, i, &at)) move_row(p, &at, &message, unpack);
    link_heartbeat(p->world);
  }
  for (int32_t i = 0; i < PROGRESSIONS_MOST && p->wanted->count < 0; i++)
    move_progression(p, i, &message, unpack);
}

/* Copies the wanted rows from the GPU; if they are not few, it copies all. */
static dil_status fetch_wanted(const collect_parcel *p) {
  enum { FEW = 8 }; /* few: at most one row in FEW */
  const dil_tensor *o = &p->rows.o[0];
  int64_t all = 0;
  for (int32_t i = 0; i < PROGRESSIONS_MOST; i++)
    all += o[i].shape[0] * o[i].shape[1] * o[i].shape[2];
  dil_status status = DIL_OK;
  row_place at;
  if (!p->of->group->task.gpu) return DIL_OK;
  if (p->wanted->count < 0 || count_wanted(p) > all / FEW)
    return rank_fetch(p->of, p->call);
  for (int64_t i = 0; i < p->wanted->count && !status; i++)
    if (find_wanted(p, i, &at)) {
      status = rank_fetch_row(p->of, p->call, &at);
      link_heartbeat(p->world);
    }
  return status;
}

dil_status rank_send_first(dil_link *world, int32_t rank, char *message,
                           int64_t bytes) {
  bool here = world->rank == 0;
  const link_transfer t = {.to = here ? -1 : 0,
                           .from = here ? rank : -1,
                           .send = message,
                           .receive = message,
                           .send_bytes = here ? 0 : bytes,
                           .receive_bytes = here ? bytes : 0};
  if (rank == 0) return DIL_OK;
  dil_status status = world->calls->post(world, 0, &t);
  return status ? status : world->calls->wait(world, 0);
}

static dil_status collect_one(rank_group *c, collect_parcel *p) {
  dil_link *world = p->world;
  bool own = p->of->rank == c->task.rank;
  link_heartbeat(world);
  rank_view(p->of, p->call, &p->rows);
  int64_t bytes = parcel_bytes(p), report = (int64_t)sizeof p->of->report;
  char *message = malloc((size_t)(bytes + report));
  if (!message)
    return dil_fail(DIL_MEMORY, "no memory for the rows of rank %d",
                    p->of->rank);
  dil_status status = own ? fetch_wanted(p) : DIL_OK;
  memcpy(message, &p->of->report, (size_t)report);
  if (!status && own) move_rows(p, message + report, false);
  if (!status) status = rank_send_first(world, p->of->rank, message, bytes + report);
  memcpy(&p->of->report, message, (size_t)report);
  if (!status && world->rank == 0) {
    rank_view_call(p->of, p->call, &p->rows);
    move_rows(p, message + report, true);
  }
  free(message);
  return status;
}

dil_status rank_group_collect(rank_group *c, dil_link *world,
                              const dil_call *call, const wanted_rows *wanted) {
  dil_status status = DIL_OK;
  world->is_awaited =
      world->rank == 0; /* ranks wait for rank 0 before and after
                           their turns, however long others take */
  for (int32_t i = 0; i < world->ranks && !status; i++) {
    collect_parcel p = {
        .of = c->rank[i], .world = world, .call = call, .wanted = wanted};
    if (world->rank == 0 || world->rank == i) status = collect_one(c, &p);
  }
  world->is_awaited = false;
  return status;
}
