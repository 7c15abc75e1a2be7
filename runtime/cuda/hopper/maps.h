/* maps.h - tensor maps, and a cache of the last ones; see maps.c. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_MAPS_H
#define DIL_RUNTIME_CUDA_HOPPER_MAPS_H

#include "runtime/cuda/launch/nvidia.h"
#include "templates/hopper/hopper_launch.h"

enum { MAPS_KEPT = 64 };

/* How one tensor [B, rows, heads, width] of 16-bit elements is read or written.
 * Equal views have the same maps. Views are compared byte by byte, so the
 * struct has no padding. */
typedef struct map_view {
  const void *data;
  int64_t stride[3];       /* elements; of axes of one entry -1 */
  int64_t rows;
  int32_t batches, heads, width;
  int32_t box;             /* rows of one copy */
  int32_t pass;            /* the pass that sets the strides */
  int16_t half;            /* f16, not bf16 */
  int16_t once;            /* each row is read by one block alone */
} map_view;

/* The axes of a map: entries, bytes from one to the next, and the entries of one
 * copy. The axes of a new shape are one column chunk of the view and else single
 * entries; step[0] is not used. */
typedef struct map_shape {
  char *data;
  uint64_t size[5], step[5];
  unsigned box[5];
  bool half, once;
} map_shape;

typedef struct map_cache {
  int32_t most;            /* maps of one view, at most */
  int32_t count, next;     /* next: index of the view that is replaced next */
  map_view view[MAPS_KEPT];
  hopper_map *map;         /* [MAPS_KEPT][most] */
} map_cache;

/* most: twice the largest number of strides that a pass has. */
dil_status maps_open(map_cache *cache, int32_t most);
void maps_close(map_cache *cache);

/* Whether maps can describe a tensor of a call. */
bool maps_can(const dil_tensor *t);
map_view maps_view(const dil_tensor *t, int32_t width, int32_t box);
/* Finds the two maps of each stride in the cache, or makes them. */
dil_status maps_find(map_cache *cache, const cuda_driver *driver,
                     const map_view *view, const int32_t *strides,
                     int32_t stride_count, hopper_map (*out)[2]);

/* A shape of the view's columns; and bytes along an axis of [B, rows, heads]: any will
 * do where there is only one entry. */
map_shape maps_shape(const map_view *v);
uint64_t maps_bytes(const map_view *v, int32_t axis);
dil_status map_make(const cuda_driver *driver, const map_shape *shape,
                    hopper_map *map);

#endif
