/* hopper_keys.c - the key ranges that a class of rows reads.
 *
 * In: the residues of a shape, and the branches that select the class. Out: key
 * ranges. Nested segments give a ring of keys for each pair of neighbouring
 * lengths, and in it a progression for each multiplicity. Segments that are not
 * nested give key ranges by the number of segments that hold a key. A key of
 * several branches is visited once if that saves blocks. */
#include "hopper_maker.h"
#include <string.h>

/* ---- residues to progressions -------------------------------------------- */

int32_t maker_slot(maker *mk, int32_t stride) {
  hopper_table *out = mk->out;
  int32_t i = 0;
  while (i < out->stride_count && out->strides[i] != stride) i++;
  if (i == out->stride_count && i < HOPPER_STRIDES)
    out->strides[out->stride_count++] = stride;
  return i;
}

int32_t maker_segment(maker *mk, uint64_t b) {
  hopper_table *out = mk->out;
  int32_t i = 0;
  while (i < out->segment_count && mk->owner[i] != (int32_t)b) i++;
  if (i == out->segment_count && i < HOPPER_SEGMENTS) {
    int64_t s = segment_of(mk, b);
    mk->owner[i] = (int32_t)b;
    out->segments[i] = s == ENDLESS ? 0 : (int32_t)s;
    out->segment_count++;
  }
  return i;
}

static bool has_all(uint64_t set, int32_t period, progression p) {
  for (int32_t x = p.offset; x < period; x += p.stride)
    if (!(set >> x & 1)) return false;
  return true;
}

progression progression_take(uint64_t *set, int32_t period) {
  for (int32_t stride = 1; stride <= period; stride++)
    for (int32_t offset = 0; period % stride == 0 && offset < stride;
         offset++) {
      progression p = {stride, offset};
      if (!has_all(*set, period, p)) continue;
      for (int32_t x = offset; x < period; x += stride) *set &= ~(1ull << x);
      return p;
    }
  return (progression){period, 0};
}

uint64_t maker_selecting(const maker *mk, const residues *x, uint64_t among,
                          int32_t position) {
  uint64_t mask = 0;
  EACH_BRANCH(b, among)
    if (position % mk->table->branches[b].dilation == x->of[b])
      mask |= 1ull << b;
  return mask;
}

static int32_t period_of(const maker *mk, uint64_t branches) {
  int64_t period = 1;
  EACH_BRANCH(b, branches)
    period = least_multiple(period, mk->table->branches[b].dilation);
  return (int32_t)period;
}

/* ---- the keys of a class ------------------------------------------------- */

typedef struct class_keys {
  hopper_key_range range[HOPPER_KEY_RANGES];
  int32_t count;
  double blocks;         /* key blocks that a tile visits, for full segments */
  bool full;             /* more key ranges, strides or segments than fit */
} class_keys;

static void add_range(maker *mk, const hopper_key_range *form, progression p,
                      int64_t length, class_keys *to) {
  hopper_key_range range = *form;
  int64_t n = length / p.stride;
  to->blocks += (double)((n + mk->tile_keys - 1) / mk->tile_keys);
  if (to->count == HOPPER_KEY_RANGES) {
    to->full = true;
    return;
  }
  range.stride = p.stride;
  range.offset = p.offset;
  range.slot = (short)maker_slot(mk, p.stride);
  to->full |= range.slot == HOPPER_STRIDES;
  to->range[to->count++] = range;
}

static float log2_small(int32_t k) { /* k <= DIL_BRANCH_MAX */
  return (float)__builtin_log2((double)k);
}

/* The predicates of some branches; 0 if one branch has none. */
static uint64_t predicates_of(const maker *mk, uint64_t branches) {
  uint64_t mask = 0;
  EACH_BRANCH(b, branches) {
    int32_t p = mk->table->branches[b].predicate;
    if (p < 0) return 0;
    mask |= 1ull << p;
  }
  return mask;
}

