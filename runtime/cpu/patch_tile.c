/* patch_tile.c - a patch of a grid over its box of keys; see patch_tile.h.
 *
 * In: packed keys, the number of a patch. Out: the tile's rows, bits that say
 * which of them see which key, and the visits of the box. Which lanes see a key is
 * the intersection of what each axis says, so that patches at an edge cost as
 * much as others. */
#include "patch_tile.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

/* ---- memory -------------------------------------------------------------- */

void patch_tile_cut(cutter *c, const cpu_run *r, const patch_plan *plan,
                    patch_tile *tile) {
  int64_t most = 0, word = sizeof(uint32_t);
  for (int32_t a = 1; a < plan->axes; a++)
    most = maximum(most, plan->axis[a].slabs * plan->axis[a].slab);
  tile->plan = plan;
  tile->outer = cutter_cut(c, plan->axis[0].slabs * word);
  tile->inner = cutter_cut(c, plan->ranges * plan->run * word);
  tile->axis = cutter_cut(c, most * word);
  tile->kept = cutter_cut(c, r->code[DIL_TILES]->tile_keys * word);
}

int64_t patch_positions_bytes(const patch_plan *p) {
  return round_up(p->rows * (int64_t)sizeof(int32_t), 64);
}

void patch_positions_fill(const patch_plan *p, int32_t *positions) {
  int32_t last = 0;
  for (int64_t n = 0; n < p->rows; n++) {
    int64_t t = patch_row_position(p, n);
    if (t >= 0) last = (int32_t)t;
    positions[n] = last;
  }
}

segment_cell patch_class(const patch_plan *p, int32_t *positions,
                         uint64_t branch, class_table *s) {
  s->period = p->rows;
  s->count = 1;
  s->branches[0] = branch;
  s->first[0] = 0;
  s->first[1] = (int32_t)p->rows;
  s->offset = positions;
  return (segment_cell){0, p->rows};
}

/* ---- rows ---------------------------------------------------------------- */

/* The cells of the lanes. */
typedef struct lane_cells {
  int64_t of[DIL_LANES_MAX][DIL_GRID_AXES];
} lane_cells;

/* All cells of the patch, the last axis fastest. */
static void list_rows(patch_tile *tile, lane_cells *cells) {
  const patch_span *query = tile->box.query;
  int32_t axes = tile->plan->axes, lane = 0;
  int64_t at[DIL_GRID_AXES] = {0};
  for (int32_t a = 0; a < axes; a++) at[a] = query[a].first;
  for (int32_t moved = axes; moved >= 0; lane++) {
    memcpy(cells->of[lane], at, sizeof at);
    tile->t[lane] = (int32_t)patch_position(tile->plan, &tile->box, at);
    for (moved = axes - 1; moved >= 0; moved--) {
      if (++at[moved] <= query[moved].last) break;
      at[moved] = query[moved].first;
    }
  }
  tile->count = lane;
  for (; lane < tile->plan->lanes; lane++) {
    tile->t[lane] = tile->t[lane - 1];
    memcpy(cells->of[lane], cells->of[lane - 1], sizeof at);
  }
}

/* ---- bits ---------------------------------------------------------------- */

/* bits[v] = the lanes that see cell key.first + v of the axis. */
static void fill_axis(const patch_tile *tile, int32_t axis,
                      const lane_cells *cells, uint32_t *bits) {
  const patch_axis *a = &tile->plan->axis[axis];
  patch_span query = tile->box.query[axis], key = tile->box.key[axis];
  memset(bits, 0, (size_t)patch_length(key) * sizeof *bits);
  for (int64_t u = query.first; u <= query.last; u++) {
    uint32_t lanes = 0;
    for (int32_t lane = 0; lane < tile->plan->lanes; lane++)
      lanes |= (uint32_t)(cells->of[lane][axis] == u) << lane;
    patch_span seen =
        patch_keys(a, tile->box.cells[axis], (patch_span){u, u});
    for (int64_t v = seen.first; v <= seen.last; v++)
      bits[v - key.first] |= lanes;
  }
}

/* Narrows the bits of all ranges by what an inner axis says. */
static void narrow_inner(const patch_tile *tile, int32_t axis,
                         const uint32_t *bits) {
  const patch_plan *p = tile->plan;
  int64_t ranges = patch_ranges(p, &tile->box);
  patch_span key = tile->box.key[axis];
  for (int64_t n = 0; n < ranges; n++)
    for (int64_t i = 0; i < p->run; i++) {
      int64_t cell = patch_inner_cell(p, &tile->box, n, i, axis);
      bool inside = cell >= key.first && cell <= key.last;
      tile->inner[n * p->run + i] &= inside ? bits[cell - key.first] : 0;
    }
}

