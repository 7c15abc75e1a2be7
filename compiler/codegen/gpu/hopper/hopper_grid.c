/* hopper_grid.c - the strategies for grids on Hopper (sm_90a): templates/hopper/grid.cu,
 * and grid_backward.cu for gradients.
 *
 * In: a plan with one branch, over a grid, whose axes alone decide over pairs. Out: a
 * kernel that depends on head sizes, element type, the shape of patches and that of
 * boxes of keys, or of queries. The launch brings the axes. Calls that it refuses, and
 * plans whose grid fills patches badly, are left to the other strategies. */
#include "hopper_config.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/patch.h"
#include "runtime/rowset/walk.h"
#include "templates/hopper/grid_backward_launch.h"
#include <string.h>

/* A configuration for heads of at most `width`. */
typedef struct grid_config {
  int32_t width, warpgroups, stages, queries;
} grid_config;

static const grid_config configs[] = {
    {32, 3, 4, 2}, {64, 3, 4, 2}, {64, 2, 4, 2},
    {96, 2, 3, 2}, {128, 2, 2, 2},
};

/* The shape of a tile, in cells: a warpgroup along z and y, a box of keys along y
 * and x. */
typedef struct grid_shape {
  int32_t z, y, box_y, box_x, keys, boxes_x;
  double cost;  /* of all tiles of a head: keys, for each 64 rows */
  double keys_seen; /* by a warpgroup in the middle of the grid */
} grid_shape;

/* The tiles of a kernel: their warpgroups, the most cells of a box, the most boxes along
 * x, and the columns that rows of an axis see (patch_keys, or patch_queries). */
typedef struct grid_tiles {
  int32_t warpgroups, keys, boxes_x;
  patch_sees *sees;
} grid_tiles;

/* Each visit of a box costs so many keys more, and with several boxes along x each
 * of its rows does. */
enum { VISIT_COST = 24, ROW_COST = 6, TILE_COST = 96, KEYS_LEAST = 64, KEYS_MOST = 128 };

/* Three consumer warpgroups lack registers for more keys. */
static grid_tiles grid_forward_tiles(const grid_config *c) {
  return (grid_tiles){c->warpgroups, c->warpgroups == 3 ? 112 : KEYS_MOST, INT32_MAX,
                      patch_keys};
}

static int32_t grid_round_up(int64_t n, int32_t to) {
  return (int32_t)((n + to - 1) / to * to);
}

static int32_t grid_width(const dil_table *t) {
  return grid_round_up(maximum(t->head_dim, t->value_dim), 32);
}

static const grid_config *grid_config_of(const dil_table *t, int32_t fallback) {
  int32_t width = 0;
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    if (configs[i].width < grid_width(t) || (width && configs[i].width > width))
      continue;
    width = configs[i].width;
    if (fallback-- == 0) return &configs[i];
  }
  return NULL;
}

/* ---- the shape of tiles -------------------------------------------------- */

/* The most columns along an axis that a patch sees, of all residues. */
static int64_t grid_longest(const grid_tiles *tiles, const patch_axis *a) {
  int64_t most = 1;
  for (int64_t r = 0; r < a->residues; r++) {
    int64_t cells = patch_residue_cells(a, r);
    for (int64_t n = 0; n * a->size < cells; n++) {
      patch_span rows = {n * a->size, minimum((n + 1) * a->size, cells) - 1};
      most = maximum(most, patch_length(tiles->sees(a, cells, rows)));
    }
  }
  return most;
}

/* Boxes of `depth` cells along axis 0 that a warpgroup of `rows` cells takes, on
 * average over the patch in the middle of the grid. */
