/* general_rows.cuh - the rows of a tile, and all rows of a call, a warp each.
 * Needs the sizes of general_sizes.cuh. */
#pragma once
#include "templates/shared/divide.cuh"

#ifndef ROW_WARP
#define ROW_WARP (threadIdx.x >> 5) /* the groups of rows that a warp has */
#endif

/* Row `row` of a tile: query row and head; false: there is none. */
DIL_INLINE bool find_row(const dil_params &p, const dil_tile &t, int row,
                         int *position, int *head) {
  int n = p.pack == 1 ? row : row / p.pack;
  *position = tile_position(t, n < t.count ? n : 0);
  *head = t.head + row - n * p.pack;
  return n < t.count;
}

DIL_INLINE dil_rows rows_of(const dil_params &p, const dil_tile &t,
                            int group) {
  dil_rows rows;
  int first = 16 * (int)(ROW_GROUPS * ROW_WARP + group);
#pragma unroll
  for (int r = 0; r < 2; r++)
    rows.valid[r] = find_row(p, t, first + (threadIdx.x & 31) / 4 + 8 * r,
                             &rows.t[r], &rows.h[r]);
  return rows;
}

/* Row number `index` of [batches, rows, heads], or of [states, rows of a packed
 * call, heads]. b -1: no document has the row. */
struct dil_place {
  int b, n, h, state;
};
DIL_INLINE dil_place document_place(const dil_params &p, long long index) {
  dil_place at = {-1, 0, p.head + (int)(index % p.heads), 0};
  int row = (int)(index / p.heads % p.packed_rows), low = 0, high = p.batches;
  at.state = (int)(index / p.heads / p.packed_rows);
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (p.offsets_q[middle] <= row) low = middle;
    else high = middle;
  }
  if (!p.batches) return at;
  dil_extent rows = document_queries(p, low);
  at.n = row - rows.first;
  if (at.n >= 0 && at.n < rows.count) at.b = low;
  return at;
}
DIL_INLINE dil_place place_of(const dil_params &p, long long index) {
  if (is_packed(p)) return document_place(p, index);
  dil_place at;
  at.b = (int)divide(divide(index, p.heads, &at.h), p.rows, &at.n);
  at.h += p.head;
  at.state = 0;
  return at;
}
/* All rows of a state, and of all states that a launch is for. */
DIL_INLINE long long state_rows(const dil_params &p) {
  long long rows =
      is_packed(p) ? p.packed_rows : (long long)p.batches * p.rows;
  return rows * p.heads;
}
DIL_INLINE long long all_rows(const dil_params &p) {
  return state_rows(p) * (is_packed(p) ? p.states : 1);
}

#define WARP_ROWS(p, index)                                                   \
  for (long long index = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / \
                         32;                                                  \
       index < all_rows(p);                                                   \
       index += (long long)gridDim.x * blockDim.x / 32)
