/* transfer.c - between memory of the host and of a GPU, beside the passes of a
 * rank: a stream and pinned pieces for each lane, joined to the passes by
 * events. See runtime/ring/transfer.h. In: copies, in order. Out: the same,
 * later. */
#include "ring_cuda.h"
#include "rows.h"
#include "runtime/base/status.h"
#include "runtime/ring/transfer.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>

enum { NON_BLOCKING = 1, UNTIMED = 2, SOON = -1 /* before passes */ };

typedef struct transfer_slot {
  cu_event came;
  cu_event begun, released; /* of the passes' stream, timed */
  bool timed;               /* between the two, not yet counted */
} transfer_slot;

typedef struct cuda_transfer {
  device_transfer transfer;
  dil_cuda *gpu;
  cuda_code rows;
  cu_stream passes;         /* the rank's own */
  cu_stream lane[TRANSFER_LANES];
  void *piece[TRANSFER_LANES][TRANSFER_PIECES];
  cu_event done[TRANSFER_LANES][TRANSFER_PIECES];
  transfer_slot slot[TRANSFER_SLOTS];
  void *list;               /* of a route, a piece long */
  double seconds;
} cuda_transfer;

static cuda_transfer *cuda_transfer_of(device_transfer *l) {
  return (cuda_transfer *)l;
}

static const cuda_driver *cuda_transfer_driver(const cuda_transfer *l) {
  return l->gpu->driver;
}

static dil_status cuda_transfer_check(const cuda_transfer *l, cu_result result,
                                      const char *doing) {
  return cuda_check(cuda_transfer_driver(l), result, doing);
}

/* ---- copies -------------------------------------------------------------- */

static dil_status cuda_transfer_settle(device_transfer *transfer,
                                       transfer_lane lane, int32_t piece,
                                       void **memory) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_check(
      l, cuda_transfer_driver(l)->event_wait(l->done[lane][piece]),
      "finish a copy");
  *memory = l->piece[lane][piece];
  cuda_leave(l->gpu);
  return status;
}

static cu_result cuda_transfer_put_copy(cuda_transfer *l, transfer_lane lane,
                                        int32_t piece, void *device,
                                        int64_t bytes) {
  const cuda_driver *driver = cuda_transfer_driver(l);
  cu_pointer there = (cu_pointer)(uintptr_t)device;
  void *here = l->piece[lane][piece];
  cu_result result =
      lane == TRANSFER_UP
          ? driver->upload_ordered(there, here, (size_t)bytes, l->lane[lane])
          : driver->download_ordered(here, there, (size_t)bytes, l->lane[lane]);
  return result ? result
                : driver->event_record(l->done[lane][piece], l->lane[lane]);
}

static dil_status cuda_transfer_copy(device_transfer *transfer,
                                     transfer_lane lane, int32_t piece,
                                     void *device, int64_t bytes) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_check(
      l, cuda_transfer_put_copy(l, lane, piece, device, bytes),
      lane == TRANSFER_UP ? "copy to the device" : "copy from the device");
  cuda_leave(l->gpu);
  return status;
}

/* The list has one place: the lane's order keeps it until it has been read. */
static dil_status cuda_transfer_spread_entered(cuda_transfer *l, int32_t piece,
                                               route *r, const void *message,
                                               const struct ring_keys *keys) {
  const rows_target to = {l->gpu, &l->rows, l->lane[TRANSFER_UP]};
  int64_t bytes = rows_list_bytes(r);
  if (bytes > TRANSFER_PIECE)
    return dil_fail(DIL_UNSUPPORTED, "the rows of a chunk are %d runs, %d is "
                    "the most", r->run_count,
                    (int)(TRANSFER_PIECE / sizeof(route_run)));
  rows_list(r, l->piece[TRANSFER_UP][piece]);
  dil_status status = cuda_transfer_check(
      l, cuda_transfer_put_copy(l, TRANSFER_UP, piece, l->list, bytes),
      "copy to the device");
  r->copy = l->list;
  if (!status)
    status = rows_move(&to, r, keys, (void *)(uintptr_t)message, DIL_ROWS_SPREAD);
  r->copy = NULL;
  return status;
}

static dil_status cuda_transfer_spread(device_transfer *transfer, int32_t piece,
                                       route *r, const void *message,
                                       const struct ring_keys *keys) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_spread_entered(l, piece, r, message, keys);
  cuda_leave(l->gpu);
  return status;
}

/* ---- the order of lanes and passes --------------------------------------- */

static dil_status cuda_transfer_follow(device_transfer *transfer,
                                       transfer_lane lane, int32_t index) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_check(l,
                               cuda_transfer_driver(l)->stream_wait(
                                   l->lane[lane], l->slot[index].released, 0),
                               "have a stream wait");
  cuda_leave(l->gpu);
  return status;
}

static dil_status cuda_transfer_came(device_transfer *transfer, int32_t index) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_check(l,
                               cuda_transfer_driver(l)->event_record(
                                   l->slot[index].came, l->lane[TRANSFER_UP]),
                               "note that a chunk is whole");
  cuda_leave(l->gpu);
  return status;
}

/* The time of a slot's last use, before its events are recorded again. */
static cu_result cuda_transfer_count_use(cuda_transfer *l, transfer_slot *s) {
  float milliseconds = 0;
  if (!s->timed) return 0;
  s->timed = false;
  cu_result result = cuda_transfer_driver(l)->event_wait(s->released);
  if (!result)
    result = cuda_transfer_driver(l)->event_time(&milliseconds, s->begun,
                                                 s->released);
  l->seconds += (double)milliseconds * 1e-3;
  return result;
}

