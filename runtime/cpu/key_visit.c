/* key_visit.c - a range of packed keys for a group of query tiles: cover, then
 * the generated kernels.
 *
 * In: a range, the branches that reach it, tiles whose queries are loaded. Each
 * key tile is settled by arithmetic and by the masks' intervals as empty, full
 * or partial, once for all branches with the same predicate and score chain;
 * tiles that are not empty are visited. Out: the tiles' states, advanced over
 * the range. */
#include "query_tile.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- one visit: the kernels over one key tile ---------------------------- */

int32_t key_position(const tile_worker *wk, const packed_range *keys,
                     int64_t n) {
  return (int32_t)(keys->cell.low + class_table_row(&wk->streamed, keys->c, n));
}

void key_visit_positions(tile_worker *wk, const packed_range *keys) {
  int64_t n = keys->n1 - keys->n0;
  if (wk->patch) return; /* it has made them */
  for (int64_t i = 0; i < n; i++)
    wk->j[i] = key_position(wk, keys, keys->n0 + i);
}

const key_piece *key_visit_pieces(const tile_worker *wk,
                                  const packed_range *keys, key_piece *one,
                                  int32_t *count) {
  *one = (key_piece){.row = keys->base + keys->n0 - wk->packed_first,
                     .n = keys->n1 - keys->n0};
  *count = wk->patch ? wk->piece_count : 1;
  return wk->patch ? wk->piece : one;
}

void key_visit_scores(tile_worker *wk, const packed_range *keys,
                      const void *k) {
  int32_t count;
  key_piece one;
  const key_piece *piece = key_visit_pieces(wk, keys, &one, &count);
  for (int32_t i = 0; i < count; i++)
    wk->code->qk((const char *)k + piece[i].row * wk->k_bytes, wk->q->qt,
                 wk->s + piece[i].at * wk->code->lanes, wk->mx, piece[i].n);
}

/* The positions of n rows from n0 on, in wk->j. */
static void key_positions(tile_worker *wk, const packed_range *keys, int64_t n0,
                          int64_t n) {
  for (int64_t i = 0; i < n; i++) wk->j[i] = key_position(wk, keys, n0 + i);
}

static float value_element(const tile_worker *wk, const char *v, int64_t n,
                           int64_t d) {
  int64_t width = wk->run->table->value_dim;
  if (wk->code->pack == DIL_PACK_F32) return ((const float *)v)[n * width + d];
  return dil_bf16_to_f32(
      ((const uint16_t *)v)[(n / 2 * width + d) * 2 + n % 2]);
}

/* The weights of the keys of a visit from key `at` on. */
static const void *weights_from(const tile_worker *wk, int64_t at) {
  return (const char *)wk->p +
         at * wk->code->lanes * DIL_CODE_CELL / wk->code->pack;
}

static float weight_element(const tile_worker *wk, int64_t n, int32_t lane) {
  int32_t lanes = wk->code->lanes;
  if (wk->code->pack == DIL_PACK_F32) return wk->p[n * lanes + lane];
  return dil_bf16_to_f32(
      ((const uint16_t *)wk->p)[(n / 2 * lanes + lane) * 2 + n % 2]);
}

static bool is_finite_row(const tile_worker *wk, const char *v, int64_t n) {
  for (int64_t d = 0; d < wk->run->table->value_dim; d++)
    if (!isfinite(value_element(wk, v, n, d))) return false;
  return true;
}

static void clear_row(const tile_worker *wk, char *v, int64_t n) {
  int64_t width = wk->run->table->value_dim;
  if (wk->code->pack == DIL_PACK_F32) {
    memset(v + n * width * 4, 0, (size_t)width * 4);
    return;
  }
  for (int64_t d = 0; d < width; d++)
    ((uint16_t *)v)[(n / 2 * width + d) * 2 + n % 2] = 0;
}

/* Values of NaN or Inf: a pair that is masked, dropped or scored -inf weighs 0,
 * and 0 * NaN is NaN. Such rows are taken out of the product and added only
 * to the lanes that see them. */
