/* hopper_keep.c - which rows of a launch passes or parts behind it come to.
 *
 * In: branches of the plan, the keys that are there. Out: what the kernel asks
 * of a row's position (is_kept in templates/hopper_walk.cuh), which may name
 * more rows than are reached, never fewer. Nothing by length. */
#include "hopper.h"
#include <limits.h>

/* n / divisor = (2 n * ratio >> 32) >> shift, for 0 <= n < 2^31. */
static void divide_by(int64_t divisor, unsigned *ratio, short *shift) {
  int bits = 0;
  while (1ll << bits < divisor) bits++;
  *ratio = (unsigned)(((1ull << (31 + bits)) + (uint64_t)divisor - 1) /
                      (uint64_t)divisor);
  *shift = (short)bits;
}

static int window_of(int64_t bound) {
  return bound < HOPPER_FAR ? (int)bound : HOPPER_FAR;
}

/* Branch b, which comes to all its rows or, `away`, to those that it gives keys
 * of other parts. */
static hopper_keep keep_of(const dil_table *t, int32_t b, bool away,
                           const hopper_launch *l) {
  static const dil_predicate none = {DIL_ENDLESS, DIL_ENDLESS, false};
  const dil_branch *branch = &t->branches[b];
  const dil_predicate *window =
      branch->predicate < 0 ? &none : &t->predicates[branch->predicate];
  hopper_keep k = {.segment = HOPPER_FAR, .dilation = (int)branch->dilation,
                   .left = window_of(window->left),
                   .right = window_of(window->right),
                   .low = away ? l->key_low : INT_MAX,
                   .high = away && l->key_high < l->keys ? l->key_high
                                                         : INT_MAX};
  if (branch->segment && branch->segment < HOPPER_FAR) {
    k.segment = (int)branch->segment;
    divide_by(k.segment, &k.segment_ratio, &k.segment_shift);
  }
  divide_by(k.dilation, &k.dilation_ratio, &k.dilation_shift);
  return k;
}

/* Whether b selects no row that a does not, as far as residues tell that stand
 * still from segment to segment. */
static bool is_within(const dil_table *t, int32_t b, int32_t a) {
  const dil_branch *one = &t->branches[a], *other = &t->branches[b];
  if (other->dilation % one->dilation || one->segment % one->dilation ||
      other->segment % one->dilation || one->head_first > other->head_first ||
      one->head_last < other->head_last)
    return false;
  for (int32_t h = other->head_first; h <= other->head_last; h++)
    if (other->phase[h] % one->dilation != one->phase[h]) return false;
  return true;
}

/* Without those that ask nothing more than another of `later` does. */
static uint64_t without_doubles(const dil_table *t, uint64_t asked,
                                uint64_t later) {
  for (int32_t b = 0; b < t->branch_count; b++)
    for (int32_t a = 0; a < t->branch_count && asked >> b & 1; a++)
      if (a != b && (asked & later) >> a & 1 && is_within(t, b, a))
        asked &= ~(1ull << b);
  return asked;
}

void hopper_keeps_fill(const dil_table *t, uint64_t later, bool part,
                       hopper_launch *l) {
  bool whole = l->key_low == 0 && l->key_high == l->keys;
  uint64_t all = (2ull << (t->branch_count - 1)) - 1;
  uint64_t asked = without_doubles(t, part && !whole ? all : later, later);
  l->keep_count = __builtin_popcountll(asked);
  if (l->keep_count > HOPPER_KEEPS ||
      l->keep_count * t->heads > HOPPER_PHASES) {
    l->keep_count = -1;
    return;
  }
  hopper_keep *k = l->keeps;
  short *phase = l->keep_phase;
  for (int32_t b = 0; b < t->branch_count; b++) {
    const dil_branch *branch = &t->branches[b];
    if (!(asked >> b & 1)) continue;
    *k++ = keep_of(t, b, !(later >> b & 1), l);
    for (int32_t h = 0; h < t->heads; h++, phase++) {
      bool served = branch->head_first <= h && h <= branch->head_last;
      *phase = served ? (short)branch->phase[h] : -1;
    }
  }
}
