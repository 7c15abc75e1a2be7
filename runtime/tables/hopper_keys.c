/* hopper_keys.c - the key ranges that a class of rows reads.
 *
 * In: the residues of a shape, and the branches that select the class. Out: key
 * ranges. Nested segments give a ring of keys for each pair of neighbouring
 * lengths, and in it a progression for each multiplicity. Segments that are not
 * nested give key ranges by the number of segments that hold a key. A key of
 * several branches is visited once if that saves blocks. */
#include "hopper_builder.h"
#include <string.h>

/* ---- residues to progressions -------------------------------------------- */

int32_t builder_slot(table_builder *builder, int32_t stride) {
  hopper_table *out = builder->out;
  int32_t i = 0;
  while (i < out->stride_count && out->strides[i] != stride) i++;
  if (i == out->stride_count && i < HOPPER_STRIDES)
    out->strides[out->stride_count++] = stride;
  return i;
}

int32_t builder_segment(table_builder *builder, uint64_t b) {
  hopper_table *out = builder->out;
  int32_t i = 0;
  while (i < out->segment_count && builder->owner[i] != (int32_t)b) i++;
  if (i == out->segment_count && i < HOPPER_SEGMENTS) {
    int64_t s = segment_of(builder, b);
    builder->owner[i] = (int32_t)b;
    out->segments[i] = s == ENDLESS ? 0 : (int32_t)s;
    out->segment_count++;
  }
  return i;
}

static bool keys_has_all(uint64_t set, int32_t period, progression p) {
  for (int32_t x = p.offset; x < period; x += p.stride)
    if (!(set >> x & 1)) return false;
  return true;
}

progression progression_take(uint64_t *set, int32_t period) {
  for (int32_t stride = 1; stride <= period; stride++)
    for (int32_t offset = 0; period % stride == 0 && offset < stride;
         offset++) {
      progression p = {stride, offset};
      if (!keys_has_all(*set, period, p)) continue;
      for (int32_t x = offset; x < period; x += stride) *set &= ~(1ull << x);
      return p;
    }
  return (progression){period, 0};
}

uint64_t builder_selecting(const table_builder *builder, const residues *x,
                           uint64_t among, int32_t position) {
  uint64_t mask = 0;
  EACH_BRANCH(b, among)
  if (position % builder->table->branches[b].dilation == x->of[b])
    mask |= 1ull << b;
  return mask;
}

static int32_t keys_period(const table_builder *builder, uint64_t branches) {
  int64_t period = 1;
  EACH_BRANCH(b, branches)
  period = least_multiple(period, builder->table->branches[b].dilation);
  return (int32_t)period;
}

/* ---- the keys of a class ------------------------------------------------- */

typedef struct class_keys {
  hopper_key_range range[HOPPER_KEY_RANGES];
  int32_t count;
  double blocks;         /* key blocks that a tile visits, for full segments */
  bool full;             /* more key ranges, strides or segments than fit */
} class_keys;

static void keys_add_range(table_builder *builder, const hopper_key_range *form,
                           progression p, int64_t length, class_keys *to) {
  hopper_key_range range = *form;
  if (range.high < HOPPER_FAR && range.high - range.low < length)
    length = range.high - range.low;
  int64_t n = length / p.stride;
  to->blocks += (double)((n + builder->tile_keys - 1) / builder->tile_keys);
  if (to->count == HOPPER_KEY_RANGES) {
    to->full = true;
    return;
  }
  range.stride = p.stride;
  range.offset = p.offset;
  range.slot = (short)builder_slot(builder, p.stride);
  to->full |= range.slot == HOPPER_STRIDES;
  to->range[to->count++] = range;
}

static float keys_log2_small(int32_t k) { /* k <= DIL_BRANCH_MAX */
  return (float)__builtin_log2((double)k);
}

/* The predicates of some branches; 0 if one branch has none. */
static uint64_t keys_predicates(const table_builder *builder,
                                uint64_t branches) {
  uint64_t mask = 0;
  EACH_BRANCH(b, branches) {
    int32_t p = builder->table->branches[b].predicate;
    if (p < 0) return 0;
    mask |= 1ull << p;
  }
  return mask;
}

static int32_t keys_within(int64_t bound) {
  return bound < HOPPER_FAR ? (int32_t)bound : HOPPER_FAR;
}

