/* general_patch.cuh - the tables of a patch of a grid in shared memory, and the bits
 * of its visits. In: a tile and a visit. Needs the sizes of general_sizes.cuh. */
#pragma once
#include "templates/shared/score.cuh"

#if PATCHES
/* Positions and cells of a visit's columns, by the first warp. Those behind the last
 * key of a patch have its position, and a cell that no row sees. */
DIL_INLINE void list_columns(const dil_params &p, const dil_tile &t,
                             const dil_visit &v) {
#pragma unroll 1
  for (int i = threadIdx.x & 31; v.some && i < TILE_KEYS; i += 32) {
    int n = v.n + i, last = v.keys.end - 1, cell[PATCH_AXES] = {};
    dil_column at = {v.keys.start + n * v.keys.step, {-0x40000000, 0, 0}};
    if (is_patched(p))
      at.position =
          cell_at(p, t.patch, t.patch.columns, least(n, last), cell);
#pragma unroll
    for (int k = 0; k < PATCH_AXES; k++)
      if (n <= last) at.cell[k] = cell[k];
    PATCH_COLUMNS[v.slot * TILE_KEYS + i] = at;
  }
}

/* The positions of a tile's rows, and the columns that each row of a patch sees. */
DIL_INLINE void list_rows(const dil_params &p, const dil_tile &t) {
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_ROWS; i += THREADS) {
    int cell[PATCH_AXES];
    PATCH_ROWS[i] = t.low + i * t.step;
    if (!is_patched(p)) continue;
    PATCH_ROWS[i] = cell_at(p, t.patch, t.patch.rows,
                            most(least(i, t.count - 1), 0), cell);
#pragma unroll
    for (int k = 0; k < PATCH_AXES; k++) {
      const dil_patch_axis &a = p.patch[k];
      dil_cell_span s = columns_of(a, cells_of(a, t.patch.residue[k]), cell[k]);
      int count = i < t.count ? most(s.last - s.first + 1, 0) : 0;
      PATCH_SPANS[i * PATCH_AXES + k] = {s.first, count};
    }
  }
  __syncthreads();
}

/* Bits of a visit of a patch, by the axes: a pair is kept where the column is in the
 * row's span along each. `row`: the first of the thread's two rows of the tile; the
 * second is 8 behind it. */
DIL_INLINE unsigned patch_bits(const dil_visit &v, int row) {
  dil_row_span span[2][PATCH_AXES];
  unsigned bits = 0;
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int k = 0; k < PATCH_AXES; k++)
      span[r][k] = PATCH_SPANS[(row + 8 * r) * PATCH_AXES + k];
#pragma unroll
  for (int c = 0; c < TILE_KEYS / 4; c++) {
    int e = 4 * (c >> 1) + (c & 1);
    dil_column at = PATCH_COLUMNS[v.slot * TILE_KEYS + column_of(e)];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      bool kept = true;
#pragma unroll
      for (int k = 0; k < PATCH_AXES; k++)
        kept = kept && (unsigned)(at.cell[k] - span[r][k].first) <
                           (unsigned)span[r][k].count;
      bits |= kept ? 1u << (e + 2 * r) : 0;
    }
  }
  return bits;
}

/* The bits, of these, whose pairs the branch keeps. */
DIL_INLINE unsigned asked_bits(const dil_params &p, const dil_tile &tile,
                               const dil_rows &rows, const dil_visit &v,
                               unsigned bits) {
#pragma unroll 1
  for (unsigned rest = bits; rest; rest &= rest - 1) {
    int e = __ffs((int)rest) - 1;
    if (!pair_kept(p, tile, rows, v, 0, e)) bits &= ~(1u << e);
  }
  return bits;
}
#else
DIL_INLINE void list_rows(const dil_params &, const dil_tile &) {}
#endif
