/* transfer.c - between memory of the host and of a GPU, beside the passes of a
 * rank: a stream and pinned pieces for each lane, joined to the passes by
 * events. See ../stream_lift.h. In: copies, in order. Out: the same, later. */
#include "rows.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include "runtime/stream/transfer.h"
#include <stdlib.h>

enum { NON_BLOCKING = 1, UNTIMED = 2, SOON = -1 /* before passes */ };

typedef struct slot {
  cu_event came;
  cu_event begun, released; /* of the passes' stream, timed */
  bool timed;               /* between the two, not yet counted */
} slot;

typedef struct cuda_lift {
  stream_lift lift;
  dil_cuda *gpu;
  cuda_code rows;
  cu_stream passes;         /* the rank's own */
  cu_stream lane[LIFT_LANES];
  void *piece[LIFT_LANES][LIFT_PIECES];
  cu_event done[LIFT_LANES][LIFT_PIECES];
  slot slot[LIFT_SLOTS];
  void *list;               /* of a route, a piece long */
  double seconds;
} cuda_lift;

static cuda_lift *self(stream_lift *l) { return (cuda_lift *)l; }

static const cuda_driver *driver_of(const cuda_lift *l) {
  return l->gpu->driver;
}

static dil_status check(const cuda_lift *l, cu_result result,
                        const char *doing) {
  return cuda_check(driver_of(l), result, doing);
}

/* ---- copies -------------------------------------------------------------- */

static dil_status settle(stream_lift *lift, lift_lane lane, int32_t piece,
                         void **memory) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = check(l, driver_of(l)->event_wait(l->done[lane][piece]),
                 "finish a copy");
  *memory = l->piece[lane][piece];
  cuda_leave(l->gpu);
  return status;
}

static cu_result put_copy(cuda_lift *l, lift_lane lane, int32_t piece,
                          void *device, int64_t bytes) {
  const cuda_driver *driver = driver_of(l);
  cu_pointer there = (cu_pointer)(uintptr_t)device;
  void *here = l->piece[lane][piece];
  cu_result result =
      lane == LIFT_UP
          ? driver->upload_ordered(there, here, (size_t)bytes, l->lane[lane])
          : driver->download_ordered(here, there, (size_t)bytes, l->lane[lane]);
  return result ? result
                : driver->event_record(l->done[lane][piece], l->lane[lane]);
}

static dil_status copy(stream_lift *lift, lift_lane lane, int32_t piece,
                       void *device, int64_t bytes) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = check(l, put_copy(l, lane, piece, device, bytes),
                 lane == LIFT_UP ? "copy to the device"
                                 : "copy from the device");
  cuda_leave(l->gpu);
  return status;
}

/* The list has one place: the lane's order keeps it until it has been read. */
static dil_status spread_entered(cuda_lift *l, int32_t piece, route *r,
                                 const void *message,
                                 const struct ring_keys *keys) {
  const rows_target to = {l->gpu, &l->rows, l->lane[LIFT_UP]};
  int64_t bytes = rows_list_bytes(r);
  if (bytes > LIFT_PIECE)
    return dil_fail(DIL_UNSUPPORTED, "the rows of a chunk are %d runs, %d is "
                    "the most", r->run_count,
                    (int)(LIFT_PIECE / sizeof(route_run)));
  rows_list(r, l->piece[LIFT_UP][piece]);
  dil_status status = check(l, put_copy(l, LIFT_UP, piece, l->list, bytes),
                            "copy to the device");
  r->copy = l->list;
  if (!status)
    status = rows_move(&to, r, keys, (void *)(uintptr_t)message, true);
  r->copy = NULL;
  return status;
}

static dil_status spread(stream_lift *lift, int32_t piece, route *r,
                         const void *message, const struct ring_keys *keys) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = spread_entered(l, piece, r, message, keys);
  cuda_leave(l->gpu);
  return status;
}

/* ---- the order of lanes and passes --------------------------------------- */

static dil_status follow(stream_lift *lift, lift_lane lane, int32_t index) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = check(l,
                 driver_of(l)->stream_wait(l->lane[lane],
                                           l->slot[index].released, 0),
                 "have a stream wait");
  cuda_leave(l->gpu);
  return status;
}

static dil_status came(stream_lift *lift, int32_t index) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = check(l,
                 driver_of(l)->event_record(l->slot[index].came,
                                            l->lane[LIFT_UP]),
                 "note that a chunk is whole");
  cuda_leave(l->gpu);
  return status;
}

/* The time of a slot's last use, before its events are recorded again. */
static cu_result count_use(cuda_lift *l, slot *s) {
  float milliseconds = 0;
  if (!s->timed) return 0;
  s->timed = false;
  cu_result result = driver_of(l)->event_wait(s->released);
  if (!result)
    result = driver_of(l)->event_time(&milliseconds, s->begun, s->released);
  l->seconds += (double)milliseconds * 1e-3;
  return result;
}

