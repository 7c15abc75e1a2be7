/* session_shrink.c - goes on without lost ranks: `dil run --shrink`, in the
 * manner of revoke, agree and shrink of ULFM (Bland et al., 2013). In: a rank
 * group whose run, or whose collection of rows, has failed. Out: a smaller rank
 * group with all rows of the call, and which runs it repeats; or the
 * failure. */
#include "command.h"
#include "gradient_setup.h"
#include "session_ranks.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

void session_ranks_hear(session_ranks *t) {
  dil_link *ring = t->task.link;
  if (t->world->ranks == ring->ranks || !t->world->calls->check(t->world))
    return;
  ring->calls->report_failure(ring, -1, dil_last_error());
}

/* Finds the lost ranks. Each ring knows its own lost ranks; in a job this rank
 * reports one of them on the link of all ranks, whose agreement decides. */
static bool find_lost(session_ranks *t, const char *why, bool *lost) {
  bool any = rank_group_lost(t->group, lost);
  if (!t->job) return any;
  dil_link *world = t->world;
  for (int32_t i = 0; i < world->ranks && any; i++)
    if (lost[i]) {
      world->calls->report_failure(world, i, why);
      break;
    }
  memset(lost, 0, (size_t)world->ranks * sizeof *lost);
  return world->calls->failed_ranks(world, lost);
}

/* Replaces the links by links of the ranks left. A rendezvous file gets a new
 * name, which ends in their number. */
static dil_status shrink_links(session_ranks *t, const bool *lost) {
  dil_link *smaller = NULL, *former = t->world;
  size_t size = strlen(t->meet);
  dil_status status = former->calls->shrink(former, lost, &smaller);
  if (status) return status;
  link_free(t->task.link);
  link_free(former);
  t->task.link = NULL;
  t->world = smaller;
  if (session_ranks_in_file(t))
    snprintf(t->meet + size, sizeof t->meet - size, ".%d", smaller->ranks);
  return session_ranks_ring(t);
}

/* Makes room for o and lse where this rank has become rank 0. */
static dil_status become_first(session_ranks *t) {
  bool has_room = t->call->o.data != NULL;
  if (t->task.rank) return DIL_OK;
  dil_status status = has_room ? DIL_OK : call_outputs_make(t->setup);
  if (status || !t->backward) return status;
  t->backward->forward = *t->call;
  return gradient_setup_room(t->setup, t->backward);
}

/* All ranks repeat from the least number of completed runs. Where all ranks
 * have completed all runs, they repeat the last, since a lost rank had rows of
 * it. Where a rank has t->whole, rank 0 has all rows and no rank repeats. */
static dil_status shrink_agree(session_ranks *t) {
  int64_t least;
  dil_status status = link_least(t->world, t->whole ? -1 : t->done, &least);
  if (status) return status;
  t->whole = least < 0;
  if (!t->whole) t->done = least < t->goal ? least : t->goal - 1;
  return DIL_OK;
}

/* Makes the ranks left one ring and gives each its rows of the call. Ranks that
 * are threads see the whole call already. */
static dil_status shrink_go_on(session_ranks *t, const bool *lost) {
  mesh *m = &t->task.mesh;
  dil_status status = DIL_OK;
  int32_t left = link_left(lost, mesh_ranks(m));
  t->task.rank = link_left(lost, t->task.rank);
  m->ring = left;
  m->heads = m->batch = 1;
  if (t->job) status = shrink_links(t, lost);
  if (!status && t->job) status = shrink_agree(t);
  if (status || t->whole) return status;
  t->stale = true;
  status = rank_group_shrink(t->group, lost, t->task.link);
  if (!status && t->job) status = become_first(t);
  if (!status && t->job) status = rank_group_hold(t->group, t->call);
  if (!status && t->job && t->backward)
    status = rank_group_hold_gradients(t->group, t->backward,
                                       gradient_setup_number());
  if (!status) status = rank_group_load(t->group, t->call);
  if (!status && t->backward)
    status = rank_group_load_gradients(t->group, t->backward,
                                       gradient_setup_number());
  return status ? status : rank_group_join(t->group);
}

static void shrink_tell(const bool *lost, int32_t ranks, const char *why) {
  char list[64] = "", first[40] = "";
  int32_t least = 0, left = link_left(lost, ranks);
  for (int32_t i = 0, end = 0; i < ranks && end < (int32_t)sizeof list; i++)
    if (lost[i])
      end += snprintf(list + end, sizeof list - (size_t)end, "%s%d",
                      end ? ", " : "", i);
  while (lost[least]) least++;
  if (least)
    snprintf(first, sizeof first, "; the first is now %d", least);
  message_note("%d rank%s, without %s: %s%s", left,
               left == 1 ? " goes on" : "s go on", list, why, first);
}

static bool is_first(const session_ranks *t, const bool *lost) {
  return !t->job || link_left(lost, t->task.rank) == 0;
}

dil_status session_ranks_shrink(session_ranks *t, dil_status failure) {
  int32_t ranks = mesh_ranks(&t->task.mesh);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  bool *lost = calloc((size_t)ranks, sizeof *lost);
  if (!lost) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  bool any = find_lost(t, why, lost);
  dil_status status = DIL_OK;
  if (!any)
    status = dil_fail_text(failure, dil_last_error()); /* or why unknown */
  else if (link_left(lost, ranks) == 0 || (t->job && lost[t->task.rank]))
    status = dil_fail(failure, "%s", why);
  if (!status && is_first(t, lost)) shrink_tell(lost, ranks, why);
  if (!status) status = shrink_go_on(t, lost);
  if (t->whole) status = DIL_OK; /* rank 0 has all rows: it can report alone */
  free(lost);
  return status;
}
