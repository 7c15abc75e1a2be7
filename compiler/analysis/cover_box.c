/* cover_box.c - counts the pairs and tiles of one subrange.
 *
 * In: a subrange: a lattice of rows and keys, a band of differences,
 * conditions. Out: exact counts. Without conditions they are sums of arithmetic
 * series. With conditions, boxes of the subrange are halved until interval
 * bounds (Moore 1966, Interval Analysis) decide a condition for the whole box,
 * or the conditions are separable (cover_separable.c), or few pairs are left to
 * try one by one. Conditions that hash would take too many boxes: then boxes
 * below a grain are sampled. One half is followed, chosen by chance in
 * proportion to its size, and counts for both. */
#include "cover_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/random.h"

enum { FEW_PAIRS = 16 };

typedef struct index_box {
  int64_t u0, u1, v0, v1;
} index_box;

typedef enum coverage { NONE, SOME, ALL } coverage;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static index_box whole_box(const cover_subrange *p) {
  return (index_box){p->u0, p->u1, p->v0, p->v1};
}

static bool is_empty_box(index_box b) {
  return b.u1 < b.u0 || b.v1 < b.v0;
}

static int32_t position_of(const cover_subrange *p, int64_t index) {
  return (int32_t)(p->origin + p->step * index);
}

/* ---- the band ------------------------------------------------------------ */

/* Pairs with v - u <= d: a rising series that ends at all keys. */
static __int128 pairs_below(index_box b, int64_t d) {
  int64_t keys = b.v1 - b.v0 + 1, shift = d - b.v0 + 1;
  int64_t begin = larger(b.u0, 1 - shift);
  int64_t flat = larger(begin, keys - shift);
  int64_t last = smaller(b.u1, flat - 1);
  __int128 sum = 0;
  if (begin <= last)
    sum = ((__int128)(begin + shift) + (last + shift)) * (last - begin + 1) / 2;
  if (flat <= b.u1) sum += (__int128)keys * (b.u1 - flat + 1);
  return sum;
}

static double band_count(const cover_subrange *p, index_box b) {
  return is_empty_box(b) ? 0
                         : (double)(pairs_below(b, p->right) -
                                    pairs_below(b, -p->left - 1));
}

static coverage band_coverage(const cover_subrange *p, index_box b) {
  int64_t least = b.v0 - b.u1, most = b.v1 - b.u0;
  if (most < -p->left || least > p->right) return NONE;
  return least >= -p->left && most <= p->right ? ALL : SOME;
}

/* The part of the box that rows and keys of the band can be in. */
static index_box clip_box(const cover_subrange *p, index_box b) {
  b.v0 = larger(b.v0, b.u0 - p->left);
  b.v1 = smaller(b.v1, b.u1 + p->right);
  b.u0 = larger(b.u0, b.v0 - p->right);
  b.u1 = smaller(b.u1, b.v1 + p->left);
  return b;
}

/* ---- conditions ---------------------------------------------------------- */

static expr_box intervals_of(const cover_subrange *p, index_box b) {
  expr_box at = p->cover->box;
  at.i0 = position_of(p, b.u0);
  at.i1 = position_of(p, b.u1);
  at.j0 = position_of(p, b.v0);
  at.j1 = position_of(p, b.v1);
  return at;
}

static interval constant_bounds(bool truth) {
  return (interval){truth, truth, false};
}

static interval keep_bounds(const keep *k, const expr_box *at) {
  return expr_bounds(k->condition, at);
}

static interval condition_bounds(const cover_condition *one,
                                 const expr_box *at) {
  if (one->mask) return expr_bounds(one->mask, at);
  interval any = constant_bounds(false);
  for (int32_t k = 0; k < one->level->count && any.low == 0; k++) {
    interval x = keep_bounds(&one->level->keep[k], at);
    if (x.low > any.low) any.low = x.low;
    if (x.high > any.high) any.high = x.high;
  }
  return any;
}

static coverage intervals_coverage(const cover_subrange *p,
                                   const expr_box *at) {
  coverage all = ALL;
  for (int32_t k = 0; k < p->set->condition_count; k++) {
    interval x = condition_bounds(&p->set->conditions[k], at);
    if (x.high == 0) return NONE;
    if (x.low == 0) all = SOME;
  }
  return all;
}

static coverage conditions_coverage(const cover_subrange *p, index_box b) {
  if (p->set->condition_count == 0) return ALL;
  expr_box at = intervals_of(p, b);
  return intervals_coverage(p, &at);
}

