/* maps.c - the tensor maps of the Hopper kernels.
 *
 * In: how a tensor lies in memory, and the strides at which its rows are read.
 * Out: for each stride the two maps of templates/hopper/hopper_launch.h. A map
 * only describes a tensor and stays valid while its address holds that tensor.
 * So a cache keeps the newest maps, and a new tensor replaces the oldest. The
 * caller holds a lock. */
#include "maps.h"
#include "hopper.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

/* Of the driver's CUtensorMapDataType and its kin. */
enum {
  MAP_F16 = 6, MAP_BF16 = 9,
  MAP_SWIZZLE_64 = 2, MAP_SWIZZLE_128 = 3,
  MAP_PROMOTE_128 = 2, MAP_PROMOTE_256 = 3
};

dil_status maps_open(map_cache *cache, int32_t most) {
  *cache = (map_cache){.most = most};
  size_t size = (size_t)MAPS_KEPT * (size_t)most * sizeof *cache->map;
  cache->map = aligned_alloc(sizeof(hopper_map), size);
  if (cache->map) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for tensor maps");
}

void maps_close(map_cache *cache) {
  free(cache->map);
}

bool maps_can(const dil_tensor *t) {
  for (int32_t axis = 0; axis < 3; axis++) {
    int64_t most = (1ll << 39) / (axis == 1 ? HOPPER_DILATION : 1);
    if (t->shape[axis] > 1 && (t->stride[axis] % 8 || t->stride[axis] < 0 ||
                               t->stride[axis] >= most))
      return false;
  }
  return (uintptr_t)t->data % 16 == 0;
}

map_view maps_view(const dil_tensor *t, int32_t width, int32_t box) {
  map_view v = {.data = t->data,
                .rows = t->shape[1],
                .batches = (int32_t)t->shape[0],
                .heads = (int32_t)t->shape[2],
                .width = width,
                .box = box,
                .half = t->dtype == DIL_F16};
  for (int32_t axis = 0; axis < 3; axis++)
    v.stride[axis] = t->shape[axis] > 1 ? t->stride[axis] : -1;
  return v;
}

uint64_t maps_bytes(const map_view *v, int32_t axis) {
  return v->stride[axis] < 0 ? 16 : (uint64_t)v->stride[axis] * 2;
}

map_shape maps_shape(const map_view *v) {
  unsigned chunk = (v->width + 31) / 32 % 2 ? 32 : 64;
  return (map_shape){.data = (char *)(uintptr_t)v->data,
                     .size = {(uint64_t)v->width, 1, 1, 1, 1},
                     .step = {16, 16, 16, 16, 16},
                     .box = {chunk, 1, 1, 1, 1},
                     .half = v->half,
                     .once = v->once};
}

/* L2 fetches 256 bytes where 128 are asked for; of rows that are read once that is the
 * neighbouring head's row, which would go before its turn. */
dil_status map_make(const cuda_driver *driver, const map_shape *s,
                    hopper_map *map) {
  const unsigned each[5] = {1, 1, 1, 1, 1};
  return cuda_check(driver,
                    driver->tensor_map(map, s->half ? MAP_F16 : MAP_BF16, 5,
                                       s->data, s->size, s->step + 1, s->box, each,
                                       0,
                                       s->box[0] == 64 ? MAP_SWIZZLE_128
                                                       : MAP_SWIZZLE_64,
                                       s->once ? MAP_PROMOTE_128 : MAP_PROMOTE_256,
                                       0),
                    "describe a tensor");
}

static dil_status map_encode(const cuda_driver *driver, const map_view *v,
                             int64_t stride, int64_t count, int64_t phases,
                             hopper_map *map) {
  const uint64_t size[] = {(uint64_t)count, (uint64_t)phases, (uint64_t)v->heads,
                           (uint64_t)v->batches};
  const uint64_t step[] = {maps_bytes(v, 1) * (uint64_t)stride, maps_bytes(v, 1),
                           maps_bytes(v, 2), maps_bytes(v, 0)};
  map_shape s = maps_shape(v);
  if (!count || !phases) return DIL_OK;
  memcpy(s.size + 1, size, sizeof size);
  memcpy(s.step + 1, step, sizeof step);
  s.box[1] = (unsigned)v->box;
  return map_make(driver, &s, map);
}

static dil_status maps_encode(const cuda_driver *driver, const map_view *v,
                              const int32_t *strides, int32_t stride_count,
                              hopper_map *maps) {
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < stride_count && !status; i++) {
    int64_t stride = strides[i], rest = v->rows % stride;
    status = map_encode(driver, v, stride, v->rows / stride + 1, rest, maps++);
    if (!status)
      status = map_encode(driver, v, stride, v->rows / stride, stride, maps++);
  }
  return status;
}

dil_status maps_find(map_cache *cache, const cuda_driver *driver,
                     const map_view *view, const int32_t *strides,
                     int32_t stride_count, hopper_map (*out)[2]) {
  int32_t at = 0;
  while (at < cache->count && memcmp(&cache->view[at], view, sizeof *view))
    at++;
  hopper_map *maps = cache->map + (ptrdiff_t)at * cache->most;
  if (at == cache->count) {
    at = cache->next;
    maps = cache->map + (ptrdiff_t)at * cache->most;
    cache->view[at] = (map_view){0};
    dil_status status = maps_encode(driver, view, strides, stride_count, maps);
    if (status) return status;
    cache->view[at] = *view;
    cache->next = (at + 1) % MAPS_KEPT;
    if (cache->count < MAPS_KEPT) cache->count++;
  }
  memcpy(out, maps, (size_t)stride_count * 2 * sizeof *maps);
  return DIL_OK;
}