static void keys_widen_rows(const dil_predicate *window,
                            hopper_key_range *form) {
  int32_t low = window->row_first ? keys_within(window->row_first)
                                  : -HOPPER_FAR;
  int32_t high = keys_within(dil_predicate_row_end(window));
  if (low < form->row_low) form->row_low = low;
  if (high > form->row_high) form->row_high = high;
}

/* The fields that all key ranges of these branches share: the widest window,
 * the predicates of which one must hold, the multiplicity. */
static hopper_key_range keys_form(const table_builder *builder,
                                  uint64_t branches) {
  uint64_t predicates = keys_predicates(builder, branches);
  bool once = builder->table->combine == DIL_COMBINE_UNION;
  hopper_key_range form = {
      .left = predicates ? -HOPPER_FAR : HOPPER_FAR,
      .right = predicates ? -HOPPER_FAR : HOPPER_FAR,
      .low = predicates ? HOPPER_FAR : 0,
      .high = predicates ? 0 : HOPPER_FAR,
      .row_low = predicates ? HOPPER_FAR : -HOPPER_FAR,
      .row_high = predicates ? -HOPPER_FAR : HOPPER_FAR,
      .bias = once ? 0 : keys_log2_small(__builtin_popcountll(branches)),
      .predicates = (unsigned)predicates,
      .chain = builder->table->branches[__builtin_ctzll(branches)].chain};
  EACH_BRANCH(p, predicates) {
    const dil_predicate *window = &builder->table->predicates[p];
    if (keys_within(window->left) > form.left)
      form.left = keys_within(window->left);
    if (keys_within(window->right) > form.right)
      form.right = keys_within(window->right);
    if (window->key_first < form.low) form.low = (int)window->key_first;
    if (keys_within(dil_predicate_end(window)) > form.high)
      form.high = keys_within(dil_predicate_end(window));
    keys_widen_rows(window, &form);
  }
  return form;
}

/* Returns whether keys that branches a reach may share a key range with keys
 * that branches b reach. */
static bool keys_form_alike(const table_builder *builder, uint64_t a,
                            uint64_t b) {
  bool once = builder->table->combine == DIL_COMBINE_UNION;
  return keys_predicates(builder, a) == keys_predicates(builder, b) &&
         (once || __builtin_popcountll(a) == __builtin_popcountll(b));
}

/* Adds one progression of the keys in the `outer` segment but not in the
 * `inner` one. */
static void keys_add_run(table_builder *builder, hopper_key_range form,
                         progression p, int64_t inner, int64_t outer,
                         class_keys *to) {
  form.outer = outer == ENDLESS ? 0 : (int)outer;
  form.inner = (int)inner;
  if (!inner) {
    keys_add_range(builder, &form, p, outer, to);
    return;
  }
  form.side = HOPPER_OTHER;
  if (outer != ENDLESS && outer == 2 * inner) {
    keys_add_range(builder, &form, p, inner, to);
    return;
  }
  form.side = HOPPER_LEFT;
  keys_add_range(builder, &form, p, (outer - inner) / 2, to);
  form.side = HOPPER_RIGHT;
  keys_add_range(builder, &form, p, (outer - inner) / 2, to);
}

static bool keys_is_single(uint64_t branches) {
  return !(branches & (branches - 1));
}

/* The progression of a single branch, whose dilation may exceed
 * HOPPER_PERIOD. With every phase, keys stand before their rows. */
static progression keys_only_progression(const table_builder *builder,
                                         const residues *x, uint64_t branch) {
  int32_t b = __builtin_ctzll(branch);
  const dil_branch *only = &builder->table->branches[b];
  int64_t offset = only->each ? only->shift : x->of[b];
  return (progression){(int32_t)only->dilation, (int32_t)offset};
}

/* Sets by[x] to the branches that select residue x. Returns the set of selected
 * residues. */
static uint64_t keys_selecting_by(const table_builder *builder,
                                  const residues *x, uint64_t branches,
                                  uint64_t by[HOPPER_PERIOD]) {
  uint64_t some = 0;
  for (int32_t p = 0; p < keys_period(builder, branches); p++) {
    by[p] = builder_selecting(builder, x, branches, p);
    if (by[p]) some |= 1ull << p;
  }
  return some;
}

/* Adds the keys between two segments. `branches` reach that far; each way to be
 * reached gets its own progressions, those of fewest branches first. */
