/* ring_cuda.c - a GPU as the device of a rank: two streams, one for passes and
 * one for messages, with events between them. In: a ring's requests, in order.
 * Out: the same work on the device, later; settle waits for it. */
#include "ring_cuda.h"
#include "ring_events.h"
#include "ring_memory.h"
#include "rows.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* SOON: the stream priority of messages, above that of passes. */
enum { NON_BLOCKING = 1, PEERS_MOST = 64, SOON = -5 };

typedef struct ring_cuda {
  ring_device device;
  dil_cuda *gpu;
  dil_cuda_kernel *kernel;
  cuda_code rows;
  cu_stream passes, messages;  /* `memory` uses both */
  cu_event end;
  link_order order;
  ring_notes notes;
  int32_t begun, settled;        /* steps marked; steps known to be over */
  ring_memory memory;
  int32_t peer_count;
  cu_context peer[PEERS_MOST];   /* contexts whose memory this one may read */
} ring_cuda;

static ring_cuda *ring_cuda_of(ring_device *d) {
  return (ring_cuda *)d;
}

static const cuda_driver *ring_cuda_driver(const ring_cuda *c) {
  return c->gpu->driver;
}

static dil_status ring_cuda_check(const ring_cuda *c, cu_result result,
                                  const char *doing) {
  return cuda_check(ring_cuda_driver(c), result, doing);
}

/* ---- memory -------------------------------------------------------------- */

static dil_status ring_cuda_take(ring_device *d, int64_t bytes, bool zero,
                                 void **memory) {
  ring_cuda *c = ring_cuda_of(d);
  *memory = NULL;
  if (!bytes) return DIL_OK;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = memory_take(&c->memory, bytes, zero, memory);
  cuda_leave(c->gpu);
  return status;
}

static void ring_cuda_give(ring_device *d, void *memory) {
  ring_cuda *c = ring_cuda_of(d);
  if (!memory || cuda_enter(c->gpu)) return;
  memory_give(&c->memory, memory);
  cuda_leave(c->gpu);
}

/* ---- rows ---------------------------------------------------------------- */

static dil_status ring_cuda_move(ring_cuda *c, cu_stream stream, route *r,
                                 const ring_keys *keys, void *message,
                                 bool spread) {
  const rows_target to = {c->gpu, &c->rows, stream};
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = rows_move(&to, r, keys, message, spread);
  cuda_leave(c->gpu);
  return status;
}

static dil_status ring_cuda_pack(ring_device *d, route *r,
                                 const ring_keys *keys, void *message) {
  return ring_cuda_move(ring_cuda_of(d), ring_cuda_of(d)->messages, r, keys,
                        message, false);
}

static dil_status spread(ring_device *d, route *r, const void *message,
                         const ring_keys *keys) {
  return ring_cuda_move(ring_cuda_of(d), ring_cuda_of(d)->passes, r, keys,
                        (void *)(uintptr_t)message, true);
}

static dil_status ring_cuda_reduce(ring_device *d, route *r,
                                   const void *message, const ring_keys *sums) {
  (void)r, (void)message, (void)sums;
  return dil_fail(DIL_UNSUPPORTED, "device '%s' cannot reduce: gradients over "
                  "ranks are not built yet", d->calls->name);
}

static void ring_cuda_forget(ring_device *d, route *r) {
  rows_forget(ring_cuda_of(d)->gpu, r);
}

dil_status ring_cuda_normal(ring_device *d, const dil_tensor *tensor,
                            const dil_normal_place *place) {
  ring_cuda *c = ring_cuda_of(d);
  const rows_target to = {c->gpu, &c->rows, c->passes};
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = rows_random(&to, tensor, place);
  cuda_leave(c->gpu);
  return status ? status : device_wait(c->gpu, c->passes);
}

void *ring_cuda_passes(ring_device *d) {
  return ring_cuda_of(d)->passes;
}

/* ---- passes -------------------------------------------------------------- */

static int32_t ring_cuda_states(const ring_device *d) {
  return kernel_states(((const ring_cuda *)d)->kernel);
}

/* Records the event at the begin of a step's passes. */
static dil_status ring_cuda_note_begun(ring_cuda *c, int32_t step) {
  step_note *n;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = notes_step(&c->notes, step, &n);
  if (!status) n->ran = false;
  if (!status)
    status = ring_cuda_check(
        c, ring_cuda_driver(c)->event_record(n->begun, c->passes),
        "note the begin of a step");
  cuda_leave(c->gpu);
  return status;
}

