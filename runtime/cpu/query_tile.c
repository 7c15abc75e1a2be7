/* query_tile.c - tiles of query rows over all the keys that they see.
 *
 * In: rows of one class of a cell and a block of packed keys. The keys of the
 * block are walked cell by cell and class by class; each run of them is cut
 * into key tiles that are empty (skipped), full (no predicate code) or
 * partial. All branches of the pass share one running softmax. A group of
 * tiles takes turns on a range of keys while that is in the cache. Out: the
 * rows' O and lse, or their advanced state.
 *
 * The running maximum and sum are those of the online softmax (Milakov and
 * Gimelshein 2018, arXiv 1805.02867; Rabe and Staats 2021, arXiv 2112.05682),
 * with division at the end, as in FlashAttention-2 (Dao 2023, arXiv
 * 2307.08691). */
#include "query_tile.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------- */

/* Hands out 64-byte aligned parts; with base NULL it only counts. */
typedef struct cutter {
  char *base;
  int64_t used;
} cutter;

static void *cut(cutter *c, int64_t bytes) {
  char *at = c->base ? c->base + c->used : NULL;
  c->used += round_up(bytes, 64);
  return at;
}

static void cut_queries(cutter *c, const dil_table *table, int64_t lanes,
                        queries *q) {
  int64_t f = sizeof(float);
  q->t = cut(c, lanes * (int64_t)sizeof(int32_t));
  q->qt = cut(c, round_up(table->head_dim, 2) * lanes * f);
  q->o = cut(c, table->value_dim * lanes * f);
  q->m = cut(c, lanes * f);
  q->l = cut(c, lanes * f);
}

static int64_t cut_tile(query_tile *tl, const run *r, int64_t period,
                        char *memory) {
  const dil_table *table = r->table;
  const dil_code *code = r->code[DIL_TILES];
  cutter c = {memory, 0};
  int64_t lanes = code->lanes, keys = code->tile_keys, f = sizeof(float);
  int64_t width = maximum(table->head_dim, table->value_dim);
  void *query = cut(&c, (int64_t)class_table_size(period));
  void *key = cut(&c, (int64_t)class_table_size(period));
  for (int32_t i = 0; i < TILE_GROUP; i++)
    cut_queries(&c, table, lanes, &tl->group[i]);
  tl->s = cut(&c, (keys + code->key_block) * lanes * f);
  tl->p = code->pack == DIL_PACK_F32 ? tl->s : cut(&c, (keys + 2) * lanes * 2);
  tl->mx = cut(&c, lanes * f);
  tl->alpha = cut(&c, lanes * f);
  tl->spare = cut(&c, (width + 1) * lanes * f);
  tl->j = cut(&c, (keys + code->key_block) * (int64_t)sizeof(int32_t));
  tl->v_clean = cut(&c, (keys + 2) * table->value_dim * f);
  if (memory) {
    class_table_init(&tl->query, period, query);
    class_table_init(&tl->key, period, key);
  }
  return c.used;
}

int64_t query_tile_bytes(const run *r, const dil_pass *pass) {
  query_tile unused;
  return cut_tile(&unused, r, run_period(r, pass), NULL);
}

void query_tile_init(query_tile *tl, const run *r, const dil_pass *pass,
                     char *memory) {
  const dil_code *code = r->code[DIL_TILES];
  *tl = (query_tile){.run = r, .code = code};
  cut_tile(tl, r, run_period(r, pass), memory);
  tl->k_bytes = pack_key_bytes(r->table->head_dim, code->pack);
  tl->v_bytes = pack_value_bytes(r->table->value_dim, code->pack);
}

/* ---- all keys of a block ------------------------------------------------- */

/* Every run of the block that `branches` of the query's class reach. */
static void visit_block(query_tile *tl, segment_cell query, uint64_t branches) {
  int64_t slot = 0;
  for (int64_t at = tl->low; at < tl->high;) {
    segment_cell c = walk_cell(&tl->walk, at, tl->high);
    uint64_t near = walk_together(&tl->walk, query, c, branches);
    walk_classes(&tl->walk, c, &tl->key);
    for (int32_t i = 0; i < tl->key.count; i++) {
      if (!tl->key.branches[i]) continue;
      int64_t n = class_table_rows(&tl->key, i, c.high - c.low);
      uint64_t reach = near & tl->key.branches[i];
      key_range keys = {c, i, slot, 0, n};
      if (reach && n) {
        if (tl->run->table->dedup) key_visit_run(tl, reach, keys);
        else
          for (; reach; reach &= reach - 1)
            key_visit_run(tl, reach & -reach, keys);
      }
      slot += round_up(n, tl->walk.round);
    }
    at = c.high;
  }
}

