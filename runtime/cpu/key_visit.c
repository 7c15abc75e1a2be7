/* key_visit.c - a run of packed keys for a group of query tiles: cover, then
 * the generated kernels.
 *
 * In: a run, the branches that reach it, tiles whose queries are loaded. Each
 * key tile is settled by arithmetic and by the masks' intervals as empty, full
 * or partial, once for all branches that ask the same; what is left is
 * visited. Out: the tiles' states, advanced over the run. */
#include "query_tile.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- one visit: the kernels over one key tile ---------------------------- */

static int32_t key_position(const query_tile *tl, const key_range *keys,
                            int64_t n) {
  return (int32_t)(keys->cell.low + class_table_row(&tl->key, keys->c, n));
}

static float value_element(const query_tile *tl, const char *v, int64_t n,
                           int64_t d) {
  int64_t width = tl->run->table->value_dim;
  if (tl->code->pack == DIL_PACK_F32) return ((const float *)v)[n * width + d];
  return dil_bf16_to_f32(
      ((const uint16_t *)v)[(n / 2 * width + d) * 2 + n % 2]);
}

static float weight_element(const query_tile *tl, int64_t n, int32_t lane) {
  int32_t lanes = tl->code->lanes;
  if (tl->code->pack == DIL_PACK_F32) return tl->p[n * lanes + lane];
  return dil_bf16_to_f32(
      ((const uint16_t *)tl->p)[(n / 2 * lanes + lane) * 2 + n % 2]);
}

static bool is_finite_row(const query_tile *tl, const char *v, int64_t n) {
  for (int64_t d = 0; d < tl->run->table->value_dim; d++)
    if (!isfinite(value_element(tl, v, n, d))) return false;
  return true;
}

static void clear_row(const query_tile *tl, char *v, int64_t n) {
  int64_t width = tl->run->table->value_dim;
  if (tl->code->pack == DIL_PACK_F32) {
    memset(v + n * width * 4, 0, (size_t)width * 4);
    return;
  }
  for (int64_t d = 0; d < width; d++)
    ((uint16_t *)v)[(n / 2 * width + d) * 2 + n % 2] = 0;
}

/* Values of NaN or Inf: a pair that is masked, dropped or scored -inf weighs 0,
 * and 0 * NaN is NaN, so such rows are taken out of the product and given only
 * to the lanes that see them. */
static void add_values_apart(query_tile *tl, const char *v, int64_t n) {
  int64_t whole = round_up(n, tl->code->pack); /* a pair may end past n */
  memcpy(tl->v_clean, v, (size_t)(whole * tl->v_bytes));
  for (int64_t i = 0; i < whole; i++)
    if (i >= n || !is_finite_row(tl, v, i)) clear_row(tl, tl->v_clean, i);
  tl->code->pv(tl->v_clean, tl->p, tl->q->o, tl->alpha, n);
  for (int64_t i = 0; i < n; i++) {
    if (is_finite_row(tl, v, i)) continue;
    for (int32_t lane = 0; lane < tl->code->lanes; lane++) {
      float weight = weight_element(tl, i, lane);
      if (weight == 0) continue;
      for (int64_t d = 0; d < tl->run->table->value_dim; d++)
        tl->q->o[d * tl->code->lanes + lane] +=
            weight * value_element(tl, v, i, d);
    }
  }
}

/* predicates 0: every pair is kept. copies: branches this visit stands for. */
static void visit(query_tile *tl, const key_range *keys, uint64_t predicates,
                  int32_t chain, int32_t copies) {
  const dil_code *code = tl->code;
  const dil_env *env = &tl->env.env;
  int64_t n = keys->n1 - keys->n0, at = keys->slot + keys->n0;
  const char *v = tl->v + at * tl->v_bytes;
  float c2 = env->scale * DIL_LOG2_E;
  float bias = copies > 1 ? log2f((float)copies) : 0;
  bool rewrite = predicates || tl->run->table->scored || !(c2 > 0);
  code->qk(tl->k + at * tl->k_bytes, tl->q->qt, tl->s, tl->mx, n);
  if (rewrite || tl->run->drop)
    for (int64_t i = 0; i < n; i++)
      tl->j[i] = key_position(tl, keys, keys->n0 + i);
  if (rewrite) {
    code->modify[chain](tl->s, tl->mx, n, tl->q->t, tl->j, predicates, env,
                        NULL);
    c2 = DIL_LOG2_E;
  }
  if (tl->run->drop)
    code->softmax_drop(tl->s, tl->p, n, c2, bias, tl->mx, tl->q->m, tl->q->l,
                       tl->alpha, tl->q->t, tl->j, env);
  else
    code->softmax(tl->s, tl->p, n, c2, bias, tl->mx, tl->q->m, tl->q->l,
                  tl->alpha);
  if (tl->finite) code->pv(v, tl->p, tl->q->o, tl->alpha, n);
  else add_values_apart(tl, v, n);
}

