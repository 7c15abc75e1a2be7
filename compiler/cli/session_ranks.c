/* session_ranks.c - a session on the ranks of a topology. In: a compilation
 * whose topology has several devices, a call. Out: runs by all ranks (a
 * rank group). */
#include "session_ranks.h"
#include "command.h"
#include "gradient_setup.h"
#include "runtime/base/status.h"

static dil_status check_ranks_options(const options *o) {
  if (o->lengths)
    return dil_fail(DIL_USAGE, "--lengths cannot be used with a topology");
  if (o->offsets)
    return dil_fail(DIL_USAGE, "--offsets cannot be used with a topology");
  if (o->pages)
    return dil_fail(DIL_USAGE, "--pages cannot be used with a topology");
  return DIL_OK;
}

/* Refuses --shrink in an MPI job, where MPI ends all ranks with the first. */
static dil_status check_shrink(const session_ranks *t) {
  if (!t->job || *t->meet) return DIL_OK;
  return dil_fail(DIL_UNSUPPORTED, "--shrink: MPI ends a whole job with the "
                  "first rank that is lost; processes that meet at DIL_MEET go "
                  "on, by `link process` or `link nccl`");
}

bool session_ranks_is_reporter(const session_ranks *t) {
  return !t->job || t->task.rank == 0;
}

static void end_step(void *watcher) {
  session_ranks *t = watcher;
  progress_add(&t->bar, 1);
  if (t->job && t->task.shrinks) session_ranks_hear(t);
}

/* Code for ranks on the host. */
static dil_status make_ranks_code(session_ranks *t, compilation *c,
                                  dil_context *context) {
  code_request request = driver_code_request(c, context);
  return driver_code(c, &request, &t->code);
}

/* Makes the task that all ranks share, but for fields that depend on sizes. */
static dil_status make_task(session_ranks *t, compilation *c,
                            const call_setup *b) {
  const options *o = b->options;
  dil_status status = check_ranks_options(o);
  t->on_gpu = o->device.word == DEVICE_CUDA;
  if (!status)
    status = t->on_gpu ? session_ranks_gpu(t, c, o)
                       : make_ranks_code(t, c, b->context);
  if (status) return status;
  mesh m = place_mesh(c->pattern, c->topology);
  if (o->shrink) status = check_shrink(t);
  if (status) return status;
  int32_t threads = dil_threads_count(b->threads) / mesh_ranks(&m);
  t->task = (rank_group_task){.mesh = m,
                              .threads = threads > 0 ? threads : 1,
                              .backward = c->direction == DIL_BACKWARD,
                              .table = t->code.source.table,
                              .plan_hash = t->code.source.plan_hash,
                              .make = t->code.source.make,
                              .context = t->code.source.context,
                              .shrinks = o->shrink,
                              .stepped = end_step,
                              .watcher = t,
                              .gpu = t->on_gpu ? &t->gpu : NULL,
                              .checkpoint = {.prefix = o->state,
                                             .every = o->seen[OPTION_EVERY]
                                                    ? (int32_t)o->every
                                                    : 1,
                                             .resume = o->resume}};
  return DIL_OK;
}

static dil_status choose_exchange(session_ranks *t, const compilation *c,
                                  const call_setup *b) {
  exchange_choice made;
  if (c->topology->exchange != EXCHANGE_AUTO) return DIL_OK;
  dil_status status = exchange_choose(c->arena, t->task.table, &t->task.mesh,
                                      c->topology, t->on_gpu, b->size[CALL_B],
                                      b->size[CALL_N], b->size[CALL_M], &made);
  t->task.mesh.gathered = made.gathered;
  return status;
}

dil_status session_ranks_open(session_ranks *t, compilation *c, call_setup *b,
                              int64_t seq) {
  t->of = c;
  t->setup = b;
  t->call = &b->call;
  dil_status status = session_ranks_way(t, c->topology);
  bool job = t->job;
  if (!status) status = make_task(t, c, b);
  if (!status) status = session_ranks_nccl(t, c->topology);
  if (!status)
    status = job ? session_job_join(t, c->topology, b, seq)
                 : call_setup_tensors(b, seq);
  if (!status) status = choose_exchange(t, c, b);
  t->bounds =
      (mask_bounds){c->plan, b->size[CALL_B], b->size[CALL_N], b->size[CALL_M]};
  t->mask = mask_bounds_of(&t->bounds);
  t->task.mask = t->mask.bounds ? &t->mask : NULL;
  if (!status) status = rank_group_new(&t->task, &t->group);
  if (!status && job) status = session_job_begin(t, c->topology, b);
  if (!status) status = rank_group_load(t->group, &b->call);
  if (!status) status = rank_group_join(t->group);
  if (status) session_job_fail(t);
  return status;
}

