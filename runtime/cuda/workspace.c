/* workspace.c - allocates the memory of runs in stream order.
 *
 * In: sizes and streams. Out: memory. A pool keeps the device's blocks, with
 * events that tell when the last stream has finished with a block. Graphs, and
 * runs without a pool, use the driver's allocator, which is slower at every
 * size that was measured (tests/bench/NOTES.md). */
#include "workspace.h"
#include "device.h"

enum { DISABLE_TIMING = 2 }; /* CU_EVENT_... */

/* ---- the pool's source --------------------------------------------------- */

static dil_status workspace_take_driver(void *user, int64_t bytes,
                                        void **memory) {
  return device_take(user, bytes, memory);
}

static void workspace_give_driver(void *user, void *memory, int64_t bytes) {
  (void)bytes;
  device_give(user, memory);
}

static dil_status workspace_mark(void *user, void *stream, void **event) {
  const dil_cuda *d = user;
  cu_event made = *event;
  dil_status status = cuda_enter(d);
  if (status) return status;
  cu_result result = made ? 0 : d->driver->event_new(&made, DISABLE_TIMING);
  *event = made;
  if (!result) result = d->driver->event_record(made, stream);
  cuda_leave(d);
  return cuda_check(d->driver, result, "note where a stream stands");
}

static bool workspace_passed(void *user, void *event) {
  const dil_cuda *d = user;
  if (cuda_enter(d)) return false;
  bool done = d->driver->event_query(event) == 0;
  cuda_leave(d);
  return done;
}

static dil_status workspace_follow(void *user, void *stream, void *event) {
  const dil_cuda *d = user;
  dil_status status = cuda_enter(d);
  if (status) return status;
  status = cuda_check(d->driver, d->driver->stream_wait(stream, event, 0),
                      "have a stream wait");
  cuda_leave(d);
  return status;
}

static void workspace_forget(void *user, void *event) {
  const dil_cuda *d = user;
  if (cuda_enter(d)) return;
  d->driver->event_free(event);
  cuda_leave(d);
}

/* A handle may come back for another stream; its number does not. */
static uint64_t workspace_identify(void *user, void *stream) {
  const dil_cuda *d = user;
  unsigned long long number = 0;
  if (cuda_enter(d)) return POOL_NO_STREAM;
  bool known = d->driver->stream_number(stream, &number) == 0;
  cuda_leave(d);
  return known ? number : POOL_NO_STREAM;
}

dil_status workspace_open(dil_cuda *device) {
  pool_options options;
  dil_status status = dil_pool_options_read(&options);
  if (status || (options.off && !options.max)) return status;
  const pool_source source = {.name = device->facts.name,
                              .take = workspace_take_driver,
                              .give = workspace_give_driver,
                              .mark = workspace_mark,
                              .passed = workspace_passed,
                              .follow = workspace_follow,
                              .forget = workspace_forget,
                              .identify = workspace_identify,
                              .user = device};
  return dil_pool_new(&source, &options, &device->pool);
}

void workspace_close(dil_cuda *device) { dil_pool_free(device->pool); }

/* ---- one run ------------------------------------------------------------- */

/* The memory that a graph replays must stay the graph's own. */
static dil_status workspace_from_pool(const dil_cuda *d, void *stream,
                                      bool *pooled) {
  bool captured;
  *pooled = false;
  if (!d->pool) return DIL_OK;
  dil_status status = cuda_is_captured(d->driver, stream, &captured);
  *pooled = !captured;
  return status;
}

dil_status workspace_take(const dil_cuda *d, void *stream, int64_t bytes,
                          workspace *w) {
  cu_pointer memory = 0;
  bool pooled;
  *w = (workspace){NULL, NULL};
  if (bytes == 0) return DIL_OK;
  dil_status status = workspace_from_pool(d, stream, &pooled);
  if (status) return status;
  if (pooled) {
    status = dil_pool_take_block(d->pool, bytes, stream, &w->block);
    if (!status) w->memory = dil_pool_memory(w->block);
    return status;
  }
  status = cuda_check(d->driver,
                      d->driver->take_ordered(&memory, (size_t)bytes, stream),
                      "take workspace");
  w->memory = (char *)(uintptr_t)memory;
  return status;
}

dil_status workspace_give(const dil_cuda *d, void *stream, workspace *w) {
  if (w->block) dil_pool_give_block(d->pool, w->block);
  if (w->block || !w->memory) return DIL_OK;
  return cuda_check(
      d->driver,
      d->driver->give_ordered((cu_pointer)(uintptr_t)w->memory, stream),
      "give workspace back");
}
