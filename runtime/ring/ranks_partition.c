/* ranks_partition.c - ranks on GPUs: copies their rows to the devices before
 * the first run, and o and lse back after the last. In: a call. Out: the call's
 * rows on the devices, or its results on the host. */
#include "rank.h"

static bool is_here(const rank_group *c, int32_t rank) {
  return !c->task.link || rank == c->task.rank;
}

static dil_status rank_place(group_rank *m, const dil_call *call) {
  resident_shard shard = rank_shard(m, call);
  return resident_place(&m->resident, call, &shard);
}

dil_status rank_fetch(group_rank *m, const dil_call *call) {
  ring_rows host;
  rank_view(m, call, &host);
  return resident_fetch(&m->resident, &host);
}

dil_status rank_fetch_row(group_rank *m, const dil_call *call,
                          const row_place *at) {
  ring_rows host;
  rank_view(m, call, &host);
  return resident_fetch_row(&m->resident, &host, at->progression, at->b,
                            at->row, at->h);
}

dil_status rank_group_load(rank_group *c, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status) status = rank_place(c->rank[i], call);
  return status;
}

dil_status rank_group_fetch(rank_group *c, const dil_call *call) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status) status = rank_fetch(c->rank[i], call);
  return status;
}

dil_status rank_group_fetch_row(rank_group *c, const dil_call *call,
                                output_row row) {
  dil_status status = DIL_OK;
  row_place at;
  for (int32_t i = 0; c->task.gpu && i < mesh_ranks(&c->task.mesh); i++)
    if (is_here(c, i) && !status && rank_find(c->rank[i], call, row, &at))
      status = rank_fetch_row(c->rank[i], call, &at);
  return status;
}