/* One run, with a progress line. */
static dil_status watched_run(session_ranks *t) {
  const mesh *m = &t->task.mesh;
  progress_start(&t->bar, "ring", t->job ? m->ring : m->ring * mesh_ranks(m),
                 1);
  dil_status status = DIL_OK;
  if (!t->backward || t->stale) status = rank_group_run(t->group, t->call);
  t->stale &= status != DIL_OK;
  if (!status && t->backward)
    status = rank_group_backward(t->group, t->backward);
  progress_end(&t->bar);
  return status;
}

/* Runs until t->done is t->goal. After a lost rank, a smaller ring repeats the
 * runs that were lost. */
static dil_status run_to_goal(session_ranks *t) {
  dil_status status = DIL_OK;
  while (t->done < t->goal && !t->whole && !status) {
    double start = message_clock();
    status = watched_run(t);
    t->seconds = message_clock() - start;
    if (!status) t->done++;
    else if (t->task.shrinks)
      status = session_ranks_shrink(t, status);
  }
  return status;
}

dil_status session_ranks_run(session_ranks *t, double *seconds) {
  t->goal++;
  dil_status status = run_to_goal(t);
  *seconds = t->seconds;
  if (status) session_job_fail(t);
  return status;
}

dil_status session_ranks_turn(session_ranks *t,
                              dil_backward_call *call) {
  double seconds;
  dil_status status = session_ranks_run(t, &seconds);
  t->backward = call;
  if (!status && t->job)
    status = rank_group_hold_gradients(t->group, call, gradient_setup_number());
  if (!status)
    status = rank_group_load_gradients(t->group, call, gradient_setup_number());
  if (status) session_job_fail(t);
  return status;
}

static void free_links(session_ranks *t) {
  link_free(t->task.link);
  link_free(t->world);
  t->task.link = t->world = NULL;
}

/* Frees the links of a job and finalizes MPI. */
static dil_status leave_job(session_ranks *t) {
  if (!t->world || t->failed) return DIL_OK;
  double timeout = t->world->timeout;
  free_links(t);
  t->failed = true; /* the job has ended: no second leave */
  return t->mpi ? t->mpi->close(timeout) : DIL_OK;
}

/* Brings the results to rank 0, which then dismisses the other ranks. After a
 * lost rank, those left shrink to a smaller ring; the caller repeats this. */
static dil_status collect_results(session_ranks *t, double budget) {
  char why[256];
  dil_status status = run_to_goal(t);
  if (status || t->whole) return status;
  status = session_job_collect(t, budget);
  t->whole = !status && t->task.rank == 0;
  if (!status) status = link_dismiss(t->world);
  t->whole |= !status;
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (status) dil_fail(status, "%s, while rows were collected", why);
  return status && t->task.shrinks ? session_ranks_shrink(t, status) : status;
}

dil_status session_ranks_leave(session_ranks *t, double budget) {
  dil_status status = DIL_OK;
  while (t->world && !t->failed && !t->whole && !status)
    status = collect_results(t, budget);
  if (status) session_job_fail(t);
  return status ? status : leave_job(t);
}

/* A caller that checks for failures calls session_ranks_leave before; here the
 * status of leaving is ignored. */
void session_ranks_free(session_ranks *t) {
  leave_job(t);
  rank_group_free(t->group);
  free_links(t);
  kernel_code_free(&t->code);
  if (t->on_gpu) session_ranks_gpu_free(t);
}

/* call_setup.bring: fetches one row of o and lse from its rank. */
static dil_status fetch_row(void *owner, int64_t b, int64_t n, int64_t h) {
  session_ranks *t = owner;
  return rank_group_fetch_row(t->group, t->call,
                              (output_row){b, n, (int32_t)h});
}

dil_status session_ranks_fetch(session_ranks *t, call_setup *b) {
  if (t->job) return DIL_OK;
  dil_status status =
      t->backward ? rank_group_fetch_gradients(t->group) : DIL_OK;
  if (status) return status;
  if (!b->absent) return rank_group_fetch(t->group, &b->call);
  b->bring = fetch_row;
  b->owner = t;
  return DIL_OK;
}

void session_ranks_tell(const session_ranks *t, report *r) {
  r->ranks = mesh_ranks(&t->task.mesh);
  r->gathered = 0;
  for (int32_t b = 0; b < t->task.table->branch_count; b++)
    if (t->task.mesh.gathered >> b & 1) r->gathered++;
  r->moved = r->waited = r->rank_bytes = 0;
  for (int32_t i = 0; i < r->ranks; i++) {
    const ring_facts *facts = &rank_group_report(t->group, i)->facts;
    r->moved += (double)facts->received;
    if (facts->waited > r->waited) r->waited = facts->waited;
    if ((double)facts->memory > r->rank_bytes)
      r->rank_bytes = (double)facts->memory;
  }
}