static bool condition_holds(const cover_condition *one, const expr_box *at) {
  if (one->mask) return expr_eval(one->mask, &at->point, false).integer != 0;
  for (int32_t k = 0; k < one->level->count; k++) {
    const keep *any = &one->level->keep[k];
    if (expr_eval(any->condition, &at->point, false).integer != 0) return true;
  }
  return false;
}

/* A box of one pair. */
static bool point_holds(const cover_subrange *p, expr_box at) {
  at.point.i = at.i0;
  at.point.j = at.j0;
  for (int32_t k = 0; k < p->set->condition_count; k++)
    if (!condition_holds(&p->set->conditions[k], &at)) return false;
  return true;
}

static bool pair_holds(const cover_subrange *p, int64_t u, int64_t v) {
  if (v - u < -p->left || v - u > p->right) return false;
  return point_holds(p, intervals_of(p, (index_box){u, u, v, v}));
}

bool cover_subrange_holds(const cover_subrange *subrange, int64_t u,
                          int64_t v) {
  return pair_holds(subrange, u, v);
}

/* ---- halving ------------------------------------------------------------- */

static bool is_small_box(index_box b) {
  return (b.u1 - b.u0 + 1) * (b.v1 - b.v0 + 1) <= FEW_PAIRS;
}

/* An index of first + 1..last to cut before: the one whose position is the
 * roundest, so that boxes come to agree with blocks. */
static int64_t round_border(const cover_subrange *p, int64_t first,
                            int64_t last) {
  int64_t before = p->origin + p->step * first;
  int64_t at = p->origin + p->step * last;
  while (at != 0 && (at & (at - 1)) > before) at &= at - 1;
  return last - (p->origin + p->step * last - at) / p->step;
}

/* Returns whether to cut rows rather than keys. Boxes come to the shape of a
 * block of the first condition that keeps blocks, of a square otherwise. */
static bool cuts_rows(const cover_subrange *p, index_box b) {
  int64_t rows = 1, keys = 1;
  for (int32_t k = 0; k < p->set->condition_count; k++) {
    const keeps *level = p->set->conditions[k].level;
    if (!level || level->block <= 0) continue;
    rows = level->query_block;
    keys = level->block;
    break;
  }
  double tall = (double)(b.u1 - b.u0 + 1) * (double)keys;
  double wide = (double)(b.v1 - b.v0 + 1) * (double)rows;
  return b.u1 > b.u0 && (b.v1 == b.v0 || tall >= wide);
}

static void halve_box(const cover_subrange *p, index_box b, index_box half[2]) {
  half[0] = half[1] = b;
  if (cuts_rows(p, b)) {
    half[1].u0 = round_border(p, b.u0, b.u1);
    half[0].u1 = half[1].u0 - 1;
  } else {
    half[1].v0 = round_border(p, b.v0, b.v1);
    half[0].v1 = half[1].v0 - 1;
  }
}

/* ---- sampling ------------------------------------------------------------ */

static double box_size(index_box b) {
  return (double)(b.u1 - b.u0 + 1) * (double)(b.v1 - b.v0 + 1);
}

/* One box more is examined; what comes when none are left is sampled, and a
 * step of work. False: there is none. */
static bool spend_box(const cover_subrange *p) {
  cover *c = p->cover;
  if (c->left >= 0) c->left--;
  else c->work--;
  return c->work >= 0;
}

/* Below the grain one of two halves with these sizes: 0 or 1; -1: both. The
 * chance depends on the place alone. */
static int32_t choose_half(const cover_subrange *p, index_box b, double first,
                           double second) {
  if (p->cover->left >= 0 || box_size(b) > p->cover->grain) return -1;
  const uint32_t counter[4] = {(uint32_t)b.u0, (uint32_t)b.u1, (uint32_t)b.v0,
                               (uint32_t)b.v1};
  const uint32_t key[2] = {(uint32_t)p->cover->head, 0x636f76};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return (word[0] + 0.5) * 0x1p-32 * (first + second) >= first;
}

/* ---- pairs --------------------------------------------------------------- */

static double count_each_pair(const cover_subrange *p, index_box b) {
  double count = 0;
  for (int64_t u = b.u0; u <= b.u1; u++)
    for (int64_t v = b.v0; v <= b.v1; v++) count += pair_holds(p, u, v);
  return count;
}