static void add_values_by_lane(tile_worker *wk, const char *v, int64_t at,
                               int64_t n, const float *alpha) {
  int64_t whole = round_up(n, wk->code->pack); /* a pair may end past n */
  memcpy(wk->v_clean, v, (size_t)(whole * wk->v_bytes));
  for (int64_t i = 0; i < whole; i++)
    if (i >= n || !is_finite_row(wk, v, i)) clear_row(wk, wk->v_clean, i);
  wk->code->pv(wk->v_clean, weights_from(wk, at), wk->q->o, alpha, n);
  for (int64_t i = 0; i < n; i++) {
    if (is_finite_row(wk, v, i)) continue;
    for (int32_t lane = 0; lane < wk->code->lanes; lane++) {
      float weight = weight_element(wk, at + i, lane);
      if (weight == 0) continue;
      for (int64_t d = 0; d < wk->run->table->value_dim; d++)
        wk->q->o[d * wk->code->lanes + lane] +=
            weight * value_element(wk, v, i, d);
    }
  }
}

/* o = alpha o + the values of the visit, by their weights. */
static void add_values(tile_worker *wk, const packed_range *keys) {
  int32_t count;
  key_piece one;
  const key_piece *piece = key_visit_pieces(wk, keys, &one, &count);
  for (int32_t i = 0; i < count; i++) {
    const char *v = wk->v + piece[i].row * wk->v_bytes;
    const float *alpha = i ? wk->ones : wk->alpha;
    if (wk->finite)
      wk->code->pv(v, weights_from(wk, piece[i].at), wk->q->o, alpha,
                   piece[i].n);
    else
      add_values_by_lane(wk, v, piece[i].at, piece[i].n, alpha);
  }
}

void key_visit_forward(tile_worker *wk, const packed_range *keys,
                       uint64_t predicates, int32_t chain, int32_t copies) {
  const dil_code *code = wk->code;
  const dil_env *env = &wk->env.env;
  int64_t n = keys->n1 - keys->n0;
  float c2 = env->scale * DIL_LOG2_E;
  float bias = copies > 1 ? log2f((float)copies) : 0;
  bool rewrite = predicates || wk->run->table->scored || !(c2 > 0);
  key_visit_scores(wk, keys, wk->k);
  if (rewrite) {
    key_visit_positions(wk, keys);
    code->modify[chain](wk->s, wk->mx, n, wk->q->t, wk->j, predicates, env,
                        NULL);
    c2 = DIL_LOG2_E;
  }
  if (wk->kept) code->hide(wk->s, wk->mx, n, wk->kept);
  if (wk->run->drop)
    code->softmax_drop(wk->s, wk->p, n, c2, bias, wk->mx, wk->q->m, wk->q->l,
                       wk->alpha, wk->q->words,
                       wk->words + (keys->n0 - wk->words_first));
  else
    code->softmax(wk->s, wk->p, n, c2, bias, wk->mx, wk->q->m, wk->q->l,
                  wk->alpha);
  add_values(wk, keys);
}

/* ---- ranges of keys: cover, then visits ---------------------------------- */

/* Branches that reach a range with the same predicate and score chain. */
typedef struct branch_group {
  int32_t predicate, chain, copies;
  uint64_t branches;
  uint8_t cover; /* dil_cover; PARTIAL until resolved */
} branch_group;

typedef struct branch_groups {
  int32_t count;
  int32_t first, last; /* the query tiles first..last - 1 of the worker's group */
  int32_t t0, t1; /* first and last query position of these tiles */
  branch_group of[DIL_BRANCH_MAX];
} branch_groups;

/* A copy of the groups that there are: the struct has room for many more. */
static void branch_groups_copy(branch_groups *to, const branch_groups *from) {
  to->count = from->count;
  to->first = from->first;
  to->last = from->last;
  to->t0 = from->t0;
  to->t1 = from->t1;
  to->of[0] = from->of[0]; /* mostly the only one, and a call costs more */
  if (from->count > 1)
    memcpy(to->of, from->of, (size_t)from->count * sizeof *from->of);
}

/* The query tiles that the covers are for. Positions of a group ascend. */
static void branch_groups_face(const tile_worker *wk, branch_groups *g,
                               int32_t first, int32_t last) {
  g->first = first;
  g->last = last;
  g->t0 = wk->group[first].t[0];
  g->t1 = wk->group[last - 1].t[wk->code->lanes - 1];
}

/* `listed`: the keys are those of the branch's list. */
static void branch_groups_add(branch_groups *g, const dil_branch *branch,
                              bool listed, uint64_t bit) {
  int32_t predicate = listed ? branch->rest : branch->predicate;
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].predicate == predicate &&
        g->of[i].chain == branch->chain) {
      g->of[i].copies++;
      g->of[i].branches |= bit;
      return;
    }
  uint8_t cover = predicate < 0 ? DIL_FULL : DIL_PARTIAL;
  g->of[g->count++] = (branch_group){predicate, branch->chain, 1, bit, cover};
}