static double grid_taken(const grid_tiles *tiles, const patch_axis *a, int64_t rows,
                         int64_t depth) {
  int64_t cells = patch_residue_cells(a, 0), groups = a->size / rows;
  int64_t first = a->count / 2 * a->size, taken = 0;
  patch_span tile = {first, minimum(first + a->size, cells) - 1};
  int64_t from = tiles->sees(a, cells, tile).first;
  for (int64_t g = 0; g < groups; g++) {
    patch_span own = {first + g * rows, minimum(first + (g + 1) * rows, cells) - 1};
    if (own.last < own.first) continue;
    patch_span seen = tiles->sees(a, cells, own);
    if (patch_length(seen))
      taken += (seen.last - from) / depth - (seen.first - from) / depth + 1;
  }
  return (double)taken / (double)groups;
}

/* Sets keys and cost of a shape whose other fields are set. */
static bool grid_rate(const patch_plan *p, const grid_tiles *tiles, grid_shape *s) {
  const patch_axis *x = &p->axis[p->axes - 1], *y = x - 1;
  s->keys = grid_round_up(maximum(s->box_x * s->box_y, KEYS_LEAST), 16);
  if (s->keys > tiles->keys) return false;
  double boxes = s->boxes_x;
  bool solid = p->axes == 3;
  boxes *= grid_taken(tiles, &p->axis[0], solid ? s->z : s->y, solid ? 1 : s->box_y);
  if (solid) boxes *= (double)((grid_longest(tiles, y) + s->box_y - 1) / s->box_y);
  double visit = s->keys + VISIT_COST;
  if (s->boxes_x > 1) visit += ROW_COST * s->box_y;
  s->keys_seen = boxes * s->keys;
  s->cost = (double)p->patches * tiles->warpgroups * (boxes * visit + TILE_COST);
  return true;
}

/* Tries all boxes for patches of one shape. */
static void grid_try_boxes(const patch_plan *p, const grid_tiles *tiles, grid_shape s,
                           grid_shape *best) {
  const patch_axis *x = &p->axis[p->axes - 1];
  int64_t wide = grid_longest(tiles, x), high = grid_longest(tiles, x - 1);
  for (s.boxes_x = 1; s.boxes_x <= minimum(wide, tiles->boxes_x); s.boxes_x++) {
    int64_t box_x = (wide + s.boxes_x - 1) / s.boxes_x;
    if (box_x > KEYS_MOST) continue;
    if (s.boxes_x > 1 && box_x < GRID_ROW) break;
    s.box_x = (int32_t)box_x;
    for (s.box_y = 1; s.box_y <= minimum(KEYS_MOST / box_x, high); s.box_y++)
      if (grid_rate(p, tiles, &s) && (best->cost <= 0 || s.cost < best->cost))
        *best = s;
  }
}

static bool grid_patches(const dil_table *t, int32_t pass, int32_t warpgroups,
                         const grid_shape *s, patch_plan *out) {
  bool solid = t->grid.axes == 3;
  int32_t size[DIL_GRID_AXES] = {s->z * warpgroups, s->y, GRID_ROW};
  if (!solid) {
    size[0] = s->y * warpgroups;
    size[1] = GRID_ROW;
  }
  return patch_plan_of(t, __builtin_ctzll(t->passes[pass].branches), patch_cells(t),
                       size, out);
}

/* Finds the cheapest shape. False: the branch sees all of the grid, or more along x than
 * boxes hold. */
static bool grid_find_shape(const dil_table *t, int32_t pass, const grid_tiles *tiles,
                            grid_shape *best) {
  best->cost = 0;
  for (int32_t z = 1; z <= (t->grid.axes == 3 ? 4 : 1); z *= 2) {
    grid_shape s = {.z = z, .y = 4 / z};
    patch_plan p;
    if (!grid_patches(t, pass, tiles->warpgroups, &s, &p)) return false;
    grid_try_boxes(&p, tiles, s, best);
  }
  return best->cost > 0;
}

/* ---- which plans --------------------------------------------------------- */

/* Whether patches of 64 cells of the general kernels are faster, which take `slowness`
 * times as long for a pair that they compute. */
