/* patch.c - patches of a grid's queries: their shapes, boxes and slabs; see
 * patch.h.
 *
 * In: what a branch says of the axes, the extents of a call. Out: a shape for
 * all tiles and slabs, and by number each patch with its box. */
#include "patch.h"
#include "runtime/base/arithmetic.h"

/* The costs of a range of keys besides its keys, and of packing a row, in
 * keys that a tile visits. */
enum { RANGE_COST = 3, ROW_COST = 1 };

/* ---- axes ---------------------------------------------------------------- */

int64_t patch_residue_cells(const patch_axis *a, int64_t residue) {
  return (a->extent - residue + a->step - 1) / a->step;
}

static int64_t bound_in_cells(int64_t bound, int64_t step) {
  return bound == DIL_ENDLESS ? bound : floor_div(bound, step);
}

static void open_axis(const dil_table *table, const dil_reach *r, int32_t axis,
                      int64_t cells, patch_axis *a) {
  const dil_grid *g = &table->grid;
  a->extent = axis ? g->extent[axis] : cells / dil_grid_plane(g);
  a->stride = 1;
  for (int32_t k = axis + 1; k < g->axes; k++) a->stride *= g->extent[k];
  a->step = r->dilation[axis];
  a->residues = minimum(a->step, a->extent);
  a->left = bound_in_cells(r->left[axis], a->step);
  a->right = bound_in_cells(r->right[axis], a->step);
  a->kernel = r->kernel[axis];
  a->causal = r->causal[axis];
}

/* Cells that windows and causality reach before and behind a query, and under
 * `causal` its neighbourhood. */
typedef struct axis_reach {
  int64_t before, behind;
} axis_reach;

static axis_reach reach_of(const patch_axis *a) {
  if (!a->causal) return (axis_reach){a->left, a->right};
  return (axis_reach){minimum(a->left, a->kernel - 1), minimum(a->right, 0)};
}

static patch_span span_around(int64_t cells, int64_t at, axis_reach r) {
  patch_span s = {0, cells - 1};
  if (r.before < cells) s.first = maximum(s.first, at - r.before);
  if (r.behind < cells) s.last = minimum(s.last, at + r.behind);
  return s;
}

/* The keys of one query. Both ends rise with the query, by one cell or none. */
static patch_span keys_of(const patch_axis *a, int64_t cells, int64_t query) {
  patch_span s = span_around(cells, query, reach_of(a));
  if (a->causal || a->kernel >= cells) return s;
  int64_t first = query - a->kernel / 2;
  first = maximum(minimum(first, cells - a->kernel), 0);
  s.first = maximum(s.first, first);
  s.last = minimum(s.last, first + a->kernel - 1);
  return s;
}

patch_span patch_keys(const patch_axis *a, int64_t cells, patch_span query) {
  return (patch_span){keys_of(a, cells, query.first).first,
                      keys_of(a, cells, query.last).last};
}

/* The queries that see a key. Both ends rise with the key, too. */
static patch_span queries_of(const patch_axis *a, int64_t cells, int64_t key) {
  axis_reach r = reach_of(a);
  patch_span s = span_around(cells, key, (axis_reach){r.behind, r.before});
  if (a->causal || a->kernel >= cells) return s;
  int64_t before = a->kernel / 2, after = a->kernel - 1 - before;
  if (key >= a->kernel) s.first = maximum(s.first, key - after);
  if (key < cells - a->kernel) s.last = minimum(s.last, key + before);
  return s;
}

patch_span patch_queries(const patch_axis *a, int64_t cells, patch_span key) {
  return (patch_span){queries_of(a, cells, key.first).first,
                      queries_of(a, cells, key.last).last};
}

static bool is_bounded(const patch_axis *a) {
  int64_t cells = patch_residue_cells(a, 0);
  return a->causal || a->kernel < cells || a->left < cells - 1 ||
         a->right < cells - 1;
}

/* ---- one patch ----------------------------------------------------------- */

/* Patch n along the axis, for a residue. False: there is none. */
static bool place_axis(const patch_axis *a, int32_t axis, int64_t residue,
                       int64_t n, patch_box *box) {
  int64_t cells = patch_residue_cells(a, residue);
  patch_span query = {n * a->size, minimum((n + 1) * a->size, cells) - 1};
  box->residue[axis] = residue;
  box->cells[axis] = cells;
  box->query[axis] = query;
  if (query.last < query.first) return false;
  patch_span key = patch_keys(a, cells, query);
  box->key[axis] = key;
  box->slab[axis] = (patch_span){key.first / a->slab, key.last / a->slab};
  if (key.last < key.first) box->slab[axis] = (patch_span){0, -1};
  return true;
}

