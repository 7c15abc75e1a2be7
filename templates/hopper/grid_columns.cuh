// grid_columns.cuh - which columns of a box of cells a row sees: the product of one range
// along each axis. A thread has columns 8 g + 2 (lane % 4) + {0, 1} of a box's rows.
//
// In: the axes, a row, a box. Out: bits of columns, as hide_columns takes them.
#pragma once

// The thread's columns, from its own first `column` on, that a row at x sees along x in a
// box that begins at `first`. `cells`: of the axis.
DEVICE u32 columns_along(const dil_patch_axis &a, int cells, int x, int first,
                         int column) {
  dil_cell_span seen = columns_of(a, cells, x);
  int low = min(max(seen.first - first, 0), BOX_X) - column;
  int high = min(max(seen.last + 1 - first, 0), BOX_X) - column;
  u32 kept = 0;
#pragma unroll
  for (int y = 0; y < BOX_Y; y++)
    kept |= columns_below(y * BOX_X + high) & ~columns_below(y * BOX_X + low);
  return x < cells ? kept : 0;
}

// The rows of a warp are at one y and z, and see these cells along both axes. Rows outside
// of the grid see none.
struct box_spans {
  dil_cell_span y, z;
};
DEVICE box_spans spans_of(const dil_patch_axis *axis, int cells_y, int cells_z, int y,
                          int z) {
  box_spans s = {columns_of(axis[LAST - 1], cells_y, y), {0, 0}};
  if (SOLID) s.z = columns_of(axis[0], cells_z, z);
  if (y >= cells_y || z >= cells_z) s.y = {0, -1};
  return s;
}

// The thread's columns that its warp sees along these axes, in a box that begins at y.
DEVICE u32 columns_across(const box_spans &s, int y, int z) {
  int column = thread_index() % 4 * 2;
  int low = max(s.y.first - y, 0), high = min(s.y.last + 1 - y, BOX_Y);
  bool seen = high > low && (!SOLID || (z >= s.z.first && z <= s.z.last));
  if (!seen) return 0;
  return columns_below(high * BOX_X - column) & ~columns_below(low * BOX_X - column);
}
