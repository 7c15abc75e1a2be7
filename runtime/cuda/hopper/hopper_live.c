/* hopper_live.c - which rows of a launch need a running state, because later
 * passes or shards compute them too, and the distance between such rows.
 *
 * In: branches of the plan and the positions of the keys in this shard. Out:
 * the test that the kernel makes on a row's position (is_live in
 * templates/hopper/hopper_walk.cuh). It may name more rows than are computed
 * later, never fewer. No table grows with the length. */
#include "hopper.h"
#include "runtime/rowset/walk.h"
#include "runtime/tables/hopper_builder.h"
#include <limits.h>
#include <stdlib.h>

static const dil_predicate endless = {.left = DIL_ENDLESS,
                                      .right = DIL_ENDLESS};

static const dil_predicate *live_window_at(const dil_table *t, int64_t b) {
  int32_t p = t->branches[b].predicate;
  return p < 0 ? &endless : &t->predicates[p];
}

void hopper_divide_by(int64_t divisor, unsigned *ratio, short *shift) {
  int bits = 0;
  while (1ll << bits < divisor) bits++;
  *ratio = (unsigned)(((1ull << (31 + bits)) + (uint64_t)divisor - 1) /
                      (uint64_t)divisor);
  *shift = (short)bits;
}

/* ---- a branch ------------------------------------------------------------ */

/* A window bound, widened for rows that share a tile with rows of a wider
 * window. */
static int64_t live_shared_bound(int64_t bound, int64_t farthest,
                                 int64_t period) {
  enum { MOST_ROWS = 256 }; /* most rows of a tile */
  if (bound >= HOPPER_FAR || farthest == bound) return bound;
  return minimum(farthest, bound + MOST_ROWS * period);
}

/* The window of branch b, widened: where branches of a pass have different
 * windows, a row may share a tile with rows that see more. */
static dil_predicate live_shared_window(const dil_table *t, int32_t b) {
  const dil_predicate *own = live_window_at(t, b);
  dil_predicate all = *own;
  for (int32_t p = 0; p < t->pass_count; p++) {
    const dil_pass *pass = &t->passes[p];
    int64_t left = own->left, right = own->right;
    if (!(pass->branches >> b & 1)) continue;
    EACH_BRANCH(a, pass->branches) {
      left = maximum(left, live_window_at(t, (int64_t)a)->left);
      right = maximum(right, live_window_at(t, (int64_t)a)->right);
    }
    all.left = live_shared_bound(own->left, left, pass->period);
    all.right = live_shared_bound(own->right, right, pass->period);
  }
  return all;
}

static int live_window_of(int64_t bound) {
  return bound < HOPPER_FAR ? (int)bound : HOPPER_FAR;
}

/* The test for branch b. `away`: only rows with keys in other parts need a
 * state; else all rows of the branch do. */
static hopper_live_rows live_rows_of(const dil_table *t, int32_t b, bool away,
                                     const hopper_launch *l) {
  const dil_branch *branch = &t->branches[b];
  const dil_predicate window = live_shared_window(t, b);
  hopper_live_rows k = {.segment = HOPPER_FAR,
                        .dilation = (int)dil_branch_step(branch),
                        .left = live_window_of(window.left),
                        .right = live_window_of(window.right),
                        .low = away ? l->key_low : INT_MAX,
                        .high = away && l->key_high < l->keys ? l->key_high
                                                              : INT_MAX};
  if (branch->segment && branch->segment < HOPPER_FAR) {
    k.segment = (int)branch->segment;
    hopper_divide_by(k.segment, &k.segment_ratio, &k.segment_shift);
  }
  hopper_divide_by(k.dilation, &k.dilation_ratio, &k.dilation_shift);
  return k;
}

/* Whether branch b gives some row of the call keys in other parts. */
static bool live_leads_away(const dil_table *t, int32_t b,
                            const hopper_place *at) {
  const dil_predicate window = live_shared_window(t, b);
  int64_t segment = t->branches[b].segment;
  int64_t first = at->first, last = first + at->rows - 1;
  int64_t low = segment ? floor_to(first, segment) : 0;
  int64_t high = segment ? floor_to(last, segment) + segment : at->M;
  if (window.left < HOPPER_FAR) low = maximum(low, first - window.left);
  if (window.right < HOPPER_FAR) high = minimum(high, last + window.right + 1);
  return low < at->key_low || (high > at->key_high && at->key_high < at->M);
}

/* ---- all branches -------------------------------------------------------- */

/* Whether a selects every row that b selects. Only residues that are the same
 * in every segment can prove it. */
