/* hopper_table.c - from a pass of the plan to the Hopper kernel's tables.
 *
 * In: branches (segment, dilation, phases, heads, window) whose segments are
 * nested. Out: homes (stretches inside which no residue shifts) grouped into
 * shapes; for each shape the classes of rows that the same branches select;
 * for each class the runs of keys it reads. A key that several branches reach
 * is visited once where that saves blocks. O(heads x branches x period), never
 * O(N). */
#include "hopper.h"
#include <stdio.h>
#include <string.h>

enum { ENDLESS = 1 << 30 }; /* a segment that holds every position */

/* The residues of one (home, head), by branch of `served`. */
typedef struct residues {
  uint64_t served;
  int32_t of[DIL_BRANCH_MAX];
} residues;

typedef struct maker {
  const dil_table *table;
  const dil_pass *pass;
  hopper_table *out;
  residues shape[HOPPER_SHAPES];
  int32_t tile_keys;
  char *reason;
  size_t size;
} maker;

#define REFUSE(mk, ...) \
  (snprintf((mk)->reason, (mk)->size, __VA_ARGS__), false)

#define EACH_BRANCH(b, mask)                                   \
  for (uint64_t rest_ = (mask), b = 0;                         \
       rest_ && ((b = (uint64_t)__builtin_ctzll(rest_)), true); \
       rest_ &= rest_ - 1)

static int64_t segment_of(const maker *mk, uint64_t b) {
  int64_t s = mk->table->branches[b].segment;
  return s && s < ENDLESS ? s : ENDLESS;
}

static int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static int64_t least_multiple(int64_t a, int64_t b) {
  return a / greatest_divisor(a, b) * b;
}

static int32_t floor_rest(int64_t a, int64_t b) {
  int64_t rest = a % b;
  return (int32_t)(rest < 0 ? rest + b : rest);
}

/* ---- what the kernel has no code for ------------------------------------- */

static bool accept_branch(maker *mk, uint64_t b) {
  const dil_branch *branch = &mk->table->branches[b];
  int32_t p = branch->predicate;
  if (p >= 0 && mk->table->predicates[p].masked)
    return REFUSE(mk, "a mask expression");
  for (int32_t other = 0; other < mk->table->branch_count; other++) {
    int64_t s = segment_of(mk, b), o = segment_of(mk, (uint64_t)other);
    if ((mk->pass->branches >> other & 1) && s < o && o < ENDLESS && o % s)
      return REFUSE(mk, "segments %lld and %lld are not nested",
                    (long long)s, (long long)o);
  }
  return true;
}

