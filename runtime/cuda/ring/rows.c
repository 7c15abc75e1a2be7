/* rows.c - launches the kernels of templates/rows.cu for a rank. In: a
 * route, keys, a message, all of them on the device. Out: launches. */
#include "rows.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/codes.h"
#include "runtime/rowset/walk.h"
#include "templates/rows.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(dil_rows_run) == DIL_ROWS_RUN_BYTES &&
                   offsetof(dil_rows_run, kv) == 24,
               "templates/rows.cu has another dil_rows_run");
_Static_assert(sizeof(dil_rows) == DIL_ROWS_BYTES &&
                   offsetof(dil_rows, rows) == 40 &&
                   offsetof(dil_rows, message) == 56 &&
                   offsetof(dil_rows, k_stride) == 96 &&
                   offsetof(dil_rows, first) == 192,
               "templates/rows.cu has another dil_rows");
_Static_assert(sizeof(dil_rows_random) == DIL_ROWS_RANDOM_BYTES &&
                   offsetof(dil_rows_random, batch) == 48 &&
                   offsetof(dil_rows_random, seed) == 72,
               "templates/rows.cu has another dil_rows_random");

enum { BLOCKS_A_PROCESSOR = 16 };

/* Blocks of threads that take an item each, in turns where there are many. */
static dil_status rows_launch(const rows_target *to, int32_t entry,
                              int64_t items, void *parameters) {
  cuda_run r = {.device = to->device, .stream = to->stream};
  int64_t blocks = (items + DIL_ROWS_THREADS - 1) / DIL_ROWS_THREADS;
  int64_t most = (int64_t)to->device->facts.processors * BLOCKS_A_PROCESSOR;
  return cuda_launch(&r, to->code, entry, minimum(blocks, most),
                     DIL_ROWS_THREADS, 0, parameters);
}

/* ---- routes -------------------------------------------------------------- */

/* On the device: the runs, then the offsets. */
static int64_t rows_runs_bytes(const route *r) {
  return r->run_count * (int64_t)sizeof(dil_rows_run);
}

static void rows_list_runs(const route *r, dil_rows_run *out) {
  for (int32_t i = 0; i < r->run_count; i++) {
    const route_run *from = &r->run[i];
    out[i] = (dil_rows_run){.low = from->low,
                            .period = from->period,
                            .before = from->before,
                            .kv = from->kv,
                            .progression = from->progression,
                            .first = from->first,
                            .count = from->count};
  }
}

int64_t rows_list_bytes(const route *r) {
  return rows_runs_bytes(r) + r->offset_count * (int64_t)sizeof *r->offset;
}

void rows_list(const route *r, void *out) {
  rows_list_runs(r, out);
  if (r->offset_count)
    memcpy((char *)out + rows_runs_bytes(r), r->offset,
           (size_t)r->offset_count * sizeof *r->offset);
}

static dil_status rows_copy_route(dil_cuda *device, route *r) {
  int64_t bytes = rows_list_bytes(r);
  void *host = malloc((size_t)bytes + 1), *there = NULL;
  if (!host)
    return dil_fail(DIL_MEMORY, "no memory to list the rows that travel");
  rows_list(r, host);
  dil_status status = device_take(device, bytes, &there);
  if (!status) status = device_upload(device, there, host, bytes);
  if (status && there) device_give(device, there);
  else r->copy = there;
  free(host);
  return status;
}

void rows_forget(dil_cuda *device, route *r) {
  if (r->copy) device_give(device, r->copy);
  r->copy = NULL;
}

/* ---- moving -------------------------------------------------------------- */

static void rows_fill_strides(const dil_tensor *t, long long out[3]) {
  for (int32_t axis = 0; axis < 3; axis++)
    out[axis] = t->stride[axis] * (int64_t)dil_dtype_size(t->dtype);
}

/* Bytes that all rows of a tensor are made of and begin at a multiple of. */
static int64_t rows_unit_of(uint64_t all) {
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
}
static int64_t rows_unit(const dil_tensor *t) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  uint64_t all = (uintptr_t)t->data | (uint64_t)(t->shape[3] * size);
  for (int32_t axis = 0; axis < 3; axis++)
    all |= (uint64_t)(t->stride[axis] * size);
  return rows_unit_of(all);
}

static void rows_fill_places(const route *r, const ring_keys *keys,
                             dil_rows *p) {
  int64_t unit = rows_unit_of((uintptr_t)p->message);
  for (int32_t i = 0; i < r->owned.count; i++) {
    const dil_tensor *k = &keys->k[i], *v = &keys->v[i];
    unit = minimum(unit, minimum(rows_unit(k), rows_unit(v)));
    p->k[i] = k->data;
    p->v[i] = v->data;
    rows_fill_strides(k, p->k_stride[i]);
    rows_fill_strides(v, p->v_stride[i]);
    p->first[i] = r->owned.progression[i].first;
    p->step[i] = r->owned.progression[i].step;
  }
  int64_t size = (int64_t)dil_dtype_size(keys->k[0].dtype);
  p->unit_bytes = (int)unit;
  p->k_units = (int)(keys->k[0].shape[3] * size / unit);
  p->v_units = (int)(keys->v[0].shape[3] * size / unit);
}

dil_status rows_move(const rows_target *to, route *r, const ring_keys *keys,
                     void *message, int32_t how) {
  dil_status status =
      r->rows && !r->copy ? rows_copy_route(to->device, r) : DIL_OK;
  if (status || !r->rows) return status;
  dil_rows p = {.run = r->copy,
                .offset = (const int *)(const void *)((const char *)r->copy +
                                                      rows_runs_bytes(r)),
                .runs = r->run_count,
                .how = how,
                .rows = r->rows,
                .message = message};
  rows_fill_places(r, keys, &p);
  p.items = r->rows * keys->k[0].shape[0] * (p.k_units + p.v_units);
  return rows_launch(to, ROWS_MOVE, p.items, &p);
}

dil_status rows_random(const rows_target *to, const dil_tensor *t,
                       const dil_normal_place *place) {
  dil_rows_random p = {.data = t->data,
                       .rows = t->shape[1],
                       .items = dil_tensor_count(t),
                       .first = place->rows.first,
                       .step = place->rows.step,
                       .whole_rows = place->whole_rows,
                       .batch = place->batch,
                       .head = place->head,
                       .heads = (int)t->shape[2],
                       .whole_heads = place->whole_heads,
                       .width = (int)t->shape[3],
                       .dtype = (int)t->dtype,
                       .seed = place->seed,
                       .tensor = place->tensor};
  return rows_launch(to, ROWS_RANDOM, p.items, &p);
}
