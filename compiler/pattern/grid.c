/* grid.c - numbers of a grid: which positions its cells are. In: a grid. Out:
 * extents, strides and names of its axes. */
#include "pattern.h"

int64_t grid_stride(const grid *g, int32_t axis) {
  int64_t stride = 1;
  for (int32_t a = axis + 1; a < g->axes; a++) stride *= g->extent[a];
  return stride;
}

int64_t grid_extent(const grid *g, int32_t axis, int64_t M) {
  return g->extent[axis] ? g->extent[axis] : M / dil_grid_plane(g);
}

const char *grid_axis_name(const grid *g, int32_t axis) {
  static const char *const names[GRID_AXES] = {"z", "y", "x"};
  return names[GRID_AXES - g->axes + axis];
}
