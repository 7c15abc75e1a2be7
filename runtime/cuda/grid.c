/* grid.c - launches of the Hopper kernel for grids.
 *
 * In: a checked call of a whole sequence over a grid. Out: one launch. Its parameter
 * holds tensor maps whose axes are those of the grid, for each residue of the
 * dilations, and the axes. The maps of the last calls are kept. */
#include "grid.h"
#include "device.h"
#include "general.h"
#include "patches.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/maps.h"
#include "templates/hopper/grid_launch.h"
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(grid_launch) == GRID_LAUNCH_BYTES &&
                   offsetof(grid_launch, of) == GRID_MAP_BYTES &&
                   offsetof(grid_launch, scale) ==
                       GRID_MAP_BYTES + DIL_PARAMS_BYTES + 8,
               "templates/hopper/grid.cu has another grid_launch");

/* ---- the cache between launches ------------------------------------------ */

enum { TENSORS = 4, KEPT = 16 };

/* The tensors of a call, by which maps are found. Views are compared byte by byte. */
typedef struct grid_views {
  map_view tensor[TENSORS];
} grid_views;

typedef struct grid_memory {
  pthread_mutex_t lock;
  int32_t count, next;     /* next: index of the entry that is replaced next */
  grid_views views[KEPT];
  hopper_map (*maps)[TENSORS][GRID_MAPS]; /* [KEPT] */
} grid_memory;

static void grid_close(cuda_code *code) {
  grid_memory *m = code->memory;
  free(m->maps);
  pthread_mutex_destroy(&m->lock);
  free(m);
  code->memory = NULL;
}

static dil_status grid_open(const dil_table *table, cuda_code *code) {
  (void)table;
  grid_memory *m = calloc(1, sizeof *m);
  if (m) m->maps = aligned_alloc(sizeof(hopper_map), KEPT * sizeof *m->maps);
  if (!m || !m->maps) {
    free(m);
    return dil_fail(DIL_MEMORY, "no memory for a kernel's launches");
  }
  pthread_mutex_init(&m->lock, NULL);
  code->memory = m;
  return DIL_OK;
}

/* ---- patches ------------------------------------------------------------- */

static int32_t grid_groups(const cuda_code *code) {
  return code->about.tile_rows / 64;
}

static bool grid_patches(const cuda_run *r, int32_t pass, const cuda_code *code,
                         patch_plan *out) {
  const int32_t *knob = code->about.knob, groups = grid_groups(code);
  int32_t z = knob[GRID_KNOB_Z], y = knob[GRID_KNOB_Y];
  bool solid = r->table->grid.axes == 3;
  const int32_t size[DIL_GRID_AXES] = {solid ? z * groups : y * groups,
                                       solid ? y : GRID_ROW, GRID_ROW};
  return patch_plan_of(r->table, __builtin_ctzll(r->table->passes[pass].branches),
                       r->M, size, out);
}

/* Maps of a residue: with three axes the batch row has no room in a map. */
static int64_t grid_batch_maps(const cuda_run *r) {
  return r->table->grid.axes == 3 ? r->B : 1;
}

/* ---- tensor maps --------------------------------------------------------- */

/* Describes the cells of a residue of a tensor, and with three axes those of one
 * batch row. `number`: of the residue, axis 0 fastest. `box`: cells of a copy along x,
 * y and z. */
static map_shape grid_shape_of(const map_view *v, const patch_plan *p,
                               const int32_t box[DIL_GRID_AXES], int64_t number,
                               int64_t batch) {
  int64_t row = (int64_t)maps_bytes(v, 1), head = p->axes + 1;
  map_shape s = maps_shape(v);
  for (int32_t k = 0; k < p->axes; k++) {
    const patch_axis *a = &p->axis[k];
    int32_t axis = p->axes - k; /* of the map */
    int64_t residue = number % a->residues;
    number /= a->residues;
    s.data += residue * a->stride * row;
    s.size[axis] = (uint64_t)patch_residue_cells(a, residue);
    s.step[axis] = (uint64_t)(a->stride * a->step * row);
    s.box[axis] = (unsigned)box[axis - 1];
  }
  s.size[head] = (uint64_t)v->heads;
  s.step[head] = maps_bytes(v, 2);
  if (p->axes == 3) {
    s.data += batch * (int64_t)maps_bytes(v, 0);
    return s;
  }
  s.size[4] = (uint64_t)v->batches;
  s.step[4] = maps_bytes(v, 0);
  return s;
}

