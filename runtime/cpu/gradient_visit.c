/* gradient_visit.c - one tile of keys backward: the generated kernels.
 *
 * In: a range of keys, a query tile with its lse and deltas. Out: the sums of
 * dK, dV and dQ and of the inputs' gradients, advanced by the tile's pairs. The
 * scores come from the kernels of the forward pass and have the same bits. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include <math.h>
#include <string.h>

/* ---- ranges -------------------------------------------------------------- */

/* A piece of a visit: only rows of the worker's share, which the pieces of other
 * tiles cut otherwise. */
static bool enter_piece(gradient_worker *wk, packed_range *keys) {
  tile_worker *tile = &wk->tile;
  keys->n0 = maximum(keys->n0, wk->from);
  keys->n1 = minimum(keys->n1, wk->to);
  if (keys->n0 >= keys->n1) return false;
  uint8_t marks = packed_keys_marks(&wk->keys, keys->n0, keys->n1);
  bool before = tile->piece_count > 0; /* other pieces of the visit */
  tile->finite = !(marks & MARK_VALUES) && (!before || tile->finite);
  wk->range_finite = !marks && (!before || wk->range_finite);
  return true;
}

bool gradient_enter(tile_worker *tile, packed_range *keys) {
  gradient_worker *wk = (gradient_worker *)tile;
  if (tile->patch) return enter_piece(wk, keys);
  int64_t first = keys->base + keys->n0;
  int64_t part = minimum(first / wk->part_rows, wk->parts - 1);
  if (part < wk->parts - 1)
    keys->n1 = minimum(keys->n1, (part + 1) * wk->part_rows - keys->base);
  if (first < wk->from || first >= wk->to) return false;
  if (part != wk->part) gradient_end_part(wk);
  wk->part = part;
  uint8_t marks =
      packed_keys_marks(&wk->keys, first, keys->base + keys->n1);
  tile->finite = !(marks & MARK_VALUES);
  wk->range_finite = !marks;
  return true;
}

/* ---- operands that are not finite ---------------------------------------- */

/* Element of a matrix of weights, rows of lanes. */
static float lane_weight(const gradient_worker *wk, const void *rows, int64_t n,
                         int32_t lane) {
  int64_t at = n * wk->tile.code->lanes + lane;
  if (wk->tile.code->pack == DIL_PACK_F32) return ((const float *)rows)[at];
  return dil_bf16_to_f32(((const uint16_t *)rows)[at]);
}

/* Element d of a lane's row of q or dO. */
static float lane_element(const gradient_worker *wk, const void *rows,
                          int64_t width, int32_t lane, int64_t d) {
  int64_t row = dil_code_outer(width);
  if (wk->tile.code->pack == DIL_PACK_F32)
    return ((const float *)rows)[lane * row + d];
  return dil_bf16_to_f32(
      ((const uint16_t *)rows)[(lane / 2 * row + d) * 2 + lane % 2]);
}

static float key_element(const gradient_worker *wk, const char *k, int64_t n,
                         int64_t d) {
  int64_t width = wk->tile.run->table->head_dim;
  if (wk->tile.code->pack == DIL_PACK_F32)
    return ((const float *)k)[n * width + d];
  return dil_bf16_to_f32(((const uint16_t *)k)[(n / 2 * width + d) * 2 + n % 2]);
}

/* sums[n][d] += weight * row[lane][d] over the pairs of some weight. */
static void add_rows_by_pair(const gradient_worker *wk, const void *weights,
                             const void *rows, int64_t width, int64_t n,
                             float *sums) {
  for (int64_t i = 0; i < n; i++)
    for (int32_t lane = 0; lane < wk->tile.code->lanes; lane++) {
      float weight = lane_weight(wk, weights, i, lane);
      if (weight == 0) continue;
      for (int64_t d = 0; d < width; d++)
        sums[i * dil_code_outer(width) + d] +=
            weight * lane_element(wk, rows, width, lane, d);
    }
}

static void add_keys_by_pair(const gradient_worker *wk, const char *k,
                             const void *ds, int64_t n, float *dq) {
  int32_t lanes = wk->tile.code->lanes;
  for (int64_t i = 0; i < n; i++)
    for (int32_t lane = 0; lane < lanes; lane++) {
      float weight = lane_weight(wk, ds, i, lane);
      if (weight == 0) continue;
      for (int64_t d = 0; d < wk->tile.run->table->head_dim; d++)
        dq[d * lanes + lane] += weight * key_element(wk, k, i, d);
    }
}

