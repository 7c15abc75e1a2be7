/* hopper_sizes.h - the launches of the last few call sizes, as far as they follow
 * from the sizes; see hopper_sizes.c. */
#ifndef DIL_RUNTIME_CUDA_HOPPER_HOPPER_SIZES_H
#define DIL_RUNTIME_CUDA_HOPPER_HOPPER_SIZES_H

#include "hopper.h"

/* A pass as a code runs it. */
typedef struct hopper_form {
  const hopper_table *table;
  int32_t pass, tile_rows;
  int32_t group;           /* query heads of a key head */
  int64_t processors;
} hopper_form;

/* The launch of a pass for the sizes of one call. */
typedef struct hopper_sized_launch {
  int32_t pass;
  hopper_place place;
  bool refused;            /* the call has too many tiles */
  hopper_launch launch;    /* without tensors and heads' states */
} hopper_sized_launch;

enum { SIZES_KEPT = 8 };

typedef struct hopper_sizes {
  int32_t count, next;     /* cached sizes; the next one to replace */
  hopper_sized_launch size[SIZES_KEPT];
} hopper_sizes;

/* Fills a launch for the place that is set. */
void sizes_fill(const hopper_form *form, hopper_sized_launch *s);
/* Finds the launch for a place in the cache, or makes it. The caller holds a
 * lock. */
const hopper_sized_launch *sizes_find(hopper_sizes *sizes,
                                      const hopper_form *form,
                                      const hopper_place *place);

#endif
