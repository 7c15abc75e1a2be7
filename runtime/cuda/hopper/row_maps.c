/* row_maps.c - tensor maps of rows that follow each other. In: tensors of calls. Out: a
 * map of each, from a cache of the last ones under a lock of its own. */
#include "row_maps.h"
#include "runtime/base/status.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct row_maps {
  pthread_mutex_t lock;
  map_cache maps;
} row_maps;

void row_maps_close(cuda_code *code) {
  row_maps *m = code->memory;
  maps_close(&m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

dil_status row_maps_open(const dil_table *table, cuda_code *code) {
  (void)table;
  row_maps *m = calloc(1, sizeof *m);
  if (!m) return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  dil_status status = maps_open(&m->maps, 2);
  if (status) row_maps_close(code);
  return status;
}

dil_status row_maps_find(const cuda_run *r, const cuda_code *code, const dil_tensor *t,
                         int32_t width, int32_t box, hopper_map *map) {
  const int32_t stride = 1;
  row_maps *m = code->memory;
  const map_view view = maps_view(t, width, box);
  hopper_map both[1][2]; /* the second is that of all rows, see hopper_launch.h */
  pthread_mutex_lock(&m->lock);
  dil_status status =
      maps_find(&m->maps, r->device->driver, &view, &stride, 1, both);
  pthread_mutex_unlock(&m->lock);
  if (!status) *map = both[0][1];
  return status;
}