static bool live_is_within(const dil_table *t, int32_t b, int32_t a) {
  const dil_branch *one = &t->branches[a], *other = &t->branches[b];
  int64_t step = dil_branch_step(one);
  if (dil_branch_step(other) % step || one->segment % step ||
      other->segment % step || one->head_first > other->head_first ||
      one->head_last < other->head_last)
    return false;
  for (int32_t h = other->head_first; h <= other->head_last; h++)
    if (other->phase[h] % step != one->phase[h]) return false;
  return true;
}

/* Removes branches whose rows another branch of `later` selects too. */
static uint64_t live_without_doubles(const dil_table *t, uint64_t asked,
                                     uint64_t later) {
  for (int32_t b = 0; b < t->branch_count; b++)
    for (int32_t a = 0; a < t->branch_count && asked >> b & 1; a++)
      if (a != b && (asked & later) >> a & 1 && live_is_within(t, b, a))
        asked &= ~(1ull << b);
  return asked;
}

/* The branches whose rows need a state: `later` ones, and in a shard branches
 * with keys in other parts. */
static uint64_t live_asked_for(const dil_table *t, uint64_t later,
                               const hopper_place *at) {
  uint64_t asked = later;
  for (int32_t b = 0; b < t->branch_count && at->shard; b++)
    if (live_leads_away(t, b, at)) asked |= 1ull << b;
  return live_without_doubles(t, asked, later);
}

/* Whether a launch has room for these branches. */
static bool live_have_room(const dil_table *t, uint64_t asked) {
  int32_t count = __builtin_popcountll(asked);
  return count <= HOPPER_LIVE_BRANCHES &&
         count * t->heads <= HOPPER_LIVE_PHASES;
}

/* Rows at positions that are `first` modulo `apart`; 0: there are none. */
typedef struct live_comb {
  int64_t apart, first;
} live_comb;

/* Widens the comb to all rows of a head that these branches select. */
static void live_join(const dil_table *t, uint64_t asked, int32_t head, int64_t M,
                      live_comb *to) {
  EACH_BRANCH(i, asked) {
    const dil_branch *b = &t->branches[i];
    if (head < b->head_first || head > b->head_last) continue;
    if (!to->apart) to->first = b->phase[head];
    to->apart = greatest_divisor(to->apart, dil_branch_step(b));
    if (b->segment && b->segment < M)
      to->apart = greatest_divisor(to->apart, b->segment);
    to->apart = greatest_divisor(to->apart, llabs(b->phase[head] - to->first));
  }
}

int64_t hopper_live_stride(const dil_table *t, uint64_t later,
                           const hopper_place *at) {
  uint64_t asked = live_asked_for(t, later, at);
  int64_t apart = 0;
  if (!live_have_room(t, asked)) return 1;
  for (int32_t h = 0; h < t->heads; h++) {
    live_comb comb = {0};
    live_join(t, asked, h, at->M, &comb);
    apart = greatest_divisor(apart, comb.apart);
  }
  return apart ? minimum(apart, at->rows) : at->rows;
}

void hopper_live_fill(const dil_table *t, uint64_t later,
                      const hopper_place *at, hopper_launch *l) {
  uint64_t asked = live_asked_for(t, later, at);
  if (!live_have_room(t, asked)) {
    l->live_count = -1;
    return;
  }
  l->live_count = __builtin_popcountll(asked);
  hopper_live_rows *k = l->live;
  short *phase = l->live_phase;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *branch = &t->branches[b];
    if (!(asked >> b & 1)) continue;
    *k++ = live_rows_of(t, b, !(later >> b & 1), l);
    for (int32_t h = 0; h < t->heads; h++, phase++) {
      bool served = branch->head_first <= h && h <= branch->head_last;
      *phase = served ? (short)branch->phase[h] : -1;
    }
  }
}

int32_t hopper_live_phases(const dil_table *t, bool keys, short *phase) {
  int32_t heads = keys ? t->kv_heads : t->heads, group = t->heads / heads;
  uint64_t later = 0;
  int64_t apart = 0;
  for (int32_t p = 1; p < t->pass_count; p++) later |= t->passes[p].branches;
  if (heads > HOPPER_LIVE_PHASES) return 1;
  for (int32_t h = 0; h < heads; h++) {
    live_comb comb = {0};
    for (int32_t i = 0; i < group; i++)
      live_join(t, later, h * group + i, INT64_MAX, &comb);
    apart = greatest_divisor(apart, comb.apart);
    phase[h] = comb.apart ? (short)comb.first : -1;
  }
  for (int32_t h = 0; h < heads && apart; h++)
    if (phase[h] >= 0) phase[h] = (short)(phase[h] % apart);
  return apart ? (int32_t)apart : 1;
}