static bool grid_fills_badly(const dil_table *t, int32_t pass, const grid_shape *s,
                             double slowness) {
  const patch_tile_shape shape = {
      .lanes = 64, .key_block = 64, .pack = 1, .whole = true};
  patch_plan other;
  if (!patch_plan_make(t, __builtin_ctzll(t->passes[pass].branches), patch_cells(t),
                       &shape, &other))
    return false;
  return s->cost > slowness * (double)patch_plan_keys(&other) * (double)other.patches;
}

/* Whether tiles of neighbouring positions are faster. */
static bool grid_sees_much(const dil_table *t, int32_t pass, int32_t warpgroups,
                           const grid_shape *s) {
  const double slowness = 2;
  patch_plan own;
  return !grid_patches(t, pass, warpgroups, s, &own) ||
         s->keys_seen > slowness * patch_linear_keys(&own);
}

/* Why neither direction takes a plan; NULL: they may. */
static const char *grid_refusal(const dil_table *t, int32_t pass) {
  const dil_pass *of = &t->passes[pass];
  const dil_branch *b = &t->branches[__builtin_ctzll(of->branches)];
  if (!patch_may(t, of)) return "no branch that is alone over a grid";
  if (t->pass_count > 1) return "several passes over a grid";
  if (!grid_config_of(t, 0)) return "heads of more than 128 elements";
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim % 8 || t->value_dim % 8) return "a head_dim that is no multiple of 8";
  if (b->head_first > 0 || b->head_last + 1 < t->heads) return "heads without a branch over a grid";
  if (!b->reach.alone || t->scored) return "masks or scores over a grid";
  int64_t residues = 1;
  for (int32_t k = 0; k < t->grid.axes; k++) residues *= b->reach.dilation[k];
  if (residues > GRID_MAPS) return "more than 16 residues of a grid";
  return NULL;
}

static const char *grid_forward_refusal(const dil_table *t, int32_t pass) {
  grid_shape s;
  const char *refusal = grid_refusal(t, pass);
  if (refusal) return refusal;
  const grid_tiles tiles = grid_forward_tiles(grid_config_of(t, 0));
  const double slowness = 3; /* of the general kernels */
  if (!grid_find_shape(t, pass, &tiles, &s)) return "every row sees all of the grid";
  if (grid_sees_much(t, pass, tiles.warpgroups, &s) ||
      grid_fills_badly(t, pass, &s, slowness))
    return "a grid that patches fill badly";
  return NULL;
}

bool hopper_grid_takes(const dil_table *t, int32_t pass) {
  return !grid_forward_refusal(t, pass);
}

static bool grid_says(const gpu_request *r, const char *refusal, char *reason,
                      size_t size) {
  const char *fast = cuda_chip_fast(r->arch);
  if (!fast || strcmp(fast, "hopper")) refusal = "wgmma needs sm_90a";
  else if (r->knobs) refusal = "a schedule's tiles are no patches of a grid";
  if (refusal) snprintf(reason, size, "%s", refusal);
  return !refusal;
}

static bool grid_can(const gpu_request *r, char *reason, size_t size) {
  return grid_says(r, grid_forward_refusal(&r->common.plan->table, 0), reason, size);
}

/* ---- writing ------------------------------------------------------------- */

/* The shared memory of a thread block, as templates/hopper/grid.cu lays it out:
 * barriers and messages have less than the last number. */
static int32_t grid_bytes(const dil_table *t, const grid_config *c,
                          const grid_shape *s) {
  int32_t q = grid_round_up(t->head_dim, 32) * 2,
          v = grid_round_up(t->value_dim, 32) * 2;
  return c->warpgroups * 64 * (c->queries * q + v) + c->stages * s->keys * (q + v) +
         512;
}

