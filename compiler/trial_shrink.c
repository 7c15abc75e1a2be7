/* trial_shrink.c - going on without ranks that are lost: `dil run --shrink`. In:
 * a crew whose run has failed. Out: a smaller one with all rows of the call, or
 * the failure. */
#include "command.h"
#include "trial_crew.h"
#include <stdlib.h>

static dil_status shrink_link(dil_link **link, const bool *lost) {
  dil_link *smaller = NULL, *former = *link;
  dil_status status = former->calls->shrink(former, lost, &smaller);
  if (status) return status;
  link_free(former);
  *link = smaller;
  return DIL_OK;
}

/* Ranks that are processes, or threads that see the whole call. */
static dil_status go_on(trial_crew *t, const bool *lost, const dil_call *call) {
  int32_t left = link_left(lost, t->task.mesh.ring);
  dil_status status = t->job ? shrink_link(&t->task.link, lost) : DIL_OK;
  if (!status && t->job) status = shrink_link(&t->world, lost);
  if (!status) status = crew_shrink(t->crew, lost, t->task.link);
  if (status) return status;
  t->task.rank = link_left(lost, t->task.rank);
  t->task.mesh.ring = left;
  if (t->job) status = crew_hold(t->crew, call);
  if (!status) status = crew_place(t->crew, call);
  return status ? status : crew_join(t->crew);
}

static void tell(const bool *lost, int32_t ranks, const char *why) {
  char list[64] = "";
  for (int32_t i = 0, end = 0; i < ranks && end < (int32_t)sizeof list; i++)
    if (lost[i])
      end += snprintf(list + end, sizeof list - (size_t)end, "%s%d",
                      end ? ", " : "", i);
  int32_t left = link_left(lost, ranks);
  message_note("%d rank%s, without %s: %s", left,
               left == 1 ? " goes on" : "s go on", list, why);
}

dil_status trial_crew_shrink(trial_crew *t, const dil_call *call,
                             dil_status failure) {
  int32_t ranks = mesh_ranks(&t->task.mesh);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  bool *lost = calloc((size_t)ranks, sizeof *lost);
  if (!lost) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  bool any = crew_lost(t->crew, lost);
  dil_status status = DIL_OK;
  if (!any || link_left(lost, ranks) == 0 || (t->job && lost[t->task.rank]))
    status = dil_fail(failure, "%s", why);
  else if (t->job && lost[0])
    status = dil_fail(DIL_PEER, "%s; it writes the output, so the others "
                      "cannot go on", why);
  if (!status && trial_crew_speaks(t))
    tell(lost, ranks, why);
  if (!status) status = go_on(t, lost, call);
  free(lost);
  return status;
}
