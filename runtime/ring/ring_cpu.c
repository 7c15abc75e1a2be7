/* ring_cpu.c - the processor as the device of a rank: it does each request at
 * once. See ring_device.h. */
#include "ring_device.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

typedef struct ring_cpu {
  ring_device device;
  cpu_kernel *kernel;
  dil_threads *threads;
  pool *scratch;
} ring_cpu;

static int32_t states(const ring_device *d) {
  return cpu_kernel_states(((const ring_cpu *)d)->kernel);
}

static dil_status start(ring_device *d) {
  (void)d;
  return DIL_OK;
}

static dil_status take(ring_device *d, int64_t bytes, ring_content content,
                       void **memory) {
  (void)d;
  size_t size = (size_t)bytes + 1;
  *memory = content == RING_ANY ? malloc(size) : calloc(size, 1);
  if (*memory) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %lld bytes of a ring",
                  (long long)bytes);
}

static void give(ring_device *d, void *memory) {
  (void)d;
  free(memory);
}

/* ---- rows ---------------------------------------------------------------- */

typedef struct mover mover;
typedef void row_move(mover *m, const dil_tensor *t, int64_t row, int32_t kv);
struct mover {
  const route *route;
  const ring_keys *keys;
  char *message;           /* the next row in the message */
  row_move *move;
  int64_t b;
};

