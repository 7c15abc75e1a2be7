/* ring_cuda.c - a GPU as the device of a rank: a stream for passes and one for
 * each lane of messages, with events between them. In: a ring's requests, in order.
 * Out: the same work on the device, later; ring_settle.c waits for it. */
#include "ring_cuda.h"
#include "ring_gpu.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>

/* SOON: the stream priority of messages, above that of passes. */
enum { NON_BLOCKING = 1, UNTIMED = 2, SOON = -5 };

/* Passes will wait for other streams from here on, up to ring_cuda_go_on. */
static dil_status ring_cuda_hold(ring_cuda *c, span_note **n) {
  dil_status status = notes_hold(&c->notes, n);
  return status ? status
                : ring_cuda_check(
                      c, ring_cuda_driver(c)->event_record((*n)->begun, c->passes),
                      "note a wait");
}

static dil_status ring_cuda_go_on(ring_cuda *c, const span_note *n) {
  return ring_cuda_check(
      c, ring_cuda_driver(c)->event_record(n->done, c->passes), "note a wait");
}

/* Makes the passes wait for an event of another stream. */
static dil_status ring_cuda_follow_event(ring_cuda *c, cu_event event) {
  span_note *n;
  dil_status status = ring_cuda_hold(c, &n);
  if (!status)
    status = ring_cuda_check(
        c, ring_cuda_driver(c)->stream_wait(c->passes, event, 0),
        "have a stream wait");
  return status ? status : ring_cuda_go_on(c, n);
}

/* ---- memory -------------------------------------------------------------- */

static dil_status ring_cuda_take(ring_device *d, int64_t bytes,
                                 ring_content content, void **memory) {
  ring_cuda *c = ring_cuda_of(d);
  *memory = NULL;
  if (!bytes) return DIL_OK;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  span_note *n;
  status = ring_cuda_hold(c, &n);
  if (!status) status = memory_take(&c->memory, bytes, content, memory);
  if (!status) status = ring_cuda_go_on(c, n);
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
                                 int32_t how) {
  const rows_target to = {c->gpu, &c->rows, stream};
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = rows_move(&to, r, keys, message, how);
  cuda_leave(c->gpu);
  return status;
}

/* Makes a lane wait for the passes so far. */
static dil_status ring_cuda_follow_passes(ring_cuda *c, ring_lane lane) {
  const cuda_driver *driver = ring_cuda_driver(c);
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  cu_result result = driver->event_record(c->made, c->passes);
  if (!result)
    result = driver->stream_wait(c->lane[lane].stream, c->made, 0);
  status = ring_cuda_check(c, result, "have a stream wait");
  cuda_leave(c->gpu);
  return status;
}

static dil_status ring_cuda_pack(ring_device *d, ring_lane lane, route *r,
                                 const ring_keys *keys, void *message) {
  ring_cuda *c = ring_cuda_of(d);
  dil_status status =
      lane == RING_SUMS ? ring_cuda_follow_passes(c, lane) : DIL_OK;
  return status ? status
                : ring_cuda_move(c, c->lane[lane].stream, r, keys, message,
                                 DIL_ROWS_PACK);
}

static dil_status spread(ring_device *d, route *r, const void *message,
                         const ring_keys *keys) {
  return ring_cuda_move(ring_cuda_of(d), ring_cuda_of(d)->passes, r, keys,
                        (void *)(uintptr_t)message, DIL_ROWS_SPREAD);
}

static dil_status ring_cuda_reduce(ring_device *d, route *r,
                                   const void *message, const ring_keys *sums) {
  return ring_cuda_move(ring_cuda_of(d), ring_cuda_of(d)->passes, r, sums,
                        (void *)(uintptr_t)message, DIL_ROWS_ADD);
}

