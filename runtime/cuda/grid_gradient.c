/* grid_gradient.c - see grid_gradient.h. In: a checked call of a whole sequence, with the
 * facts of its rows. Out: a launch, whose tiles are patches of the rows that they hold. */
#include "grid_gradient.h"
#include "device.h"
#include "grid_call.h"
#include "special_gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "templates/hopper/grid_backward_launch.h"
#include <stddef.h>

_Static_assert(sizeof(grid_backward_launch) ==
                       sizeof(hopper_backward_launch) + GRID_BACKWARD_BYTES &&
                   sizeof(grid_backward_launch) <=
                       sizeof(hopper_backward_launch) + SPECIAL_REST_MOST &&
                   offsetof(grid_backward_launch, grid) == sizeof(hopper_backward_launch),
               "templates/hopper/grid_backward.cu has another launch");

enum { GRID_GRADIENT_PASS = 0 }; /* such a plan has one pass */

/* ---- what is kept between launches --------------------------------------- */

static void grid_gradient_close(cuda_code *code) {
  grid_cache *cache = *special_own(code);
  if (cache) grid_cache_close(cache);
  special_close(code);
}

static dil_status grid_gradient_open(const dil_table *table, cuda_code *code) {
  grid_cache *cache = NULL;
  dil_status status = special_open(table, code);
  if (status) return status;
  status = grid_cache_open(&cache);
  *special_own(code) = cache;
  if (status) grid_gradient_close(code);
  return status;
}

/* ---- the launch ---------------------------------------------------------- */

/* The maps of the rows that tiles hold, in patches, and of those that they stream, in
 * boxes. */
static dil_status grid_gradient_maps(const cuda_run *r, const cuda_code *code,
                                     const patch_plan *p, grid_launch *l) {
  const int32_t *knob = code->about.knob;
  const dil_call *c = r->call;
  bool keys = special_holds_keys(code);
  int32_t head = r->table->head_dim, value = r->table->value_dim;
  const map_view q = maps_view(&c->q, head, 0), k = maps_view(&c->k, head, 0);
  const map_view v = maps_view(&c->v, value, 0), o = maps_view(&c->o, value, 0);
  const map_view view[GRID_TENSORS] = {keys ? k : q, keys ? q : k, keys ? o : v,
                                       keys ? v : o};
  const grid_box box[GRID_TENSORS] = {
      {GRID_ROW, knob[GRID_KNOB_Y], knob[GRID_KNOB_Z]},
      {knob[GRID_KNOB_BOX_X], knob[GRID_KNOB_BOX_Y], 1},
      {knob[GRID_KNOB_BOX_X], knob[GRID_KNOB_BOX_Y], 1},
      {GRID_ROW, knob[GRID_KNOB_Y], knob[GRID_KNOB_Z]}};
  return grid_cache_find(*special_own(code), r, p, view, box, l);
}

dil_status grid_gradient_pass(const gradient_run *g, const hopper_gradient_space *space,
                              const cuda_code *code) {
  const cuda_run *r = g->of;
  grid_backward_launch l;
  patch_plan p;
  special_fill(g, space, code, &l.back, sizeof l);
  if (!l.back.scored.data && !l.back.weighted.data) return DIL_OK;
  if (!grid_patches(r, GRID_GRADIENT_PASS, code, 1, &p))
    return dil_fail(DIL_INTERNAL, "a kernel for grids without patches");
  dil_status status =
      grid_fill(r, GRID_GRADIENT_PASS, &p, l.back.of.heads, &l.grid);
  if (!status) status = grid_gradient_maps(r, code, &p, &l.grid);
  if (status) return status;
  int64_t groups = code->about.threads / 128 - 1;
  int64_t blocks =
      minimum((l.grid.of.items + groups - 1) / groups, r->device->facts.processors);
  return special_start(r, code, HOPPER_ENTRY_PASS, blocks, code->about.threads,
                       code->about.shared, &l.back, sizeof l);
}

/* ---- the family ---------------------------------------------------------- */

const char *grid_gradient_refusal(const gradient_run *g, const cuda_code *code) {
  const char *refusal = grid_call_refusal(g->of, GRID_GRADIENT_PASS, code);
  return refusal ? refusal : special_tensor_refusal(g);
}

const cuda_family cuda_grid_gradient = {
    .name = "grid gradient",
    .entry = {"grid_backward", "hopper_clear", "hopper_facts"},
    .open = grid_gradient_open,
    .close = grid_gradient_close,
    .refusal = special_refuses_forward};