static dil_cover window_cover(const dil_predicate *p, int64_t t0, int64_t t1,
                              int64_t j0, int64_t j1) {
  if (p->right != DIL_ENDLESS && j0 - t1 > p->right) return DIL_EMPTY;
  if (p->left != DIL_ENDLESS && t0 - j1 > p->left) return DIL_EMPTY;
  int64_t end = dil_predicate_end(p);
  if (j1 < p->key_first || j0 >= end) return DIL_EMPTY;
  if (!dil_predicate_meets_rows(p, t0, t1)) return DIL_EMPTY;
  bool full = j0 >= p->key_first && j1 < end &&
              dil_predicate_holds_rows(p, t0, t1) &&
              (p->right == DIL_ENDLESS || j1 - t0 <= p->right) &&
              (p->left == DIL_ENDLESS || t1 - j0 <= p->left);
  return full ? DIL_FULL : DIL_PARTIAL;
}

/* Settles the groups' covers for keys j0..j1; false when all are empty. */
static bool branch_groups_settle(const tile_worker *wk, branch_groups *g,
                                 int32_t j0, int32_t j1) {
  bool some = false;
  for (int32_t i = 0; i < g->count; i++) {
    if (g->of[i].cover == DIL_PARTIAL) {
      int32_t p = g->of[i].predicate;
      const dil_predicate *predicate = &wk->run->table->predicates[p];
      dil_cover cover = window_cover(predicate, g->t0, g->t1, j0, j1);
      if (cover != DIL_EMPTY && predicate->masked)
        cover =
            (dil_cover)wk->code->cover(p, &wk->env.env, g->t0, g->t1, j0, j1);
      g->of[i].cover = (uint8_t)cover;
    }
    some |= g->of[i].cover != DIL_EMPTY;
  }
  return some;
}

/* Key rows of a range that the windows of these groups can reach: a row
 * outside is invisible to every row of the tile. */
static packed_range packed_range_trim(const tile_worker *wk,
                                      const branch_groups *g, uint64_t which,
                                      packed_range keys) {
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (uint64_t rest = which; rest; rest &= rest - 1) {
    const dil_predicate *p =
        &wk->run->table->predicates[g->of[__builtin_ctzll(rest)].predicate];
    int64_t from = p->left == DIL_ENDLESS ? INT64_MIN : g->t0 - p->left;
    int64_t to = p->right == DIL_ENDLESS ? INT64_MAX : g->t1 + p->right;
    low = minimum(low, maximum(from, p->key_first));
    high = maximum(high, minimum(to, dil_predicate_end(p) - 1));
  }
  int64_t base = keys.cell.low;
  if (low > base) {
    int64_t first = class_table_rows(&wk->streamed, keys.c, low - base);
    keys.n0 = maximum(keys.n0, floor_to(first, wk->code->pack));
  }
  if (high < keys.cell.high)
    keys.n1 = minimum(keys.n1,
                      class_table_rows(&wk->streamed, keys.c, high + 1 - base));
  return keys;
}

static void key_visit_partial(tile_worker *wk, const branch_groups *g,
                              uint64_t which, packed_range keys,
                              int32_t copies) {
  uint64_t predicates = 0;
  wk->visited = 0;
  for (uint64_t rest = which; rest; rest &= rest - 1) {
    const branch_group *one = &g->of[__builtin_ctzll(rest)];
    predicates |= 1ull << one->predicate;
    wk->visited |= one->branches;
  }
  keys = packed_range_trim(wk, g, which, keys);
  int32_t chain = g->of[__builtin_ctzll(which)].chain;
  if (keys.n0 < keys.n1) wk->visit(wk, &keys, predicates, chain, copies);
}

/* `union`: a key counts once, however many branches reach it. */
static void key_visit_union(tile_worker *wk, const branch_groups *g,
                            const packed_range *keys) {
  uint64_t partial = 0;
  for (int32_t i = 0; i < g->count; i++) {
    if (g->of[i].cover == DIL_FULL) {
      wk->visited = g->of[i].branches;
      wk->visit(wk, keys, 0, g->of[i].chain, 1);
      return;
    }
    if (g->of[i].cover == DIL_PARTIAL) partial |= 1ull << i;
  }
  if (partial) key_visit_partial(wk, g, partial, *keys, 1);
}

