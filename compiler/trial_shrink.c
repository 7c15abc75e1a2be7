/* trial_shrink.c - going on without ranks that are lost: `dil run --shrink`. In:
 * a crew whose run, or whose collection of rows, has failed. Out: a smaller one
 * with all rows of the call, and what it has to do again; or the failure. */
#include "command.h"
#include "trial_crew.h"
#include <stdlib.h>
#include <string.h>

void trial_crew_hear(trial_crew *t) {
  dil_link *ring = t->task.link;
  if (t->world->ranks == ring->ranks || !t->world->calls->check(t->world))
    return;
  ring->calls->accuse(ring, -1, dil_last_error());
}

/* A rank's ring knows whom it has lost; all are told by what joins all, whose
 * word counts. */
static bool find_lost(trial_crew *t, const char *why, bool *lost) {
  bool any = crew_lost(t->crew, lost);
  if (!t->job) return any;
  dil_link *world = t->world;
  for (int32_t i = 0; i < world->ranks && any; i++)
    if (lost[i]) {
      world->calls->accuse(world, i, why);
      break;
    }
  memset(lost, 0, (size_t)world->ranks * sizeof *lost);
  return world->calls->lost(world, lost);
}

/* Links of those left, for their number in a file of its own. */
static dil_status shrink_links(trial_crew *t, const bool *lost) {
  dil_link *smaller = NULL, *former = t->world;
  size_t size = strlen(t->meet);
  dil_status status = former->calls->shrink(former, lost, &smaller);
  if (status) return status;
  link_free(t->task.link);
  link_free(former);
  t->task.link = NULL;
  t->world = smaller;
  if (trial_crew_in_file(t))
    snprintf(t->meet + size, sizeof t->meet - size, ".%d", smaller->ranks);
  return trial_crew_ring(t);
}

/* Room for what comes to the first, which this rank was not before. */
static dil_status become_first(trial_crew *t) {
  bool has_room = t->call->o.data != NULL;
  return t->task.rank || has_room ? DIL_OK : bind_outputs(t->binding);
}

/* All begin again with the first run that some have not done; with the last one
 * where rows were lost behind it; with none where they have all been brought. */
static dil_status agree(trial_crew *t) {
  int64_t least;
  dil_status status = link_least(t->world, t->whole ? -1 : t->done, &least);
  if (status) return status;
  t->whole = least < 0;
  if (!t->whole) t->done = least < t->goal ? least : t->goal - 1;
  return DIL_OK;
}

/* Ranks that are processes, or threads that see the whole call. */
static dil_status go_on(trial_crew *t, const bool *lost) {
  mesh *m = &t->task.mesh;
  dil_status status = DIL_OK;
  int32_t left = link_left(lost, mesh_ranks(m));
  t->task.rank = link_left(lost, t->task.rank);
  m->ring = left;
  m->heads = m->batch = 1;
  if (t->job) status = shrink_links(t, lost);
  if (!status && t->job) status = agree(t);
  if (status || t->whole) return status;
  status = crew_shrink(t->crew, lost, t->task.link);
  if (!status && t->job) status = become_first(t);
  if (!status && t->job) status = crew_hold(t->crew, t->call);
  if (!status) status = crew_place(t->crew, t->call);
  return status ? status : crew_join(t->crew);
}

static void tell(const bool *lost, int32_t ranks, const char *why) {
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

static bool is_first(const trial_crew *t, const bool *lost) {
  return !t->job || link_left(lost, t->task.rank) == 0;
}

dil_status trial_crew_shrink(trial_crew *t, dil_status failure) {
  int32_t ranks = mesh_ranks(&t->task.mesh);
  char why[256];
  snprintf(why, sizeof why, "%s", dil_last_error());
  bool *lost = calloc((size_t)ranks, sizeof *lost);
  if (!lost) return dil_fail(DIL_MEMORY, "no memory for %d ranks", ranks);
  bool any = find_lost(t, why, lost);
  dil_status status = DIL_OK;
  if (!any)
    status = dil_fail_text(failure, dil_last_error()); /* or why it is not told */
  else if (link_left(lost, ranks) == 0 || (t->job && lost[t->task.rank]))
    status = dil_fail(failure, "%s", why);
  if (!status && is_first(t, lost)) tell(lost, ranks, why);
  if (!status) status = go_on(t, lost);
  if (t->whole) status = DIL_OK; /* what is left to do, the first can alone */
  free(lost);
  return status;
}
