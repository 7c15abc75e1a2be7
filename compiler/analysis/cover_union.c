/* cover_union.c - the pairs that some branch of a head reaches, each once.
 *
 * In: the branches of a head and the pairs of each. Out: their union. It is
 * found by inclusion and exclusion over sets of branches. Most sets are empty
 * or lie within a branch, and are passed over. Branches that overlap without
 * lying within one another have as many sets as there are subsets: then all
 * rows are swept, or, where that takes longer, pairs are sampled. */
#include "cover_set.h"

/* Steps after which a sweep is tried: 50 ms. */
enum { SETS_AT_FIRST = 1 << 18 };

static uint64_t branch_bit(int32_t b) {
  return (uint64_t)1 << b;
}

static bool is_within_any(const cover *c, const cover_order *all,
                          const cover_set *set, int32_t from, int32_t to) {
  for (int32_t k = from; k < to; k++)
    if (cover_set_within(c, set, all->branch[k])) return true;
  return false;
}

/* Steps to make a set and to compare it with so many branches. */
static int64_t set_work(const cover_set *set, int32_t others) {
  return 8 + (int64_t)__builtin_popcountll(set->branches) * others / 8;
}

/* Pairs of `branches` that are also in one of the branches from..to - 1 of the
 * order: those of each, the last first, less those that a later one has. What
 * a far branch of nested ones shares with a near one lies within those between
 * and is passed over, so that their number does not tell. */
static double shared_count(cover *c, const cover_order *all, uint64_t branches,
                           int32_t from, int32_t to) {
  double total = 0;
  for (int32_t k = to - 1; k >= from && c->work >= 0; k--) {
    cover_set set;
    cover_set_make(c, branches | branch_bit(all->branch[k]), &set);
    c->work -= set_work(&set, to - k);
    if (is_within_any(c, all, &set, k + 1, to)) continue;
    double own = cover_set_count(c, &set);
    if (own > 0) total += own - shared_count(c, all, set.branches, k + 1, to);
  }
  return total;
}

/* False: the sets take more steps than that. */
static bool count_sets(cover *c, const cover_order *all, const double *own,
                       int64_t steps, double *distinct) {
  int64_t left = c->left;
  c->work = steps;
  *distinct = 0;
  for (int32_t k = 0; k < all->count && c->work >= 0; k++) {
    cover_set set;
    cover_set_make(c, branch_bit(all->branch[k]), &set);
    if (own[k] > 0 && !is_within_any(c, all, &set, 0, k))
      *distinct += own[k] - shared_count(c, all, set.branches, 0, k);
  }
  bool done = c->work >= 0;
  c->sets_work -= steps - c->work;
  c->work = INT64_MAX;
  if (!done) c->left = left;
  return done;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

double cover_union(cover *c, const cover_order *all, const double *own) {
  double distinct;
  int64_t few = smaller(SETS_AT_FIRST, c->sets_work);
  if (count_sets(c, all, own, few, &distinct)) return distinct;
  if (cover_sweep(c, all, &distinct)) return distinct;
  if (count_sets(c, all, own, c->sets_work, &distinct)) return distinct;
  c->sampled = true;
  return cover_union_sample(c, all, own);
}
