/* hopper_grid.c - the strategy for grids on Hopper (sm_90a): templates/hopper/grid.cu.
 *
 * In: a plan with one branch, over a grid, whose axes alone decide over pairs. Out: a
 * kernel that depends on head sizes, element type, the shape of patches and that of
 * boxes of keys. The launch brings the axes. Calls that it refuses, and plans whose
 * grid fills patches badly, are left to the other strategies. */
#include "hopper_config.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cuda/chips.h"
#include "runtime/rowset/patch.h"
#include "templates/hopper/grid_launch.h"
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

/* Each visit of a box costs so many keys more, and with several boxes along x each
 * of its rows does. */
enum { VISIT_COST = 24, ROW_COST = 6, TILE_COST = 96, KEYS_LEAST = 64, KEYS_MOST = 128 };

/* Three consumer warpgroups lack registers for more keys. */
static int32_t grid_keys_most(int32_t warpgroups) {
  return warpgroups == 3 ? 112 : KEYS_MOST;
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

/* The most keys along an axis that a patch sees, of all residues. */
static int64_t grid_longest(const patch_axis *a) {
  int64_t most = 1;
  for (int64_t r = 0; r < a->residues; r++) {
    int64_t cells = patch_residue_cells(a, r);
    for (int64_t n = 0; n * a->size < cells; n++) {
      patch_span rows = {n * a->size, minimum((n + 1) * a->size, cells) - 1};
      most = maximum(most, patch_length(patch_keys(a, cells, rows)));
    }
  }
  return most;
}

/* Boxes of `depth` cells along axis 0 that a warpgroup of `rows` cells takes, on
 * average over the patch in the middle of the grid. */
static double grid_taken(const patch_axis *a, int64_t rows, int64_t depth) {
  int64_t cells = patch_residue_cells(a, 0), groups = a->size / rows;
  int64_t first = a->count / 2 * a->size, taken = 0;
  patch_span tile = {first, minimum(first + a->size, cells) - 1};
  int64_t from = patch_keys(a, cells, tile).first;
  for (int64_t g = 0; g < groups; g++) {
    patch_span own = {first + g * rows, minimum(first + (g + 1) * rows, cells) - 1};
    if (own.last < own.first) continue;
    patch_span seen = patch_keys(a, cells, own);
    if (patch_length(seen))
      taken += (seen.last - from) / depth - (seen.first - from) / depth + 1;
  }
  return (double)taken / (double)groups;
}

/* Sets keys and cost of a shape whose other fields are set. */
static bool grid_rate(const patch_plan *p, int32_t warpgroups, grid_shape *s) {
  const patch_axis *x = &p->axis[p->axes - 1], *y = x - 1;
  s->keys = grid_round_up(maximum(s->box_x * s->box_y, KEYS_LEAST), 16);
  if (s->keys > grid_keys_most(warpgroups)) return false;
  double boxes = s->boxes_x;
  bool solid = p->axes == 3;
  boxes *= grid_taken(&p->axis[0], solid ? s->z : s->y, solid ? 1 : s->box_y);
  if (solid) boxes *= (double)((grid_longest(y) + s->box_y - 1) / s->box_y);
  double visit = s->keys + VISIT_COST;
  if (s->boxes_x > 1) visit += ROW_COST * s->box_y;
  s->keys_seen = boxes * s->keys;
  s->cost = (double)p->patches * warpgroups * (boxes * visit + TILE_COST);
  return true;
}

/* Tries all boxes for patches of one shape. */
static void grid_try_boxes(const patch_plan *p, int32_t warpgroups, grid_shape s,
                           grid_shape *best) {
  const patch_axis *x = &p->axis[p->axes - 1];
  int64_t wide = grid_longest(x), high = grid_longest(x - 1);
  for (s.boxes_x = 1; s.boxes_x <= wide; s.boxes_x++) {
    int64_t box_x = (wide + s.boxes_x - 1) / s.boxes_x;
    if (box_x > KEYS_MOST) continue;
    if (s.boxes_x > 1 && box_x < GRID_ROW) break;
    s.box_x = (int32_t)box_x;
    for (s.box_y = 1; s.box_y <= minimum(KEYS_MOST / box_x, high); s.box_y++)
      if (grid_rate(p, warpgroups, &s) && (best->cost <= 0 || s.cost < best->cost))
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

/* Finds the cheapest shape. False: the branch sees all of the grid. */
static bool grid_find_shape(const dil_table *t, int32_t pass, int32_t warpgroups,
                            grid_shape *best) {
  best->cost = 0;
  for (int32_t z = 1; z <= (t->grid.axes == 3 ? 4 : 1); z *= 2) {
    grid_shape s = {.z = z, .y = 4 / z};
    patch_plan p;
    if (!grid_patches(t, pass, warpgroups, &s, &p)) return false;
    grid_try_boxes(&p, warpgroups, s, best);
  }
  return best->cost > 0;
}

/* ---- which plans --------------------------------------------------------- */

/* Whether some other kernel is faster: the general one by patches of 64 cells, or
 * that of tiles of neighbouring positions. */
static bool grid_is_slow(const dil_table *t, int32_t pass, int32_t warpgroups,
                         const grid_shape *s) {
  const double general_slowness = 3, linear_slowness = 2;
  const patch_tile_shape shape = {
      .lanes = 64, .key_block = 64, .pack = 1, .whole = true};
  int32_t of = __builtin_ctzll(t->passes[pass].branches);
  int64_t cells = patch_cells(t);
  patch_plan own, other;
  if (!grid_patches(t, pass, warpgroups, s, &own)) return true;
  if (s->keys_seen > linear_slowness * patch_linear_keys(&own)) return true;
  if (!patch_plan_make(t, of, cells, &shape, &other)) return false;
  double general = (double)patch_plan_keys(&other) * (double)other.patches;
  return s->cost > general_slowness * general;
}

static const char *grid_refusal(const dil_table *t, int32_t pass) {
  const dil_pass *of = &t->passes[pass];
  const dil_branch *b = &t->branches[__builtin_ctzll(of->branches)];
  const grid_config *c = grid_config_of(t, 0);
  grid_shape s;
  if (!patch_may(t, of)) return "no branch that is alone over a grid";
  if (t->pass_count > 1) return "several passes over a grid";
  if (!c) return "heads of more than 128 elements";
  if (t->dtype == DIL_F32) return "f32";
  if (t->head_dim % 8 || t->value_dim % 8) return "a head_dim that is no multiple of 8";
  if (b->head_first > 0 || b->head_last + 1 < t->heads) return "heads without a branch over a grid";
  if (!b->reach.alone || t->scored) return "masks or scores over a grid";
  if (t->sinks) return "sinks over a grid";
  if (!grid_find_shape(t, pass, c->warpgroups, &s)) return "every row sees all of the grid";
  int64_t residues = 1;
  for (int32_t k = 0; k < t->grid.axes; k++) residues *= b->reach.dilation[k];
  if (residues > GRID_MAPS) return "more than 16 residues of a grid";
  if (grid_is_slow(t, pass, c->warpgroups, &s)) return "a grid that patches fill badly";
  return NULL;
}

bool hopper_grid_takes(const dil_table *t, int32_t pass) {
  return !grid_refusal(t, pass);
}

static bool grid_can(const gpu_request *r, char *reason, size_t size) {
  const char *fast = cuda_chip_fast(r->arch);
  const char *refusal = grid_refusal(&r->common.plan->table, 0);
  if (!fast || strcmp(fast, "hopper")) refusal = "wgmma needs sm_90a";
  else if (r->knobs) refusal = "a schedule's tiles are no patches of a grid";
  if (refusal) snprintf(reason, size, "%s", refusal);
  return !refusal;
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

static bool grid_write(const gpu_request *r, int32_t variant, int32_t fallback,
                       dil_cuda_code *code, source_text *text) {
  const dil_table *t = &r->common.plan->table;
  const grid_config *c = grid_config_of(t, fallback);
  grid_shape s;
  if (variant || !c || !grid_find_shape(t, 0, c->warpgroups, &s)) return false;
  grid_describe(r, c, &s, code);
  hopper_put_widths(t, text);
  put(text, "#define WARPGROUPS %d\n#define TILE_KEYS %d\n#define STAGES %d\n",
      c->warpgroups, s.keys, c->stages);
  put(text, "#define QUERY_STAGES %d\n#define PATCH_AXES %d\n", c->queries,
      t->grid.axes);
  put(text, "#define GROUP_Z %d\n#define GROUP_Y %d\n", s.z, s.y);
  put(text, "#define BOX_Y %d\n#define BOX_X %d\n#define BOXES_X %d\n", s.box_y,
      s.box_x, s.boxes_x);
  put_tables(text, r->common.plan);
  put(text, "#undef DROPOUT\n#define DROPOUT 0\n");
  put_template(text, "templates/hopper/grid.cu");
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
