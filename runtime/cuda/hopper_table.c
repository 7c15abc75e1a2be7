/* hopper_table.c - from a pass of the plan to the Hopper kernel's tables.
 *
 * In: branches (segment, dilation, phases, heads, window) whose segments are
 * nested. Out: homes (stretches inside which no residue shifts) grouped into
 * shapes; for each shape the classes of rows that the same branches select;
 * for each class the runs of keys it reads (hopper_keys.c). O(heads x branches
 * x period), never O(N). */
#include "hopper_maker.h"
#include <string.h>

/* ---- what the kernel has no code for ------------------------------------- */

static bool accept_branch(maker *mk, uint64_t b) {
  for (int32_t other = 0; other < mk->table->branch_count; other++) {
    int64_t s = segment_of(mk, b), o = segment_of(mk, (uint64_t)other);
    if ((mk->pass->branches >> other & 1) && s < o && o < ENDLESS && o % s)
      return REFUSE(mk, "segments %lld and %lld are not nested",
                    (long long)s, (long long)o);
  }
  return true;
}

/* Whether pairs must be asked: masks, scores, or windows that differ where a
 * key counts once. */
static bool asks_pairs(const maker *mk) {
  bool asks = mk->table->scored;
  bool once = mk->table->combine == DIL_COMBINE_UNION;
  int32_t first = mk->table->branches[__builtin_ctzll(mk->pass->branches)]
                      .predicate;
  EACH_BRANCH(b, mk->pass->branches) {
    int32_t p = mk->table->branches[b].predicate;
    asks |= p >= 0 && mk->table->predicates[p].masked;
    asks |= once && p != first;
  }
  return asks;
}

static bool accept(maker *mk) {
  const dil_table *t = mk->table;
  if (t->dtype != DIL_BF16 && t->dtype != DIL_F16)
    return REFUSE(mk, "elements of 32 bits");
  if (t->head_dim % 8 || t->value_dim % 8 || t->head_dim > DIL_HEAD_DIM_MAX)
    return REFUSE(mk, "a head_dim of %d by %d", t->head_dim, t->value_dim);
  if (t->general) return REFUSE(mk, "the general path is forced");
  mk->out->paired = asks_pairs(mk);
  if (mk->out->paired && t->predicate_count > HOPPER_PREDICATES)
    return REFUSE(mk, "more than %d conditions", HOPPER_PREDICATES);
  if (t->dropout > 0) return REFUSE(mk, "dropout");
  if (mk->pass->period > HOPPER_PERIOD)
    return REFUSE(mk, "a period of %lld, above %d",
                  (long long)mk->pass->period, HOPPER_PERIOD);
  EACH_BRANCH(b, mk->pass->branches)
    if (!accept_branch(mk, b)) return false;
  return true;
}

/* ---- homes and shapes ---------------------------------------------------- */

/* A branch whose dilation divides its segment has the same residue in every
 * segment; of the others, the shortest sets the home. */
static bool choose_home(maker *mk) {
  int64_t home = ENDLESS, longest = 0, period = 1;
  EACH_BRANCH(b, mk->pass->branches) {
    int64_t s = segment_of(mk, b), r = mk->table->branches[b].dilation;
    if (s == ENDLESS) continue;
    if (s > longest) longest = s;
    if (s % r == 0) continue;
    if (s < home) home = s;
    period = least_multiple(period, s / greatest_divisor(s, r) * r);
    if (period > ENDLESS) return REFUSE(mk, "residues that hardly repeat");
  }
  if (home == ENDLESS) home = period = longest;
  mk->out->home = home;
  mk->out->period = least_multiple(period, home ? home : 1);
  return true;
}

static residues residues_of(const maker *mk, int32_t head, int64_t low) {
  residues x = {0};
  EACH_BRANCH(b, mk->pass->branches) {
    const dil_branch *branch = &mk->table->branches[b];
    if (head < branch->head_first || head > branch->head_last) continue;
    int64_t s = segment_of(mk, b), start = s == ENDLESS ? 0 : low / s * s;
    x.served |= 1ull << b;
    x.of[b] = floor_rest(start + branch->phase[head], branch->dilation);
  }
  return x;
}

static residues shifted(const maker *mk, const residues *from, int32_t shift) {
  residues x = *from;
  EACH_BRANCH(b, x.served)
    x.of[b] = floor_rest(x.of[b] - shift, mk->table->branches[b].dilation);
  return x;
}

/* The shift after which the residues come first in the order of words. */
static int32_t normalise(const maker *mk, residues *x) {
  residues given = *x;
  int32_t best = 0;
  for (int32_t shift = 1; shift < mk->pass->period; shift++) {
    residues other = shifted(mk, &given, shift);
    if (memcmp(other.of, x->of, sizeof x->of) < 0) {
      *x = other;
      best = shift;
    }
  }
  return best;
}