/* `softmax`: full groups of one score chain share a visit; a partial group
 * stands alone, since its copies differ from pair to pair. */
static void key_visit_multiset(tile_worker *wk, const branch_groups *g,
                               const packed_range *keys) {
  uint64_t done = 0;
  for (int32_t i = 0; i < g->count; i++) {
    const branch_group *first = &g->of[i];
    if (done >> i & 1 || first->cover == DIL_EMPTY) continue;
    if (first->cover == DIL_PARTIAL) {
      key_visit_partial(wk, g, 1ull << i, *keys, first->copies);
      continue;
    }
    int32_t copies = 0;
    wk->visited = 0;
    for (int32_t k = i; k < g->count; k++)
      if (g->of[k].cover == DIL_FULL && g->of[k].chain == first->chain) {
        copies += g->of[k].copies;
        wk->visited |= g->of[k].branches;
        done |= 1ull << k;
      }
    wk->visit(wk, keys, 0, first->chain, copies);
  }
}

static bool is_settled(const branch_groups *g) {
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].cover == DIL_PARTIAL) return false;
  return true;
}

static bool settle_range(const tile_worker *wk, branch_groups *g,
                         const packed_range *keys) {
  return branch_groups_settle(wk, g, key_position(wk, keys, keys->n0),
                              key_position(wk, keys, keys->n1 - 1));
}

static bool has_masks(const tile_worker *wk, const branch_groups *g) {
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].cover == DIL_PARTIAL &&
        wk->run->table->predicates[g->of[i].predicate].masked)
      return true;
  return false;
}

static bool same_covers(const branch_groups *a, const branch_groups *b) {
  for (int32_t i = 0; i < a->count; i++)
    if (a->of[i].cover != b->of[i].cover) return false;
  return true;
}

/* The visits of all tiles to keys whose covers are known; a cover that is still
 * partial stands for one tile. */
static void key_visit_settled(tile_worker *wk, const branch_groups *g,
                              const packed_range *keys) {
  for (int32_t i = g->first; i < g->last; i++) {
    wk->q = &wk->group[i];
    if (wk->run->table->combine == DIL_COMBINE_UNION)
      key_visit_union(wk, g, keys);
    else
      key_visit_multiset(wk, g, keys);
  }
}

static int64_t packed_range_subtiles(const packed_range *keys) {
  return (keys->n1 - keys->n0 + DIL_SUBTILE_KEYS - 1) / DIL_SUBTILE_KEYS;
}

/* Settles each subtile of `keys`: for several query tiles half of them at once,
 * since blocks are seldom smaller. False: one is partial for several tiles. */
static bool settle_subtiles(const tile_worker *wk, const branch_groups *g,
                            const packed_range *keys, branch_groups *state) {
  bool alone = g->last - g->first == 1;
  int64_t count = packed_range_subtiles(keys);
  int64_t part = alone ? 1 : maximum(count / 2, 1);
  for (int64_t i = 0; i < count; i += part) {
    packed_range piece = *keys;
    branch_groups now;
    piece.n0 += i * DIL_SUBTILE_KEYS;
    piece.n1 = minimum(piece.n0 + part * DIL_SUBTILE_KEYS, keys->n1);
    branch_groups_copy(&now, g);
    settle_range(wk, &now, &piece);
    bool settled = alone || is_settled(&now);
    if (!settled && (packed_range_subtiles(&piece) == 1 ||
                     !settle_subtiles(wk, &now, &piece, state + i)))
      return false;
    for (int64_t k = i; settled && k < minimum(i + part, count); k++)
      branch_groups_copy(&state[k], &now);
  }
  return true;
}

/* A mask may have blocks smaller than a tile: subtiles of it are settled one by
 * one, and neighbours that came out alike are visited together. False, and
 * nothing is visited: a subtile is partial for several query tiles. */
static bool key_visit_subtiles(tile_worker *wk, const branch_groups *g,
                               packed_range keys) {
  branch_groups state[DIL_TILE_KEYS_MOST / DIL_SUBTILE_KEYS];
  int64_t count = packed_range_subtiles(&keys), end = keys.n1, run = 0;
  if (!settle_subtiles(wk, g, &keys, state)) return false;
  for (int64_t i = 1; i <= count; i++) {
    if (i < count && same_covers(&state[i], &state[run])) continue;
    keys.n1 = minimum(keys.n0 + (i - run) * DIL_SUBTILE_KEYS, end);
    key_visit_settled(wk, &state[run], &keys);
    keys.n0 = keys.n1;
    run = i;
  }
  return true;
}

