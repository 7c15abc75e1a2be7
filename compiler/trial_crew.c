/* trial_crew.c - a trial on the ranks of a topology. In: a compilation whose
 * topology has several devices, a call. Out: runs by a crew. */
#include "trial_crew.h"
#include "command.h"

static dil_status check_options(const options *o) {
  if (o->lengths)
    return dil_fail(DIL_USAGE, "--lengths cannot be used with a topology");
  return DIL_OK;
}

/* Before anything is made: whether ranks could go on without one. */
static dil_status check_shrink(const topology *on, const mesh *m) {
  if (m->ring != mesh_ranks(m))
    return dil_fail(DIL_UNSUPPORTED, "--shrink: topology '%s' splits heads or "
                    "batch rows, so no rank can be left out", on->name);
  if (trial_crew_is_job(on) && !trial_crew_in_file(on))
    return dil_fail(DIL_UNSUPPORTED, "--shrink: an MPI job, and ranks that meet "
                    "at HOST:PORT, end with the first rank that is lost; those "
                    "that meet in a file go on");
  return DIL_OK;
}

bool trial_crew_speaks(const trial_crew *t) {
  return !t->job || t->task.rank == 0;
}

static void count_step(void *watcher) {
  progress_add(watcher, 1);
}

/* What all ranks share, but for what depends on sizes. */
static dil_status make_task(trial_crew *t, compilation *c, const binding *b) {
  const options *o = b->options;
  dil_status status = check_options(o);
  t->on_gpu = o->device.word == DEVICE_CUDA;
  if (!status)
    status = t->on_gpu ? trial_crew_gpu(t, c, o)
                       : driver_source(c, b->context, &t->from);
  if (status) return status;
  mesh m = place_mesh(c->pattern, c->topology);
  if (o->shrink) status = check_shrink(c->topology, &m);
  if (status) return status;
  int32_t threads = dil_threads_count(b->threads) / mesh_ranks(&m);
  t->task = (crew_task){.mesh = m,
                        .threads = threads > 0 ? threads : 1,
                        .table = t->from.table,
                        .plan_hash = t->from.plan_hash,
                        .make = t->from.make,
                        .context = t->from.context,
                        .shrinks = o->shrink,
                        .stepped = count_step,
                        .watcher = &t->bar,
                        .gpu = t->on_gpu ? &t->gpu : NULL,
                        .checkpoint = {.prefix = o->state,
                                       .every = o->seen[OPTION_EVERY]
                                                    ? (int32_t)o->every
                                                    : 1,
                                       .resume = o->resume}};
  return DIL_OK;
}

static dil_status choose_exchange(trial_crew *t, const compilation *c,
                                  const binding *b) {
  place_choice made;
  if (c->topology->exchange != EXCHANGE_AUTO) return DIL_OK;
  dil_status status = place_choose(
      c->arena, t->task.table, &t->task.mesh, c->topology, t->on_gpu,
      b->size[BIND_B], b->size[BIND_N], b->size[BIND_M], &made);
  t->task.mesh.gathered = made.gathered;
  return status;
}

dil_status trial_crew_open(trial_crew *t, compilation *c, binding *b,
                           int64_t seq) {
  bool job = t->job = trial_crew_is_job(c->topology);
  dil_status status = make_task(t, c, b);
  if (!status) status = trial_crew_nccl(t, c->topology);
  if (!status)
    status = job ? trial_job_join(t, c->topology, b, seq)
                 : binding_tensors(b, seq);
  if (!status) status = choose_exchange(t, c, b);
  t->judge = (place_judge){c->plan, b->size[BIND_B], b->size[BIND_N],
                           b->size[BIND_M]};
  t->mask = place_judge_masks(&t->judge);
  t->task.mask = t->mask.judge ? &t->mask : NULL;
  if (!status) status = crew_new(&t->task, &t->crew);
  if (!status && job) status = trial_job_begin(t, c->topology, b);
  if (!status) status = crew_place(t->crew, &b->call);
  if (!status) status = crew_join(t->crew);
  if (status) trial_job_fail(t);
  return status;
}

static void free_links(trial_crew *t) {
  link_free(t->task.link);
  link_free(t->world);
  t->task.link = t->world = NULL;
}

/* Processes leave their job. */
static dil_status leave(trial_crew *t) {
  if (!t->world || t->failed) return DIL_OK;
  double timeout = t->world->timeout;
  dil_status status = link_meet(t->world);
  if (status) trial_job_fail(t);
  free_links(t);
  if (!status && t->mpi) status = t->mpi->close(timeout);
  t->failed = true; /* or ended: there is nothing more to leave */
  return status;
}

dil_status trial_crew_part(trial_crew *t, const binding *b, double budget) {
  dil_status status = DIL_OK;
  if (t->world && !t->failed) status = trial_job_collect(t, b, budget);
  return status ? status : leave(t);
}

/* Nothing is left to do for who did not part before, so nothing can fail. */
void trial_crew_free(trial_crew *t) {
  leave(t);
  crew_free(t->crew);
  free_links(t);
  if (t->from.table) driver_source_free(&t->from);
  if (t->on_gpu) trial_crew_gpu_free(t);
}

/* One run, with a line for who looks on. */
static dil_status watched_run(trial_crew *t, const dil_call *call) {
  const mesh *m = &t->task.mesh;
  progress_start(&t->bar, "ring", t->mpi ? m->ring : m->ring * mesh_ranks(m));
  dil_status status = crew_run(t->crew, call);
  progress_end(&t->bar);
  return status;
}

dil_status trial_crew_run(trial_crew *t, const dil_call *call,
                          double *seconds) {
  double start = message_clock();
  dil_status status = watched_run(t, call);
  while (status && t->task.shrinks) {
    status = trial_crew_shrink(t, call, status);
    start = message_clock();
    if (status) break;
    status = watched_run(t, call);
  }
  *seconds = message_clock() - start;
  if (status) trial_job_fail(t);
  return status;
}

/* The rows of a binding without data, one by one. */
static dil_status bring(void *owner, int64_t b, int64_t n, int64_t h) {
  trial_crew *t = owner;
  return crew_fetch_row(t->crew, t->call, (crew_row){b, n, (int32_t)h});
}

dil_status trial_crew_fetch(trial_crew *t, binding *b) {
  if (t->job) return DIL_OK;
  if (!b->absent) return crew_fetch(t->crew, &b->call);
  t->call = &b->call;
  b->bring = bring;
  b->owner = t;
  return DIL_OK;
}

void trial_crew_tell(const trial_crew *t, report *r) {
  r->ranks = mesh_ranks(&t->task.mesh);
  r->gathered = 0;
  for (int32_t b = 0; b < t->task.table->branch_count; b++)
    if (t->task.mesh.gathered >> b & 1) r->gathered++;
  r->moved = r->waited = r->rank_bytes = 0;
  for (int32_t i = 0; i < r->ranks; i++) {
    const ring_facts *facts = &crew_of(t->crew, i)->facts;
    r->moved += (double)facts->received;
    if (facts->waited > r->waited) r->waited = facts->waited;
    if ((double)facts->memory > r->rank_bytes)
      r->rank_bytes = (double)facts->memory;
  }
}