static int32_t within(int64_t bound) {
  return bound < HOPPER_FAR ? (int32_t)bound : HOPPER_FAR;
}

/* The fields that all key ranges of these branches share: the widest window,
 * the predicates of which one must hold, the multiplicity. */
static hopper_key_range form_of(const maker *mk, uint64_t branches) {
  uint64_t predicates = predicates_of(mk, branches);
  bool once = mk->table->combine == DIL_COMBINE_UNION;
  hopper_key_range form = {
      .left = predicates ? 0 : HOPPER_FAR,
      .right = predicates ? -HOPPER_FAR : HOPPER_FAR,
      .bias = once ? 0 : log2_small(__builtin_popcountll(branches)),
      .predicates = (unsigned)predicates,
      .chain = mk->table->branches[__builtin_ctzll(branches)].chain};
  EACH_BRANCH(p, predicates) {
    const dil_predicate *window = &mk->table->predicates[p];
    if (within(window->left) > form.left) form.left = within(window->left);
    if (within(window->right) > form.right) form.right = within(window->right);
  }
  return form;
}

/* Whether keys that branches a reach may share a key range with keys that
 * branches b reach. */
static bool form_alike(const maker *mk, uint64_t a, uint64_t b) {
  bool once = mk->table->combine == DIL_COMBINE_UNION;
  return predicates_of(mk, a) == predicates_of(mk, b) &&
         (once || __builtin_popcountll(a) == __builtin_popcountll(b));
}

/* Adds one progression of the keys in the `outer` segment but not in the
 * `inner` one. */
static void add_run(maker *mk, hopper_key_range form, progression p,
                    int64_t inner, int64_t outer, class_keys *to) {
  form.outer = outer == ENDLESS ? 0 : (int)outer;
  form.inner = (int)inner;
  if (!inner) {
    add_range(mk, &form, p, outer, to);
    return;
  }
  form.side = HOPPER_OTHER;
  if (outer != ENDLESS && outer == 2 * inner) {
    add_range(mk, &form, p, inner, to);
    return;
  }
  form.side = HOPPER_LEFT;
  add_range(mk, &form, p, (outer - inner) / 2, to);
  form.side = HOPPER_RIGHT;
  add_range(mk, &form, p, (outer - inner) / 2, to);
}

static bool is_single(uint64_t branches) {
  return !(branches & (branches - 1));
}

/* The progression of a single branch, whose dilation may exceed
 * HOPPER_PERIOD. */
static progression only_progression(const maker *mk, const residues *x,
                                    uint64_t branch) {
  int32_t b = __builtin_ctzll(branch);
  return (progression){(int32_t)mk->table->branches[b].dilation, x->of[b]};
}

/* Sets by[x] to the branches that select residue x. Returns the set of selected
 * residues. */
static uint64_t selecting_by(const maker *mk, const residues *x,
                             uint64_t branches, uint64_t by[HOPPER_PERIOD]) {
  uint64_t some = 0;
  for (int32_t p = 0; p < period_of(mk, branches); p++) {
    by[p] = maker_selecting(mk, x, branches, p);
    if (by[p]) some |= 1ull << p;
  }
  return some;
}

/* Adds the keys between two segments. `branches` reach that far; each way to be
 * reached gets its own progressions, those of fewest branches first. */
static void add_ring(maker *mk, const residues *x, uint64_t branches,
                     int64_t inner, int64_t outer, class_keys *to) {
  if (is_single(branches)) {
    add_run(mk, form_of(mk, branches), only_progression(mk, x, branches),
            inner, outer, to);
    return;
  }
  int32_t period = period_of(mk, branches);
  uint64_t by[HOPPER_PERIOD], left = selecting_by(mk, x, branches, by);
  while (left) {
    uint64_t fewest = 0, alike = 0;
    EACH_BRANCH(p, left)
      if (!fewest ||
          __builtin_popcountll(by[p]) < __builtin_popcountll(fewest))
        fewest = by[p];
    EACH_BRANCH(p, left)
      if (form_alike(mk, by[p], fewest)) alike |= 1ull << p;
    left &= ~alike;
    while (alike)
      add_run(mk, form_of(mk, fewest), progression_take(&alike, period), inner,
              outer, to);
  }
}

