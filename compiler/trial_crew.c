/* trial_crew.c - a trial on the ranks of a topology. In: a compilation whose
 * topology has several devices, a call. Out: runs by a crew. */
#include "trial_crew.h"
#include "command.h"

static dil_status check_options(const options *o) {
  bool resumes = o->seen[OPTION_RESUME] || o->seen[OPTION_EVERY];
  if (resumes && !o->seen[OPTION_STATE])
    return dil_fail(DIL_USAGE, "--every and --resume want --state PREFIX");
  if (o->lengths)
    return dil_fail(DIL_USAGE, "--lengths cannot be used with a topology");
  return DIL_OK;
}

dil_status trial_crew_open(trial_crew *t, compilation *c, const binding *b) {
  const options *o = b->options;
  dil_status status = check_options(o);
  if (!status) status = driver_source(c, b->context, &t->from);
  if (status) return status;
  mesh m = place_mesh(c->pattern, c->topology);
  int32_t threads = dil_threads_count(b->threads) / mesh_ranks(&m);
  m.exchange = place_exchange(c->topology, c->pattern, b->size[BIND_B],
                              b->size[BIND_M]);
  t->task = (crew_task){.mesh = m,
                        .threads = threads > 0 ? threads : 1,
                        .table = t->from.table,
                        .plan_hash = t->from.plan_hash,
                        .make = t->from.make,
                        .context = t->from.context,
                        .checkpoint = {.prefix = o->state,
                                       .every = o->seen[OPTION_EVERY]
                                                    ? (int32_t)o->every
                                                    : 1,
                                       .resume = o->resume}};
  return crew_new(&t->task, &t->crew);
}

void trial_crew_free(trial_crew *t) {
  crew_free(t->crew);
  if (t->from.table) driver_source_free(&t->from);
}

dil_status trial_crew_run(trial_crew *t, const dil_call *call,
                          double *seconds) {
  double start = message_clock();
  dil_status status = crew_run(t->crew, call);
  *seconds = message_clock() - start;
  return status;
}

void trial_crew_tell(const trial_crew *t, report *r) {
  r->ranks = mesh_ranks(&t->task.mesh);
  r->moved = r->waited = 0;
  for (int32_t i = 0; i < r->ranks; i++) {
    const ring_facts *facts = &crew_of(t->crew, i)->facts;
    r->moved += (double)facts->received;
    if (facts->waited > r->waited) r->waited = facts->waited;
  }
}