static dil_status ring_cuda_begin(ring_device *d, const dil_call *call,
                                  const dil_shard *shard) {
  ring_cuda *c = ring_cuda_of(d);
  return kernel_begin(c->kernel, call, shard, c->passes);
}

static dil_status ring_cuda_advance(ring_device *d, const dil_call *call,
                                    const dil_shard *shard) {
  ring_cuda *c = ring_cuda_of(d);
  return kernel_advance(c->kernel, call, shard, c->passes);
}

static dil_status ring_cuda_finish(ring_device *d, const dil_call *call,
                                   const dil_shard *shard) {
  ring_cuda *c = ring_cuda_of(d);
  return kernel_finish(c->kernel, call, shard, c->passes);
}

static dil_status ring_cuda_opens(ring_device *d, const dil_call *call,
                                  const dil_shard *shard,
                                  int64_t *state_stride) {
  return kernel_opens(ring_cuda_of(d)->kernel, call, shard, state_stride);
}

static dil_status ring_cuda_open(ring_device *d, const dil_call *call,
                                 const dil_shard *shard) {
  ring_cuda *c = ring_cuda_of(d);
  return kernel_open(c->kernel, call, shard, c->passes);
}

static dil_status ring_cuda_start(ring_device *d) {
  ring_cuda *c = ring_cuda_of(d);
  c->begun = c->settled = 0;
  notes_begin(&c->notes);
  return ring_cuda_note_begun(c, 0);
}

static dil_status ring_cuda_mark(ring_device *d, int32_t step) {
  ring_cuda *c = ring_cuda_of(d);
  step_note *n;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = notes_step(&c->notes, step, &n);
  if (!status)
    status = ring_cuda_check(
        c, ring_cuda_driver(c)->event_record(n->done, c->passes),
        "note the end of a step");
  if (!status) n->ran = true;
  c->begun = step + 1;
  cuda_leave(c->gpu);
  return status;
}

/* ---- messages ------------------------------------------------------------ */

/* Enables peer access to a context's memory, once for each context. */
static dil_status ring_cuda_enable_peer(ring_cuda *c,
                                        const shared_event *peer) {
  enum { ALREADY = 704 };
  const cuda_driver *driver = ring_cuda_driver(c);
  int can = 0;
  if (peer->context == c->gpu->context) return DIL_OK;
  for (int32_t i = 0; i < c->peer_count; i++)
    if (c->peer[i] == peer->context) return DIL_OK;
  cu_result result = driver->peer_can(&can, c->gpu->device, peer->device);
  if (!result && can) result = driver->peer_enable(peer->context, 0);
  if (result == ALREADY) result = 0;
  if (!result && c->peer_count < PEERS_MOST)
    c->peer[c->peer_count++] = peer->context;
  return ring_cuda_check(c, result, "reach the memory of another device");
}

static dil_status ring_cuda_copy(void *user, int32_t slot, void *to,
                                 const void *from, int64_t bytes,
                                 const void *ready, const void **done) {
  ring_cuda *c = user;
  const cuda_driver *driver = ring_cuda_driver(c);
  const shared_event *there = ready;
  message_note *n = notes_last(&c->notes, slot);
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_enable_peer(c, there);
  if (!status) {
    cu_result result = driver->stream_wait(c->messages, there->event, 0);
    if (!result && bytes)
      result = driver->copy_peer((cu_pointer)(uintptr_t)to, c->gpu->context,
                                 (cu_pointer)(uintptr_t)from, there->context,
                                 (size_t)bytes, c->messages);
    if (!result) result = driver->event_record(n->came.event, c->messages);
    status = ring_cuda_check(c, result, "copy from another device");
    *done = &n->came;
  }
  cuda_leave(c->gpu);
  return status;
}

static dil_status ring_cuda_follow(void *user, const void *done) {
  ring_cuda *c = user;
  const shared_event *there = done;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_check(
      c, ring_cuda_driver(c)->stream_wait(c->messages, there->event, 0),
      "have a stream wait");
  cuda_leave(c->gpu);
  return status;
}

/* Records that a message is packed. Later passes wait for that, because passes
 * that fill the device would delay the packing. */
static dil_status ring_cuda_note_packed(ring_cuda *c, const message_note *n) {
  const cuda_driver *driver = ring_cuda_driver(c);
  cu_result result = driver->event_record(n->packed.event, c->messages);
  if (!result) result = driver->stream_wait(c->passes, n->packed.event, 0);
  return ring_cuda_check(c, result, "note that a message is whole");
}