static void keys_add_ring(table_builder *builder, const residues *x,
                          uint64_t branches, int64_t inner, int64_t outer,
                          class_keys *to) {
  if (keys_is_single(branches)) {
    keys_add_run(builder, keys_form(builder, branches),
                 keys_only_progression(builder, x, branches), inner, outer, to);
    return;
  }
  int32_t period = keys_period(builder, branches);
  uint64_t by[HOPPER_PERIOD],
      left = keys_selecting_by(builder, x, branches, by);
  while (left) {
    uint64_t fewest = 0, alike = 0;
    EACH_BRANCH(p, left)
      if (!fewest ||
          __builtin_popcountll(by[p]) < __builtin_popcountll(fewest))
        fewest = by[p];
    EACH_BRANCH(p, left)
    if (keys_form_alike(builder, by[p], fewest)) alike |= 1ull << p;
    left &= ~alike;
    while (alike)
      keys_add_run(builder, keys_form(builder, fewest),
                   progression_take(&alike, period), inner, outer, to);
  }
}

/* Lists the segments of some branches, longest first; returns their number. */
static int32_t keys_sort_segments(const table_builder *builder,
                                  uint64_t branches,
                                  int64_t segment[DIL_BRANCH_MAX]) {
  int32_t count = 0;
  EACH_BRANCH(b, branches) {
    int32_t at = count++;
    for (; at && segment[at - 1] < segment_of(builder, b); at--)
      segment[at] = segment[at - 1];
    segment[at] = segment_of(builder, b);
  }
  return count;
}

/* Adds one progression of keys that exactly these branches select, where their
 * segments reach. A union takes all keys; else there is a key range for each
 * number of segments that hold a key. Unless segments are nested, the one that
 * reaches farther changes from row to row. So even between segments of equal
 * length there may be keys. */
static void keys_add_shares(table_builder *builder, uint64_t branches,
                            progression p, class_keys *to) {
  int64_t segment[DIL_BRANCH_MAX];
  int32_t count = keys_sort_segments(builder, branches, segment);
  bool nested = hopper_is_nested(builder->table, branches);
  hopper_key_range form = keys_form(builder, branches);
  if (count == 1) {
    keys_add_run(builder, form, p, 0, segment[0], to);
    return;
  }
  form.side = HOPPER_SHARED;
  form.inner = 1;
  EACH_BRANCH(b, branches) {
    int32_t i = builder_segment(builder, b);
    if (i == HOPPER_SEGMENTS) to->full = true;
    else form.outer |= 1 << i;
  }
  if (builder->table->combine == DIL_COMBINE_UNION) {
    keys_add_range(builder, &form, p, segment[0], to);
    return;
  }
  for (int32_t rank = 1; rank < count; rank++) {
    int64_t length = (segment[rank - 1] - segment[rank]) / 2;
    form.inner = rank;
    form.bias = keys_log2_small(rank);
    form.side = HOPPER_SHARED_LEFT;
    if (nested && !length) continue;
    keys_add_range(builder, &form, p, length, to);
    form.side = HOPPER_SHARED_RIGHT;
    keys_add_range(builder, &form, p, length, to);
  }
  form.inner = count;
  form.bias = keys_log2_small(count);
  form.side = HOPPER_SHARED;
  keys_add_range(builder, &form, p, segment[count - 1], to);
}

/* Adds the keys of branches whose segments are not nested. */
static void keys_add_crossing(table_builder *builder, const residues *x,
                              uint64_t branches, class_keys *to) {
  uint64_t by[HOPPER_PERIOD],
      left = keys_selecting_by(builder, x, branches, by);
  while (left) {
    uint64_t first = by[__builtin_ctzll(left)], alike = 0;
    EACH_BRANCH(p, left)
      if (by[p] == first) alike |= 1ull << p;
    left &= ~alike;
    while (alike)
      keys_add_shares(builder, first,
                      progression_take(&alike, keys_period(builder, branches)),
                      to);
  }
}

/* Adds the keys of branches that share visits, outermost segment first, so that
 * keys that a causal tile sees only in part come last. */
