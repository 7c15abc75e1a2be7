/* cover_sweep.c - the pairs that some branch of a head reaches, where sets of
 * branches are too many to be counted.
 *
 * In: the branches of a head. Out: their union, exactly or as an estimate. To
 * be exact, all rows are swept: each branch marks its keys of the row, and a
 * key that is marked already does not count again. To estimate, pairs of each
 * branch are drawn by chance. Each counts one part in so many as there are
 * branches that reach it: the coverage algorithm of Karp and Luby (1983,
 * Monte-Carlo algorithms for enumeration and reliability problems). */
#include "cover.h"
#include "cover_set.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/random.h"
#include <math.h>

enum {
  ROW_STEPS = 64,     /* steps to begin a row, and to ask a pair's masks */
  PAIR_STEPS = 256,
  BITS_MOST = 1 << 27, /* keys */
  SAMPLES = 1 << 15,  /* pairs of one head that are drawn, at most */
  TRIES = 16          /* places that are tried for one pair, masks permitting */
};

/* A branch on its way over the rows. */
typedef struct cover_cursor {
  cover_set set;
  cover_subrange subrange;
  int64_t end; /* the position where the next subrange begins */
} cover_cursor;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void cursor_open(cover *c, int32_t index) {
  const branch *b = &c->pattern->branch[index];
  if (!c->cursors)
    c->cursors = ARENA_ARRAY(c->arena, cover_cursor, c->pattern->branch_count);
  cover_cursor *cursor = &c->cursors[index];
  cover_condition *mine = cursor->set.conditions;
  if (!mine) mine = ARENA_ARRAY(c->arena, cover_condition, b->mask_count + 2);
  cover_set_make(c, (uint64_t)1 << index, &cursor->set);
  for (int32_t k = 0; k < cursor->set.condition_count; k++)
    mine[k] = cursor->set.conditions[k];
  cursor->set.conditions = mine;
  cursor->end = c->first;
}

/* A branch with every phase comes to that of row t. Returns whether the phase
 * was another. */
static bool cursor_turn(const cover *c, cover_cursor *cursor, int64_t t) {
  int32_t index = __builtin_ctzll(cursor->set.branches);
  int64_t segment = c->pattern->branch[index].segment;
  int64_t base = segment ? floor_div(t, segment) * segment : 0;
  int64_t turn = floor_mod(t - base, cursor->set.turns);
  bool other = turn != cursor->set.turn;
  cursor->set.turn = turn;
  return other;
}

/* Keys of one row, by their numbers in the cursor's subrange; none: last <
 * first. */
typedef struct row_keys {
  int64_t u, first, last;
} row_keys;

static row_keys cursor_keys(const cover_cursor *cursor, int64_t t) {
  const cover_subrange *p = &cursor->subrange;
  int64_t u = floor_div(t - p->origin, p->step);
  if (p->origin + p->step * u != t || u < p->u0 || u > p->u1)
    return (row_keys){u, 0, -1};
  return (row_keys){u, larger(p->v0, u - p->left),
                    smaller(p->v1, u + p->right)};
}

static int64_t cursor_position(const cover_cursor *cursor, int64_t v) {
  return cursor->subrange.origin + cursor->subrange.step * v;
}

/* ---- all rows ------------------------------------------------------------ */

/* Steps of one branch, about, and as if all of its rows were whole. */
static double steps_of(const cover *c, const branch *b) {
  double rows = (double)(c->M - c->first), reach = (double)c->M;
  double left = (double)b->left, right = b->causal ? 0 : (double)b->right;
  if (b->segment && reach > (double)b->segment) reach = (double)b->segment;
  reach = fmax(fmin(reach, left + right + 1), 0);
  double marks = reach / (double)b->dilation + 1;
  bool asks = b->mask_count + b->keeps[0].count + b->keeps[1].count > 0;
  if (asks) marks *= PAIR_STEPS;
  else if (b->dilation == 1) marks = 0;
  double own = branch_selects_all(b) ? rows : rows / (double)b->dilation;
  return rows * ROW_STEPS + (own + 1) * (marks + reach / 64);
}

static double steps_of_all(const cover *c, const cover_order *all) {
  double steps = 0;
  for (int32_t k = 0; k < all->count; k++)
    steps += steps_of(c, &c->pattern->branch[all->branch[k]]);
  return steps;
}

/* Marks keys low..high; returns how many were not. */
static int64_t mark_key_run(uint64_t *bits, int64_t low, int64_t high) {
  int64_t fresh = 0;
  for (int64_t word = low / 64; word <= high / 64; word++) {
    uint64_t mask = UINT64_MAX;
    if (word == low / 64) mask &= UINT64_MAX << low % 64;
    if (word == high / 64) mask &= UINT64_MAX >> (63 - high % 64);
    fresh += __builtin_popcountll(mask & ~bits[word]);
    bits[word] |= mask;
  }
  return fresh;
}

static int64_t mark_row_keys(uint64_t *bits, const cover_cursor *cursor,
                             row_keys ks) {
  const cover_subrange *p = &cursor->subrange;
  bool asks = cursor->set.condition_count > 0;
  if (p->step == 1 && !asks)
    return mark_key_run(bits, cursor_position(cursor, ks.first),
                        cursor_position(cursor, ks.last));
  int64_t fresh = 0;
  for (int64_t v = ks.first; v <= ks.last; v++) {
    int64_t j = p->origin + p->step * v;
    uint64_t bit = (uint64_t)1 << j % 64;
    if (bits[j / 64] & bit || (asks && !cover_subrange_holds(p, ks.u, v)))
      continue;
    bits[j / 64] |= bit;
    fresh++;
  }
  return fresh;
}