/* ---- runs of keys: cover, then visits ------------------------------------ */

/* Branches of a run that ask the same: one predicate, one score chain. */
typedef struct group {
  int32_t predicate, chain, copies;
  uint8_t cover; /* dil_cover; PARTIAL until resolved */
} group;

typedef struct groups {
  int32_t count;
  int32_t t0, t1; /* first and last query position */
  group of[DIL_BRANCH_MAX];
} groups;

static void groups_add(groups *g, const dil_branch *branch) {
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].predicate == branch->predicate &&
        g->of[i].chain == branch->chain) {
      g->of[i].copies++;
      return;
    }
  uint8_t cover = branch->predicate < 0 ? DIL_FULL : DIL_PARTIAL;
  g->of[g->count++] =
      (group){branch->predicate, branch->chain, 1, cover};
}

static dil_cover window_cover(const dil_predicate *p, int64_t t0, int64_t t1,
                              int64_t j0, int64_t j1) {
  if (p->right != DIL_ENDLESS && j0 - t1 > p->right) return DIL_EMPTY;
  if (p->left != DIL_ENDLESS && t0 - j1 > p->left) return DIL_EMPTY;
  bool full = (p->right == DIL_ENDLESS || j1 - t0 <= p->right) &&
              (p->left == DIL_ENDLESS || t1 - j0 <= p->left);
  return full ? DIL_FULL : DIL_PARTIAL;
}

/* Settles what can be settled for keys j0..j1; false when nothing is left. */
static bool groups_resolve(const query_tile *tl, groups *g, int32_t j0,
                           int32_t j1) {
  bool some = false;
  for (int32_t i = 0; i < g->count; i++) {
    if (g->of[i].cover == DIL_PARTIAL) {
      int32_t p = g->of[i].predicate;
      const dil_predicate *predicate = &tl->run->table->predicates[p];
      dil_cover cover = window_cover(predicate, g->t0, g->t1, j0, j1);
      if (cover != DIL_EMPTY && predicate->masked)
        cover = (dil_cover)tl->code->cover(p, &tl->env.env, g->t0, g->t1, j0,
                                           j1);
      g->of[i].cover = (uint8_t)cover;
    }
    some |= g->of[i].cover != DIL_EMPTY;
  }
  return some;
}

/* Key rows of a range that the windows of these groups can reach: what
 * stands outside is invisible to every row of the tile. */
static key_range trim(const query_tile *tl, const groups *g, uint64_t which,
                    key_range keys) {
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (uint64_t rest = which; rest; rest &= rest - 1) {
    const dil_predicate *p =
        &tl->run->table
             ->predicates[g->of[__builtin_ctzll(rest)].predicate];
    low = minimum(low, p->left == DIL_ENDLESS ? INT64_MIN : g->t0 - p->left);
    high = maximum(high,
                   p->right == DIL_ENDLESS ? INT64_MAX : g->t1 + p->right);
  }
  int64_t base = keys.cell.low;
  if (low > base) {
    int64_t first = class_table_rows(&tl->key, keys.c, low - base);
    keys.n0 = maximum(keys.n0, floor_to(first, tl->code->pack));
  }
  if (high < keys.cell.high)
    keys.n1 =
        minimum(keys.n1, class_table_rows(&tl->key, keys.c, high + 1 - base));
  return keys;
}

static void visit_partial(query_tile *tl, const groups *g, uint64_t which,
                          key_range keys, int32_t copies) {
  uint64_t predicates = 0;
  for (uint64_t rest = which; rest; rest &= rest - 1)
    predicates |= 1ull << g->of[__builtin_ctzll(rest)].predicate;
  keys = trim(tl, g, which, keys);
  int32_t chain = g->of[__builtin_ctzll(which)].chain;
  if (keys.n0 < keys.n1) visit(tl, &keys, predicates, chain, copies);
}

/* `union`: a key counts once, however many branches reach it. */
static void visit_union(query_tile *tl, const groups *g,
                        const key_range *keys) {
  uint64_t partial = 0;
  for (int32_t i = 0; i < g->count; i++) {
    if (g->of[i].cover == DIL_FULL) {
      visit(tl, keys, 0, g->of[i].chain, 1);
      return;
    }
    if (g->of[i].cover == DIL_PARTIAL) partial |= 1ull << i;
  }
  if (partial) visit_partial(tl, g, partial, *keys, 1);
}

/* `softmax`: full groups of one score chain share a visit; a partial group
 * stands alone, since its copies differ from pair to pair. */