static dil_status ring_cuda_clear(ring_device *d, route *r,
                                  const ring_keys *sums) {
  return ring_cuda_move(ring_cuda_of(d), ring_cuda_of(d)->passes, r, sums, NULL,
                        DIL_ROWS_CLEAR);
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
  span_note *n;
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

static dil_status ring_cuda_backward(ring_device *d,
                                     const dil_backward_call *call,
                                     const dil_shard *shard) {
  ring_cuda *c = ring_cuda_of(d);
  return kernel_backward_shard(c->kernel, call, shard, c->passes);
}

/* Rows leave with these numbers. */
static dil_status ring_cuda_number(ring_device *d,
                                   const dil_backward_call *call,
                                   const dil_shard *shard, float *numbers) {
  ring_cuda *c = ring_cuda_of(d);
  dil_status status =
      kernel_row_numbers(c->kernel, call, shard, numbers, c->passes);
  return status ? status : ring_cuda_follow_passes(c, RING_ROWS);
}

static bool ring_cuda_asks_states(const ring_device *d) {
  return kernel_asks_states(((const ring_cuda *)d)->kernel);
}

static dil_status ring_cuda_start(ring_device *d) {
  ring_cuda *c = ring_cuda_of(d);
  c->begun = c->settled = 0;
  notes_begin(&c->notes);
  return ring_cuda_note_begun(c, 0);
}

static dil_status ring_cuda_mark(ring_device *d, int32_t step) {
  ring_cuda *c = ring_cuda_of(d);
  span_note *n;
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
  return status ? status : ring_cuda_note_begun(c, step + 1);
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
  const lane_order *lane = user;
  ring_cuda *c = lane->of;
  const cuda_driver *driver = ring_cuda_driver(c);
  const shared_event *there = ready;
  message_note *n = notes_last(&c->notes, slot);
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_enable_peer(c, there);
  if (!status) {
    cu_result result = driver->stream_wait(lane->stream, there->event, 0);
    if (!result && bytes)
      result = driver->copy_peer((cu_pointer)(uintptr_t)to, c->gpu->context,
                                 (cu_pointer)(uintptr_t)from, there->context,
                                 (size_t)bytes, lane->stream);
    if (!result) result = driver->event_record(n->came.event, lane->stream);
    status = ring_cuda_check(c, result, "copy from another device");
    *done = &n->came;
  }
  cuda_leave(c->gpu);
  return status;
}

static dil_status ring_cuda_follow(void *user, const void *done) {
  const lane_order *lane = user;
  ring_cuda *c = lane->of;
  const shared_event *there = done;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = ring_cuda_check(
      c, ring_cuda_driver(c)->stream_wait(lane->stream, there->event, 0),
      "have a stream wait");
  cuda_leave(c->gpu);
  return status;
}

/* Records that a message is packed. Later passes wait for that, because passes
 * that fill the device would delay the packing. */
static dil_status ring_cuda_note_packed(ring_cuda *c, const message_note *n) {
  dil_status status = ring_cuda_check(
      c, ring_cuda_driver(c)->event_record(n->packed.event, n->stream),
      "note that a message is whole");
  return status ? status : ring_cuda_follow_event(c, n->packed.event);
}

/* Records that a message has come, or has been taken, by what is on its stream. */
static dil_status ring_cuda_note_came(ring_cuda *c, const message_note *n) {
  return ring_cuda_check(
      c, ring_cuda_driver(c)->event_record(n->came.event, n->stream),
      "note that a message has come");
}

static dil_status ring_cuda_post(ring_device *d, ring_lane lane,
                                 dil_link *link, int32_t slot,
                                 const link_transfer *t) {
  ring_cuda *c = ring_cuda_of(d);
  link_transfer ordered = *t;
  message_note *n;
  dil_status status = cuda_enter(c->gpu);
  if (status) return status;
  status = notes_post(&c->notes, slot, &n);
  if (!status) n->stream = c->lane[lane].stream;
  if (!status) status = ring_cuda_note_packed(c, n);
  if (!status) {
    n->peer = t->from >= 0 ? t->from : t->to;
    ordered.order = &c->lane[lane].order;
    ordered.ready = &n->packed;
    status = link->calls->post(link, slot, &ordered);
  }
  if (!status && link->calls->orders_at_post) status = ring_cuda_note_came(c, n);
  cuda_leave(c->gpu);
  return status;
}

/* Makes the passes of the step wait for the message. */
static dil_status ring_cuda_wait(ring_device *d, dil_link *link, int32_t slot) {
  ring_cuda *c = ring_cuda_of(d);
  dil_status status = link->calls->wait(link, slot);
  if (!status) status = cuda_enter(c->gpu);
  if (status) return status;
  message_note *n = notes_last(&c->notes, slot);
  n->step = c->begun;
  if (!link->calls->orders_at_post) status = ring_cuda_note_came(c, n);
  if (!status) status = ring_cuda_follow_event(c, n->came.event);
  cuda_leave(c->gpu);
  bool sums = n->stream == c->lane[RING_SUMS].stream; /* behind their step */
  return status || sums ? status : ring_cuda_note_begun(c, link->step);
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
    if (c->made) ring_cuda_driver(c)->event_free(c->made);
    for (int32_t i = 0; i < RING_LANES; i++)
      if (c->lane[i].stream)
        ring_cuda_driver(c)->stream_free(c->lane[i].stream);
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
                                        .clear = ring_cuda_clear,
                                        .forget = ring_cuda_forget,
                                        .begin = ring_cuda_begin,
                                        .advance = ring_cuda_advance,
                                        .finish = ring_cuda_finish,
                                        .opens_sums = true,
                                        .opens = ring_cuda_opens,
                                        .open = ring_cuda_open,
                                        .backward = ring_cuda_backward,
                                        .number = ring_cuda_number,
                                        .asks_states = ring_cuda_asks_states,
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
  for (int32_t i = 0; i < RING_LANES && !result; i++)
    result = driver->stream_new(&c->lane[i].stream, NON_BLOCKING, SOON);
  if (!result) result = driver->event_new(&c->end, UNTIMED);
  if (!result) result = driver->event_new(&c->made, UNTIMED);
  dil_status status = ring_cuda_check(c, result, "make a stream");
  c->notes.gpu = c->gpu;
  c->memory.driver = driver;
  c->memory.stream[0] = c->passes;
  for (int32_t i = 0; i < RING_LANES; i++) {
    lane_order *lane = &c->lane[i];
    c->memory.stream[1 + i] = lane->stream;
    lane->of = c;
    lane->order = (link_order){lane, lane->stream, ring_cuda_copy,
                               ring_cuda_follow};
  }
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
  *device = &c->device;
  if (status) ring_cuda_free(*device);
  return status;
}
