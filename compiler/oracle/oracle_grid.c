/* oracle_grid.c - grids by their definition: which cell sees which. In: a grid,
 * what a branch says of its axes, two positions. Out: whether the first sees the
 * second; the block of a cell. Coordinates are counted off axis by axis, and
 * nothing of what a kernel is made of is read. */
#include "oracle_query.h"

/* Coordinates of a position: the last axis is the fastest. */
static void cell_of(const grid *g, int64_t position, int64_t *at) {
  for (int32_t a = g->axes - 1; a > 0; a--) {
    at[a] = position % g->extent[a];
    position /= g->extent[a];
  }
  at[0] = position;
}

static int64_t extent_of(const grid *g, int32_t axis, int64_t M) {
  int64_t rest = 1;
  if (g->extent[axis]) return g->extent[axis];
  for (int32_t a = 1; a < g->axes; a++) rest *= g->extent[a];
  return M / rest;
}

/* NATTEN's window along one axis: of the cells of the query's residue it takes
 * `kernel` neighbouring ones, or all where there are fewer. They are centred on
 * the query where the residue has as many on both sides. */
static bool is_neighbor(int64_t kernel, int64_t step, int64_t extent,
                        int64_t query, int64_t key) {
  int64_t mine = query / step, its = key / step;
  int64_t count = (extent - query % step + step - 1) / step;
  int64_t first = mine - kernel / 2;
  if (first + kernel > count) first = count - kernel;
  if (first < 0) first = 0;
  return its >= first && its < first + kernel;
}

static bool axis_sees(const grid_reach *r, int32_t axis, int64_t extent,
                      int64_t query, int64_t key) {
  int64_t step = r->dilation[axis], kernel = r->kernel[axis];
  if (query % step != key % step) return false;
  if (r->left[axis] != DIL_ENDLESS && query - key > r->left[axis]) return false;
  if (r->right[axis] != DIL_ENDLESS && key - query > r->right[axis])
    return false;
  if (r->causal[axis] && key > query) return false;
  if (kernel == DIL_ENDLESS) return true;
  if (r->causal[axis]) return (query - key) / step < kernel;
  return is_neighbor(kernel, step, extent, query, key);
}

bool oracle_grid_sees(const grid *g, const grid_reach *r, int64_t M, int64_t t,
                      int64_t j) {
  for (int32_t a = g->axes - 1; a >= 0; a--) { /* most pairs end at the first of them */
    int64_t extent = extent_of(g, a, M);
    int64_t query = a ? t % extent : t, key = a ? j % extent : j;
    if (!axis_sees(r, a, extent, query, key)) return false;
    t /= extent;
    j /= extent;
  }
  return true;
}

int64_t oracle_grid_block(const grid *g, const int64_t *size,
                          int64_t position) {
  int64_t at[GRID_AXES], block = 0;
  cell_of(g, position, at);
  for (int32_t a = 0; a < g->axes; a++) {
    int64_t extent = g->extent[a]; /* of the first axis it is not asked */
    if (a > 0) block *= (extent + size[a] - 1) / size[a];
    block += at[a] / size[a];
  }
  return block;
}