/* ---- one visit ----------------------------------------------------------- */

static const gradient_rows *rows_of_tile(const gradient_worker *wk) {
  return &wk->rows[wk->tile.q - wk->tile.group];
}

/* The products. A pair of weight 0 adds 0, whatever its operands are: where
 * one of them is not finite, the pairs are added one by one. */
static void add_piece(gradient_worker *wk, const key_piece *piece) {
  const dil_code *code = wk->of->code;
  const dil_table *table = wk->tile.run->table;
  dil_pack pack = wk->tile.code->pack;
  const gradient_rows *rows = rows_of_tile(wk);
  bool finite = wk->range_finite && rows->finite;
  int64_t at = piece->row, n = piece->n;
  int64_t weights =
      piece->at * wk->tile.code->lanes * DIL_CODE_CELL / wk->tile.code->pack;
  const char *p = (const char *)wk->p + weights;
  const char *ds = (const char *)wk->ds + weights;
  const char *k =
      wk->keys.k_values + at * pack_value_bytes(table->head_dim, pack);
  float *dk = wk->dk + at * dil_code_outer(table->head_dim);
  float *dv = wk->dv + at * dil_code_outer(table->value_dim);
  if (wk->wants_keys && finite) {
    code->dv(p, rows->d, dv, n);
    code->dk(ds, rows->q, dk, n);
  } else if (wk->wants_keys) {
    add_rows_by_pair(wk, p, rows->d, table->value_dim, n, dv);
    add_rows_by_pair(wk, ds, rows->q, table->head_dim, n, dk);
  }
  if (wk->wants_dq && finite)
    code->dq(k, (const char *)wk->pairs + weights, rows->dq, wk->ones, n);
  else if (wk->wants_dq)
    add_keys_by_pair(wk, k, ds, n, rows->dq);
}

static void add_products(gradient_worker *wk, const packed_range *keys) {
  int32_t count;
  key_piece one;
  const key_piece *piece = key_visit_pieces(&wk->tile, keys, &one, &count);
  for (int32_t i = 0; i < count; i++) add_piece(wk, &piece[i]);
}

/* Whether kernels need to know which keys a tile has. */
static bool asks_positions(const gradient_worker *wk, uint64_t predicates) {
  const tile_worker *tile = &wk->tile;
  return predicates || tile->run->table->scored || !(tile->env.env.scale > 0);
}

/* Final scores in tile.s; returns what takes them to powers of 2. */
static float make_scores(gradient_worker *wk, const packed_range *keys,
                         uint64_t predicates, int32_t chain, bool keeps_raw) {
  tile_worker *tile = &wk->tile;
  const dil_env *env = &tile->env.env;
  int64_t n = keys->n1 - keys->n0;
  key_visit_scores(tile, keys, wk->keys.k_keys);
  if (keeps_raw)
    memcpy(wk->raw, tile->s, (size_t)(n * tile->code->lanes) * sizeof(float));
  bool asks = asks_positions(wk, predicates);
  if (asks) key_visit_positions(tile, keys);
  if (asks && tile->run->table->scored)
    wk->of->code->slope[chain](tile->s, tile->mx, n, tile->q->t, tile->j,
                               predicates, env, NULL, wk->slope);
  else if (asks)
    tile->code->modify[chain](tile->s, tile->mx, n, tile->q->t, tile->j,
                              predicates, env, NULL);
  if (tile->kept) tile->code->hide(tile->s, tile->mx, n, tile->kept);
  return asks ? DIL_LOG2_E : env->scale * DIL_LOG2_E;
}

/* dP of the tile's pairs. */
static void make_dp(gradient_worker *wk, const packed_range *keys) {
  const tile_worker *tile = &wk->tile;
  int64_t row = pack_key_bytes(tile->run->table->value_dim, tile->code->pack);
  int32_t count;
  key_piece one;
  const key_piece *piece = key_visit_pieces(tile, keys, &one, &count);
  for (int32_t i = 0; i < count; i++)
    wk->of->code->dp(wk->keys.v_keys + piece[i].row * row,
                     rows_of_tile(wk)->dot,
                     wk->dp + piece[i].at * tile->code->lanes, tile->mx,
                     piece[i].n);
}

enum { LANES_AT_ONCE = 8 };

