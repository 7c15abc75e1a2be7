/* patch_tile.h - a patch of a grid as a tile: its rows, its box of keys and who
 * sees which of them. */
#ifndef DIL_RUNTIME_CPU_PATCH_TILE_H
#define DIL_RUNTIME_CPU_PATCH_TILE_H

#include "query_tile.h"
#include "runtime/rowset/patch.h"

struct patch_tile {
  const patch_plan *plan;
  /* [rows of the plan] positions; rows that fill a slab up repeat another's, and
   * no lane keeps them. */
  const int32_t *positions;
  patch_box box;
  int32_t count;             /* rows; the lanes past them repeat the last one */
  int32_t t[DIL_LANES_MAX];  /* positions of the lanes */
  /* Bits of lanes: who sees a cell of axis 0; and of each range of the box, each
   * of its packed rows inside a cell of axis 0. */
  uint32_t *outer, *inner, *axis;
  uint32_t *kept;            /* [tile_keys] of the keys visited now */
};

/* Takes what a patch tile needs from the cutter. */
void patch_tile_cut(cutter *c, const cpu_run *r, const patch_plan *plan,
                    patch_tile *tile);
/* Patch `index` of the plan. False: there is none. */
bool patch_tile_open(patch_tile *tile, int64_t index);
/* Takes the tile wk->group[0] over the keys of wk->patch that the branch
 * reaches. */
void patch_tile_visit(tile_worker *wk, uint64_t branch);

/* Bytes of the positions of a plan's packed rows; fills them. */
int64_t patch_positions_bytes(const patch_plan *p);
void patch_positions_fill(const patch_plan *p, int32_t *positions);
/* The packed rows of a plan, as the only class of the cell 0..rows-1; `branch`
 * reaches them. It stands in memory of `s`, as much as a period of 1 needs, and
 * in the positions. */
segment_cell patch_class(const patch_plan *p, int32_t *positions,
                         uint64_t branch, class_table *s);

#endif
