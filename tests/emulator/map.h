/* map.h - see map.c: tensor maps. */
#ifndef DIL_TESTS_EMULATOR_MAP_H
#define DIL_TESTS_EMULATOR_MAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tensor_map tensor_map;

/* Whether there is a map, where the chip can read one. */
bool map_is_one(const void *map);
uint32_t map_box_bytes(const tensor_map *map);
/* A box between memory that `device` reaches and `shared`, in the memory that
 * begins at `base`; false with the reason in map_problem. */
bool map_copy(const tensor_map *map, int device, const int *at, char *shared,
              const char *base, bool load);
const char *map_problem(void);

#endif