static int64_t sweep_row(cover *c, const cover_order *all, int64_t t) {
  int64_t fresh = 0, low = c->M, high = -1;
  for (int32_t k = 0; k < all->count; k++) {
    cover_cursor *cursor = &c->cursors[all->branch[k]];
    if (cursor_turn(c, cursor, t) || t >= cursor->end)
      cursor->end = cover_subrange_at(c, &cursor->set, t, &cursor->subrange);
    row_keys ks = cursor_keys(cursor, t);
    if (ks.first > ks.last) continue;
    fresh += mark_row_keys(c->bits, cursor, ks);
    low = smaller(low, cursor_position(cursor, ks.first));
    high = larger(high, cursor_position(cursor, ks.last));
  }
  for (int64_t word = low / 64; word <= high / 64 && low <= high; word++)
    c->bits[word] = 0;
  return fresh;
}

bool cover_sweep(cover *c, const cover_order *all, double *distinct) {
  double steps = steps_of_all(c, all);
  if (steps > c->sweep_work || c->M > BITS_MOST) return false;
  c->sweep_work -= steps;
  if (!c->bits) c->bits = ARENA_ARRAY(c->arena, uint64_t, c->M / 64 + 1);
  for (int32_t k = 0; k < all->count; k++) cursor_open(c, all->branch[k]);
  *distinct = 0;
  for (int64_t t = c->first; t < c->M; t++)
    *distinct += (double)sweep_row(c, all, t);
  return true;
}

/* ---- a sample ------------------------------------------------------------ */

/* A number of 0..count - 1. */
static int64_t number_below(int64_t count, uint32_t word) {
  return (int64_t)((word + 0.5) * 0x1p-32 * (double)count);
}

static int32_t reach_count(const cover *c, const cover_order *all, int64_t t,
                           int64_t j) {
  int32_t count = 0;
  for (int32_t k = 0; k < all->count; k++)
    count += pattern_reaches(c->pattern, all->branch[k], c->head, t, j,
                             &c->box.point);
  return count;
}

/* Of the pairs drawn from one branch: their weights, and these over the number
 * of branches that reach the pair. */
typedef struct draw_sums {
  double weight, share;
  int32_t pairs;
} draw_sums;

/* One pair of the cursor's branch: a position, a row of the subrange around it,
 * a key of that row. Its weight makes all pairs alike. */
static void draw_pair(cover *c, const cover_order *all, cover_cursor *cursor,
                      int32_t number, draw_sums *s) {
  int32_t index = __builtin_ctzll(cursor->set.branches);
  int64_t segment = c->pattern->branch[index].segment;
  const uint32_t counter[4] = {(uint32_t)number, (uint32_t)index, 0, 0};
  const uint32_t key[2] = {(uint32_t)c->head, 0x73616d};
  uint32_t word[4];
  dil_philox(counter, key, word);
  int64_t first = segment ? larger(c->first, 0) : c->first;
  int64_t x = first + number_below(c->M - first, word[0]);
  if (segment) first = larger(first, x - x % segment);
  bool each = cursor->set.turns > 1;
  cursor_turn(c, cursor, x);
  int64_t end = cover_subrange_at(c, &cursor->set, first, &cursor->subrange);
  const cover_subrange *p = &cursor->subrange;
  int64_t rows = p->u1 - p->u0 + 1;
  if (rows <= 0) return;
  int64_t u = p->u0 + number_below(rows, word[1]);
  row_keys ks = cursor_keys(cursor, cursor_position(cursor, u));
  if (ks.first > ks.last) return;
  int64_t v = ks.first + number_below(ks.last - ks.first + 1, word[2]);
  if (!cover_subrange_holds(p, u, v)) return;
  double drawn = each ? 1 : (double)rows / (double)(end - first);
  double weight = (double)(ks.last - ks.first + 1) * drawn;
  s->weight += weight;
  s->share += weight / reach_count(c, all, cursor_position(cursor, u),
                                   cursor_position(cursor, v));
  s->pairs++;
}

double cover_union_sample(cover *c, const cover_order *all,
                          const double *own) {
  double pairs = 0, distinct = 0;
  int64_t heads = c->pattern->heads - c->head;
  int64_t samples = smaller(SAMPLES, c->samples / heads);
  c->samples -= samples;
  for (int32_t k = 0; k < all->count; k++) pairs += own[k];
  for (int32_t k = 0; k < all->count; k++) {
    if (!(own[k] > 0)) continue;
    draw_sums s = {0, 0, 0};
    int32_t wanted = 1 + (int32_t)(own[k] / pairs * (double)samples);
    cursor_open(c, all->branch[k]);
    for (int32_t n = 0; n < TRIES * wanted && s.pairs < wanted; n++)
      draw_pair(c, all, &c->cursors[all->branch[k]], n, &s);
    distinct += s.pairs ? own[k] * s.share / s.weight : own[k];
  }
  return distinct;
}
