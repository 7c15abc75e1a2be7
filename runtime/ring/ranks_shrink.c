/* ranks_shrink.c - makes a rank group smaller after ranks were lost. In: a rank
 * group whose last run has failed. Out: the rank group of the remaining ranks,
 * numbered anew, with their kernels, devices and communicators. */
#include "rank.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* If ranks are threads, each of them writes only its own `lost`: no lock is
 * needed. */
void rank_ask_lost(group_rank *m) {
  rank_group *c = m->group;
  const link_calls *calls = m->link->calls;
  int32_t ranks = m->link->ranks, first = m->link->first;
  bool *lost = calloc((size_t)ranks, sizeof *lost);
  bool any = lost && calls->failed_ranks && calls->failed_ranks(m->link, lost);
  for (int32_t i = 0; i < ranks; i++)
    if (c->task.link || first + i == m->rank)
      c->rank[first + i]->lost = any && lost[i];
  free(lost);
}

bool rank_group_lost(const rank_group *c, bool *lost) {
  bool any = false;
  for (int32_t i = 0; i < mesh_ranks(&c->task.mesh); i++)
    any |= lost[i] = c->rank[i]->lost;
  return any;
}

static void renumber(rank_group *c, int32_t rank, int32_t now) {
  group_rank *m = c->rank[now] = c->rank[rank];
  m->rank = now;
  m->lost = false;
  m->shrunk = true;
  free(m->store); /* rows of the larger ring */
  free(m->gradient_store);
  m->store = m->gradient_store = NULL;
  m->holds = false;
}

dil_status rank_group_shrink(rank_group *c, const bool *lost, dil_link *link) {
  mesh *m = &c->task.mesh;
  int32_t ranks = mesh_ranks(m), left = link_left(lost, ranks);
  bool split = m->ring != ranks;
  dil_status status = DIL_OK;
  if (left == 0) return dil_fail(DIL_PEER, "no rank is left");
  c->task.rank = link_left(lost, c->task.rank);
  for (int32_t i = 0, now = 0; i < ranks; i++)
    if (lost[i]) rank_close(c->rank[i]);
    else renumber(c, i, now++);
  memset(&c->rank[left], 0, (size_t)(ranks - left) * sizeof *c->rank);
  m->ring = left;
  m->heads = m->batch = 1;
  c->task.link = link;
  c->task.checkpoint.resume = false;
  for (int32_t i = 0; i < left && split && !status; i++)
    status = rank_reopen(c->rank[i]);
  return status;
}