static void keys_add_group(table_builder *builder, const residues *x,
                           uint64_t branches, class_keys *to) {
  int64_t outer = 0, inner;
  if (!hopper_is_nested(builder->table, branches)) {
    keys_add_crossing(builder, x, branches, to);
    return;
  }
  EACH_BRANCH(b, branches)
  if (segment_of(builder, b) > outer) outer = segment_of(builder, b);
  for (; outer; outer = inner) {
    uint64_t reach = 0;
    inner = 0;
    EACH_BRANCH(b, branches) {
      int64_t s = segment_of(builder, b);
      if (s >= outer) reach |= 1ull << b;
      else if (s > inner) inner = s;
    }
    keys_add_ring(builder, x, reach, inner, outer, to);
  }
}

static double keys_cost(table_builder *builder, const residues *x,
                        uint64_t branches) {
  int32_t strides = builder->out->stride_count;
  int32_t segments = builder->out->segment_count;
  class_keys unused = {.count = HOPPER_KEY_RANGES};
  keys_add_group(builder, x, branches, &unused);
  builder->out->stride_count = strides;
  builder->out->segment_count = segments;
  return unused.blocks;
}

/* Joins the two groups that save most blocks by sharing visits; false: no two
 * groups save any. */
static bool keys_join_best(table_builder *builder, const residues *x,
                           uint64_t *group, int32_t *count) {
  bool whole = builder->table->combine == DIL_COMBINE_UNION;
  double best = 0;
  int32_t left = 0, right = 0;
  for (int32_t i = 0; i < *count; i++)
    for (int32_t j = i + 1; j < *count; j++) {
      double saved = whole ? 1
                           : keys_cost(builder, x, group[i]) +
                                 keys_cost(builder, x, group[j]) -
                                 keys_cost(builder, x, group[i] | group[j]);
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

/* Returns whether two branches may share visits; in a union all may. */
static bool keys_may_share(const table_builder *builder, uint64_t a,
                           uint64_t b) {
  const dil_branch *one = &builder->table->branches[a];
  const dil_branch *other = &builder->table->branches[b];
  return builder->table->combine == DIL_COMBINE_UNION ||
         (one->predicate == other->predicate && one->chain == other->chain);
}

/* Adds the keys of branches that may share visits, in groups that save
 * blocks. */
static void keys_add_alike(table_builder *builder, const residues *x,
                           uint64_t branches, class_keys *to) {
  uint64_t group[DIL_BRANCH_MAX];
  int32_t count = 0;
  EACH_BRANCH(b, branches) group[count++] = 1ull << b;
  while (builder->table->dedup && keys_join_best(builder, x, group, &count))
    continue;
  for (int32_t i = 0; i < count; i++) keys_add_group(builder, x, group[i], to);
}

static bool keys_is_wider(const hopper_key_range *a,
                          const hopper_key_range *b) {
  if (a->side >= HOPPER_SHARED || b->side >= HOPPER_SHARED) return false;
  if (a->outer == b->outer) return a->stride > b->stride;
  return b->outer && (!a->outer || a->outer > b->outer);
}

/* Sorts wider key ranges first, then sparser ones: in the last run a warpgroup
 * leaves its tile as soon as it sees no more keys. */
static void keys_sort_ranges(class_keys *k) {
  for (int32_t i = 1; i < k->count; i++) {
    hopper_key_range one = k->range[i];
    int32_t at = i;
    while (at && keys_is_wider(&one, &k->range[at - 1])) {
      k->range[at] = k->range[at - 1];
      at--;
    }
    k->range[at] = one;
  }
}

bool keys_add(table_builder *builder, const residues *x, uint64_t branches,
              hopper_class *k, double *blocks) {
  hopper_table *out = builder->out;
  class_keys all = {0};
  for (uint64_t left = branches; left;) {
    uint64_t first = (uint64_t)__builtin_ctzll(left), alike = 0;
    EACH_BRANCH(b, left)
    if (keys_may_share(builder, first, b)) alike |= 1ull << b;
    left &= ~alike;
    keys_add_alike(builder, x, alike, &all);
  }
  keys_sort_ranges(&all);
  for (int32_t i = 0; i < all.count; i++)
    out->causal |= all.range[i].right < HOPPER_FAR;
  *blocks = all.blocks;
  if (all.full || out->range_count + all.count > HOPPER_KEY_RANGES)
    return REFUSE(builder, "more than %d runs of keys", HOPPER_KEY_RANGES);
  k->range = (short)out->range_count;
  k->ranges = (short)all.count;
  memcpy(out->ranges + out->range_count, all.range,
         (size_t)all.count * sizeof *all.range);
  out->range_count += all.count;
  return true;
}