static bool accept(maker *mk) {
  const dil_table *t = mk->table;
  if (t->dtype != DIL_BF16 && t->dtype != DIL_F16)
    return REFUSE(mk, "elements of 32 bits");
  if (t->head_dim % 8 || t->value_dim % 8 || t->head_dim > DIL_HEAD_DIM_MAX)
    return REFUSE(mk, "a head_dim of %d by %d", t->head_dim, t->value_dim);
  if (t->general) return REFUSE(mk, "the general path is forced");
  if (t->scored) return REFUSE(mk, "a score expression");
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
  *m = (hopper_member){(short)head, (short)home, shift};
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

/* ---- residues to progressions -------------------------------------------- */

static int32_t slot_of(maker *mk, int32_t stride) {
  hopper_table *out = mk->out;
  int32_t i = 0;
  while (i < out->stride_count && out->strides[i] != stride) i++;
  if (i == out->stride_count && i < HOPPER_STRIDES)
    out->strides[out->stride_count++] = stride;
  return i;
}

typedef struct progression {
  int32_t stride, offset;
} progression;

static bool has_all(uint64_t set, int32_t period, progression p) {
  for (int32_t x = p.offset; x < period; x += p.stride)
    if (!(set >> x & 1)) return false;
  return true;
}

/* Takes the coarsest progression out of a set of residues modulo `period`. */
static progression take_coarsest(uint64_t *set, int32_t period) {
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

static uint64_t selecting(const maker *mk, const residues *x, uint64_t among,
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

typedef struct keys {
  hopper_piece piece[HOPPER_PIECES];
  int32_t count;
  double blocks;         /* visits of a tile, by the segments' full lengths */
  bool full;             /* more pieces than there is room for */
} keys;

static void add_piece(maker *mk, const hopper_piece *form, progression p,
                      int64_t length, keys *to) {
  hopper_piece piece = *form;
  int64_t n = length / p.stride;
  to->blocks += (double)((n + mk->tile_keys - 1) / mk->tile_keys);
  if (to->count == HOPPER_PIECES) {
    to->full = true;
    return;
  }
  piece.stride = p.stride;
  piece.offset = p.offset;
  piece.slot = (short)slot_of(mk, p.stride);
  to->full |= piece.slot == HOPPER_STRIDES;
  to->piece[to->count++] = piece;
}

static float log2_small(int32_t k) { /* k <= DIL_BRANCH_MAX */
  return (float)__builtin_log2((double)k);
}

/* The keys between the segments `inner` and `outer`: those branches that reach
 * that far, one progression for each multiplicity. */
static void add_ring(maker *mk, const residues *x, uint64_t branches,
                     int64_t inner, int64_t outer, const hopper_piece *window,
                     keys *to) {
  int32_t period = period_of(mk, branches), most = 0;
  uint64_t by_copies[DIL_BRANCH_MAX + 1] = {0};
  for (int32_t p = 0; p < period; p++) {
    int32_t copies =
        __builtin_popcountll(selecting(mk, x, branches, p));
    by_copies[copies] |= 1ull << p;
    if (copies > most) most = copies;
  }
  for (int32_t copies = 1; copies <= most; copies++)
    while (by_copies[copies]) {
      progression p = take_coarsest(&by_copies[copies], period);
      hopper_piece form = *window;
      bool once = mk->table->combine == DIL_COMBINE_UNION;
      form.bias = once ? 0 : log2_small(copies);
      form.outer = outer == ENDLESS ? 0 : (int)outer;
      form.inner = (int)inner;
      if (!inner) {
        add_piece(mk, &form, p, outer, to);
        continue;
      }
      form.side = HOPPER_OTHER;
      if (outer != ENDLESS && outer == 2 * inner) {
        add_piece(mk, &form, p, inner, to);
        continue;
      }
      form.side = HOPPER_LEFT;
      add_piece(mk, &form, p, (outer - inner) / 2, to);
      form.side = HOPPER_RIGHT;
      add_piece(mk, &form, p, (outer - inner) / 2, to);
    }
}

/* The runs of keys of branches that share their visits, outermost first: what
 * a causal tile sees only in part comes last. */
static void add_group(maker *mk, const residues *x, uint64_t branches,
                      const hopper_piece *window, keys *to) {
  int64_t outer = 0, inner;
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
    add_ring(mk, x, reach, inner, outer, window, to);
  }
}

static double cost_of(maker *mk, const residues *x, uint64_t branches) {
  const hopper_piece none = {0};
  int32_t strides = mk->out->stride_count;
  keys unused = {.count = HOPPER_PIECES};
  add_group(mk, x, branches, &none, &unused);
  mk->out->stride_count = strides;
  return unused.blocks;
}

/* Joins the two groups that save most by sharing visits, while any do. */
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

static hopper_piece window_of(const maker *mk, int32_t predicate) {
  hopper_piece form = {.left = HOPPER_FAR, .right = HOPPER_FAR};
  if (predicate < 0) return form;
  const dil_predicate *p = &mk->table->predicates[predicate];
  if (p->left < HOPPER_FAR) form.left = (int)p->left;
  if (p->right < HOPPER_FAR) form.right = (int)p->right;
  return form;
}

/* Branches of a class that have one window: groups that share visits. */
static void add_alike(maker *mk, const residues *x, uint64_t branches,
                      int32_t predicate, keys *to) {
  uint64_t group[DIL_BRANCH_MAX];
  int32_t count = 0;
  hopper_piece window = window_of(mk, predicate);
  EACH_BRANCH(b, branches)
    if (mk->table->branches[b].predicate == predicate)
      group[count++] = 1ull << b;
  while (mk->table->dedup && join_best(mk, x, group, &count)) continue;
  for (int32_t i = 0; i < count; i++)
    add_group(mk, x, group[i], &window, to);
  mk->out->causal |= count && window.right < HOPPER_FAR;
}

static bool is_wider(const hopper_piece *a, const hopper_piece *b) {
  if (a->outer == b->outer) return a->stride > b->stride;
  return b->outer && (!a->outer || a->outer > b->outer);
}

/* Wider pieces first, then sparser ones: in the last run a warpgroup leaves
 * its tile as soon as it sees no more. */
static void sort_pieces(keys *k) {
  for (int32_t i = 1; i < k->count; i++) {
    hopper_piece one = k->piece[i];
    int32_t at = i;
    while (at && is_wider(&one, &k->piece[at - 1])) {
      k->piece[at] = k->piece[at - 1];
      at--;
    }
    k->piece[at] = one;
  }
}

/* ---- classes ------------------------------------------------------------- */

static bool shares_predicate(const maker *mk, uint64_t branches) {
  int32_t first = -2;
  EACH_BRANCH(b, branches) {
    int32_t p = mk->table->branches[b].predicate;
    if (first != -2 && p != first) return false;
    first = p;
  }
  return true;
}

static int64_t cell_of(const maker *mk, uint64_t branches) {
  int64_t cell = mk->out->home ? mk->out->home : ENDLESS;
  EACH_BRANCH(b, branches)
    if (segment_of(mk, b) < cell) cell = segment_of(mk, b);
  return cell == ENDLESS ? 0 : cell;
}

/* The keys of a class, appended to the table; their share of work. */
static bool add_keys(maker *mk, const residues *x, uint64_t branches,
                     hopper_class *k, double *blocks) {
  hopper_table *out = mk->out;
  keys all = {0};
  for (int32_t p = -1; p < mk->table->predicate_count; p++)
    add_alike(mk, x, branches, p, &all);
  sort_pieces(&all);
  *blocks = all.blocks;
  if (all.full || out->piece_count + all.count > HOPPER_PIECES)
    return REFUSE(mk, "more than %d runs of keys", HOPPER_PIECES);
  k->piece = (short)out->piece_count;
  k->pieces = (short)all.count;
  memcpy(out->pieces + out->piece_count, all.piece,
         (size_t)all.count * sizeof *all.piece);
  out->piece_count += all.count;
  return true;
}

/* The rows of a shape that `branches` select, one class a progression. */
static bool add_class(maker *mk, int32_t shape, uint64_t branches,
                      uint64_t set, double work[HOPPER_CLASSES]) {
  hopper_table *out = mk->out;
  hopper_class k = {.shape = (short)shape, .cell = (int)cell_of(mk, branches)};
  double blocks = 0;
  if (mk->table->combine == DIL_COMBINE_UNION &&
      !shares_predicate(mk, branches))
    return REFUSE(mk, "a union of branches with different windows");
  if (branches && !add_keys(mk, &mk->shape[shape], branches, &k, &blocks))
    return false;
  while (set) {
    progression p = take_coarsest(&set, (int32_t)mk->pass->period);
    if (out->class_count == HOPPER_CLASSES)
      return REFUSE(mk, "more than %d classes of rows", HOPPER_CLASSES);
    if (branches && k.cell && k.cell / p.stride < 64)
      return REFUSE(mk, "segments of %d with rows %d apart", k.cell, p.stride);
    k.stride = p.stride;
    k.offset = p.offset;
    k.slot = (short)slot_of(mk, p.stride);
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
      uint64_t branches = selecting(mk, x, x->served, first), set = 0;
      for (int32_t p = first; p < period; p++)
        if (selecting(mk, x, x->served, p) == branches) set |= 1ull << p;
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