static dil_status grid_make_maps(const cuda_run *r, const cuda_code *code,
                                 const patch_plan *p, const grid_views *views,
                                 hopper_map (*maps)[GRID_MAPS]) {
  const int32_t *knob = code->about.knob;
  const int32_t patch[] = {GRID_ROW, knob[GRID_KNOB_Y], knob[GRID_KNOB_Z]};
  const int32_t keys[] = {knob[GRID_KNOB_BOX_X], knob[GRID_KNOB_BOX_Y], 1};
  const int32_t rows[] = {GRID_ROW, 1, 1};
  const int32_t *const box[TENSORS] = {patch, keys, keys, rows};
  int64_t batches = grid_batch_maps(r);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < TENSORS; i++)
    for (int64_t n = 0; n < p->residues * batches && !status; n++) {
      map_shape s = grid_shape_of(&views->tensor[i], p, box[i], n / batches,
                                  n % batches);
      status = map_make(r->device->driver, &s, &maps[i][n]);
    }
  return status;
}

/* Finds the maps of a call's tensors, or makes them. The caller holds the lock. */
static dil_status grid_find_maps(const cuda_run *r, const cuda_code *code,
                                 const patch_plan *p, grid_launch *l) {
  grid_memory *m = code->memory;
  const dil_call *c = r->call;
  const dil_table *t = r->table;
  const grid_views views = {
      {maps_view(&c->q, t->head_dim, 0), maps_view(&c->k, t->head_dim, 0),
       maps_view(&c->v, t->value_dim, 0), maps_view(&c->o, t->value_dim, 0)}};
  int32_t at = 0;
  while (at < m->count && memcmp(&m->views[at], &views, sizeof views)) at++;
  if (at == m->count) {
    at = m->next;
    m->views[at] = (grid_views){0};
    dil_status status = grid_make_maps(r, code, p, &views, m->maps[at]);
    if (status) return status;
    m->views[at] = views;
    m->next = (at + 1) % KEPT;
    if (m->count < KEPT) m->count++;
  }
  memcpy(l->q, m->maps[at], sizeof *m->maps);
  return DIL_OK;
}

/* ---- the launch ---------------------------------------------------------- */

static dil_status grid_prepare(const cuda_run *r, int32_t pass,
                               const cuda_code *code, grid_launch *l) {
  const float log2_e = 1.44269504088896340736f;
  grid_memory *m = code->memory;
  patch_plan p;
  *l = (grid_launch){.of = general_parameters(r),
                     .batch_maps = (int)grid_batch_maps(r),
                     .group = r->table->heads / r->table->kv_heads,
                     .scale = r->scale * log2_e};
  l->slack = fminf(8 / l->scale, 1e30f);
  if (!grid_patches(r, pass, code, &p))
    return dil_fail(DIL_INTERNAL, "a kernel for grids without patches");
  l->of.items = cuda_patches_fill(r, pass, &p, &l->of) * r->table->heads * r->B;
  if (l->of.items > INT32_MAX)
    return dil_fail(DIL_USAGE, "more than 2^31 tiles in one call");
  pthread_mutex_lock(&m->lock);
  dil_status status = grid_find_maps(r, code, &p, l);
  pthread_mutex_unlock(&m->lock);
  return status;
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
  patch_plan p;
  if (r->shard) return "a shard of a sequence";
  if (r->drop) return "dropout";
  if (c->packed.queries || pages_given(c) || c->lengths)
    return "lengths, documents or pages over a grid";
  if (r->N != r->M) return "queries that are not all of the grid";
  if (!(r->scale > 0)) return "a scale that is not positive";
  if (r->N < 64) return "fewer than 64 queries";
  if (r->N > 1 << 29) return "more than 2^29 rows";
  if (!grid_patches(r, pass, code, &p)) return "every row sees all of the grid";
  if (p.residues * grid_batch_maps(r) > GRID_MAPS)
    return "more than 16 residues of a grid in all batch rows";
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
  grid_patches(r, pass, code, &p);
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
