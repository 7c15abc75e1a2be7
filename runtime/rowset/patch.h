/* patch.h - the arithmetic of patches: tiles of a grid's queries, and the boxes
 * of keys that they see.
 *
 * A branch with a dilation has a residue for each axis, and a query sees keys of
 * its own residue alone. Inside a residue, cells are counted from 0 along each
 * axis. A patch is a box of such cells, as many as a tile has rows; the keys that
 * its queries see are inside another box.
 *
 * Keys are packed once, in slabs: a slab has all cells of axis 0, and a few of
 * each other axis. Its cells run along the inner axes first, so that a box is one
 * range of packed rows in each slab that it meets. A slab that leaves the grid is
 * filled up with rows that nobody sees.
 *
 * GPUs pack nothing: a tile counts the cells of its box, the last axis fastest, and
 * takes them in blocks. A tile of keys, for gradients, is a patch too; its box has
 * the queries that see them. */
#ifndef DIL_RUNTIME_ROWSET_PATCH_H
#define DIL_RUNTIME_ROWSET_PATCH_H

#include "runtime/plan_table.h"

/* One axis of a branch. */
typedef struct patch_axis {
  int64_t extent, stride;   /* cells; positions from a cell to the next */
  int64_t step, residues;   /* the dilation, and the residues that have cells */
  int64_t left, right, kernel; /* in cells of a residue; DIL_ENDLESS: no bound */
  bool causal;
  int64_t size, count;      /* cells of a patch; patches of a residue, at most */
  int64_t slab, slabs;      /* cells of a slab; slabs. Of axis 0: 1 and the cells
                             * of a residue, at most */
} patch_axis;

typedef struct patch_plan {
  int32_t axes, lanes;
  patch_axis axis[DIL_GRID_AXES];
  int64_t residues;
  int64_t patches;          /* of all residues */
  int64_t run;              /* packed rows of a slab for a cell of axis 0 */
  int64_t depth;            /* packed rows of a slab */
  int64_t ranges;           /* slabs that a box meets, at most */
  int64_t rows;             /* packed rows of all residues */
} patch_plan;

/* A patch as the kernels take it. */
typedef struct patch_tile_shape {
  int32_t lanes, key_block; /* rows; keys of a register block */
  int32_t pack;             /* neighbours that share a cell of packed rows */
  bool whole;               /* no slabs: the cells of a box are one range */
} patch_tile_shape;

/* Cells first..last; none where last < first. */
typedef struct patch_span {
  int64_t first, last;
} patch_span;
static inline int64_t patch_length(patch_span s) {
  return s.last < s.first ? 0 : s.last - s.first + 1;
}

/* The columns along an axis, of `cells` cells, that the rows of a span see. */
typedef patch_span patch_sees(const patch_axis *a, int64_t cells, patch_span rows);

/* One patch, and its box of keys. */
typedef struct patch_box {
  int64_t residue[DIL_GRID_AXES], cells[DIL_GRID_AXES]; /* of the residue */
  int64_t number;           /* of the residue */
  patch_span query[DIL_GRID_AXES], key[DIL_GRID_AXES];
  patch_span slab[DIL_GRID_AXES]; /* slabs of the box; axis 0: its cells */
} patch_box;

/* How a branch of the table is cut, where a call has `cells` positions. Returns
 * false where there are no patches: the table has no grid, or the branch sees all
 * of it. */
bool patch_plan_make(const dil_table *table, int32_t branch, int64_t cells,
                     const patch_tile_shape *shape, patch_plan *out);
/* The same with patches of so many cells along each axis, and without slabs. */
bool patch_plan_of(const dil_table *table, int32_t branch, int64_t cells,
                   const int32_t size[DIL_GRID_AXES], patch_plan *out);
/* Returns whether a pass of the table may have patches: some calls may not. */
bool patch_may(const dil_table *table, const dil_pass *pass);
/* Keys that the rows of all tiles visit, for one head: pairs. */
double patch_plan_visits(const patch_plan *p);
/* Blocks of so many keys that all patches visit, for one head, where a box is one
 * range. */
double patch_plan_blocks(const patch_plan *p, int32_t key_block);
/* Boxes of so many cells along each axis that take the columns of all patches, for one
 * head. `sees`: patch_keys, or patch_queries. */
double patch_plan_boxes(const patch_plan *p, const int32_t box[DIL_GRID_AXES],
                        patch_sees *sees);
/* Keys in the box of the patch in the middle. */
int64_t patch_plan_keys(const patch_plan *p);
/* Returns whether a pass visits far fewer keys by patches than by tiles of
 * neighbouring positions with blocks of neighbouring keys, of 128 each. Where the
 * first extent is any, there are 32768 positions. */
bool patch_saves(const dil_table *table, const dil_pass *pass);
/* Keys that such a tile visits in the middle of the grid. */
double patch_linear_keys(const patch_plan *p);
/* Positions of a call: of the grid, or those assumed above. */
int64_t patch_cells(const dil_table *table);
/* Cells of an axis that a residue has. */
int64_t patch_residue_cells(const patch_axis *a, int64_t residue);
/* Patch `index`. False: its residue has none so far out. */
bool patch_at(const patch_plan *p, int64_t index, patch_box *out);
/* The keys that queries see, and the queries that see keys. */
patch_sees patch_keys, patch_queries;
/* The position of a cell of the box's residue. */
int64_t patch_position(const patch_plan *p, const patch_box *box,
                       const int64_t *cell);
/* The slabs that a box meets, and the packed rows of it in slab n of them. */
int64_t patch_ranges(const patch_plan *p, const patch_box *box);
patch_span patch_range(const patch_plan *p, const patch_box *box, int64_t n);
/* Cell of an inner axis that packed row i, counted from the first one of a cell
 * of axis 0, has in slab n of the box. */
int64_t patch_inner_cell(const patch_plan *p, const patch_box *box, int64_t n,
                         int64_t i, int32_t axis);
/* The position of a packed row; -1: the row fills a slab up. */
int64_t patch_row_position(const patch_plan *p, int64_t row);

#endif
