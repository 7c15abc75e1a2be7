/* gather_gradient.c - see gather_gradient.h. In: a checked call with the choices of its
 * forward, and the facts of its rows. Out: launches that sort the choices by blocks, and
 * that make gradients: of keys and values at once, and of queries for some lines at a
 * time, whose entries are added up. */
#include "gather_gradient.h"
#include "device.h"
#include "gather_sort.h"
#include "special_gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/launch/counters.h"

_Static_assert(sizeof(gather_backward_launch) ==
                       sizeof(hopper_backward_launch) + GATHER_BACKWARD_BYTES &&
                   sizeof(gather_backward_launch) <=
                       sizeof(hopper_backward_launch) + SPECIAL_REST_MOST,
               "templates/hopper/gather_backward.cu has another launch");

/* Functions; the first three are those of hopper_gradient.h. */
enum { GATHER_ADD = HOPPER_ENTRY_FACTS + 1, GATHER_SORT };
enum { GATHER_PASS_INDEX = 0 }; /* a plan with a choice alone has one pass */

/* ---- space --------------------------------------------------------------- */

static int64_t gather_part_bytes(const cuda_run *r) {
  return r->table->head_dim * (int64_t)sizeof(float);
}

int64_t gather_gradient_bytes(const cuda_run *r, const cuda_code *code) {
  (void)code;
  const gather_sizes s = gather_sizes_of(r, GATHER_PASS_INDEX);
  int64_t part = gather_part_bytes(r);
  return s.end + gather_lines_at_once(&s, part) * s.entry_room * part;
}

dil_status gather_gradient_begin(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code) {
  const cuda_run *r = g->of;
  const gather_sizes s = gather_sizes_of(r, GATHER_PASS_INDEX);
  gather_call call;
  gather_fill(r, GATHER_PASS_INDEX, &s, space->lists, &call);
  return gather_sort(r, code, GATHER_SORT, &call);
}

/* ---- the launch ---------------------------------------------------------- */

/* The maps of K and V: of the rows that tiles hold, or stream. */
static dil_status gather_fill_maps(const cuda_run *r, const cuda_code *code,
                                   hopper_launch *l) {
  enum { HELD_ROWS = 64 }; /* of a warpgroup */
  bool keys = special_holds_keys(code);
  int32_t rows = keys ? HELD_ROWS : code->about.tile_keys;
  const map_view views[2] = {maps_view(&r->call->k, r->table->head_dim, rows),
                             maps_view(&r->call->v, r->table->value_dim, rows)};
  hopper_maps *const maps[2] = {keys ? &l->q : &l->k, keys ? &l->o : &l->v};
  return special_find_maps(r, code, 2, views, maps);
}

static dil_status gather_prepare(const gradient_run *g,
                                 const hopper_gradient_space *space,
                                 const cuda_code *code, const gather_sizes *s,
                                 gather_backward_launch *l) {
  const cuda_run *r = g->of;
  special_fill(g, space, code, &l->back, sizeof *l);
  l->back.of.batches = (int)r->B;
  l->back.of.queries = (int)(special_holds_keys(code) ? r->M : r->N);
  gather_fill(r, GATHER_PASS_INDEX, s, space->lists, &l->call);
  return gather_fill_maps(r, code, &l->back.of);
}

static dil_status gather_start(const cuda_run *r, const cuda_code *code, int32_t entry,
                               int64_t blocks, int32_t threads, int32_t shared,
                               const gather_backward_launch *l) {
  return special_start(r, code, entry, blocks, threads, shared, &l->back, sizeof *l);
}

static dil_status gather_start_tiles(const cuda_run *r, const cuda_code *code,
                                     int64_t tiles, const gather_backward_launch *l) {
  return gather_start(r, code, HOPPER_ENTRY_PASS,
                      minimum(tiles, r->device->facts.processors),
                      code->about.threads, code->about.shared, l);
}