static void grid_describe(const gpu_request *r, const grid_config *c,
                          const grid_shape *s, dil_cuda_code *code) {
  const dil_table *t = &r->common.plan->table;
  *code = (dil_cuda_code){.family = "hopper_grid",
                          .arch = r->arch,
                          .passes = 1,
                          .threads = 128 * (c->warpgroups + 1),
                          .shared = grid_bytes(t, c, s),
                          .tile_rows = 64 * c->warpgroups,
                          .tile_keys = s->keys,
                          .knob = {[GRID_KNOB_Z] = s->z,
                                   [GRID_KNOB_Y] = s->y,
                                   [GRID_KNOB_BOX_Y] = s->box_y,
                                   [GRID_KNOB_BOX_X] = s->box_x}};
  snprintf(code->variant, sizeof code->variant, "hopper grid %s %dx%d d%d",
           dil_dtype_name(t->dtype), code->tile_rows, s->keys, t->head_dim);
}

/* Kernels of both directions ask for these macros before their template. */
static void grid_put(const gpu_request *r, const grid_shape *s, const char *template,
                     source_text *text) {
  const dil_table *t = &r->common.plan->table;
  hopper_put_widths(t, text);
  put(text, "#define PATCH_AXES %d\n", t->grid.axes);
  put(text, "#define GROUP_Z %d\n#define GROUP_Y %d\n", s->z, s->y);
  put(text, "#define TILE_KEYS %d\n", s->keys);
  put(text, "#define BOX_Y %d\n#define BOX_X %d\n#define BOXES_X %d\n", s->box_y,
      s->box_x, s->boxes_x);
  put_tables(text, r->common.plan);
  if (t->sinks) put_expressions(text, r->common.plan);
  put(text, "#undef DROPOUT\n#define DROPOUT 0\n");
  put_template(text, template);
}

static bool grid_write(const gpu_request *r, int32_t variant, int32_t fallback,
                       dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const grid_config *c = grid_config_of(t, fallback);
  grid_shape s;
  if (variant || !c) return false;
  const grid_tiles tiles = grid_forward_tiles(c);
  if (!grid_find_shape(t, 0, &tiles, &s)) return false;
  grid_describe(r, c, &s, code);
  put(text, "#define WARPGROUPS %d\n#define STAGES %d\n#define QUERY_STAGES %d\n",
      c->warpgroups, c->stages, c->queries);
  grid_put(r, &s, "templates/hopper/grid.cu", text);
  return true;
}

/* There is nothing to tune. */
static bool grid_propose(int32_t index, knobs *k) {
  (void)index;
  (void)k;
  return false;
}

const gpu_strategy strategy_hopper_grid = {"hopper grid", 0, grid_can,
                                           grid_write, grid_propose};

/* ---- gradients ----------------------------------------------------------- */

/* A configuration of a kernel of gradients: what it makes; warpgroups, each with tiles for
 * itself; stages of boxes, and what these hold at most. */
typedef struct grid_gradient {
  int32_t makes;
  const char *name;
  int32_t warpgroups, stages, keys;
} grid_gradient;

enum { GRID_GRADIENTS = 2, GRID_GRADIENT_FORMS = 2 };

/* Configuration `fallback` of kernel number `variant`. ptxas may spill registers in the
 * first. */
static const grid_gradient *grid_gradient_of(const dil_table *t, int32_t variant,
                                             int32_t fallback) {
  enum { NARROW = 64, DKV = GRADIENT_K | GRADIENT_V };
  static const grid_gradient all[2][GRID_GRADIENTS][GRID_GRADIENT_FORMS] = {
      {{{GRADIENT_Q, "dq", 2, 3, 112}, {GRADIENT_Q, "dq", 3, 3, 64}},
       {{DKV, "dkv", 2, 2, 112}, {DKV, "dkv", 2, 4, 64}}},
      {{{GRADIENT_Q, "dq", 2, 2, 64}}, {{DKV, "dkv", 2, 2, 64}}}};
  if (variant >= GRID_GRADIENTS || fallback >= GRID_GRADIENT_FORMS) return NULL;
  const grid_gradient *g = &all[grid_width(t) > NARROW][variant][fallback];
  return g->makes ? g : NULL;
}