/* Visits keys that are settled, or one tile of keys. False, and nothing is
 * visited: several query tiles differ. */
static bool key_visit_steps(tile_worker *wk, const branch_groups *g,
                            packed_range keys, int64_t step) {
  if (has_masks(wk, g)) return key_visit_subtiles(wk, g, keys);
  if (!is_settled(g) && g->last - g->first > 1) return false;
  for (int64_t end = keys.n1; keys.n0 < end; keys.n0 = keys.n1) {
    keys.n1 = minimum(keys.n0 + step, end);
    key_visit_settled(wk, g, &keys);
  }
  return true;
}

static void key_visit_descend(tile_worker *wk, const branch_groups *of,
                              packed_range keys, int64_t step);

/* The same for the query tiles by halves, and where these differ, too, one by
 * one. */
static void key_visit_fewer(tile_worker *wk, branch_groups *g,
                            packed_range keys, int64_t step) {
  int32_t first = g->first, last = g->last, count = last - first;
  int32_t part = count == wk->group_count ? (count + 1) / 2 : 1;
  for (int32_t i = first; i < last; i += part) {
    branch_groups_face(wk, g, i, i + part < last ? i + part : last);
    key_visit_descend(wk, g, keys, step);
  }
}

/* Descends on halves of a range until it is settled or one tile, and then to
 * fewer query tiles: what is alike for all of them is asked once. */
static void key_visit_descend(tile_worker *wk, const branch_groups *of,
                              packed_range keys, int64_t step) {
  branch_groups g;
  int64_t tiles = (keys.n1 - keys.n0 + step - 1) / step;
  if (tiles == 1 && wk->unpacked && wk->unpacked[keys.n0 / step]) return;
  branch_groups_copy(&g, of);
  if (!settle_range(wk, &g, &keys)) return;
  if (tiles > 1 && !is_settled(&g)) {
    packed_range left = keys, right = keys;
    left.n1 = right.n0 = keys.n0 + tiles / 2 * step;
    key_visit_descend(wk, &g, left, step);
    key_visit_descend(wk, &g, right, step);
    return;
  }
  if (!key_visit_steps(wk, &g, keys, step))
    key_visit_fewer(wk, &g, keys, step);
}

/* Keys a tile: evenly shared, unless blocks of a mask want whole tiles. */
static int64_t key_tile_step(const tile_worker *wk, const branch_groups *g,
                             int64_t n) {
  int64_t most = wk->code->tile_keys;
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].predicate >= 0 &&
        wk->run->table->predicates[g->of[i].predicate].masked)
      return most;
  int64_t tiles = (n + most - 1) / most;
  return minimum(most,
                 round_up((n + tiles - 1) / tiles, 2 * wk->code->key_block));
}

/* The words of dropout for a range of keys, once for the whole group. */
static void packed_range_words(tile_worker *wk, const packed_range *keys) {
  int64_t most = wk->code->tile_keys;
  wk->words_first = keys->n0;
  for (int64_t n = keys->n0; n < keys->n1; n += most) {
    int64_t count = minimum(most, keys->n1 - n);
    key_positions(wk, keys, n, count);
    wk->code->dropout_words(wk->j, count, DIL_DROPOUT_KEY, &wk->env.env,
                            wk->words + (n - keys->n0));
  }
}

/* Key rows of a range, in whole tiles. */
static int64_t packed_range_rows(const tile_worker *wk, int64_t step) {
  return maximum(wk->range_rows / step, 1) * step;
}

void key_visit_range(tile_worker *wk, uint64_t branches, packed_range keys) {
  branch_groups g;
  g.count = 0;
  for (uint64_t rest = branches; rest; rest &= rest - 1)
    branch_groups_add(&g, &wk->run->table->branches[__builtin_ctzll(rest)],
                      wk->streamed.listed >= 0, rest & -rest);
  int64_t step = key_tile_step(wk, &g, keys.n1 - keys.n0), end = keys.n1;
  int64_t most = packed_range_rows(wk, step);
  for (; keys.n0 < end; keys.n0 = keys.n1) {
    keys.n1 = minimum(keys.n0 + most, end);
    if (wk->enter && !wk->enter(wk, &keys)) continue;
    if (wk->run->drop) packed_range_words(wk, &keys);
    branch_groups_face(wk, &g, 0, wk->group_count);
    key_visit_descend(wk, &g, keys, step);
  }
}