/* False: the conditions of the box are not separable. */
static bool count_separable(const cover_subrange *p, index_box b,
                            double *count) {
  if (band_coverage(p, b) != ALL) return false;
  expr_box at = intervals_of(p, b);
  const int64_t first[2] = {b.u0, b.v0}, last[2] = {b.u1, b.v1};
  return cover_separable_count(p, &at, first, last, count);
}

static double box_count(const cover_subrange *p, index_box b) {
  double count;
  b = clip_box(p, b);
  if (is_empty_box(b) || band_coverage(p, b) == NONE) return 0;
  if (!spend_box(p)) return 0;
  coverage conditions = conditions_coverage(p, b);
  if (conditions == NONE) return 0;
  if (conditions == ALL) return band_count(p, b);
  if (is_small_box(b)) return count_each_pair(p, b);
  if (count_separable(p, b, &count)) return count;
  index_box half[2];
  halve_box(p, b, half);
  double sizes[2] = {box_size(half[0]), box_size(half[1])};
  int32_t one = choose_half(p, b, sizes[0], sizes[1]);
  if (one < 0) return box_count(p, half[0]) + box_count(p, half[1]);
  return box_count(p, half[one]) * box_size(b) / sizes[one];
}

/* Pairs with a difference v - u of first..last, where the conditions see
 * nothing but i - j: all of one difference are alike. */
static double differences_count(const cover_subrange *p, int64_t first,
                                int64_t last) {
  if (first > last || --p->cover->work < 0) return 0;
  expr_box at = p->cover->box;
  at.i0 = at.i1 = 0;
  at.j0 = (int32_t)(first * p->step);
  at.j1 = (int32_t)(last * p->step);
  coverage conditions = intervals_coverage(p, &at);
  if (conditions == SOME && first == last)
    conditions = point_holds(p, at) ? ALL : NONE;
  if (conditions == NONE) return 0;
  if (conditions == ALL)
    return (double)(pairs_below(whole_box(p), last) -
                    pairs_below(whole_box(p), first - 1));
  int64_t middle = floor_div(first + last, 2);
  return differences_count(p, first, middle) +
         differences_count(p, middle + 1, last);
}

static bool difference_fits(const cover_subrange *p, int64_t difference) {
  int64_t distance;
  return !__builtin_mul_overflow(difference, p->step, &distance) &&
         distance >= INT32_MIN && distance <= INT32_MAX;
}

double cover_subrange_count(const cover_subrange *subrange) {
  int64_t first = larger(subrange->v0 - subrange->u1, -subrange->left);
  int64_t last = smaller(subrange->v1 - subrange->u0, subrange->right);
  bool relative = subrange->set->relative && difference_fits(subrange, first);
  return relative && difference_fits(subrange, last)
             ? differences_count(subrange, first, last)
             : box_count(subrange, whole_box(subrange));
}

static void add_subrange_count(void *context, const cover_subrange *subrange,
                               int64_t times) {
  *(double *)context += (double)times * cover_subrange_count(subrange);
}

double cover_set_count(cover *c, const cover_set *set) {
  double count = 0;
  cover_set_walk(c, set, add_subrange_count, &count);
  return count;
}

/* ---- rows with a key ----------------------------------------------------- */

static bool has_uncovered_row(const cover_subrange *p, index_box b,
                              const uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    if (!covered[u - p->u0]) return true;
  return false;
}

static void mark_band(const cover_subrange *p, index_box b, uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    if (larger(b.v0, u - p->left) <= smaller(b.v1, u + p->right))
      covered[u - p->u0] = 1;
}

static void mark_each_pair(const cover_subrange *p, index_box b,
                           uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    for (int64_t v = b.v0; v <= b.v1 && !covered[u - p->u0]; v++)
      covered[u - p->u0] = pair_holds(p, u, v);
}

static bool mark_separable(const cover_subrange *p, index_box b,
                           uint8_t *covered) {
  if (band_coverage(p, b) != ALL) return false;
  expr_box at = intervals_of(p, b);
  const int64_t first[2] = {b.u0, b.v0}, last[2] = {b.u1, b.v1};
  return cover_separable_mark(p, &at, first, last, covered);
}

static void box_mark(const cover_subrange *p, index_box b, uint8_t *covered) {
  b = clip_box(p, b);
  if (is_empty_box(b) || band_coverage(p, b) == NONE) return;
  if (!has_uncovered_row(p, b, covered)) return;
  coverage conditions = conditions_coverage(p, b);
  if (conditions == NONE) return;
  if (conditions == ALL) {
    mark_band(p, b, covered);
    return;
  }
  if (is_small_box(b)) {
    mark_each_pair(p, b, covered);
    return;
  }
  if (mark_separable(p, b, covered)) return;
  index_box half[2];
  halve_box(p, b, half);
  box_mark(p, half[0], covered);
  box_mark(p, half[1], covered);
}