static dil_status use(stream_lift *lift, int32_t index, bool timed) {
  cuda_lift *l = self(lift);
  slot *s = &l->slot[index];
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  cu_result result = count_use(l, s);
  if (!result) result = driver_of(l)->stream_wait(l->passes, s->came, 0);
  if (!result) result = driver_of(l)->event_record(s->begun, l->passes);
  s->timed = timed && !result;
  cuda_leave(l->gpu);
  return check(l, result, "have a stream wait");
}

static dil_status release(stream_lift *lift, int32_t index) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = check(l,
                 driver_of(l)->event_record(l->slot[index].released, l->passes),
                 "note the end of a pass");
  cuda_leave(l->gpu);
  return status;
}

static dil_status finish_all(stream_lift *lift, double *seconds) {
  cuda_lift *l = self(lift);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  cu_result result = driver_of(l)->wait(l->passes);
  for (int32_t i = 0; i < LIFT_LANES && !result; i++)
    result = driver_of(l)->wait(l->lane[i]);
  for (int32_t i = 0; i < LIFT_SLOTS && !result; i++)
    result = count_use(l, &l->slot[i]);
  *seconds = l->seconds;
  l->seconds = 0;
  cuda_leave(l->gpu);
  return check(l, result, "finish the passes");
}

/* ---- the lift ------------------------------------------------------------ */

static void close_entered(cuda_lift *l) {
  const cuda_driver *driver = driver_of(l);
  for (int32_t i = 0; i < LIFT_LANES; i++) {
    if (l->lane[i]) driver->wait(l->lane[i]);
    if (l->lane[i]) driver->stream_free(l->lane[i]);
    for (int32_t n = 0; n < LIFT_PIECES; n++) {
      if (l->piece[i][n]) driver->unpin(l->piece[i][n]);
      if (l->done[i][n]) driver->event_free(l->done[i][n]);
    }
  }
  for (int32_t i = 0; i < LIFT_SLOTS; i++) {
    cu_event const all[] = {l->slot[i].came, l->slot[i].begun,
                            l->slot[i].released};
    for (size_t e = 0; e < sizeof all / sizeof *all; e++)
      if (all[e]) driver->event_free(all[e]);
  }
  code_unload(l->gpu, &l->rows);
}

static void free_lift(stream_lift *lift) {
  cuda_lift *l = self(lift);
  if (!cuda_enter(l->gpu)) {
    close_entered(l);
    cuda_leave(l->gpu);
  }
  if (l->list) device_give(l->gpu, l->list);
  free(l);
}

static cu_result open_lane(cuda_lift *l, int32_t lane) {
  const cuda_driver *driver = driver_of(l);
  cu_result result = driver->stream_new(&l->lane[lane], NON_BLOCKING, SOON);
  for (int32_t i = 0; i < LIFT_PIECES && !result; i++) {
    result = driver->pin(&l->piece[lane][i], LIFT_PIECE, 0);
    if (!result) result = driver->event_new(&l->done[lane][i], UNTIMED);
  }
  return result;
}

static dil_status open_entered(cuda_lift *l, const dil_cuda_code *code) {
  const cuda_driver *driver = driver_of(l);
  cu_result result = 0;
  for (int32_t i = 0; i < LIFT_LANES && !result; i++) result = open_lane(l, i);
  for (int32_t i = 0; i < LIFT_SLOTS && !result; i++) {
    result = driver->event_new(&l->slot[i].came, UNTIMED);
    if (!result) result = driver->event_new(&l->slot[i].begun, 0);
    if (!result) result = driver->event_new(&l->slot[i].released, 0);
  }
  dil_status status = check(l, result, "pin memory of the host");
  return status ? status : code_load(l->gpu, code, &l->rows);
}

static const stream_lift_calls calls = {.settle = settle,
                                        .copy = copy,
                                        .spread = spread,
                                        .follow = follow,
                                        .came = came,
                                        .use = use,
                                        .release = release,
                                        .finish = finish_all,
                                        .free = free_lift};

dil_status lift_cuda_new(dil_cuda *gpu, struct ring_device *rank,
                         const dil_cuda_code *code, struct stream_lift **made) {
  cuda_lift *l = calloc(1, sizeof *l);
  if (!l) return dil_fail(DIL_MEMORY, "no memory to stream to a device");
  l->lift.calls = &calls;
  l->gpu = gpu;
  l->passes = ring_cuda_passes(rank);
  dil_status status = cuda_enter(gpu);
  if (status) {
    free(l);
    return status;
  }
  status = open_entered(l, code);
  cuda_leave(gpu);
  if (!status) status = device_take(gpu, LIFT_PIECE, &l->list);
  if (status) free_lift(&l->lift);
  else *made = &l->lift;
  return status;
}