static char *row_place(const mover *m, const dil_tensor *t, int64_t row,
                       int32_t kv) {
  int64_t at = m->b * t->stride[0] + row * t->stride[1] + kv * t->stride[2];
  return (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
}

static size_t row_bytes(const dil_tensor *t) {
  return (size_t)t->shape[3] * dil_dtype_size(t->dtype);
}

static void pack_row(mover *m, const dil_tensor *t, int64_t row, int32_t kv) {
  memcpy(m->message, row_place(m, t, row, kv), row_bytes(t));
  m->message += row_bytes(t);
}

static void spread_row(mover *m, const dil_tensor *t, int64_t row, int32_t kv) {
  memcpy(row_place(m, t, row, kv), m->message, row_bytes(t));
  m->message += row_bytes(t);
}

static void move_run(mover *m, int32_t index) {
  const route_run *run = &m->route->run[index];
  dil_progression progression = m->route->owned.progression[run->progression];
  int64_t rows_here = route_run_rows(m->route, index);
  const dil_tensor *k = &m->keys->k[run->progression];
  const dil_tensor *v = &m->keys->v[run->progression];
  for (int64_t i = 0; i < rows_here; i++) {
    int64_t row = (route_position(m->route, run, i) - progression.first) /
                  progression.step;
    m->move(m, k, row, run->kv);
    if (v->data) m->move(m, v, row, run->kv); /* sums of queries have one part */
  }
}

static dil_status move_rows(const route *r, const ring_keys *keys,
                            char *message, row_move *move) {
  mover m = {.route = r, .keys = keys, .message = message, .move = move};
  for (m.b = 0; m.b < keys->k[0].shape[0]; m.b++)
    for (int32_t i = 0; i < r->run_count; i++) move_run(&m, i);
  return DIL_OK;
}

static dil_status pack(ring_device *d, ring_lane lane, route *r,
                       const ring_keys *keys, void *message) {
  (void)d;
  (void)lane;
  return move_rows(r, keys, message, pack_row);
}

static dil_status spread(ring_device *d, route *r, const void *message,
                         const ring_keys *keys) {
  (void)d;
  return move_rows(r, keys, (char *)(uintptr_t)message, spread_row);
}

static void add_row(mover *m, const dil_tensor *t, int64_t row, int32_t kv) {
  int64_t width = t->shape[3];
  float *place = (float *)(void *)row_place(m, t, row, kv);
  const float *more = (const float *)(const void *)m->message;
  for (int64_t d = 0; d < width; d++) place[d] += more[d];
  m->message += width * (int64_t)sizeof *place;
}

static dil_status reduce(ring_device *d, route *r, const void *message,
                         const ring_keys *sums) {
  (void)d;
  return move_rows(r, sums, (char *)(uintptr_t)message, add_row);
}

static dil_status clear(ring_device *d, route *r, const ring_keys *sums) {
  (void)d;
  (void)r;
  (void)sums;
  return DIL_OK;
}

static void forget(ring_device *d, route *r) {
  (void)d;
  (void)r;
}

/* ---- passes -------------------------------------------------------------- */

static dil_status begin(ring_device *d, const dil_call *call,
                        const dil_shard *shard) {
  const ring_cpu *c = (ring_cpu *)d;
  return cpu_kernel_begin(c->kernel, c->threads, call, shard);
}

static dil_status advance(ring_device *d, const dil_call *call,
                          const dil_shard *shard) {
  const ring_cpu *c = (ring_cpu *)d;
  return cpu_kernel_advance(c->kernel, c->threads, c->scratch, call, shard);
}

static dil_status finish(ring_device *d, const dil_call *call,
                         const dil_shard *shard) {
  const ring_cpu *c = (ring_cpu *)d;
  return cpu_kernel_finish(c->kernel, c->threads, call, shard);
}

static dil_status backward(ring_device *d, const dil_backward_call *call,
                           const dil_shard *shard) {
  const ring_cpu *c = (ring_cpu *)d;
  return cpu_kernel_backward_shard(c->kernel, c->threads, c->scratch, call,
                                   shard);
}

static dil_status number(ring_device *d, const dil_backward_call *call,
                         const dil_shard *shard, float *numbers) {
  const ring_cpu *c = (ring_cpu *)d;
  return cpu_kernel_row_numbers(c->kernel, c->threads, call, shard, numbers);
}

static bool asks_states(const ring_device *d) {
  return cpu_kernel_asks_states(((const ring_cpu *)d)->kernel);
}

/* ---- messages ------------------------------------------------------------ */

static dil_status post(ring_device *d, ring_lane lane, dil_link *link,
                       int32_t slot, const link_transfer *t) {
  (void)d;
  (void)lane;
  return link->calls->post(link, slot, t);
}

static dil_status wait(ring_device *d, dil_link *link, int32_t slot) {
  (void)d;
  return link->calls->wait(link, slot);
}

static dil_status mark(ring_device *d, int32_t step) {
  (void)d;
  (void)step;
  return DIL_OK;
}

static dil_status settle(ring_device *d, dil_link *link, ring_facts *facts) {
  (void)d;
  (void)link;
  (void)facts;
  return DIL_OK;
}

static void drain(ring_device *d) { (void)d; }

static dil_status copy(ring_device *d, void *to, const void *from,
                       int64_t bytes) {
  (void)d;
  if (bytes) memcpy(to, from, (size_t)bytes);
  return DIL_OK;
}

/* ---- the device ---------------------------------------------------------- */

static void free_device(ring_device *d) {
  ring_cpu *c = (ring_cpu *)d;
  dil_threads_free(c->threads);
  if (c->scratch) dil_pool_free(c->scratch);
  free(c);
}

static const ring_device_calls calls = {.name = "cpu",
                                        .on_host = true,
                                        .states = states,
                                        .start = start,
                                        .take = take,
                                        .give = give,
                                        .pack = pack,
                                        .spread = spread,
                                        .reduce = reduce,
                                        .clear = clear,
                                        .forget = forget,
                                        .begin = begin,
                                        .advance = advance,
                                        .finish = finish,
                                        .backward = backward,
                                        .number = number,
                                        .asks_states = asks_states,
                                        .post = post,
                                        .wait = wait,
                                        .mark = mark,
                                        .settle = settle,
                                        .drain = drain,
                                        .write = copy,
                                        .read = copy,
                                        .free = free_device};

dil_status ring_cpu_new(cpu_kernel *kernel, int32_t threads,
                        ring_device **device) {
  ring_cpu *c = calloc(1, sizeof *c);
  if (!c) return dil_fail(DIL_MEMORY, "no memory for the device of a rank");
  c->device.calls = &calls;
  c->kernel = kernel;
  c->threads = dil_threads_new(threads);
  c->scratch = c->threads ? pool_new_host(NULL, NULL) : NULL;
  if (c->scratch) {
    *device = &c->device;
    return DIL_OK;
  }
  free_device(&c->device);
  return dil_fail(DIL_MEMORY, "no memory for the device of a rank");
}