bool patch_at(const patch_plan *p, int64_t index, patch_box *out) {
  int64_t a_residue = p->patches / p->residues;
  int64_t residue = index / a_residue, at = index % a_residue;
  bool some = true;
  *out = (patch_box){.number = residue};
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    some &= place_axis(a, k, residue % a->residues, at % a->count, out);
    residue /= a->residues;
    at /= a->count;
  }
  return some;
}

int64_t patch_position(const patch_plan *p, const patch_box *box,
                       const int64_t *cell) {
  int64_t t = 0;
  for (int32_t k = 0; k < p->axes; k++)
    t += (cell[k] * p->axis[k].step + box->residue[k]) * p->axis[k].stride;
  return t;
}

/* ---- slabs --------------------------------------------------------------- */

int64_t patch_ranges(const patch_plan *p, const patch_box *box) {
  int64_t ranges = patch_length(box->key[0]) > 0;
  for (int32_t k = 1; k < p->axes; k++) ranges *= patch_length(box->slab[k]);
  return ranges;
}

/* Slab n of a box along an inner axis. */
static int64_t slab_of(const patch_plan *p, const patch_box *box, int64_t n,
                       int32_t axis) {
  for (int32_t k = p->axes - 1; k > axis; k--) n /= patch_length(box->slab[k]);
  return box->slab[axis].first + n % patch_length(box->slab[axis]);
}

patch_span patch_range(const patch_plan *p, const patch_box *box, int64_t n) {
  int64_t slab = 0;
  for (int32_t k = 1; k < p->axes; k++)
    slab = slab * p->axis[k].slabs + slab_of(p, box, n, k);
  int64_t base = box->number * (p->rows / p->residues) + slab * p->depth;
  return (patch_span){base + box->key[0].first * p->run,
                      base + (box->key[0].last + 1) * p->run - 1};
}

int64_t patch_inner_cell(const patch_plan *p, const patch_box *box, int64_t n,
                         int64_t i, int32_t axis) {
  for (int32_t k = p->axes - 1; k > axis; k--) i /= p->axis[k].slab;
  const patch_axis *a = &p->axis[axis];
  return slab_of(p, box, n, axis) * a->slab + i % a->slab;
}

int64_t patch_row_position(const patch_plan *p, int64_t row) {
  int64_t a_residue = p->rows / p->residues, number = row / a_residue;
  int64_t slab = row % a_residue / p->depth;
  int64_t inside = row % a_residue % p->depth, i = inside % p->run;
  int64_t cell[DIL_GRID_AXES] = {inside / p->run};
  for (int32_t k = p->axes - 1; k > 0; k--) {
    const patch_axis *a = &p->axis[k];
    cell[k] = slab % a->slabs * a->slab + i % a->slab;
    slab /= a->slabs;
    i /= a->slab;
  }
  patch_box box;
  for (int32_t k = 0; k < p->axes; k++) {
    box.residue[k] = number % p->axis[k].residues;
    number /= p->axis[k].residues;
    if (cell[k] >= patch_residue_cells(&p->axis[k], box.residue[k])) return -1;
  }
  return patch_position(p, &box, cell);
}

/* ---- shapes -------------------------------------------------------------- */

static void size_axis(patch_axis *a, bool first, int64_t size, int64_t slab) {
  int64_t cells = patch_residue_cells(a, 0);
  a->size = size;
  a->count = (cells + size - 1) / size;
  a->slab = slab;
  a->slabs = first ? cells : (cells + slab - 1) / slab;
}

static void finish_plan(patch_plan *p) {
  p->residues = p->patches = p->run = p->ranges = 1;
  int64_t slabs = 1;
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    int64_t most = 0;
    patch_box box;
    p->residues *= a->residues;
    p->patches *= a->residues * a->count;
    if (k) slabs *= a->slabs;
    if (k) p->run *= a->slab;
    for (int64_t n = 0; k && n < a->count; n++)
      if (place_axis(a, k, 0, n, &box))
        most = maximum(most, patch_length(box.slab[k]));
    if (k) p->ranges *= most + 1; /* another residue may be cut otherwise */
  }
  p->depth = p->axis[0].slabs * p->run;
  p->rows = p->residues * slabs * p->depth;
}

/* The mean over some patches of what they meet along an axis: cells of axis 0,
 * slabs of the others. */
