/* cover_box.c - counts the pairs and tiles of one piece.
 *
 * In: a piece: a lattice of rows and keys, a band of differences, conditions.
 * Out: exact counts. Without conditions they are sums of arithmetic series;
 * with them, boxes of the piece are halved until the bounds of the conditions
 * say all or nothing, or they come apart (cover_part.c), or few pairs are left
 * to try one by one. Where that are too many boxes (conditions that hash), those
 * below a grain are sampled: one half is followed, chosen by chance in
 * proportion to its size, and counts for both. */
#include "cover_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/random.h"

enum { FEW = 16 };

typedef struct box { int64_t u0, u1, v0, v1; } box;

typedef enum verdict { NONE, SOME, ALL } verdict;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static box whole(const cover_piece *p) {
  return (box){p->u0, p->u1, p->v0, p->v1};
}

static bool is_empty(box b) { return b.u1 < b.u0 || b.v1 < b.v0; }

static int32_t position(const cover_piece *p, int64_t index) {
  return (int32_t)(p->origin + p->step * index);
}

/* ---- the band ------------------------------------------------------------ */

/* Pairs with v - u <= d: a rising series that ends at all keys. */
static __int128 below(box b, int64_t d) {
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

static double band_count(const cover_piece *p, box b) {
  return is_empty(b) ? 0
                     : (double)(below(b, p->right) - below(b, -p->left - 1));
}

static verdict band_verdict(const cover_piece *p, box b) {
  int64_t least = b.v0 - b.u1, most = b.v1 - b.u0;
  if (most < -p->left || least > p->right) return NONE;
  return least >= -p->left && most <= p->right ? ALL : SOME;
}

/* The part of the box that rows and keys of the band can be in. */
static box clipped(const cover_piece *p, box b) {
  b.v0 = larger(b.v0, b.u0 - p->left);
  b.v1 = smaller(b.v1, b.u1 + p->right);
  b.u0 = larger(b.u0, b.v0 - p->right);
  b.u1 = smaller(b.u1, b.v1 + p->left);
  return b;
}

/* ---- conditions ---------------------------------------------------------- */

static expr_box place_of(const cover_piece *p, box b) {
  expr_box at = p->cover->box;
  at.i0 = position(p, b.u0);
  at.i1 = position(p, b.u1);
  at.j0 = position(p, b.v0);
  at.j1 = position(p, b.v1);
  return at;
}

static interval known(bool truth) {
  return (interval){truth, truth, false};
}

/* `top` and `mass` choose by q and k, which are not here: all is kept. */
static interval keep_bounds(const keep *k, const expr_box *at) {
  return k->kind == KEEP_EXPR ? expr_bounds(k->condition, at) : known(true);
}

static interval condition_bounds(const cover_condition *one,
                                 const expr_box *at) {
  if (one->mask) return expr_bounds(one->mask, at);
  interval any = known(false);
  for (int32_t k = 0; k < one->level->count && any.low == 0; k++) {
    interval x = keep_bounds(&one->level->keep[k], at);
    if (x.low > any.low) any.low = x.low;
    if (x.high > any.high) any.high = x.high;
  }
  return any;
}

static verdict place_verdict(const cover_piece *p, const expr_box *at) {
  verdict all = ALL;
  for (int32_t k = 0; k < p->set->condition_count; k++) {
    interval x = condition_bounds(&p->set->conditions[k], at);
    if (x.high == 0) return NONE;
    if (x.low == 0) all = SOME;
  }
  return all;
}

static verdict conditions_verdict(const cover_piece *p, box b) {
  if (p->set->condition_count == 0) return ALL;
  expr_box at = place_of(p, b);
  return place_verdict(p, &at);
}

static bool condition_holds(const cover_condition *one, const expr_box *at) {
  if (one->mask) return expr_eval(one->mask, &at->point, false).integer != 0;
  for (int32_t k = 0; k < one->level->count; k++) {
    const keep *any = &one->level->keep[k];
    if (any->kind == KEEP_EXPR
            ? expr_eval(any->condition, &at->point, false).integer != 0
            : keep_bounds(any, at).high != 0)
      return true;
  }
  return false;
}

/* A box of one pair. */
static bool place_holds(const cover_piece *p, expr_box at) {
  at.point.i = at.i0;
  at.point.j = at.j0;
  for (int32_t k = 0; k < p->set->condition_count; k++)
    if (!condition_holds(&p->set->conditions[k], &at)) return false;
  return true;
}

static bool pair_holds(const cover_piece *p, int64_t u, int64_t v) {
  if (v - u < -p->left || v - u > p->right) return false;
  return place_holds(p, place_of(p, (box){u, u, v, v}));
}

bool cover_piece_holds(const cover_piece *piece, int64_t u, int64_t v) {
  return pair_holds(piece, u, v);
}

/* ---- halving ------------------------------------------------------------- */

static bool is_small(box b) {
  return (b.u1 - b.u0 + 1) * (b.v1 - b.v0 + 1) <= FEW;
}

/* An index of first + 1..last to cut before: the one whose position is the
 * roundest, so that boxes come to agree with blocks. */
static int64_t round_cut(const cover_piece *p, int64_t first, int64_t last) {
  int64_t before = p->origin + p->step * first;
  int64_t at = p->origin + p->step * last;
  while (at != 0 && (at & (at - 1)) > before) at &= at - 1;
  return last - (p->origin + p->step * last - at) / p->step;
}

static void halve(const cover_piece *p, box b, box half[2]) {
  half[0] = half[1] = b;
  if (b.u1 - b.u0 >= b.v1 - b.v0) {
    half[1].u0 = round_cut(p, b.u0, b.u1);
    half[0].u1 = half[1].u0 - 1;
  } else {
    half[1].v0 = round_cut(p, b.v0, b.v1);
    half[0].v1 = half[1].v0 - 1;
  }
}

/* ---- sampling ------------------------------------------------------------ */

static double size_of(box b) {
  return (double)(b.u1 - b.u0 + 1) * (double)(b.v1 - b.v0 + 1);
}

/* One box more is judged; what comes when none are left is sampled, and a step
 * of work. False: there is none. */
static bool spend(const cover_piece *p) {
  cover *c = p->cover;
  if (c->left >= 0) c->left--;
  else c->work--;
  return c->work >= 0;
}

/* Below the grain one of two halves with these sizes: 0 or 1; -1: both. The
 * chance depends on the place alone. */
static int32_t choose(const cover_piece *p, box b, double first,
                      double second) {
  if (p->cover->left >= 0 || size_of(b) > p->cover->grain) return -1;
  const uint32_t counter[4] = {(uint32_t)b.u0, (uint32_t)b.u1, (uint32_t)b.v0,
                               (uint32_t)b.v1};
  const uint32_t key[2] = {(uint32_t)p->cover->head, 0x636f76};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return (word[0] + 0.5) * 0x1p-32 * (first + second) >= first;
}

/* ---- pairs --------------------------------------------------------------- */

static double count_each(const cover_piece *p, box b) {
  double count = 0;
  for (int64_t u = b.u0; u <= b.u1; u++)
    for (int64_t v = b.v0; v <= b.v1; v++) count += pair_holds(p, u, v);
  return count;
}

/* By answers of rows and keys, where that is possible. */
static bool count_parts(const cover_piece *p, box b, double *count) {
  if (band_verdict(p, b) != ALL) return false;
  expr_box at = place_of(p, b);
  const int64_t first[2] = {b.u0, b.v0}, last[2] = {b.u1, b.v1};
  return cover_parts_count(p, &at, first, last, count);
}

static double box_count(const cover_piece *p, box b) {
  double count;
  b = clipped(p, b);
  if (is_empty(b) || band_verdict(p, b) == NONE) return 0;
  if (!spend(p)) return 0;
  verdict conditions = conditions_verdict(p, b);
  if (conditions == NONE) return 0;
  if (conditions == ALL) return band_count(p, b);
  if (is_small(b)) return count_each(p, b);
  if (count_parts(p, b, &count)) return count;
  box half[2];
  halve(p, b, half);
  double sizes[2] = {size_of(half[0]), size_of(half[1])};
  int32_t one = choose(p, b, sizes[0], sizes[1]);
  if (one < 0) return box_count(p, half[0]) + box_count(p, half[1]);
  return box_count(p, half[one]) * size_of(b) / sizes[one];
}

/* Pairs with a difference v - u of first..last, where the conditions see
 * nothing but i - j: all of one difference are alike. */
static double span_count(const cover_piece *p, int64_t first, int64_t last) {
  if (first > last || --p->cover->work < 0) return 0;
  expr_box at = p->cover->box;
  at.i0 = at.i1 = 0;
  at.j0 = (int32_t)(first * p->step);
  at.j1 = (int32_t)(last * p->step);
  verdict conditions = place_verdict(p, &at);
  if (conditions == SOME && first == last)
    conditions = place_holds(p, at) ? ALL : NONE;
  if (conditions == NONE) return 0;
  if (conditions == ALL)
    return (double)(below(whole(p), last) - below(whole(p), first - 1));
  int64_t middle = floor_div(first + last, 2);
  return span_count(p, first, middle) + span_count(p, middle + 1, last);
}

static bool fits(const cover_piece *p, int64_t difference) {
  int64_t apart;
  return !__builtin_mul_overflow(difference, p->step, &apart) &&
         apart >= INT32_MIN && apart <= INT32_MAX;
}

double cover_piece_count(const cover_piece *piece) {
  int64_t first = larger(piece->v0 - piece->u1, -piece->left);
  int64_t last = smaller(piece->v1 - piece->u0, piece->right);
  bool relative = piece->set->relative && fits(piece, first);
  return relative && fits(piece, last) ? span_count(piece, first, last)
                                       : box_count(piece, whole(piece));
}

static void add_count(void *context, const cover_piece *piece, int64_t times) {
  *(double *)context += (double)times * cover_piece_count(piece);
}

double cover_set_count(cover *c, const cover_set *set) {
  double count = 0;
  cover_set_walk(c, set, add_count, &count);
  return count;
}

/* ---- rows with a key ----------------------------------------------------- */

static bool has_bare_row(const cover_piece *p, box b, const uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    if (!covered[u - p->u0]) return true;
  return false;
}

static void mark_band(const cover_piece *p, box b, uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    if (larger(b.v0, u - p->left) <= smaller(b.v1, u + p->right))
      covered[u - p->u0] = 1;
}

static void mark_each(const cover_piece *p, box b, uint8_t *covered) {
  for (int64_t u = b.u0; u <= b.u1; u++)
    for (int64_t v = b.v0; v <= b.v1 && !covered[u - p->u0]; v++)
      covered[u - p->u0] = pair_holds(p, u, v);
}

static bool mark_parts(const cover_piece *p, box b, uint8_t *covered) {
  if (band_verdict(p, b) != ALL) return false;
  expr_box at = place_of(p, b);
  const int64_t first[2] = {b.u0, b.v0}, last[2] = {b.u1, b.v1};
  return cover_parts_mark(p, &at, first, last, covered);
}

static void box_mark(const cover_piece *p, box b, uint8_t *covered) {
  b = clipped(p, b);
  if (is_empty(b) || band_verdict(p, b) == NONE) return;
  if (!has_bare_row(p, b, covered)) return;
  verdict conditions = conditions_verdict(p, b);
  if (conditions == NONE) return;
  if (conditions == ALL) {
    mark_band(p, b, covered);
    return;
  }
  if (is_small(b)) {
    mark_each(p, b, covered);
    return;
  }
  if (mark_parts(p, b, covered)) return;
  box half[2];
  halve(p, b, half);
  box_mark(p, half[0], covered);
  box_mark(p, half[1], covered);
}

void cover_piece_mark(const cover_piece *piece, uint8_t *covered) {
  box_mark(piece, whole(piece), covered);
}

/* ---- tiles --------------------------------------------------------------- */

/* The piece as a grid: tile (x, y) is rows u0 + x * rows.., keys likewise. */
typedef struct grid {
  const cover_piece *piece;
  int64_t rows, keys;
  cover_tiles *tiles;
} grid;

static int64_t tiles_of(int64_t first, int64_t last, int64_t size) {
  return (last - first) / size + 1;
}

static box box_of(const grid *g, box t) {
  const cover_piece *p = g->piece;
  return (box){p->u0 + t.u0 * g->rows,
               smaller(p->u1, p->u0 + (t.u1 + 1) * g->rows - 1),
               p->v0 + t.v0 * g->keys,
               smaller(p->v1, p->v0 + (t.v1 + 1) * g->keys - 1)};
}

static verdict box_verdict(const cover_piece *p, box b) {
  verdict band = band_verdict(p, b);
  if (band == NONE) return NONE;
  verdict conditions = conditions_verdict(p, b);
  return conditions < band ? conditions : band;
}

static box tile_box(box t, bool second) {
  bool tall = t.u1 - t.u0 >= t.v1 - t.v0;
  int64_t middle = tall ? (t.u0 + t.u1) / 2 : (t.v0 + t.v1) / 2;
  if (tall) *(second ? &t.u0 : &t.u1) = middle + second;
  else *(second ? &t.v0 : &t.v1) = middle + second;
  return t;
}

/* Each tile counts `times`. */
static void grid_count(const grid *g, box t, double times) {
  double count = times * size_of(t);
  spend(g->piece);
  box place = box_of(g, t);
  verdict all = box_verdict(g->piece, place);
  if (all == NONE) g->tiles->empty += count;
  else if (all == ALL) g->tiles->full += count;
  else if (t.u0 == t.u1 && t.v0 == t.v1) g->tiles->partial += times;
  else {
    box half[2] = {tile_box(t, false), tile_box(t, true)};
    double sizes[2] = {size_of(half[0]), size_of(half[1])};
    int32_t one = choose(g->piece, place, sizes[0], sizes[1]);
    for (int32_t i = 0; i < 2; i++)
      if (one < 0) grid_count(g, half[i], times);
    if (one >= 0)
      grid_count(g, half[one], times * (sizes[0] + sizes[1]) / sizes[one]);
  }
}

void cover_piece_tiles(const cover_piece *piece, int64_t rows, int64_t keys,
                       cover_tiles *tiles) {
  grid g = {piece, rows, keys, tiles};
  grid_count(&g, (box){0, tiles_of(piece->u0, piece->u1, rows) - 1, 0,
                       tiles_of(piece->v0, piece->v1, keys) - 1}, 1);
}