static dil_status cuda_transfer_use(device_transfer *transfer, int32_t index,
                                    bool timed) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  transfer_slot *s = &l->slot[index];
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  cu_result result = cuda_transfer_count_use(l, s);
  if (!result)
    result = cuda_transfer_driver(l)->stream_wait(l->passes, s->came, 0);
  if (!result)
    result = cuda_transfer_driver(l)->event_record(s->begun, l->passes);
  s->timed = timed && !result;
  cuda_leave(l->gpu);
  return cuda_transfer_check(l, result, "have a stream wait");
}

static dil_status cuda_transfer_release(device_transfer *transfer,
                                        int32_t index) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  status = cuda_transfer_check(
      l,
      cuda_transfer_driver(l)->event_record(l->slot[index].released, l->passes),
      "note the end of a pass");
  cuda_leave(l->gpu);
  return status;
}

static dil_status cuda_transfer_finish(device_transfer *transfer,
                                       double *seconds) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  dil_status status = cuda_enter(l->gpu);
  if (status) return status;
  cu_result result = cuda_transfer_driver(l)->wait(l->passes);
  for (int32_t i = 0; i < TRANSFER_LANES && !result; i++)
    result = cuda_transfer_driver(l)->wait(l->lane[i]);
  for (int32_t i = 0; i < TRANSFER_SLOTS && !result; i++)
    result = cuda_transfer_count_use(l, &l->slot[i]);
  *seconds = l->seconds;
  l->seconds = 0;
  cuda_leave(l->gpu);
  return cuda_transfer_check(l, result, "finish the passes");
}

/* ---- the transfer -------------------------------------------------------- */

static void cuda_transfer_close_entered(cuda_transfer *l) {
  const cuda_driver *driver = cuda_transfer_driver(l);
  for (int32_t i = 0; i < TRANSFER_LANES; i++) {
    if (l->lane[i]) driver->wait(l->lane[i]);
    if (l->lane[i]) driver->stream_free(l->lane[i]);
    for (int32_t n = 0; n < TRANSFER_PIECES; n++) {
      if (l->piece[i][n]) driver->unpin(l->piece[i][n]);
      if (l->done[i][n]) driver->event_free(l->done[i][n]);
    }
  }
  for (int32_t i = 0; i < TRANSFER_SLOTS; i++) {
    cu_event const all[] = {l->slot[i].came, l->slot[i].begun,
                            l->slot[i].released};
    for (size_t e = 0; e < sizeof all / sizeof *all; e++)
      if (all[e]) driver->event_free(all[e]);
  }
  code_unload(l->gpu, &l->rows);
}

static void cuda_transfer_close(device_transfer *transfer) {
  cuda_transfer *l = cuda_transfer_of(transfer);
  if (!cuda_enter(l->gpu)) {
    cuda_transfer_close_entered(l);
    cuda_leave(l->gpu);
  }
  if (l->list) device_give(l->gpu, l->list);
  free(l);
}

static cu_result cuda_transfer_open_lane(cuda_transfer *l, int32_t lane) {
  const cuda_driver *driver = cuda_transfer_driver(l);
  cu_result result = driver->stream_new(&l->lane[lane], NON_BLOCKING, SOON);
  for (int32_t i = 0; i < TRANSFER_PIECES && !result; i++) {
    result = driver->pin(&l->piece[lane][i], TRANSFER_PIECE, 0);
    if (!result) result = driver->event_new(&l->done[lane][i], UNTIMED);
  }
  return result;
}

static dil_status cuda_transfer_open_entered(cuda_transfer *l,
                                             const dil_cuda_code *code) {
  const cuda_driver *driver = cuda_transfer_driver(l);
  cu_result result = 0;
  for (int32_t i = 0; i < TRANSFER_LANES && !result; i++)
    result = cuda_transfer_open_lane(l, i);
  for (int32_t i = 0; i < TRANSFER_SLOTS && !result; i++) {
    result = driver->event_new(&l->slot[i].came, UNTIMED);
    if (!result) result = driver->event_new(&l->slot[i].begun, 0);
    if (!result) result = driver->event_new(&l->slot[i].released, 0);
  }
  dil_status status = cuda_transfer_check(l, result, "pin memory of the host");
  return status ? status : code_load(l->gpu, code, &l->rows);
}

static const device_transfer_calls calls = {.settle = cuda_transfer_settle,
                                            .copy = cuda_transfer_copy,
                                            .spread = cuda_transfer_spread,
                                            .follow = cuda_transfer_follow,
                                            .came = cuda_transfer_came,
                                            .use = cuda_transfer_use,
                                            .release = cuda_transfer_release,
                                            .finish = cuda_transfer_finish,
                                            .free = cuda_transfer_close};

dil_status cuda_transfer_new(dil_cuda *gpu, struct ring_device *rank,
                             const dil_cuda_code *code,
                             struct device_transfer **made) {
  cuda_transfer *l = calloc(1, sizeof *l);
  if (!l) return dil_fail(DIL_MEMORY, "no memory to stream to a device");
  l->transfer.calls = &calls;
  l->gpu = gpu;
  l->passes = ring_cuda_passes(rank);
  dil_status status = cuda_enter(gpu);
  if (status) {
    free(l);
    return status;
  }
  status = cuda_transfer_open_entered(l, code);
  cuda_leave(gpu);
  if (!status) status = device_take(gpu, TRANSFER_PIECE, &l->list);
  if (status)
    cuda_transfer_close(&l->transfer);
  else *made = &l->transfer;
  return status;
}