static double mean_length(const patch_axis *a, int32_t axis) {
  enum { SAMPLES = 8 };
  int64_t count = minimum(a->count, SAMPLES), from = (a->count - count) / 2;
  double sum = 0;
  for (int64_t n = from; n < from + count; n++) {
    patch_box box;
    if (place_axis(a, axis, 0, n, &box))
      sum += (double)patch_length(box.slab[axis]);
  }
  return sum / (double)count;
}

/* A search for the cheapest sizes: powers of two, whose product over the axes is
 * the lanes of a tile, or the power of two below these. */
enum { POWERS = 11 }; /* up to 1024 lanes */
typedef struct patch_search {
  const patch_tile_shape *shape;
  double length[DIL_GRID_AXES][POWERS][POWERS]; /* means, by size and slab */
  double mean[DIL_GRID_AXES];                   /* of the sizes tried now */
  patch_plan now, best;
  double least; /* < 0: none so far */
} patch_search;

/* The cost of a query, in keys that a tile visits. */
static double cost_of(const patch_search *s) {
  double ranges = 1, lanes = 1, filled = 1;
  int64_t run = 1;
  for (int32_t k = 0; k < s->now.axes; k++) {
    const patch_axis *a = &s->now.axis[k];
    double cells = (double)patch_residue_cells(a, 0);
    lanes *= (double)(a->count * a->size) / cells;
    if (!k) continue;
    ranges *= s->mean[k];
    filled *= (double)(a->slabs * a->slab) / cells;
    run *= a->slab;
  }
  int64_t keys = (int64_t)(s->mean[0] * (double)run + 0.5);
  if (s->shape->whole) keys = (int64_t)(s->mean[0] * ranges + 0.5);
  int64_t blocks = round_up(keys, s->shape->key_block);
  if (s->shape->whole) return lanes * (double)(keys + blocks);
  return lanes * ranges * ((double)(keys + blocks) / 2 + RANGE_COST) +
         ROW_COST * s->shape->lanes * filled;
}

/* The sizes of slabs to try: powers of two up to this one. */
static int32_t slab_powers(const patch_tile_shape *shape) {
  return shape->whole ? 0 : __builtin_ctzll(shape->lanes);
}

static void try_sizes(patch_search *s, int32_t k, int64_t lanes) {
  patch_axis *a = &s->now.axis[k];
  bool last = k + 1 == s->now.axes;
  int32_t most = k ? slab_powers(s->shape) : 0;
  for (int32_t size = 0; 1 << size <= lanes; size++) {
    if (last && 1 << size < lanes) continue;
    for (int32_t slab = last && s->shape->pack > 1; slab <= most; slab++) {
      size_axis(a, !k, 1 << size, 1 << slab);
      s->mean[k] = s->length[k][size][slab];
      if (!last) {
        try_sizes(s, k + 1, lanes >> size);
        continue;
      }
      double cost = cost_of(s);
      if (s->least >= 0 && cost >= s->least) continue;
      s->least = cost;
      s->best = s->now;
    }
  }
}

/* All means that the search asks for. */
static void measure_axis(patch_search *s, int32_t k) {
  patch_axis a = s->now.axis[k];
  int32_t most = __builtin_ctzll(s->shape->lanes);
  for (int32_t size = 0; size <= most; size++)
    for (int32_t slab = 0; slab <= (k ? slab_powers(s->shape) : 0); slab++) {
      size_axis(&a, !k, 1 << size, 1 << slab);
      s->length[k][size][slab] = mean_length(&a, k);
    }
}

bool patch_may(const dil_table *table, const dil_pass *pass) {
  const dil_branch *b = &table->branches[__builtin_ctzll(pass->branches)];
  bool alone = !(pass->branches & (pass->branches - 1));
  return table->grid.axes && alone && !b->segment && b->dilation == 1;
}

bool patch_plan_make(const dil_table *table, int32_t branch, int64_t cells,
                     const patch_tile_shape *shape, patch_plan *out) {
  const dil_branch *b = &table->branches[branch];
  patch_tile_shape even = *shape;
  patch_search s = {.shape = &even, .least = -1};
  bool bounded = false;
  s.now = (patch_plan){.axes = table->grid.axes, .lanes = shape->lanes};
  if (!s.now.axes || b->segment || b->dilation > 1 || cells < 1) return false;
  even.lanes = 1;
  while (2 * even.lanes <= shape->lanes) even.lanes *= 2;
  if (even.lanes >> POWERS) return false;
  for (int32_t k = 0; k < s.now.axes; k++) {
    open_axis(table, &b->reach, k, cells, &s.now.axis[k]);
    bounded |= is_bounded(&s.now.axis[k]);
    measure_axis(&s, k);
  }
  if (!bounded) return false;
  try_sizes(&s, 0, even.lanes);
  if (s.least < 0) return false;
  *out = s.best;
  finish_plan(out);
  return out->rows <= INT32_MAX;
}

