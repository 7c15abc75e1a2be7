/* hopper_gradient_table.h - the tables of the Hopper kernels of gradients.
 * Tiles that hold query rows have those of the forward kernel. Tiles that hold
 * keys have the same of the transposed pattern: segments, dilations and phases
 * serve both sides alike, and windows turn round. */
#ifndef DIL_RUNTIME_TABLES_HOPPER_GRADIENT_TABLE_H
#define DIL_RUNTIME_TABLES_HOPPER_GRADIENT_TABLE_H

#include "hopper_table.h"

/* Heads and values have up to this many elements. */
enum { HOPPER_GRADIENT_WIDTH = 256 };

/* Fills the tables of a pass. False with `reason`: the general kernels must
 * take its gradients. tile_keys: the rows of a streamed block. */
bool hopper_gradient_table_fill(const dil_table *table, int32_t pass,
                                bool holds_keys, int32_t tile_keys,
                                hopper_table *out, char *reason, size_t size);

#endif
