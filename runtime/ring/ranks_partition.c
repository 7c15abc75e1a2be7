/* ranks_partition.c - ranks on GPUs: copies their rows to the devices before
 * the first run, and o and lse back after the last. In: a call. Out: the call's
 * rows on the devices, or its results on the host. */
#include "rank.h"

static bool is_here(const crew *c, int32_t rank) {
  return !c->task.link || rank == c->task.rank;
}

static dil_status member_place(member *m, const dil_call *call) {
  resident_shard shard = member_shard(m, call);
  return resident_place(&m->resident, call, &shard);
}

dil_status member_fetch(member *m, const dil_call *call) {
  ring_rows host;
  member_view(m, call, &host);
  return resident_fetch(&m->resident, &host);
}

dil_status member_fetch_row(member *m, const dil_call *call,
                            const row_place *at) {
  ring_rows host;
  member_view(m, call, &host);
  return resident_fetch_row(&m->resident, &host, at->progression, at->b,
                            at->row, at->h);
}

dil_status crew_place(crew *c, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status) status = member_place(c->member[i], call);
  return status;
}

dil_status crew_fetch(crew *c, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status) status = member_fetch(c->member[i], call);
  return status;
}

dil_status crew_fetch_row(crew *c, const dil_call *call, crew_row row) {
  dil_status status = DIL_OK;
  row_place at;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status && member_find(c->member[i], call, row, &at))
      status = member_fetch_row(c->member[i], call, &at);
  return status;
}