/* Tiles have the keys of each batch row; those behind them have gradients of 0. */
static dil_status gather_make_keys(const gradient_run *g, const cuda_code *code,
                                   gather_backward_launch *l) {
  enum { CLEARING_BLOCKS = 8, CLEARING_THREADS = 256 };
  const cuda_run *r = g->of;
  int64_t parts = (l->call.block + GATHER_TILE_ROWS - 1) / GATHER_TILE_ROWS;
  dil_status status = DIL_OK;
  if (r->call->lengths)
    status = gather_start(r, code, HOPPER_ENTRY_CLEAR,
                          CLEARING_BLOCKS * r->device->facts.processors,
                          CLEARING_THREADS, 0, l);
  cuda_counters *counters = r->device->counters;
  cuda_counter counter;
  if (!status) status = counters_take(counters, r->stream, &counter);
  if (status) return status;
  l->back.of.counters = (unsigned *)(uintptr_t)counter.memory;
  status = gather_start_tiles(
      r, code, r->B * r->table->kv_heads * l->call.blocks * parts, l);
  return counters_give(counters, r->stream, &counter, status);
}

/* Makes and adds up the parts of dQ of the lines of a launch. They stand where those of
 * line 0 would stand before them. */
static dil_status gather_make_lines(const gradient_run *g, const cuda_code *code,
                                    gather_backward_launch *l) {
  enum { ROW_WARPS = 8 };
  const cuda_run *r = g->of;
  const gather_call *c = &l->call;
  int64_t line = (int64_t)c->entry_room * r->table->head_dim;
  int64_t rows = c->lines * r->N;
  l->back.scored = (hopper_gradient){
      .data = (void *)((uintptr_t)l->partial -
                       (uintptr_t)(c->first_line * line) * sizeof(float)),
      .batch = line * r->table->heads,
      .row = r->table->head_dim,
      .head = line};
  dil_status status =
      gather_start_tiles(r, code, (int64_t)c->lines * c->tile_room, l);
  if (status) return status;
  return gather_start(r, code, GATHER_ADD, (rows + ROW_WARPS - 1) / ROW_WARPS,
                      32 * ROW_WARPS, 0, l);
}

static dil_status gather_make_queries(const gradient_run *g, const cuda_code *code,
                                      const hopper_gradient_space *space,
                                      const gather_sizes *s,
                                      gather_backward_launch *l) {
  int64_t at_once = gather_lines_at_once(s, gather_part_bytes(g->of));
  dil_status status = DIL_OK;
  l->queries = l->back.scored;
  l->partial = (float *)(void *)(space->lists + s->end);
  l->back.opens = 1; /* a part is written by one tile */
  for (int64_t line = 0; line < s->lines && !status; line += at_once) {
    l->call.first_line = (int)line;
    l->call.lines = (int)minimum(at_once, s->lines - line);
    status = gather_make_lines(g, code, l);
  }
  return status;
}

dil_status gather_gradient_pass(const gradient_run *g,
                                const hopper_gradient_space *space,
                                const cuda_code *code) {
  const gather_sizes s = gather_sizes_of(g->of, GATHER_PASS_INDEX);
  gather_backward_launch l;
  dil_status status = gather_prepare(g, space, code, &s, &l);
  if (status || (!l.back.scored.data && !l.back.weighted.data)) return status;
  return special_holds_keys(code) ? gather_make_keys(g, code, &l)
                                 : gather_make_queries(g, code, space, &s, &l);
}

/* ---- the family ---------------------------------------------------------- */

const char *gather_gradient_refusal(const gradient_run *g, const cuda_code *code) {
  (void)code;
  const char *refusal = gather_sort_refusal(g->of, GATHER_PASS_INDEX);
  return refusal ? refusal : special_tensor_refusal(g);
}

const cuda_family cuda_gather_gradient = {
    .name = "gather gradient",
    .entry = {"gather_backward", "hopper_clear", "hopper_facts", "gather_add",
              "gather_count", "gather_place", "gather_items"},
    .open = special_open,
    .close = special_close,
    .refusal = special_refuses_forward};
