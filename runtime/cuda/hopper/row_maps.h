/* row_maps.h - the maps of tensors whose rows a kernel reads one after the other, and
 * what a code keeps of them between launches; see row_maps.c. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_ROW_MAPS_H
#define DIL_RUNTIME_CUDA_HOPPER_ROW_MAPS_H

#include "maps.h"

/* As cuda_family.open and cuda_family.close: these are a code's memory. */
dil_status row_maps_open(const dil_table *table, cuda_code *code);
void row_maps_close(cuda_code *code);
/* Finds or makes the map of all rows of a tensor, in boxes of `box` rows. */
dil_status row_maps_find(const cuda_run *r, const cuda_code *code, const dil_tensor *t,
                         int32_t width, int32_t box, hopper_map *map);

#endif
