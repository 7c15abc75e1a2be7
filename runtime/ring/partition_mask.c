/* partition_mask.c - which keys of a range some query reaches through a mask.
 * In: a row_need, and bounds of its mask over boxes of positions
 * (interval arithmetic). Out: none, all, or the caller has to cut the range.
 * The search halves boxes until the bounds settle them, so it is as exact as
 * the bounds. Sender and receiver get the same answers. */
#include "needed_rows.h"
#include "runtime/rowset/walk.h"

/* If the bounds are not exact for single pairs, the search stops at boxes of
 * this many positions a side. */
enum { COARSE = 64 };

static dil_cover window_cover(const row_need *d, int64_t t0, int64_t t1,
                              int64_t j0, int64_t j1) {
  int64_t least = j0 - t1, most = j1 - t0; /* of j - t */
  int64_t left = d->left == DIL_ENDLESS ? INT64_MIN : -d->left;
  if (most < left || least > d->right) return DIL_EMPTY;
  return least >= left && most <= d->right ? DIL_FULL : DIL_PARTIAL;
}

static dil_cover box_cover(const mask_search *s, const row_need *d, int64_t t0,
                           int64_t t1, int64_t j0, int64_t j1) {
  dil_cover window = window_cover(d, t0, t1, j0, j1);
  if (window == DIL_EMPTY) return DIL_EMPTY;
  const partition_mask *m = s->mask;
  int32_t predicate = d->branch->predicate, head = m->head + d->head;
  dil_cover mask =
      s->turned ? m->bounds(m->context, predicate, head, j0, j1, t0, t1)
                : m->bounds(m->context, predicate, head, t0, t1, j0, j1);
  return window == DIL_PARTIAL && mask == DIL_FULL ? DIL_PARTIAL : mask;
}

/* The answer for queries number first..last of w. It halves the queries where
 * the bounds are not sure; its caller halves the keys. */
static mask_answer search(mask_search *s, const row_need *d,
                          const needed_keys *w, int64_t first, int64_t last,
                          int64_t low, int64_t high) {
  bool fine = s->mask->exact >> d->branch->predicate & 1;
  int64_t limit = fine ? 1 : COARSE;
  int64_t t0 = w->query + first * w->every, t1 = w->query + last * w->every;
  dil_cover box = s->left-- > 0 ? box_cover(s, d, t0, t1, low, high - 1)
                                : DIL_PARTIAL;
  if (box != DIL_PARTIAL) return box == DIL_FULL ? MASK_ALL : MASK_NONE;
  if (s->left <= 0 || (t1 - t0 < limit && high - low <= limit)) {
    s->exact = false;
    return MASK_ALL;
  }
  if (first == last || t1 - t0 < limit) return MASK_MIXED;
  int64_t middle = first + (last - first) / 2;
  mask_answer half = search(s, d, w, first, middle, low, high);
  return half == MASK_NONE ? search(s, d, w, middle + 1, last, low, high)
                           : half;
}

mask_answer mask_ask(mask_search *s, const row_need *d, const needed_keys *w,
                     int64_t low, int64_t high) {
  return search(s, d, w, 0, (w->last - w->query) / w->every, low, high);
}