static bool grid_gradient_shape(const dil_table *t, const grid_gradient *g,
                                grid_shape *s) {
  enum { BOXES = 4 };
  const grid_tiles tiles = {1, g->keys, BOXES,
                            g->makes == GRADIENT_Q ? patch_keys : patch_queries};
  return grid_find_shape(t, 0, &tiles, s);
}

/* As templates/hopper/grid_backward.cu lays it out: a patch, boxes and their facts, what
 * consumers read of two patches; messages and barriers have less than the last number. */
static int32_t grid_gradient_bytes(const dil_table *t, const grid_gradient *g,
                                   const grid_shape *s) {
  enum { PATCH = 64, REST = 768 };
  int32_t row = (grid_round_up(t->head_dim, 32) + grid_round_up(t->value_dim, 32)) * 2;
  int32_t facts = g->makes == GRADIENT_Q ? 0 : s->keys * 8 + 16;
  int32_t group = PATCH * row + g->stages * (s->keys * row + facts) +
                  2 * GRID_PATCH_BYTES(s->boxes_x) + REST;
  return g->warpgroups * grid_round_up(group, 1024);
}

static const char *grid_gradient_refuses(const dil_table *t) {
  const double slowness = 6; /* of the general kernels */
  const char *refusal = grid_refusal(t, 0);
  if (!refusal && t->dropout > 0) refusal = "dropout";
  if (!refusal && backward_asks_states(t)) refusal = "a softmax for each branch";
  for (int32_t i = 0; i < GRID_GRADIENTS && !refusal; i++) {
    grid_shape s;
    if (!grid_gradient_shape(t, grid_gradient_of(t, i, 0), &s))
      refusal = "rows that see too much of the grid along its last axis";
    else if (grid_fills_badly(t, 0, &s, slowness)) refusal = "a grid that patches fill badly";
  }
  return refusal;
}

static bool grid_gradient_can(const gpu_request *r, char *reason, size_t size) {
  return grid_says(r, grid_gradient_refuses(&r->common.plan->table), reason, size);
}

static bool grid_gradient_write(const gpu_request *r, int32_t variant, int32_t fallback,
                                dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const launch_layout layout = layout_of(t, false);
  grid_shape s;
  const grid_gradient *g = grid_gradient_of(t, variant, fallback);
  if (!g || !grid_gradient_shape(t, g, &s)) return false;
  *code = (dil_cuda_code){.family = "grid gradient",
                          .arch = r->arch,
                          .threads = 128 * (g->warpgroups + 1),
                          .shared = grid_gradient_bytes(t, g, &s),
                          .tile_rows = 64,
                          .tile_keys = s.keys,
                          .knob = {[GRADIENT_KNOB_MAKES] = g->makes,
                                   [GRID_KNOB_Z] = s.z,
                                   [GRID_KNOB_Y] = s.y,
                                   [GRID_KNOB_BOX_Y] = s.box_y,
                                   [GRID_KNOB_BOX_X] = s.box_x}};
  snprintf(code->variant, sizeof code->variant, "hopper grid gradient %s %s %dx%dx%d d%d",
           g->name, dil_dtype_name(t->dtype), g->warpgroups, code->tile_rows, s.keys,
           t->head_dim);
  put(text, "#define MAKES %d\n#define CONSUMERS %d\n#define STAGES %d\n", g->makes,
      g->warpgroups, g->stages);
  put(text, "#define SHARED_LIMIT %d\n", code->shared);
  hopper_put_layout(&layout, text);
  grid_put(r, &s, "templates/hopper/grid_backward.cu", text);
  return true;
}

const gpu_strategy strategy_grid_gradient = {"grid gradient", 0, grid_gradient_can,
                                             grid_gradient_write, grid_propose};