static dil_status ring_cuda_post(ring_device *d, dil_link *link, int32_t slot,
                                 const link_transfer *t) {
  ring_cuda *c = ring_cuda_of(d);
  link_transfer ordered = *t;
  message_note *n;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = notes_post(&c->notes, slot, &n);
  if (!status) status = ring_cuda_note_packed(c, n);
  if (!status) {
    n->expects = t->from >= 0;
    n->from = t->from;
    ordered.order = &c->order;
    ordered.ready = &n->packed;
    status = link->calls->post(link, slot, &ordered);
  }
  cuda_leave(c->gpu);
  return status;
}

/* Makes the passes of the step wait for the message. */
static dil_status ring_cuda_wait(ring_device *d, dil_link *link, int32_t slot) {
  ring_cuda *c = ring_cuda_of(d);
  const cuda_driver *driver = ring_cuda_driver(c);
  dil_status status = link->calls->wait(link, slot);
  if (!status) status = cuda_enter(c->gpu);
  if (status) return status;
  message_note *n = notes_last(&c->notes, slot);
  n->step = link->step;
  cu_result result = driver->event_record(n->came.event, c->messages);
  if (!result) result = driver->stream_wait(c->passes, n->came.event, 0);
  status = ring_cuda_check(c, result, "have a stream wait");
  cuda_leave(c->gpu);
  return status ? status : ring_cuda_note_begun(c, link->step);
}

/* ---- waiting ------------------------------------------------------------- */

/* It yields at first: a sleep lasts longer than asked for, and most events come
 * within a second. */
static void ring_cuda_pause(int64_t turns) {
  const int64_t few = 200, many = 1 << 18;
  struct timespec moment = {0, 20000};
  if (turns > many) nanosleep(&moment, NULL);
  else if (turns > few) sched_yield();
}

/* Polls until the event has passed or the link has failed. If `from` is a rank,
 * the event waits for its message, so the link's timeout applies. */
static dil_status ring_cuda_watch(ring_cuda *c, dil_link *link, cu_event event,
                                  int32_t from) {
  enum { NOT_READY = 600 };
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0;; turns++) {
    cu_result result = ring_cuda_driver(c)->event_query(event);
    if (result != NOT_READY) return ring_cuda_check(c, result, "finish a step");
    dil_status status = link->calls->check(link);
    if (status) return status;
    if (from >= 0 && clock_seconds() > end) {
      if (link->calls->find_silent_rank)
        from = link->calls->find_silent_rank(link, from);
      dil_fail(DIL_PEER, "rank %d is silent: rank %d waited for it in step %d, "
               "at most %g s", link_number(link, from),
               link_number(link, link->rank), link->step, link->timeout);
      if (link->calls->report_failure)
        link->calls->report_failure(link, from, dil_last_error());
      return DIL_PEER;
    }
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
  step_note *const *all = c->notes.step;
  const step_note *n = all[step];
  if (!n->ran) return DIL_OK;
  dil_status status =
      ring_cuda_add_seconds(c, n->begun, n->done, &facts->computed);
  if (!status && step && all[step - 1]->ran)
    status =
        ring_cuda_add_seconds(c, all[step - 1]->done, n->begun, &facts->waited);
  return status;
}

/* Waits for all messages that a step waits for. */
static dil_status ring_cuda_watch_messages(ring_cuda *c, dil_link *link,
                                           int32_t step) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < c->notes.posted && !status; i++) {
    const message_note *n = c->notes.message[i];
    if (n->expects && n->step == step)
      status = ring_cuda_watch(c, link, n->came.event, n->from);
  }
  return status;
}

static dil_status ring_cuda_settle_entered(ring_cuda *c, dil_link *link,
                                           ring_facts *facts) {
  dil_status status = DIL_OK;
  while (c->settled < c->begun && !status) {
    const step_note *n = c->notes.step[c->settled];
    link->step = c->settled;
    if (c->settled) status = ring_cuda_watch_messages(c, link, c->settled);
    if (!status && n->ran) status = ring_cuda_watch(c, link, n->done, -1);
    if (!status) status = ring_cuda_count_step(c, c->settled++, facts);
  }
  if (!status)
    status =
        ring_cuda_check(c, ring_cuda_driver(c)->event_record(c->end, c->passes),
                        "note the end of a run");
  return status ? status : ring_cuda_watch(c, link, c->end, -1);
}

