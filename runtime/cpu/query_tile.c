/* query_tile.c - tiles of query rows over all the keys that they see.
 *
 * In: rows of one class of a cell and a block of packed keys. The keys of the
 * block are walked cell by cell and class by class; each class is cut into key
 * tiles that are empty (skipped), full (no predicate code) or partial. All
 * branches of the pass share one running softmax. A group of tiles passes over
 * a range of keys while that is in the cache. Out: the rows' O and lse, or
 * their advanced state.
 *
 * The running maximum and sum are those of the online softmax (Milakov and
 * Gimelshein 2018, arXiv 1805.02867; Rabe and Staats 2021, arXiv 2112.05682),
 * with division at the end, as in FlashAttention-2 (Dao 2023, arXiv
 * 2307.08691). */
#include "patch_tile.h"
#include "runtime/arch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------- */

static void cutter_query_tile(cutter *c, const dil_table *table, int64_t lanes,
                              query_tile *q) {
  int64_t f = sizeof(float);
  q->t = cutter_cut(c, lanes * (int64_t)sizeof(int32_t));
  q->qt = cutter_cut(c, round_up(table->head_dim, 2) * lanes * f);
  q->o = cutter_cut(c, table->value_dim * lanes * f);
  q->m = cutter_cut(c, lanes * f);
  q->l = cutter_cut(c, lanes * f);
  q->words = cutter_cut(c, table->dropout > 0 ? lanes * f : 0);
}

static int64_t tile_worker_cut(tile_worker *wk, const cpu_run *r,
                               int64_t period, char *memory) {
  const dil_table *table = r->table;
  const dil_code *code = r->code[DIL_TILES];
  cutter c = {memory, 0};
  int64_t lanes = code->lanes, keys = code->tile_keys, f = sizeof(float);
  int64_t width = maximum(table->head_dim, table->value_dim);
  void *held = cutter_cut(&c, (int64_t)class_table_size(period));
  void *streamed = cutter_cut(&c, (int64_t)class_table_size(period));
  for (int32_t i = 0; i < TILE_GROUP; i++)
    cutter_query_tile(&c, table, lanes, &wk->group[i]);
  wk->s = cutter_cut(&c, (keys + code->key_block) * lanes * f);
  wk->p = code->pack == DIL_PACK_F32 ? wk->s
                                     : cutter_cut(&c, (keys + 2) * lanes * 2);
  wk->mx = cutter_cut(&c, lanes * f);
  wk->alpha = cutter_cut(&c, lanes * f);
  wk->ones = cutter_cut(&c, lanes * f);
  wk->spare = cutter_cut(&c, (width + 1) * lanes * f);
  wk->j = cutter_cut(&c, (keys + code->key_block) * (int64_t)sizeof(int32_t));
  wk->v_clean = cutter_cut(&c, (keys + 2) * table->value_dim * f);
  wk->words = cutter_cut(
      &c, table->dropout > 0 ? maximum(wk->range_rows, keys) * f : 0);
  for (int32_t lane = 0; memory && lane < lanes; lane++) wk->ones[lane] = 1;
  if (memory) {
    class_table_init(&wk->held, period, held);
    class_table_init(&wk->streamed, period, streamed);
  }
  return c.used;
}

/* A worker without its memory. */
static tile_worker tile_worker_new(const cpu_run *r) {
  const dil_code *code = r->code[DIL_TILES];
  int64_t k_bytes = pack_key_bytes(r->table->head_dim, code->pack);
  int64_t v_bytes = pack_value_bytes(r->table->value_dim, code->pack);
  return (tile_worker){.run = r,
                       .code = code,
                       .visit = key_visit_forward,
                       .k_bytes = k_bytes,
                       .v_bytes = v_bytes,
                       .range_rows = RANGE_BYTES / (k_bytes + v_bytes)};
}

int64_t tile_worker_bytes(const cpu_run *r, const dil_pass *pass) {
  tile_worker measured = tile_worker_new(r);
  return tile_worker_cut(&measured, r, cpu_run_period(r, pass), NULL);
}

void tile_worker_init(tile_worker *wk, const cpu_run *r, const dil_pass *pass,
                      char *memory) {
  *wk = tile_worker_new(r);
  tile_worker_cut(wk, r, cpu_run_period(r, pass), memory);
}

/* ---- all keys of a block ------------------------------------------------- */

void query_tile_visit(tile_worker *wk, segment_cell held, uint64_t branches) {
  int64_t base = 0;
  if (wk->patch) {
    patch_tile_visit(wk, branches);
    return;
  }
  for (int64_t at = wk->low; at < wk->high;) {
    segment_cell c = walk_cell(&wk->walk, at, wk->high);
    uint64_t near = walk_together(&wk->walk, held, c, branches);
    walk_classes(&wk->walk, c, &wk->streamed);
    for (int32_t i = 0; i < wk->streamed.count; i++) {
      if (!wk->streamed.branches[i]) continue;
      int64_t n = class_table_rows(&wk->streamed, i, c.high - c.low);
      uint64_t reach = near & wk->streamed.branches[i];
      int32_t first = wk->streamed.offset[wk->streamed.first[i]];
      reach = walk_meeting(&wk->walk, reach, wk->group[0].t[0], c.low + first);
      packed_range keys = {c, i, base, 0, n};
      if (reach && n) {
        if (wk->run->table->dedup)
          key_visit_range(wk, reach, keys);
        else
          for (; reach; reach &= reach - 1)
            key_visit_range(wk, reach & -reach, keys);
      }
      base += round_up(n, wk->walk.round);
    }
    at = c.high;
  }
}

