/* cover_grid.c - counts the pairs of a branch over a grid whose axes alone decide. In: a
 * pattern, a branch, the positions of a call. Out: exact counts, in time that grows with
 * the extents: along each axis a coordinate sees a range, whatever the others are, so
 * that pairs are the product of those of the axes. */
#include "cover_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/patch.h"

static bool is_decided_by_axes(const cover *c, const branch *b) {
  return c->pattern->grid.axes && c->first == 0 && !b->segment && b->dilation == 1 &&
         b->mask_count == b->reach.mask_count && !b->keeps[0].count &&
         !b->keeps[1].count;
}

static int64_t in_steps(int64_t bound, int64_t step) {
  return bound == DIL_ENDLESS ? bound : floor_div(bound, step);
}

static patch_axis axis_of(const cover *c, const branch *b, int32_t k) {
  const grid *g = &c->pattern->grid;
  const grid_reach *r = &b->reach;
  patch_axis a = {.extent = k ? g->extent[k] : c->M / dil_grid_plane(g),
                  .stride = 1,
                  .step = r->dilation[k],
                  .kernel = r->kernel[k],
                  .causal = r->causal[k]};
  a.residues = a.step < a.extent ? a.step : a.extent;
  a.left = in_steps(r->left[k], a.step);
  a.right = in_steps(r->right[k], a.step);
  return a;
}

/* Pairs of coordinates of an axis; and how many coordinates see some. */
static double axis_pairs(const patch_axis *a, double *seeing) {
  double pairs = 0;
  *seeing = 0;
  for (int64_t r = 0; r < a->residues; r++) {
    int64_t cells = patch_residue_cells(a, r);
    for (int64_t x = 0; x < cells; x++) {
      int64_t seen = patch_length(patch_keys(a, cells, (patch_span){x, x}));
      pairs += (double)seen;
      *seeing += seen > 0;
    }
  }
  return pairs;
}

bool cover_grid_count(const cover *c, int32_t index, double *pairs, double *seeing) {
  const branch *b = &c->pattern->branch[index];
  if (!is_decided_by_axes(c, b)) return false;
  *pairs = *seeing = 1;
  for (int32_t k = 0; k < c->pattern->grid.axes; k++) {
    double some;
    const patch_axis a = axis_of(c, b, k);
    *pairs *= axis_pairs(&a, &some);
    *seeing *= some;
  }
  return true;
}
