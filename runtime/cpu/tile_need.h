/* tile_need.h - which keys of a block its few queries may see. */
#ifndef DIL_RUNTIME_CPU_TILE_NEED_H
#define DIL_RUNTIME_CPU_TILE_NEED_H

#include "tile_block.h"

/* Keys, from the block's first on, that are packed or left out together: a tile of
 * the walk. 0: all keys of the block are packed. */
int64_t tile_need_step(const tile_blocks *of, const tile_block *bk);
/* Whether some query of the block may see a key at positions low..high - 1. */
bool tile_needs(const tile_blocks *of, const tile_block *bk, int64_t low,
                int64_t high);

#endif