void cover_subrange_mark(const cover_subrange *subrange, uint8_t *covered) {
  box_mark(subrange, whole_box(subrange), covered);
}

/* ---- tiles --------------------------------------------------------------- */

/* The subrange as a grid: tile (x, y) is rows u0 + x * rows.., keys
 * likewise. */
typedef struct tile_grid {
  const cover_subrange *subrange;
  int64_t rows, keys;
  cover_tiles *tiles;
} tile_grid;

static int64_t tile_count(int64_t first, int64_t last, int64_t size) {
  return (last - first) / size + 1;
}

static index_box tile_grid_box(const tile_grid *g, index_box t) {
  const cover_subrange *p = g->subrange;
  return (index_box){
      p->u0 + t.u0 * g->rows, smaller(p->u1, p->u0 + (t.u1 + 1) * g->rows - 1),
      p->v0 + t.v0 * g->keys, smaller(p->v1, p->v0 + (t.v1 + 1) * g->keys - 1)};
}

static coverage box_coverage(const cover_subrange *p, index_box b) {
  coverage band = band_coverage(p, b);
  if (band == NONE) return NONE;
  coverage conditions = conditions_coverage(p, b);
  return conditions < band ? conditions : band;
}

/* Returns whether a box reaches over several blocks of a condition. */
static bool has_blocks(const cover_subrange *p, index_box b) {
  for (int32_t k = 0; k < p->set->condition_count; k++) {
    const keeps *level = p->set->conditions[k].level;
    if (!level || level->block <= 0) continue;
    if (position_of(p, b.u0) / level->query_block !=
            position_of(p, b.u1) / level->query_block ||
        position_of(p, b.v0) / level->block !=
            position_of(p, b.v1) / level->block)
      return true;
  }
  return false;
}

/* The same for a tile, of which each pair of blocks is asked by itself where
 * intervals do not decide all of them together. */
static coverage tile_coverage(const cover_subrange *p, index_box b) {
  coverage all = box_coverage(p, b);
  if (all != SOME || !has_blocks(p, b)) return all;
  index_box half[2];
  halve_box(p, b, half);
  coverage one = tile_coverage(p, half[0]);
  if (one == SOME) return SOME;
  return tile_coverage(p, half[1]) == one ? one : SOME;
}

static index_box half_of_tiles(index_box t, bool second) {
  bool tall = t.u1 - t.u0 >= t.v1 - t.v0;
  int64_t middle = tall ? (t.u0 + t.u1) / 2 : (t.v0 + t.v1) / 2;
  if (tall) *(second ? &t.u0 : &t.u1) = middle + second;
  else *(second ? &t.v0 : &t.v1) = middle + second;
  return t;
}

/* Each tile counts `times`. */
static void grid_count(const tile_grid *g, index_box t, double times) {
  double count = times * box_size(t);
  spend_box(g->subrange);
  index_box rows_and_keys = tile_grid_box(g, t);
  bool single = t.u0 == t.u1 && t.v0 == t.v1;
  coverage all = single ? tile_coverage(g->subrange, rows_and_keys)
                        : box_coverage(g->subrange, rows_and_keys);
  if (all == NONE) g->tiles->empty += count;
  else if (all == ALL) g->tiles->full += count;
  else if (single) g->tiles->partial += times;
  else {
    index_box half[2] = {half_of_tiles(t, false), half_of_tiles(t, true)};
    double sizes[2] = {box_size(half[0]), box_size(half[1])};
    int32_t one = choose_half(g->subrange, rows_and_keys, sizes[0], sizes[1]);
    for (int32_t i = 0; i < 2; i++)
      if (one < 0) grid_count(g, half[i], times);
    if (one >= 0)
      grid_count(g, half[one], times * (sizes[0] + sizes[1]) / sizes[one]);
  }
}

void cover_subrange_tiles(const cover_subrange *subrange, int64_t rows,
                          int64_t keys, cover_tiles *tiles) {
  tile_grid g = {subrange, rows, keys, tiles};
  grid_count(&g,
             (index_box){0, tile_count(subrange->u0, subrange->u1, rows) - 1, 0,
                         tile_count(subrange->v0, subrange->v1, keys) - 1},
             1);
}
