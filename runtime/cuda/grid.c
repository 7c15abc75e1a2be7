/* grid.c - launches of the Hopper kernel for grids.
 *
 * In: a checked call of a whole sequence over a grid. Out: one launch. Its parameter
 * holds tensor maps and axes. */
#include "grid.h"
#include "device.h"
#include "grid_call.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stddef.h>

_Static_assert(sizeof(grid_launch) == GRID_LAUNCH_BYTES &&
                   offsetof(grid_launch, of) == GRID_MAP_BYTES &&
                   offsetof(grid_launch, scale) ==
                       GRID_MAP_BYTES + DIL_PARAMS_BYTES + 8,
               "templates/hopper/grid.cu has another grid_launch");

static void grid_close(cuda_code *code) {
  grid_cache_close(code->memory);
  code->memory = NULL;
}

static dil_status grid_open(const dil_table *table, cuda_code *code) {
  (void)table;
  grid_cache *cache = NULL;
  dil_status status = grid_cache_open(&cache);
  code->memory = cache;
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

static int32_t grid_groups(const cuda_code *code) {
  return code->about.tile_rows / 64;
}

static dil_status grid_find_maps(const cuda_run *r, const cuda_code *code,
                                 const patch_plan *p, grid_launch *l) {
  const int32_t *knob = code->about.knob;
  const dil_call *c = r->call;
  const dil_table *t = r->table;
  const map_view view[] = {
      maps_view(&c->q, t->head_dim, 0), maps_view(&c->k, t->head_dim, 0),
      maps_view(&c->v, t->value_dim, 0), maps_view(&c->o, t->value_dim, 0)};
  const grid_box box[] = {
      {GRID_ROW, knob[GRID_KNOB_Y], knob[GRID_KNOB_Z]},
      {knob[GRID_KNOB_BOX_X], knob[GRID_KNOB_BOX_Y], 1},
      {knob[GRID_KNOB_BOX_X], knob[GRID_KNOB_BOX_Y], 1},
      {GRID_ROW, 1, 1}};
  return grid_cache_find(code->memory, r, p, view, box, l);
}

static dil_status grid_prepare(const cuda_run *r, int32_t pass,
                               const cuda_code *code, grid_launch *l) {
  patch_plan p;
  if (!grid_patches(r, pass, code, grid_groups(code), &p))
    return dil_fail(DIL_INTERNAL, "a kernel for grids without patches");
  dil_status status = grid_fill(r, pass, &p, r->table->heads, l);
  return status ? status : grid_find_maps(r, code, &p, l);
}

static dil_status grid_launch_pass(const cuda_run *r, int32_t pass,
                                   const cuda_code *code) {
  grid_launch l;
  dil_status status = grid_prepare(r, pass, code, &l);
  if (status) return status;
  int64_t blocks = minimum(l.of.items, r->device->facts.processors);
  return cuda_launch(r, code, 0, blocks, code->about.threads, code->about.shared,
                     &l);
}

/* ---- the family ---------------------------------------------------------- */

static const char *grid_refusal(const cuda_run *r, int32_t pass,
                                const cuda_code *code) {
  const dil_call *c = r->call;
  const char *refusal = grid_call_refusal(r, pass, code);
  if (refusal) return refusal;
  bool described = maps_can(&c->q) && maps_can(&c->k) && maps_can(&c->v) &&
                   maps_can(&c->o);
  return described ? NULL : "tensors that no tensor map describes";
}

/* Boxes along axis 0 that the warpgroups of a patch take, all together. */
static int64_t grid_taken(const patch_axis *a, int64_t cells, patch_span rows,
                          int64_t own, int64_t depth) {
  int64_t from = patch_keys(a, cells, rows).first, taken = 0;
  for (int64_t first = rows.first; first <= rows.last; first += own) {
    patch_span group = {first, minimum(first + own - 1, rows.last)};
    patch_span seen = patch_keys(a, cells, group);
    if (patch_length(seen))
      taken += (seen.last - from) / depth - (seen.first - from) / depth + 1;
  }
  return taken;
}

/* Blocks of keys that all patches visit, for one head; a warpgroup that takes a block
 * counts as its share of the tile's. */
static double grid_blocks(const patch_plan *p, const cuda_code *code) {
  const int32_t *knob = code->about.knob, groups = grid_groups(code);
  bool solid = p->axes == 3;
  double blocks = 0;
  for (int64_t i = 0; i < p->patches; i++) {
    patch_box box;
    if (!patch_at(p, i, &box)) continue;
    int64_t n = grid_taken(&p->axis[0], box.cells[0], box.query[0],
                           p->axis[0].size / groups,
                           solid ? 1 : knob[GRID_KNOB_BOX_Y]);
    if (solid)
      n *= (patch_length(box.key[1]) + knob[GRID_KNOB_BOX_Y] - 1) /
           knob[GRID_KNOB_BOX_Y];
    n *= (patch_length(box.key[p->axes - 1]) + knob[GRID_KNOB_BOX_X] - 1) /
         knob[GRID_KNOB_BOX_X];
    blocks += (double)n / groups;
  }
  return blocks;
}

static void grid_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                          dil_cuda_pass *out) {
  patch_plan p;
  double heads = (double)(r->B * r->table->heads);
  int32_t rows = code->about.tile_rows, keys = code->about.tile_keys;
  double all = (double)((r->N + rows - 1) / rows) *
               (double)((r->M + keys - 1) / keys);
  grid_patches(r, pass, code, grid_groups(code), &p);
  out->tile_rows = rows;
  out->tiles = p.patches * r->table->heads * r->B;
  out->parts = out->pack = 1;
  for (int32_t k = 0; k < p.axes; k++)
    out->patch[k] = (int32_t)p.axis[k].size;
  out->visited = out->masked = heads * grid_blocks(&p, code);
  out->skipped = fmax(heads * all - out->visited, 0);
}

static int64_t grid_workspace(const cuda_run *r, int32_t pass,
                              const cuda_code *code) {
  (void)r;
  (void)pass;
  (void)code;
  return 0;
}

const cuda_family cuda_hopper_grid = {.name = "hopper_grid",
                                      .entry = {"grid_forward"},
                                      .open = grid_open,
                                      .close = grid_close,
                                      .refusal = grid_refusal,
                                      .estimate = grid_estimate,
                                      .workspace = grid_workspace,
                                      .launch = grid_launch_pass};