static void visit_multiset(query_tile *tl, const groups *g,
                           const key_range *keys) {
  uint64_t done = 0;
  for (int32_t i = 0; i < g->count; i++) {
    const group *first = &g->of[i];
    if (done >> i & 1 || first->cover == DIL_EMPTY) continue;
    if (first->cover == DIL_PARTIAL) {
      visit_partial(tl, g, 1ull << i, *keys, first->copies);
      continue;
    }
    int32_t copies = 0;
    for (int32_t k = i; k < g->count; k++)
      if (g->of[k].cover == DIL_FULL && g->of[k].chain == first->chain) {
        copies += g->of[k].copies;
        done |= 1ull << k;
      }
    visit(tl, keys, 0, first->chain, copies);
  }
}

static bool is_resolved(const groups *g) {
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].cover == DIL_PARTIAL) return false;
  return true;
}

static bool resolve_range(const query_tile *tl, groups *g,
                          const key_range *keys) {
  return groups_resolve(tl, g, key_position(tl, keys, keys->n0),
                        key_position(tl, keys, keys->n1 - 1));
}

static bool has_masks(const query_tile *tl, const groups *g) {
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].cover == DIL_PARTIAL &&
        tl->run->table->predicates[g->of[i].predicate].masked)
      return true;
  return false;
}

static bool same_covers(const groups *a, const groups *b) {
  for (int32_t i = 0; i < a->count; i++)
    if (a->of[i].cover != b->of[i].cover) return false;
  return true;
}

static void visit_tile(query_tile *tl, const groups *g, const key_range *keys) {
  if (tl->run->table->combine == DIL_COMBINE_UNION) visit_union(tl, g, keys);
  else visit_multiset(tl, g, keys);
}

/* A mask may have blocks smaller than a tile: subtiles of it are settled one by
 * one, and neighbours that came out alike are visited together. */
static void visit_subtiles(query_tile *tl, const groups *g, key_range keys) {
  groups state = *g, now;
  int64_t end = keys.n1;
  for (int64_t n = keys.n0; n < end; n += DIL_SUBTILE_KEYS) {
    key_range subtile = keys;
    subtile.n0 = n;
    subtile.n1 = minimum(n + DIL_SUBTILE_KEYS, end);
    now = *g;
    resolve_range(tl, &now, &subtile);
    if (n > keys.n0 && !same_covers(&state, &now)) {
      keys.n1 = n;
      visit_tile(tl, &state, &keys);
      keys.n0 = n;
    }
    state = now;
  }
  keys.n1 = end;
  visit_tile(tl, &state, &keys);
}

/* Descends on halves of a range until it is settled or one tile. */
static void visit_range(query_tile *tl, groups g, key_range keys,
                        int64_t step) {
  if (!resolve_range(tl, &g, &keys)) return;
  int64_t tiles = (keys.n1 - keys.n0 + step - 1) / step;
  if (tiles > 1 && !is_resolved(&g)) {
    key_range left = keys, right = keys;
    left.n1 = right.n0 = keys.n0 + tiles / 2 * step;
    visit_range(tl, g, left, step);
    visit_range(tl, g, right, step);
    return;
  }
  for (int64_t n = keys.n0; n < keys.n1; n += step) {
    key_range one = keys;
    one.n0 = n;
    one.n1 = minimum(n + step, keys.n1);
    if (has_masks(tl, &g)) visit_subtiles(tl, &g, one);
    else visit_tile(tl, &g, &one);
  }
}

/* Keys a tile: evenly shared, unless blocks of a mask want whole tiles. */
static int64_t tile_step(const query_tile *tl, const groups *g, int64_t n) {
  int64_t most = tl->code->tile_keys;
  for (int32_t i = 0; i < g->count; i++)
    if (g->of[i].predicate >= 0 &&
        tl->run->table->predicates[g->of[i].predicate].masked)
      return most;
  int64_t tiles = (n + most - 1) / most;
  return minimum(most, round_up((n + tiles - 1) / tiles,
                                2 * tl->code->key_block));
}

/* Key rows of a range that stays in the cache while a group of tiles takes
 * turns on it, in whole tiles. */
static int64_t range_rows(const query_tile *tl, int64_t step) {
  enum { RANGE_BYTES = 1 << 18 };
  int64_t rows_fit = RANGE_BYTES / (tl->k_bytes + tl->v_bytes);
  return maximum(rows_fit / step, 1) * step;
}

void key_visit_run(query_tile *tl, uint64_t branches, key_range keys) {
  groups g = {0};
  for (uint64_t rest = branches; rest; rest &= rest - 1)
    groups_add(&g, &tl->run->table->branches[__builtin_ctzll(rest)]);
  int64_t step = tile_step(tl, &g, keys.n1 - keys.n0), end = keys.n1;
  int64_t most = range_rows(tl, step);
  for (; keys.n0 < end; keys.n0 = keys.n1) {
    keys.n1 = minimum(keys.n0 + most, end);
    for (int32_t i = 0; i < tl->group_count; i++) {
      tl->q = &tl->group[i];
      g.t0 = tl->q->t[0];
      g.t1 = tl->q->t[tl->code->lanes - 1];
      visit_range(tl, g, keys, step);
    }
  }
}
