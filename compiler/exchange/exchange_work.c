/* exchange_work.c - how many pairs of queries and keys some ranks have, masks
 * aside. In: a plan's table, shards. Out: a count; long shards are sampled. */
#include "exchange.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"

/* Keys of `keys` that query t sees of a branch, about: a progression's are
 * counted by their density. */
static double keys_of(const dil_table *table, const dil_branch *b, int32_t h,
                      int64_t t, dil_progression keys) {
  int64_t low = keys.first, high = progression_end(keys), base = 0;
  if (b->segment) {
    if (t < 0) return 0;
    base = t / b->segment * b->segment;
    low = maximum(low, base);
    high = minimum(high, base + b->segment);
  }
  int64_t aligned = b->each ? t - b->shift : base + b->phase[h];
  if (!b->each && floor_mod(t - aligned, b->dilation)) return 0;
  if (b->predicate >= 0) {
    const dil_predicate *p = &table->predicates[b->predicate];
    if (p->left != DIL_ENDLESS) low = maximum(low, t - p->left);
    if (p->right != DIL_ENDLESS) high = minimum(high, t + p->right + 1);
    if (!dil_predicate_meets_rows(p, t, t)) return 0;
    low = maximum(low, p->key_first);
    high = minimum(high, dil_predicate_end(p));
  }
  int64_t first = low + floor_mod(aligned - low, b->dilation);
  if (first >= high) return 0;
  return (double)((high - 1 - first) / b->dilation + 1) / (double)keys.step;
}

static double row_pairs(const dil_table *t, int64_t at, const positions *keys) {
  double sum = 0;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *row = &t->branches[b];
    for (int32_t h = row->head_first; h <= row->head_last; h++)
      for (int32_t i = 0; i < keys->count; i++)
        sum += keys_of(t, row, h, at, keys->progression[i]);
  }
  return sum;
}

/* Neighbours differ by their residues, so a sample is made of stretches. */
static double progression_pairs(const dil_table *t, dil_progression c,
                                const positions *keys, int32_t stretches) {
  enum { STRETCH = 64 };
  int64_t taken = 0, gap = maximum(c.count / stretches, STRETCH);
  double sum = 0;
  for (int64_t from = 0; from < c.count; from += gap)
    for (int64_t i = from; i < minimum(from + STRETCH, c.count); i++, taken++)
      sum += row_pairs(t, c.first + i * c.step, keys);
  return taken ? sum * (double)c.count / (double)taken : 0;
}

double exchange_pairs(const dil_table *t, const positions *asking,
                      const positions *keys, int32_t stretches) {
  double sum = 0;
  for (int32_t i = 0; i < asking->count; i++)
    sum += progression_pairs(t, asking->progression[i], keys, stretches);
  return sum;
}