/* ---- a tile's beginning and end ------------------------------------------ */

/* Positions of the rows from n0 on; lanes past the last row repeat it. */
static void tile_positions(const tile_worker *wk, segment_cell held, int32_t c,
                           int64_t n0, int64_t n1, int32_t *t) {
  if (wk->patch) {
    memcpy(t, wk->patch->t, (size_t)wk->code->lanes * sizeof *t);
    return;
  }
  for (int32_t lane = 0; lane < wk->code->lanes; lane++)
    t[lane] = (int32_t)(held.low + class_table_row(&wk->held, c,
                                                   minimum(n0 + lane, n1 - 1)));
}

/* Packs the rows of each tile of the group, and asks for the next tile's. */
static void tile_load_queries(tile_worker *wk, int64_t b) {
  const cpu_run *r = wk->run;
  int32_t lanes = wk->code->lanes;
  row_view q =
      cpu_run_row_view(&r->call->q, b, wk->walk.head, cpu_run_queries(r, b));
  pack_fetch_queries(&q, wk->group[0].t, lanes);
  for (int32_t i = 0; i < wk->group_count; i++) {
    const query_tile *now = &wk->group[i];
    if (i + 1 < wk->group_count)
      pack_fetch_queries(&q, wk->group[i + 1].t, lanes);
    pack_queries(&q, now->t, lanes, wk->code->pack, now->qt, wk->spare);
  }
}

/* The states that an earlier pass left of the rows of a tile. */
static void tile_resume_rows(tile_worker *wk, int64_t b) {
  int32_t lanes = wk->code->lanes, width = wk->run->table->value_dim;
  const float *rows[DIL_LANES_MAX];
  memset(wk->spare, 0, (size_t)width * sizeof(float)); /* of rows without keys */
  for (int32_t lane = 0; lane < lanes; lane++) {
    int64_t n = cpu_run_row(wk->run, b, wk->q->t[lane]);
    const void *row = cpu_run_output(wk->run, b, n, wk->walk.head);
    state_begin(*cpu_run_lse(wk->run, b, n, wk->walk.head), &wk->q->m[lane],
                &wk->q->l[lane]);
    rows[lane] = wk->q->l[lane] == 0 ? wk->spare : row;
  }
  dil_host_arch.words_to_lanes(rows, width, lanes, wk->q->o);
}

/* The sinks of rows that these branches select, or the state that an earlier
 * pass left. */
static void tile_load_state(tile_worker *wk, uint64_t branches, int64_t b) {
  int32_t lanes = wk->code->lanes, width = wk->run->table->value_dim;
  if (wk->run->drop)
    wk->code->dropout_words(wk->q->t, lanes, DIL_DROPOUT_ROW, &wk->env.env,
                            wk->q->words);
  if (wk->finish == FINISH_RESUME) {
    tile_resume_rows(wk, b);
    return;
  }
  memset(wk->q->o, 0, (size_t)(width * lanes) * sizeof(float));
  cpu_run_sinks(wk->run, &wk->env.env, branches, wk->q->t, lanes, wk->mx);
  for (int32_t lane = 0; lane < lanes; lane++)
    state_begin(wk->mx[lane], &wk->q->m[lane], &wk->q->l[lane]);
}

static void tile_store_rows(tile_worker *wk, int64_t b, int64_t count) {
  const cpu_run *r = wk->run;
  char *out[DIL_LANES_MAX] = {0};
  for (int32_t lane = 0; lane < wk->code->lanes; lane++) {
    bool none = wk->q->l[lane] == 0;
    wk->mx[lane] = none ? 0 : r->weight / wk->q->l[lane];
    if (lane >= count) continue;
    int64_t n = cpu_run_row(r, b, wk->q->t[lane]);
    out[lane] = cpu_run_output(r, b, n, wk->walk.head);
    float *lse = cpu_run_lse(r, b, n, wk->walk.head);
    if (lse && wk->finish != FINISH_ADD)
      *lse =
          none ? -INFINITY : wk->q->m[lane] * DIL_LN_2 + logf(wk->q->l[lane]);
  }
  bool state = wk->finish != FINISH_WRITE;
  unpack_rows(wk->q->o, r->table->value_dim, wk->code->lanes, wk->mx, out,
              state ? DIL_F32 : r->table->dtype, wk->finish == FINISH_ADD,
              wk->spare);
}

void query_tile_begin(tile_worker *wk, segment_cell held, int32_t c, int64_t n0,
                      int64_t n1, int64_t b) {
  int64_t lanes = wk->code->lanes;
  wk->group_count = (int32_t)((n1 - n0 + lanes - 1) / lanes);
  for (int32_t i = 0; i < wk->group_count; i++)
    tile_positions(wk, held, c, n0 + i * lanes, n1, wk->group[i].t);
  tile_load_queries(wk, b);
  for (int32_t i = 0; i < wk->group_count; i++) {
    wk->q = &wk->group[i];
    tile_load_state(wk, wk->held.branches[c], b);
  }
}

void query_tile_run(tile_worker *wk, segment_cell held, int32_t c, int64_t n0,
                    int64_t n1, int64_t b) {
  int64_t lanes = wk->code->lanes;
  query_tile_begin(wk, held, c, n0, n1, b);
  query_tile_visit(wk, held, wk->held.branches[c]);
  for (int32_t i = 0; i < wk->group_count; i++) {
    wk->q = &wk->group[i];
    tile_store_rows(wk, b, minimum(n1 - n0 - i * lanes, lanes));
  }
}
