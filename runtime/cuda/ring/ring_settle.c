/* ring_settle.c - waits for the requests of a rank's run. In: events of steps and
 * messages. Out: the times of the steps; or a rank's failure. */
#include "ring_gpu.h"
#include "runtime/base/clock.h"
#include <sched.h>
#include <time.h>

/* It yields at first: a sleep lasts longer than asked for, and most events come
 * within a second. */
static void ring_cuda_pause(int64_t turns) {
  const int64_t few = 200, many = 1 << 18;
  struct timespec moment = {0, 20000};
  if (turns > many) nanosleep(&moment, NULL);
  else if (turns > few) sched_yield();
}

/* An event that was never recorded counts as passed, as in CUDA. */
static bool ring_cuda_has_passed(const ring_cuda *c, cu_event event) {
  return !ring_cuda_driver(c)->event_query(event);
}

/* The message that holds up the passes, -1 if they compute. They may stand behind
 * other messages than those of their step: until memory is free, or until a later
 * message is packed, and NCCL sends messages in the order of their posts. */
static int32_t ring_cuda_held_by(const ring_cuda *c) {
  bool held = false;
  for (int32_t i = 0; i < c->notes.held && !held; i++)
    held = ring_cuda_has_passed(c, c->notes.hold[i]->begun) &&
           !ring_cuda_has_passed(c, c->notes.hold[i]->done);
  for (int32_t i = 0; i < c->notes.posted && held; i++) {
    const message_note *n = c->notes.message[i];
    if (n->peer >= 0 && !ring_cuda_has_passed(c, n->came.event)) return i;
  }
  return -1;
}

/* Says that the peer is silent, or the rank that the peer waits for itself. */
static dil_status ring_cuda_fail_silent(dil_link *link, int32_t peer) {
  int32_t silent = link->calls->find_silent_rank
                       ? link->calls->find_silent_rank(link, peer)
                       : peer;
  dil_fail(DIL_PEER, "rank %d is silent: rank %d waited for it in step %d, "
           "at most %g s", link_number(link, silent),
           link_number(link, link->rank), link->step, link->timeout);
  if (link->calls->report_failure)
    link->calls->report_failure(link, silent, dil_last_error());
  return DIL_PEER;
}

/* Polls until the event has passed or the link has failed. If `peer` is a rank, the
 * event waits for a message of it or to it, so the link's timeout applies. With -1
 * it waits for passes, which may take longer: there the timeout applies while one
 * message holds them up. */
static dil_status ring_cuda_watch(ring_cuda *c, dil_link *link, cu_event event,
                                  int32_t peer) {
  enum { NOT_READY = 600, LOOKS = 8 }; /* looks in a timeout */
  double now = clock_seconds(), end = now + link->timeout, look = now;
  int32_t holds = -1;
  for (int64_t turns = 0;; turns++) {
    cu_result result = ring_cuda_driver(c)->event_query(event);
    if (result != NOT_READY) return ring_cuda_check(c, result, "finish a step");
    dil_status status = link->calls->check(link);
    if (status) return status;
    now = clock_seconds();
    if (peer < 0 && now > look) {
      int32_t held_by = ring_cuda_held_by(c);
      if (held_by < 0 || held_by != holds) end = now + link->timeout;
      holds = held_by;
      look = now + link->timeout / LOOKS;
    }
    if (now > end)
      return ring_cuda_fail_silent(
          link, peer >= 0 ? peer : c->notes.message[holds]->peer);
    ring_cuda_pause(turns);
  }
}

static dil_status ring_cuda_add_seconds(const ring_cuda *c, cu_event from,
                                        cu_event to, double *seconds) {
  float milliseconds = 0;
  cu_result result = ring_cuda_driver(c)->event_time(&milliseconds, from, to);
  *seconds += (double)milliseconds * 1e-3;
  return ring_cuda_check(c, result, "time a step");
}

/* Adds the times of a step. The time between the passes of two steps counts as
 * waiting. */
static dil_status ring_cuda_count_step(ring_cuda *c, int32_t step,
                                       ring_facts *facts) {
  span_note *const *all = c->notes.step;
  const span_note *n = all[step];
  if (!n->ran) return DIL_OK;
  dil_status status =
      ring_cuda_add_seconds(c, n->begun, n->done, &facts->computed);
  if (!status && step && all[step - 1]->ran)
    status =
        ring_cuda_add_seconds(c, all[step - 1]->done, n->begun, &facts->waited);
  return status;
}

/* Waits for all messages that steps up to this one wait for. A rank may be silent
 * that does not take a message, as one may that sends none. */
static dil_status ring_cuda_watch_messages(ring_cuda *c, dil_link *link,
                                           int32_t step) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < c->notes.posted && !status; i++) {
    message_note *n = c->notes.message[i];
    if (n->peer < 0 || n->over || n->step < 0 || n->step > step) continue;
    status = ring_cuda_watch(c, link, n->came.event, n->peer);
    n->over = !status;
  }
  return status;
}

static dil_status ring_cuda_settle_entered(ring_cuda *c, dil_link *link,
                                           ring_facts *facts) {
  dil_status status = DIL_OK;
  while (c->settled < c->begun && !status) {
    const span_note *n = c->notes.step[c->settled];
    link->step = c->settled;
    status = ring_cuda_watch_messages(c, link, c->settled);
    if (!status && n->ran) status = ring_cuda_watch(c, link, n->done, -1);
    if (!status) status = ring_cuda_count_step(c, c->settled++, facts);
  }
  if (!status) status = ring_cuda_watch_messages(c, link, INT32_MAX);
  if (!status)
    status =
        ring_cuda_check(c, ring_cuda_driver(c)->event_record(c->end, c->passes),
                        "note the end of a run");
  return status ? status : ring_cuda_watch(c, link, c->end, -1);
}

dil_status ring_cuda_settle(ring_device *d, dil_link *link,
                            ring_facts *facts) {
  ring_cuda *c = ring_cuda_of(d);
  facts->memory = memory_bytes(&c->memory);
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_settle_entered(c, link, facts);
  cuda_leave(c->gpu);
  return status;
}

void ring_cuda_drain(ring_device *d) {
  ring_cuda *c = ring_cuda_of(d);
  if (cuda_enter(c->gpu)) return;
  ring_cuda_driver(c)->wait(c->passes);
  for (int32_t i = 0; i < RING_LANES; i++)
    ring_cuda_driver(c)->wait(c->lane[i].stream);
  cuda_leave(c->gpu);
}