bool patch_plan_of(const dil_table *table, int32_t branch, int64_t cells,
                   const int32_t size[DIL_GRID_AXES], patch_plan *out) {
  const dil_branch *b = &table->branches[branch];
  bool bounded = false;
  *out = (patch_plan){.axes = table->grid.axes, .lanes = 1};
  if (!out->axes || b->segment || b->dilation > 1 || cells < 1) return false;
  for (int32_t k = 0; k < out->axes; k++) {
    open_axis(table, &b->reach, k, cells, &out->axis[k]);
    bounded |= is_bounded(&out->axis[k]);
    size_axis(&out->axis[k], !k, size[k], 1);
    out->lanes *= size[k];
  }
  finish_plan(out);
  return bounded && out->patches <= INT32_MAX;
}

double patch_plan_visits(const patch_plan *p) {
  double keys = 0;
  for (int64_t i = 0; i < p->patches; i++) {
    patch_box box;
    if (!patch_at(p, i, &box)) continue;
    keys += (double)(patch_ranges(p, &box) * patch_length(box.key[0]) * p->run);
  }
  return keys * p->lanes;
}

double patch_plan_blocks(const patch_plan *p, int32_t key_block) {
  double blocks = 0;
  for (int64_t i = 0; i < p->patches; i++) {
    patch_box box;
    int64_t keys = 1;
    if (!patch_at(p, i, &box)) continue;
    for (int32_t k = 0; k < p->axes; k++) keys *= patch_length(box.key[k]);
    blocks += (double)((keys + key_block - 1) / key_block);
  }
  return blocks;
}

double patch_plan_boxes(const patch_plan *p, const int32_t box[DIL_GRID_AXES],
                        patch_sees *sees) {
  double all = 0;
  for (int64_t i = 0; i < p->patches; i++) {
    patch_box x;
    double boxes = 1;
    if (!patch_at(p, i, &x)) continue;
    for (int32_t k = 0; k < p->axes; k++) {
      int64_t length = patch_length(sees(&p->axis[k], x.cells[k], x.query[k]));
      boxes *= (double)((length + box[k] - 1) / box[k]);
    }
    all += boxes;
  }
  return all;
}

int64_t patch_plan_keys(const patch_plan *p) {
  int64_t keys = 1;
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    int64_t cells = patch_residue_cells(a, 0), first = a->count / 2 * a->size;
    patch_span query = {first, minimum(first + a->size, cells) - 1};
    keys *= patch_length(patch_keys(a, cells, query));
  }
  return keys;
}

/* ---- tiles that are no patches ------------------------------------------- */

enum { LINEAR_ROWS = 128, LINEAR_KEYS = 128, LINEAR_CELLS = 32768 };

double patch_linear_keys(const patch_plan *p) {
  double keys = 1;
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    int64_t cells = patch_residue_cells(a, 0), middle = cells / 2;
    patch_span seen = patch_keys(a, cells, (patch_span){middle, middle});
    double span = 1 + (double)(LINEAR_ROWS - 1) / (double)a->stride;
    double width = (double)((patch_length(seen) - 1) * a->step) + span;
    if (k + 1 == p->axes) width += LINEAR_KEYS - 1;
    keys *= width < (double)a->extent ? width : (double)a->extent;
  }
  return keys;
}

int64_t patch_cells(const dil_table *table) {
  int64_t plane = dil_grid_plane(&table->grid);
  int64_t cells = dil_grid_cells(&table->grid);
  return cells ? cells : maximum(LINEAR_CELLS / maximum(plane, 1), 1) * plane;
}

bool patch_saves(const dil_table *table, const dil_pass *pass) {
  const double gain = 1.5;
  const patch_tile_shape shape = {
      .lanes = 64, .key_block = 64, .pack = 1, .whole = true};
  int64_t cells = patch_cells(table);
  patch_plan p;
  if (!patch_may(table, pass)) return false;
  if (!patch_plan_make(table, __builtin_ctzll(pass->branches), cells, &shape, &p))
    return false;
  return (double)patch_plan_keys(&p) * gain < patch_linear_keys(&p);
}
