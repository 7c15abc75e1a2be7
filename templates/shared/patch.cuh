/* patch.cuh - tiles that are patches of a grid. In: the number of a patch. Out: its
 * cells, and the box of cells that holds all columns which its rows see. Rows and
 * columns of a tile are numbered inside their boxes, the last axis fastest, and
 * their positions rise with their numbers. runtime/rowset/patch.c has the same
 * arithmetic. */
#ifndef DIL_TEMPLATES_SHARED_PATCH_H
#define DIL_TEMPLATES_SHARED_PATCH_H
#include "templates/shared/pair.cuh"
#include "templates/shared/plan.cuh"

#ifndef PATCH_AXES
#define PATCH_AXES 0 /* of the plan's grid, where some pass may have patches */
#endif
#define PATCHES (PATCH_AXES > 0)

DIL_INLINE bool is_patched(const dil_params &p) {
  return PATCHES && p.patch_axes;
}

#if PATCHES
/* A box of cells of a residue. */
struct dil_cells {
  int first[PATCH_AXES], count[PATCH_AXES];
};
struct dil_patch {
  int residue[PATCH_AXES];
  dil_cells rows, columns;
};
/* Cells of an axis; none: last < first. */
struct dil_cell_span {
  int first, last;
};

DIL_INLINE int cells_of(const dil_patch_axis &a, int residue) {
  return (a.extent - residue + a.step - 1) / a.step;
}

/* The columns along an axis that a row sees: keys of a query, or queries of a
 * key. */
DIL_INLINE dil_cell_span columns_of(const dil_patch_axis &a, int cells,
                                    int row) {
  dil_cell_span s = {0, cells - 1};
  int left = HOLDS_KEYS ? a.right : a.left;
  int right = HOLDS_KEYS ? a.left : a.right;
  int before = a.kernel / 2, after = a.kernel - 1 - before;
  if (left < cells) s.first = dil_max(s.first, row - left);
  if (right < cells) s.last = dil_min(s.last, row + right);
  if (a.causal && HOLDS_KEYS) s.first = dil_max(s.first, row);
  if (a.causal && !HOLDS_KEYS) s.last = dil_min(s.last, row);
  if (a.kernel >= cells) return s;
  if (a.causal && HOLDS_KEYS) {
    s.last = dil_min(s.last, row + a.kernel - 1);
  } else if (a.causal) {
    s.first = dil_max(s.first, row - (a.kernel - 1));
  } else if (HOLDS_KEYS) {
    if (row >= a.kernel) s.first = dil_max(s.first, row - after);
    if (row < cells - a.kernel) s.last = dil_min(s.last, row + before);
  } else {
    int first = dil_max(dil_min(row - before, cells - a.kernel), 0);
    s.first = dil_max(s.first, first);
    s.last = dil_min(s.last, first + a.kernel - 1);
  }
  return s;
}

/* Patch number `index`. False: its residue has none so far out. */
DIL_INLINE bool find_patch(const dil_params &p, unsigned index, dil_patch &x) {
  unsigned each = 1;
  bool some = true;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) each *= (unsigned)p.patch[k].count;
  unsigned residue = index / each, at = index - residue * each;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) {
    const dil_patch_axis &a = p.patch[k];
    x.residue[k] = (int)(residue % (unsigned)a.residues);
    int first = (int)(at % (unsigned)a.count) * a.size;
    residue /= (unsigned)a.residues;
    at /= (unsigned)a.count;
    int cells = cells_of(a, x.residue[k]);
    int last = dil_min(first + a.size, cells) - 1;
    x.rows.first[k] = first;
    x.rows.count[k] = last - first + 1;
    some = some && first <= last;
    int column = columns_of(a, cells, first).first;
    x.columns.first[k] = column;
    x.columns.count[k] =
        dil_max(columns_of(a, cells, last).last - column + 1, 0);
  }
  return some;
}

DIL_INLINE int cells_in(const dil_cells &box) {
  int count = 1;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) count *= box.count[k];
  return count;
}

/* Cell n of a box. Returns its position. */
DIL_INLINE int cell_at(const dil_params &p, const dil_patch &x,
                       const dil_cells &box, int n, int (&cell)[PATCH_AXES]) {
  int position = 0;
  unsigned rest = (unsigned)n;
#pragma unroll
  for (int k = PATCH_AXES - 1; k >= 0; k--) {
    unsigned count = (unsigned)box.count[k], above = k ? rest / count : 0;
    cell[k] = box.first[k] + (int)(rest - above * count);
    rest = above;
    position +=
        (cell[k] * p.patch[k].step + x.residue[k]) * p.patch[k].stride;
  }
  return position;
}

/* Tables in shared memory, which the kernel places at SHARED_PATCH: position and
 * cell of each column of two visits; the position of each row of the tile and, of a
 * patch, the columns that the row sees along each axis. */
struct dil_column {
  int position, cell[3];
};
struct dil_row_span {
  int first, count;
};
#define PATCH_COLUMNS ((dil_column *)(shared + SHARED_PATCH))
#define PATCH_SPANS ((dil_row_span *)(PATCH_COLUMNS + 2 * TILE_KEYS))
#define PATCH_ROWS ((int *)(PATCH_SPANS + TILE_ROWS * PATCH_AXES))
#endif

#endif