/* Lists the segments of some branches, longest first; returns their number. */
static int32_t sort_segments(const maker *mk, uint64_t branches,
                             int64_t segment[DIL_BRANCH_MAX]) {
  int32_t count = 0;
  EACH_BRANCH(b, branches) {
    int32_t at = count++;
    for (; at && segment[at - 1] < segment_of(mk, b); at--)
      segment[at] = segment[at - 1];
    segment[at] = segment_of(mk, b);
  }
  return count;
}

/* Adds one progression of keys that exactly these branches select, where their
 * segments reach. A union takes all keys; else there is a key range for each
 * number of segments that hold a key. Unless segments are nested, the one that
 * reaches farther changes from row to row. So even between segments of equal
 * length there may be keys. */
static void add_shares(maker *mk, uint64_t branches, progression p,
                       class_keys *to) {
  int64_t segment[DIL_BRANCH_MAX];
  int32_t count = sort_segments(mk, branches, segment);
  bool nested = hopper_is_nested(mk->table, branches);
  hopper_key_range form = form_of(mk, branches);
  if (count == 1) {
    add_run(mk, form, p, 0, segment[0], to);
    return;
  }
  form.side = HOPPER_SHARED;
  form.inner = 1;
  EACH_BRANCH(b, branches) {
    int32_t i = maker_segment(mk, b);
    if (i == HOPPER_SEGMENTS) to->full = true;
    else form.outer |= 1 << i;
  }
  if (mk->table->combine == DIL_COMBINE_UNION) {
    add_range(mk, &form, p, segment[0], to);
    return;
  }
  for (int32_t rank = 1; rank < count; rank++) {
    int64_t length = (segment[rank - 1] - segment[rank]) / 2;
    form.inner = rank;
    form.bias = log2_small(rank);
    form.side = HOPPER_SHARED_LEFT;
    if (nested && !length) continue;
    add_range(mk, &form, p, length, to);
    form.side = HOPPER_SHARED_RIGHT;
    add_range(mk, &form, p, length, to);
  }
  form.inner = count;
  form.bias = log2_small(count);
  form.side = HOPPER_SHARED;
  add_range(mk, &form, p, segment[count - 1], to);
}

/* Adds the keys of branches whose segments are not nested. */
static void add_crossing(maker *mk, const residues *x, uint64_t branches,
                         class_keys *to) {
  uint64_t by[HOPPER_PERIOD], left = selecting_by(mk, x, branches, by);
  while (left) {
    uint64_t first = by[__builtin_ctzll(left)], alike = 0;
    EACH_BRANCH(p, left)
      if (by[p] == first) alike |= 1ull << p;
    left &= ~alike;
    while (alike)
      add_shares(mk, first, progression_take(&alike, period_of(mk, branches)),
                 to);
  }
}

/* Adds the keys of branches that share visits, outermost segment first, so that
 * keys that a causal tile sees only in part come last. */
static void add_group(maker *mk, const residues *x, uint64_t branches,
                      class_keys *to) {
  int64_t outer = 0, inner;
  if (!hopper_is_nested(mk->table, branches)) {
    add_crossing(mk, x, branches, to);
    return;
  }
  EACH_BRANCH(b, branches)
    if (segment_of(mk, b) > outer) outer = segment_of(mk, b);
  for (; outer; outer = inner) {
    uint64_t reach = 0;
    inner = 0;
    EACH_BRANCH(b, branches) {
      int64_t s = segment_of(mk, b);
      if (s >= outer) reach |= 1ull << b;
      else if (s > inner) inner = s;
    }
    add_ring(mk, x, reach, inner, outer, to);
  }
}