static bool add_member(maker *mk, int32_t shape, int32_t head, int64_t home,
                       int32_t shift) {
  hopper_table *out = mk->out;
  if (out->member_count == HOPPER_MEMBERS)
    return REFUSE(mk, "more than %d heads and homes", HOPPER_MEMBERS);
  hopper_member *m = &out->members[out->member_count++];
  *m = (hopper_member){(short)head, (short)home, (short)shift, 0};
  out->shapes[shape].members++;
  return true;
}

static int32_t shape_find(maker *mk, const residues *x) {
  hopper_table *out = mk->out;
  int32_t s = 0;
  while (s < out->shape_count && memcmp(&mk->shape[s], x, sizeof *x)) s++;
  if (s == out->shape_count && s < HOPPER_SHAPES) {
    mk->shape[s] = *x;
    out->shape_count++;
  }
  return s;
}

static int64_t homes_of(const maker *mk) {
  return mk->out->home ? mk->out->period / mk->out->home : 1;
}

/* All (home, head) in this order, with what `visit` makes of each. */
static bool each_member(maker *mk, int32_t only) {
  for (int64_t home = 0; home < homes_of(mk); home++)
    for (int32_t h = 0; h < mk->table->heads; h++) {
      residues x = residues_of(mk, h, home * mk->out->home);
      if (!x.served) continue;
      int32_t shift = normalise(mk, &x), s = shape_find(mk, &x);
      if (s == HOPPER_SHAPES)
        return REFUSE(mk, "more than %d shapes of residues", HOPPER_SHAPES);
      if (s == only && !add_member(mk, s, h, home, shift)) return false;
    }
  return true;
}

/* Members of a shape stand together. */
static bool find_shapes(maker *mk) {
  hopper_table *out = mk->out;
  if (homes_of(mk) > INT16_MAX)
    return REFUSE(mk, "residues that hardly repeat");
  if (!each_member(mk, -1)) return false;
  for (int32_t s = 0; s < out->shape_count; s++) {
    out->shapes[s].member = (short)out->member_count;
    if (!each_member(mk, s)) return false;
  }
  return true;
}

/* ---- classes ------------------------------------------------------------- */

static int64_t cell_of(const maker *mk, uint64_t branches) {
  int64_t cell = mk->out->home ? mk->out->home : ENDLESS;
  EACH_BRANCH(b, branches)
    if (segment_of(mk, b) < cell) cell = segment_of(mk, b);
  return cell == ENDLESS ? 0 : cell;
}

/* The rows of a shape that `branches` select, one class a progression. */
static bool add_class(maker *mk, int32_t shape, uint64_t branches,
                      uint64_t set, double work[HOPPER_CLASSES]) {
  hopper_table *out = mk->out;
  hopper_class k = {.shape = (short)shape, .cell = (int)cell_of(mk, branches)};
  double blocks = 0;
  if (branches && !keys_add(mk, &mk->shape[shape], branches, &k, &blocks))
    return false;
  while (set) {
    progression p = progression_take(&set, (int32_t)mk->pass->period);
    if (out->class_count == HOPPER_CLASSES)
      return REFUSE(mk, "more than %d classes of rows", HOPPER_CLASSES);
    if (branches && k.cell && k.cell / p.stride < 64)
      return REFUSE(mk, "segments of %d with rows %d apart", k.cell, p.stride);
    k.stride = p.stride;
    k.offset = p.offset;
    k.slot = (short)maker_slot(mk, p.stride);
    if (k.slot == HOPPER_STRIDES)
      return REFUSE(mk, "more than %d strides", HOPPER_STRIDES);
    int32_t at = out->class_count++;
    for (; at && work[at - 1] < blocks; at--) {
      work[at] = work[at - 1];
      out->classes[at] = out->classes[at - 1];
    }
    work[at] = blocks;
    out->classes[at] = k;
    out->bare_count += !branches;
  }
  return true;
}

static bool find_classes(maker *mk) {
  int32_t period = (int32_t)mk->pass->period;
  double work[HOPPER_CLASSES];
  for (int32_t s = 0; s < mk->out->shape_count; s++) {
    const residues *x = &mk->shape[s];
    uint64_t left = period == 64 ? ~0ull : (1ull << period) - 1;
    while (left) {
      int32_t first = __builtin_ctzll(left);
      uint64_t branches = maker_selecting(mk, x, x->served, first), set = 0;
      for (int32_t p = first; p < period; p++)
        if (maker_selecting(mk, x, x->served, p) == branches) set |= 1ull << p;
      left &= ~set;
      if (!add_class(mk, s, branches, set, work)) return false;
    }
  }
  return true;
}

bool hopper_table_fill(const dil_table *table, int32_t pass, int32_t tile_keys,
                       hopper_table *out, char *reason, size_t size) {
  maker mk = {.table = table,
              .pass = &table->passes[pass],
              .out = out,
              .tile_keys = tile_keys,
              .reason = reason,
              .size = size};
  memset(out, 0, sizeof *out);
  return accept(&mk) && choose_home(&mk) && find_shapes(&mk) &&
         find_classes(&mk);
}
