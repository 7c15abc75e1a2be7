/* pieces_part.c - pieces of a mask without common pairs.
 *
 * In: pieces. Out: pieces that keep the same pairs, each pair once. A piece is a
 * box: a range of heads, of keys and of rows, and a band of distances. What it holds
 * is cut out of another whose other conditions are at least as narrow. */
#include "pieces.h"
#include "runtime/base/arithmetic.h"

/* CUTS_MOST: after so many cuts the mask stays. SIDES: parts that a cut leaves.
 */
enum { CUTS_MOST = 512, SIDES = 8 };

/* ---- boxes --------------------------------------------------------------- */

static int64_t end_of(const position_range *r) {
  return r->end ? r->end : DIL_ENDLESS;
}

static bool ranges_meet(const position_range *a, const position_range *b) {
  return a->first < end_of(b) && b->first < end_of(a);
}

/* Returns whether the distances -left.. and ..right have some in common. */
static bool distances_meet(int64_t left, int64_t right) {
  return left == DIL_ENDLESS || right == DIL_ENDLESS || left + right >= 0;
}

/* Returns whether some distance has the residues of both. */
static bool residues_meet(const piece *a, const piece *b) {
  return (a->shift - b->shift) % greatest_divisor(a->each, b->each) == 0;
}

static bool pieces_meet(const piece *a, const piece *b) {
  return a->head_first <= b->head_last && b->head_first <= a->head_last &&
         residues_meet(a, b) && ranges_meet(&a->pairs.keys, &b->pairs.keys) &&
         ranges_meet(&a->pairs.rows, &b->pairs.rows) &&
         distances_meet(a->pairs.left, b->pairs.right) &&
         distances_meet(b->pairs.left, a->pairs.right);
}

static bool has_rest(const piece *p, const expr *e) {
  for (int32_t i = 0; i < p->rest_count; i++)
    if (expr_same(p->rest[i], e)) return true;
  return false;
}

/* Returns whether each pair of p that is in the box of `wide` is one of `wide`.
 */
static bool is_narrower(const piece *p, const piece *wide) {
  for (int32_t i = 0; i < wide->rest_count; i++)
    if (!has_rest(p, wide->rest[i])) return false;
  return p->each % wide->each == 0 && p->shift % wide->each == wide->shift;
}

/* ---- cuts ---------------------------------------------------------------- */

typedef struct parts {
  int32_t count;
  piece of[SIDES];
} parts;

static piece *parts_add(parts *to, const piece *p) {
  to->of[to->count] = *p;
  return &to->of[to->count++];
}

static position_range *range_of(piece *p, bool rows) {
  return rows ? &p->pairs.rows : &p->pairs.keys;
}

static void cut_range(piece *p, const position_range *cut, bool rows,
                      parts *to) {
  position_range *own = range_of(p, rows);
  if (cut->first > own->first) {
    range_of(parts_add(to, p), rows)->end = cut->first;
    own->first = cut->first;
  }
  if (cut->end && cut->end < end_of(own)) {
    range_of(parts_add(to, p), rows)->first = cut->end;
    own->end = cut->end;
  }
}

static void cut_heads(piece *p, const piece *cut, parts *to) {
  if (p->head_first < cut->head_first) {
    parts_add(to, p)->head_last = cut->head_first - 1;
    p->head_first = cut->head_first;
  }
  if (p->head_last > cut->head_last) {
    parts_add(to, p)->head_first = cut->head_last + 1;
    p->head_last = cut->head_last;
  }
}

static void cut_distances(piece *p, const pair_bounds *cut, parts *to) {
  if (p->pairs.left > cut->left) {
    parts_add(to, p)->pairs.right = -cut->left - 1;
    p->pairs.left = cut->left;
  }
  if (p->pairs.right > cut->right) {
    parts_add(to, p)->pairs.left = -cut->right - 1;
    p->pairs.right = cut->right;
  }
}

/* Takes the pairs of `cut` out of p, which meets them; `to` gets the parts that are
 * left. False: bounds cannot tell them. */
static bool piece_without(const piece *p, const piece *cut, parts *to) {
  piece inside = *p;
  to->count = 0;
  if (!is_narrower(p, cut)) return false;
  cut_heads(&inside, cut, to);
  cut_range(&inside, &cut->pairs.keys, false, to);
  cut_range(&inside, &cut->pairs.rows, true, to);
  cut_distances(&inside, &cut->pairs, to);
  return true;
}

static void pieces_replace(pieces *p, int32_t i, const parts *by) {
  p->of[i] = by->count ? by->of[0] : p->of[--p->count];
  for (int32_t k = 1; k < by->count && !p->full; k++) {
    if (p->count == PIECES) p->full = true;
    else p->of[p->count++] = by->of[k];
  }
}

/* Cuts one of two pieces that meet: that which leaves fewer parts, and piece k
 * where both leave as many. */
static bool pieces_cut(pieces *p, int32_t i, int32_t k) {
  parts first, second;
  bool can_first = piece_without(&p->of[i], &p->of[k], &first);
  bool can_second = piece_without(&p->of[k], &p->of[i], &second);
  if (can_second && (!can_first || second.count <= first.count))
    pieces_replace(p, k, &second);
  else if (can_first)
    pieces_replace(p, i, &first);
  return can_first || can_second;
}

/* ---- pieces -------------------------------------------------------------- */

static bool is_wider(const piece *a, const piece *b) {
  if (a->pairs.left != b->pairs.left) return a->pairs.left > b->pairs.left;
  if (a->pairs.right != b->pairs.right) return a->pairs.right > b->pairs.right;
  return a->rest_count < b->rest_count;
}

static void pieces_sort(pieces *p) {
  for (int32_t i = 1; i < p->count; i++) {
    piece one = p->of[i];
    int32_t at = i;
    for (; at && is_wider(&one, &p->of[at - 1]); at--)
      p->of[at] = p->of[at - 1];
    p->of[at] = one;
  }
}

/* Finds two pieces i < k with common pairs; false: there are none. */
static bool find_meeting(const pieces *p, int32_t *i, int32_t *k) {
  for (*k = 1; *k < p->count; ++*k)
    for (*i = 0; *i < *k; ++*i)
      if (pieces_meet(&p->of[*i], &p->of[*k])) return true;
  return false;
}

static bool is_word(int64_t x) {
  return x == DIL_ENDLESS || (x > -INT32_MAX && x < INT32_MAX);
}

/* False: an expression has no room for some bound. */
static bool pieces_fit(const pieces *p) {
  for (int32_t i = 0; i < p->count; i++) {
    const pair_bounds *x = &p->of[i].pairs;
    if (!is_word(x->left) || !is_word(x->right) || !is_word(x->keys.first) ||
        !is_word(x->keys.end) || !is_word(x->rows.first) ||
        !is_word(x->rows.end))
      return false;
  }
  return true;
}

bool pieces_part(pieces *p) {
  int32_t i, k;
  pieces_sort(p);
  for (int32_t cuts = 0; !p->full && find_meeting(p, &i, &k); cuts++)
    if (cuts == CUTS_MOST || !pieces_cut(p, i, k)) return false;
  return !p->full && pieces_fit(p);
}