/* The sums of `count` lanes, a constant where this is inlined: they stay in
 * registers. */
static inline void sum_lanes(const float *rows, int64_t n, int32_t lanes,
                             int32_t count, float *sums) {
  float sum[LANES_AT_ONCE] = {0};
  for (int64_t i = 0; i < n; i++, rows += lanes)
    for (int32_t lane = 0; lane < count; lane++) sum[lane] += rows[lane];
  memcpy(sums, sum, (size_t)count * sizeof *sums);
}

/* sums[lane] = the sum of the rows' elements. */
static void sum_rows_of_lanes(const float *rows, int64_t n, int32_t lanes,
                              float *sums) {
  int32_t lane = 0;
  for (; lane + LANES_AT_ONCE <= lanes; lane += LANES_AT_ONCE)
    sum_lanes(rows + lane, n, lanes, LANES_AT_ONCE, sums + lane);
  for (; lane < lanes; lane++) sum_lanes(rows + lane, n, lanes, 1, sums + lane);
}

void gradient_weigh(tile_worker *tile, const packed_range *keys,
                    uint64_t predicates, int32_t chain, int32_t copies) {
  gradient_worker *wk = (gradient_worker *)tile;
  const gradient_rows *rows = rows_of_tile(wk);
  int32_t lanes = tile->code->lanes;
  int64_t n = keys->n1 - keys->n0;
  float weights[DIL_LANES_MAX], dots[DIL_LANES_MAX];
  (void)copies; /* each branch counts a pair once */
  float c2 = make_scores(wk, keys, predicates, chain, false);
  make_dp(wk, keys);
  wk->of->code->ds(tile->s, wk->dp, wk->p, wk->ds, wk->pairs, NULL, NULL, n, c2,
                   0, rows->lse, wk->zeros);
  sum_rows_of_lanes(wk->p, n, lanes, weights);
  sum_rows_of_lanes(wk->ds, n, lanes, dots);
  for (uint64_t rest = tile->visited; rest; rest &= rest - 1) {
    int64_t row = __builtin_ctzll(rest) * (int64_t)lanes;
    for (int32_t lane = 0; lane < lanes; lane++) {
      rows->weights[row + lane] += (double)weights[lane];
      rows->dots[row + lane] += (double)dots[lane];
    }
  }
}

/* The delta of pairs that stand for several branches is the mean of theirs. */
static void mix_deltas(const gradient_worker *wk) {
  const gradient_rows *rows = rows_of_tile(wk);
  int32_t lanes = wk->tile.code->lanes;
  uint64_t all = wk->tile.visited;
  for (int32_t lane = 0; lane < lanes; lane++) {
    double sum = 0;
    for (uint64_t rest = all; rest; rest &= rest - 1)
      sum += rows->dots[__builtin_ctzll(rest) * (int64_t)lanes + lane];
    rows->delta[lane] = (float)(sum / __builtin_popcountll(all));
  }
}

void gradient_visit(tile_worker *tile, const packed_range *keys,
                    uint64_t predicates, int32_t chain, int32_t copies) {
  gradient_worker *wk = (gradient_worker *)tile;
  const dil_code *code = wk->of->code;
  const gradient_rows *rows = rows_of_tile(wk);
  int64_t n = keys->n1 - keys->n0;
  float bias = copies > 1 ? log2f((float)copies) : 0;
  bool scored = tile->run->table->scored;
  bool inputs = wk->of->sums && wk->wants_keys && scored;
  float c2 = make_scores(wk, keys, predicates, chain, inputs);
  make_dp(wk, keys);
  if (wk->of->weighs) mix_deltas(wk);
  float *plain = inputs ? wk->plain : NULL, *slope = scored ? wk->slope : NULL;
  if (tile->run->drop)
    code->ds_drop(tile->s, wk->dp, wk->p, wk->ds, wk->pairs, plain, slope, n,
                  c2, bias, rows->lse, rows->delta, tile->q->words,
                  tile->words + (keys->n0 - tile->words_first));
  else
    code->ds(tile->s, wk->dp, wk->p, wk->ds, wk->pairs, plain, slope, n, c2,
             bias, rows->lse, rows->delta);
  if (inputs)
    code->inputs[chain](wk->raw, plain, n, tile->q->t, tile->j, &tile->env.env,
                        wk->sums);
  add_products(wk, keys);
}