static double cost_of(maker *mk, const residues *x, uint64_t branches) {
  int32_t strides = mk->out->stride_count;
  int32_t segments = mk->out->segment_count;
  class_keys unused = {.count = HOPPER_KEY_RANGES};
  add_group(mk, x, branches, &unused);
  mk->out->stride_count = strides;
  mk->out->segment_count = segments;
  return unused.blocks;
}

/* Joins the two groups that save most blocks by sharing visits; false: no two
 * groups save any. */
static bool join_best(maker *mk, const residues *x, uint64_t *group,
                      int32_t *count) {
  bool whole = mk->table->combine == DIL_COMBINE_UNION;
  double best = 0;
  int32_t left = 0, right = 0;
  for (int32_t i = 0; i < *count; i++)
    for (int32_t j = i + 1; j < *count; j++) {
      double saved = whole ? 1
                           : cost_of(mk, x, group[i]) +
                                 cost_of(mk, x, group[j]) -
                                 cost_of(mk, x, group[i] | group[j]);
      if (saved <= best) continue;
      best = saved;
      left = i;
      right = j;
    }
  if (!right) return false;
  group[left] |= group[right];
  group[right] = group[--*count];
  return true;
}

/* Whether two branches may share visits; in a union all may. */
static bool may_share(const maker *mk, uint64_t a, uint64_t b) {
  const dil_branch *one = &mk->table->branches[a];
  const dil_branch *other = &mk->table->branches[b];
  return mk->table->combine == DIL_COMBINE_UNION ||
         (one->predicate == other->predicate && one->chain == other->chain);
}

/* Adds the keys of branches that may share visits, in groups that save
 * blocks. */
static void add_alike(maker *mk, const residues *x, uint64_t branches,
                      class_keys *to) {
  uint64_t group[DIL_BRANCH_MAX];
  int32_t count = 0;
  EACH_BRANCH(b, branches) group[count++] = 1ull << b;
  while (mk->table->dedup && join_best(mk, x, group, &count)) continue;
  for (int32_t i = 0; i < count; i++) add_group(mk, x, group[i], to);
}

static bool is_wider(const hopper_key_range *a, const hopper_key_range *b) {
  if (a->side >= HOPPER_SHARED || b->side >= HOPPER_SHARED) return false;
  if (a->outer == b->outer) return a->stride > b->stride;
  return b->outer && (!a->outer || a->outer > b->outer);
}

/* Sorts wider key ranges first, then sparser ones: in the last run a warpgroup
 * leaves its tile as soon as it sees no more keys. */
static void sort_ranges(class_keys *k) {
  for (int32_t i = 1; i < k->count; i++) {
    hopper_key_range one = k->range[i];
    int32_t at = i;
    while (at && is_wider(&one, &k->range[at - 1])) {
      k->range[at] = k->range[at - 1];
      at--;
    }
    k->range[at] = one;
  }
}

bool keys_add(maker *mk, const residues *x, uint64_t branches,
                     hopper_class *k, double *blocks) {
  hopper_table *out = mk->out;
  class_keys all = {0};
  for (uint64_t left = branches; left;) {
    uint64_t first = (uint64_t)__builtin_ctzll(left), alike = 0;
    EACH_BRANCH(b, left)
      if (may_share(mk, first, b)) alike |= 1ull << b;
    left &= ~alike;
    add_alike(mk, x, alike, &all);
  }
  sort_ranges(&all);
  for (int32_t i = 0; i < all.count; i++)
    out->causal |= all.range[i].right < HOPPER_FAR;
  *blocks = all.blocks;
  if (all.full || out->range_count + all.count > HOPPER_KEY_RANGES)
    return REFUSE(mk, "more than %d runs of keys", HOPPER_KEY_RANGES);
  k->range = (short)out->range_count;
  k->ranges = (short)all.count;
  memcpy(out->ranges + out->range_count, all.range,
         (size_t)all.count * sizeof *all.range);
  out->range_count += all.count;
  return true;
}