/* ---- a tile's beginning and end ------------------------------------------ */

/* Positions of the rows from n0 on; lanes past the last row repeat it. */
static void query_positions(const query_tile *tl, segment_cell query, int32_t c,
                            int64_t n0, int64_t n1, int32_t *t) {
  for (int32_t lane = 0; lane < tl->code->lanes; lane++)
    t[lane] = (int32_t)(query.low + class_table_row(&tl->query, c,
                                              minimum(n0 + lane, n1 - 1)));
}

/* Packs the rows of each tile of the group; the next one's are on the way. */
static void load_queries(query_tile *tl, int64_t b) {
  const run *r = tl->run;
  int32_t lanes = tl->code->lanes;
  rows q = run_rows(&r->call->q, b, tl->walk.head, run_queries(r, b));
  fetch_queries(&q, tl->group[0].t, lanes);
  for (int32_t i = 0; i < tl->group_count; i++) {
    const queries *now = &tl->group[i];
    if (i + 1 < tl->group_count)
      fetch_queries(&q, tl->group[i + 1].t, lanes);
    pack_queries(&q, now->t, lanes, tl->code->pack, now->qt, tl->spare);
  }
}

/* An empty state, or the one that an earlier pass left. */
static void load_state(query_tile *tl, int64_t b) {
  int32_t lanes = tl->code->lanes, width = tl->run->table->value_dim;
  memset(tl->q->o, 0, (size_t)(width * lanes) * sizeof(float));
  for (int32_t lane = 0; lane < lanes; lane++) {
    tl->q->m[lane] = -INFINITY;
    tl->q->l[lane] = 0;
    if (tl->finish != FINISH_RESUME) continue;
    int64_t n = run_row(tl->run, b, tl->q->t[lane]);
    float lse = *run_lse(tl->run, b, n, tl->walk.head);
    const float *row =
        (const float *)run_output(tl->run, b, n, tl->walk.head);
    if (lse == -INFINITY) continue;
    tl->q->m[lane] = lse * DIL_LOG2_E;
    tl->q->l[lane] = 1;
    for (int32_t d = 0; d < width; d++) tl->q->o[d * lanes + lane] = row[d];
  }
}

static void store_rows(query_tile *tl, int64_t b, int64_t count) {
  const run *r = tl->run;
  char *out[DIL_LANES_MAX] = {0};
  for (int32_t lane = 0; lane < tl->code->lanes; lane++) {
    bool none = tl->q->l[lane] == 0;
    tl->mx[lane] = none ? 0 : r->weight / tl->q->l[lane];
    if (lane >= count) continue;
    int64_t n = run_row(r, b, tl->q->t[lane]);
    out[lane] = run_output(r, b, n, tl->walk.head);
    float *lse = run_lse(r, b, n, tl->walk.head);
    if (lse && tl->finish != FINISH_ADD)
      *lse = none ? -INFINITY : tl->q->m[lane] * DIL_LN_2 + logf(tl->q->l[lane]);
  }
  bool state = tl->finish != FINISH_WRITE;
  unpack_rows(tl->q->o, r->table->value_dim, tl->code->lanes, tl->mx, out,
              state ? DIL_F32 : r->table->dtype, tl->finish == FINISH_ADD,
              tl->spare);
}

void query_tile_run(query_tile *tl, segment_cell query, int32_t c, int64_t n0,
                    int64_t n1, int64_t b) {
  int64_t lanes = tl->code->lanes;
  tl->group_count = (int32_t)((n1 - n0 + lanes - 1) / lanes);
  for (int32_t i = 0; i < tl->group_count; i++)
    query_positions(tl, query, c, n0 + i * lanes, n1, tl->group[i].t);
  load_queries(tl, b);
  for (int32_t i = 0; i < tl->group_count; i++) {
    tl->q = &tl->group[i];
    load_state(tl, b);
  }
  visit_block(tl, query, tl->query.branches[c]);
  for (int32_t i = 0; i < tl->group_count; i++) {
    tl->q = &tl->group[i];
    store_rows(tl, b, minimum(n1 - n0 - i * lanes, lanes));
  }
}