static dil_status ring_cuda_settle(ring_device *d, dil_link *link,
                                   ring_facts *facts) {
  ring_cuda *c = ring_cuda_of(d);
  facts->memory = memory_bytes(&c->memory);
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_settle_entered(c, link, facts);
  cuda_leave(c->gpu);
  return status;
}

static void ring_cuda_drain(ring_device *d) {
  ring_cuda *c = ring_cuda_of(d);
  if (cuda_enter(c->gpu)) return;
  ring_cuda_driver(c)->wait(c->passes);
  ring_cuda_driver(c)->wait(c->messages);
  cuda_leave(c->gpu);
}

/* ---- memory, from the host ----------------------------------------------- */

/* A copy that waits for the earlier requests. */
static dil_status ring_cuda_write(ring_device *d, void *to, const void *from,
                                  int64_t bytes) {
  ring_cuda *c = ring_cuda_of(d);
  dil_status status = bytes ? device_wait(c->gpu, c->passes) : DIL_OK;
  if (status || !bytes) return status;
  return device_upload(c->gpu, to, from, bytes);
}

static dil_status ring_cuda_read(ring_device *d, void *to, const void *from,
                                 int64_t bytes) {
  ring_cuda *c = ring_cuda_of(d);
  dil_status status = bytes ? device_wait(c->gpu, c->passes) : DIL_OK;
  if (status || !bytes) return status;
  return device_download(c->gpu, to, from, bytes);
}

/* ---- the device ---------------------------------------------------------- */

static void ring_cuda_free(ring_device *d) {
  ring_cuda *c = ring_cuda_of(d);
  if (!cuda_enter(c->gpu)) {
    memory_close(&c->memory);
    notes_free(&c->notes);
    if (c->end) ring_cuda_driver(c)->event_free(c->end);
    if (c->passes) ring_cuda_driver(c)->stream_free(c->passes);
    if (c->messages) ring_cuda_driver(c)->stream_free(c->messages);
    code_unload(c->gpu, &c->rows);
    cuda_leave(c->gpu);
  }
  free(c);
}

static const ring_device_calls calls = {.name = "cuda",
                                        .states = ring_cuda_states,
                                        .start = ring_cuda_start,
                                        .take = ring_cuda_take,
                                        .give = ring_cuda_give,
                                        .pack = ring_cuda_pack,
                                        .spread = spread,
                                        .reduce = ring_cuda_reduce,
                                        .forget = ring_cuda_forget,
                                        .begin = ring_cuda_begin,
                                        .advance = ring_cuda_advance,
                                        .finish = ring_cuda_finish,
                                        .opens = ring_cuda_opens,
                                        .open = ring_cuda_open,
                                        .post = ring_cuda_post,
                                        .wait = ring_cuda_wait,
                                        .mark = ring_cuda_mark,
                                        .settle = ring_cuda_settle,
                                        .drain = ring_cuda_drain,
                                        .write = ring_cuda_write,
                                        .read = ring_cuda_read,
                                        .free = ring_cuda_free};

static dil_status ring_cuda_open_entered(ring_cuda *c,
                                         const dil_cuda_code *code) {
  const cuda_driver *driver = ring_cuda_driver(c);
  cu_result result = driver->stream_new(&c->passes, NON_BLOCKING, 0);
  if (!result) result = driver->stream_new(&c->messages, NON_BLOCKING, SOON);
  if (!result) result = driver->event_new(&c->end, 2);
  dil_status status = ring_cuda_check(c, result, "make a stream");
  c->notes.gpu = c->gpu;
  c->memory.driver = driver;
  c->memory.stream[0] = c->passes;
  c->memory.stream[1] = c->messages;
  return status ? status : code_load(c->gpu, code, &c->rows);
}

dil_status ring_cuda_new(dil_cuda *gpu, dil_cuda_kernel *kernel,
                         const dil_cuda_code *code, ring_device **device) {
  ring_cuda *c = calloc(1, sizeof *c);
  if (!c) return dil_fail(DIL_MEMORY, "no memory for the device of a rank");
  c->device.calls = &calls;
  c->gpu = gpu;
  c->kernel = kernel;
  dil_status status = cuda_enter(gpu);
  if (status) {
    free(c);
    return status;
  }
  status = ring_cuda_open_entered(c, code);
  cuda_leave(gpu);
  c->order = (link_order){c, c->messages, ring_cuda_copy, ring_cuda_follow};
  *device = &c->device;
  if (status) ring_cuda_free(*device);
  return status;
}