bool patch_tile_open(patch_tile *tile, int64_t index) {
  const patch_plan *p = tile->plan;
  lane_cells cells;
  if (!patch_at(p, index, &tile->box)) return false;
  list_rows(tile, &cells);
  int64_t ranges = patch_ranges(p, &tile->box);
  if (!ranges) return true;
  fill_axis(tile, 0, &cells, tile->outer);
  memset(tile->inner, -1, (size_t)(ranges * p->run) * sizeof *tile->inner);
  for (int32_t a = 1; a < p->axes; a++) {
    fill_axis(tile, a, &cells, tile->axis);
    narrow_inner(tile, a, tile->axis);
  }
  return true;
}

/* ---- visits -------------------------------------------------------------- */

/* Fills `kept` for n keys of range `range` from its row `at` on; returns the
 * lanes that keep some. */
static uint32_t fill_kept(const patch_tile *tile, int64_t range, int64_t at,
                          int64_t n, uint32_t *kept) {
  int64_t run = tile->plan->run, outer = at / run, i = at % run;
  const uint32_t *inner = tile->inner + range * run;
  uint32_t some = 0;
  for (int64_t k = 0; k < n; outer++, i = 0) {
    uint32_t lanes = tile->outer[outer];
    for (int64_t end = minimum(run, i + n - k); i < end; i++, k++)
      some |= kept[k] = lanes & inner[i];
  }
  return some;
}

/* The positions of the keys of a visit, and their words of dropout. */
static void fill_keys(tile_worker *wk, const patch_tile *tile) {
  const dil_code *code = wk->code;
  for (int32_t k = 0; k < wk->piece_count; k++)
    memcpy(wk->j + wk->piece[k].at, tile->positions + wk->piece[k].row,
           (size_t)wk->piece[k].n * sizeof *wk->j);
  if (wk->run->drop)
    code->dropout_words(wk->j, wk->piece_keys, DIL_DROPOUT_KEY, &wk->env.env,
                        wk->words);
}

static void visit_pieces(tile_worker *wk, uint64_t branch) {
  const dil_branch *b = &wk->run->table->branches[__builtin_ctzll(branch)];
  bool asks = !b->reach.alone && b->predicate >= 0;
  packed_range keys = {.n0 = 0, .n1 = wk->piece_keys};
  if (!wk->piece_count) return;
  fill_keys(wk, wk->patch);
  wk->words_first = 0;
  wk->visited = branch;
  wk->visit(wk, &keys, asks ? 1ull << b->predicate : 0, b->chain, 1);
  wk->piece_count = 0;
  wk->piece_keys = 0;
}

/* Adds keys of range `range`, which begins at packed row `first`, to the visit
 * under way. */
static void add_piece(tile_worker *wk, int64_t range, int64_t first,
                      packed_range keys) {
  const patch_tile *tile = wk->patch;
  uint32_t *kept = tile->kept + wk->piece_keys;
  if (wk->enter && !wk->enter(wk, &keys)) return;
  int64_t n = keys.n1 - keys.n0;
  if (!fill_kept(tile, range, keys.n0 - first, n, kept)) return;
  wk->piece[wk->piece_count++] =
      (key_piece){.row = keys.n0, .at = wk->piece_keys, .n = n};
  wk->piece_keys += n;
}

void patch_tile_visit(tile_worker *wk, uint64_t branch) {
  const patch_tile *tile = wk->patch;
  int64_t ranges = patch_ranges(tile->plan, &tile->box);
  int64_t most = wk->code->tile_keys;
  wk->q = &wk->group[0];
  wk->kept = tile->kept;
  wk->piece_count = 0;
  wk->piece_keys = 0;
  for (int64_t n = 0; n < ranges; n++) {
    patch_span rows = patch_range(tile->plan, &tile->box, n);
    for (int64_t at = rows.first, count; at <= rows.last; at += count) {
      int64_t left = rows.last + 1 - at, room = most - wk->piece_keys;
      if (wk->piece_count == KEY_PIECES || room < minimum(left, most)) {
        visit_pieces(wk, branch);
        room = most;
      }
      count = minimum(left, room);
      add_piece(wk, n, rows.first, (packed_range){.n0 = at, .n1 = at + count});
    }
  }
  visit_pieces(wk, branch);
  wk->kept = NULL;
}
