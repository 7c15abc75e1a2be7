/* cover_set.c - what several branches reach together, subrange by subrange.
 *
 * In: a pattern, one head, and a set of its branches. Out: the subranges of the
 * sequence in which that set is a lattice of rows and keys under a band, with
 * how often each stands there. */
#include "cover_set.h"
#include "runtime/base/arithmetic.h"

/* Beyond any difference of two positions. */
#define FAR ((int64_t)1 << 34)

static const branch *branch_at(const cover *c, int32_t index) {
  return &c->pattern->branch[index];
}

#define FOR_BRANCHES(set, b)                                                   \
  for (uint64_t rest_ = (set)->branches; rest_; rest_ &= rest_ - 1)            \
    for (int32_t b = __builtin_ctzll(rest_), once_ = 1; once_; once_ = 0)

/* ---- making -------------------------------------------------------------- */

static bool same_level(const keeps *a, const keeps *b) {
  if (a->count != b->count || a->block != b->block) return false;
  for (int32_t k = 0; k < a->count; k++) {
    const keep *x = &a->keep[k], *y = &b->keep[k];
    if (!expr_same(x->condition, y->condition)) return false;
  }
  return true;
}

static bool has_condition(const cover_set *set, cover_condition one) {
  for (int32_t k = 0; k < set->condition_count; k++) {
    const cover_condition *other = &set->conditions[k];
    if ((one.mask == NULL) != (other->mask == NULL)) continue;
    if (one.mask ? expr_same(one.mask, other->mask)
                 : same_level(one.level, other->level))
      return true;
  }
  return false;
}

static void add_condition(cover_set *set, cover_condition one) {
  if (!has_condition(set, one))
    set->conditions[set->condition_count++] = one;
}

static void add_conditions(cover_set *set, const branch *b) {
  for (int32_t k = 0; k < b->mask_count; k++)
    add_condition(set, (cover_condition){b->mask[k], NULL});
  for (int level = 0; level < 2; level++)
    if (b->keeps[level].count > 0)
      add_condition(set, (cover_condition){NULL, &b->keeps[level]});
}

static bool is_position(const expr *e) {
  return e->op == EXPR_I_ || e->op == EXPR_J_;
}

/* Returns whether the value depends on i and j by i - j alone. */
static bool is_relative(const expr *e) {
  if (is_position(e)) return false;
  if (e->op == EXPR_SUB && is_position(e->arg[0]) && is_position(e->arg[1]))
    return true;
  for (int32_t k = 0; k < e->count; k++)
    if (!is_relative(e->arg[k])) return false;
  return true;
}

static bool is_condition_relative(const cover_condition *one) {
  if (one->mask) return is_relative(one->mask);
  for (int32_t k = 0; k < one->level->count; k++) {
    const keep *any = &one->level->keep[k];
    if (!is_relative(any->condition)) return false;
  }
  return true;
}

static int64_t right_of(const branch *b) {
  return b->causal ? 0 : b->right;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Room for the conditions of a set with so many branches. */
static cover_condition *room_for(cover *c, int32_t branches) {
  cover_condition **room = &c->room[branches - 1];
  int32_t most = 0;
  for (int32_t k = 0; k < c->pattern->branch_count && !*room; k++)
    most += branch_at(c, k)->mask_count + 2;
  if (!*room) *room = ARENA_ARRAY(c->arena, cover_condition, most);
  return *room;
}

void cover_set_make(cover *c, uint64_t branches, cover_set *set) {
  *set = (cover_set){.branches = branches,
                     .left = DIL_ENDLESS,
                     .right = DIL_ENDLESS,
                     .period = 1,
                     .turns = 1,
                     .conditions = room_for(c, __builtin_popcountll(branches))};
  FOR_BRANCHES(set, k) {
    const branch *b = branch_at(c, k);
    set->left = smaller(set->left, b->left);
    set->right = smaller(set->right, right_of(b));
    set->segmented = set->segmented || b->segment > 0;
    if (branch_has_each(b))
      set->turns = least_multiple(set->turns, b->dilation);
    set->period =
        least_multiple(set->period, b->segment > 0 ? b->segment : b->dilation);
    add_conditions(set, b);
  }
  if (!set->segmented) set->period = 0;
  if (set->condition_count == 0) return;
  set->relative = true;
  for (int32_t k = 0; k < set->condition_count; k++)
    set->relative = set->relative && is_condition_relative(&set->conditions[k]);
  if (!set->relative) set->period = 0;
}

/* ---- containment --------------------------------------------------------- */

static bool keeps_residue(int64_t segment, int64_t dilation) {
  return segment % dilation == 0;
}

/* Returns whether a row and a key that a selects are some that b selects. */
static bool selects_less(const branch *a, const branch *b, int64_t h) {
  int64_t r = b->dilation;
  if (r == 1) return true;
  if (branch_has_each(b)) return a->dilation % r == 0;
  if (branch_has_each(a)) return false;
  if (a->dilation % r != 0 || a->phase[h] % r != b->phase[h]) return false;
  return a->segment == b->segment ||
         (keeps_residue(a->segment, r) && keeps_residue(b->segment, r));
}

static bool divides_segment(const branch *a, const branch *b) {
  return b->segment == 0 || (a->segment > 0 && b->segment % a->segment == 0);
}

bool cover_set_within(const cover *c, const cover_set *set, int32_t index) {
  const branch *b = branch_at(c, index);
  bool segment = false, residue = false;
  FOR_BRANCHES(set, k) {
    segment = segment || divides_segment(branch_at(c, k), b);
    residue = residue || selects_less(branch_at(c, k), b, c->head);
  }
  if (!segment || !residue) return false;
  if (set->left > b->left || set->right > right_of(b)) return false;
  for (int32_t k = 0; k < b->mask_count; k++)
    if (!has_condition(set, (cover_condition){b->mask[k], NULL})) return false;
  for (int level = 0; level < 2; level++)
    if (b->keeps[level].count > 0 &&
        !has_condition(set, (cover_condition){NULL, &b->keeps[level]}))
      return false;
  return true;
}

/* ---- lattices ------------------------------------------------------------ */

typedef __int128 int128;

static int128 int128_mod(int128 a, int128 m) {
  int128 rest = a % m;
  return rest < 0 ? rest + m : rest;
}

/* x with a * x = 1 (mod m); a and m have no common divisor. */
static int128 modular_inverse(int128 a, int128 m) {
  int128 r0 = m, r1 = int128_mod(a, m), s0 = 0, s1 = 1;
  while (r1 != 0) {
    int128 turns = r0 / r1, r = r0 - turns * r1, s = s0 - turns * s1;
    r0 = r1, r1 = r;
    s0 = s1, s1 = s;
  }
  return int128_mod(s0, m);
}

/* The subrange's lattice also takes only start + k * step. False when nothing
 * is left in low..high. A step longer than any subrange stands for "one
 * point". */
static bool lattice_intersect(cover_subrange *p, int64_t start, int64_t step,
                              int64_t low, int64_t high) {
  int64_t common = greatest_divisor(p->step, step);
  if (floor_mod(start - p->origin, common) != 0) return false;
  int128 turn = step / common;
  int128 away = (start - p->origin) / common;
  int128 steps = int128_mod(
      int128_mod(away, turn) * modular_inverse(p->step / common, turn), turn);
  int128 all = (int128)p->step * turn;
  int128 origin = p->origin + p->step * steps;
  origin = low + int128_mod(origin - low, all);
  if (origin > high) return false;
  p->origin = (int64_t)origin;
  p->step = all > FAR ? FAR : (int64_t)all;
  return true;
}

/* ---- subranges ----------------------------------------------------------- */

typedef struct segment_borders {
  int64_t begin, end;
} segment_borders;

/* The positions around x in which no segment of the set begins or ends. */
static segment_borders segment_borders_at(const cover *c, const cover_set *set,
                                          int64_t x) {
  segment_borders at = {0, c->M};
  FOR_BRANCHES(set, k) {
    int64_t segment = branch_at(c, k)->segment;
    if (segment == 0) continue;
    int64_t begin = x - floor_mod(x, segment);
    if (begin > at.begin) at.begin = begin;
    if (at.end - begin > segment) at.end = begin + segment;
  }
  return at;
}

static bool find_lattice(const cover *c, const cover_set *set,
                         segment_borders at, cover_subrange *p) {
  p->origin = at.begin;
  p->step = 1;
  FOR_BRANCHES(set, k) {
    const branch *b = branch_at(c, k);
    int64_t base =
        b->segment > 0 ? at.begin - floor_mod(at.begin, b->segment) : 0;
    int64_t step = b->dilation < FAR ? b->dilation : FAR;
    int64_t phase = branch_has_each(b) ? set->turn % b->dilation
                                       : b->phase[c->head];
    if (!lattice_intersect(p, base + phase, step, at.begin, at.end - 1))
      return false;
  }
  return true;
}

static int64_t first_index(const cover_subrange *p, int64_t position) {
  return -floor_div(p->origin - position, p->step);
}

static int64_t last_index(const cover_subrange *p, int64_t position) {
  return floor_div(position - p->origin, p->step);
}

int64_t cover_subrange_at(cover *c, const cover_set *set, int64_t x,
                          cover_subrange *p) {
  *p = (cover_subrange){.cover = c, .set = set, .step = 1, .u1 = -1, .v1 = -1};
  segment_borders at = segment_borders_at(c, set, x);
  if (at.begin >= at.end || !find_lattice(c, set, at, p)) return at.end;
  p->u0 = first_index(p, x);
  p->u1 = last_index(p, at.end - 1);
  p->v0 = first_index(p, at.begin);
  p->v1 = last_index(p, at.end - 1);
  p->left = smaller(set->left, FAR) / p->step;
  p->right = smaller(set->right, FAR) / p->step;
  return at.end;
}

static void walk_turn(cover *c, const cover_set *set, cover_visitor *visit,
                      void *context) {
  int64_t x = set->segmented && c->first < 0 ? 0 : c->first;
  int64_t times = 1, period_end = 0;
  while (x < c->M && --c->work >= 0) {
    if (set->period > 0 && times == 1 && x % set->period == 0 &&
        (c->M - x) / set->period > 1) {
      times = (c->M - x) / set->period;
      period_end = x + set->period;
    }
    cover_subrange subrange;
    x = cover_subrange_at(c, set, x, &subrange);
    if (subrange.u0 <= subrange.u1 && subrange.v0 <= subrange.v1)
      visit(context, &subrange, times);
    if (times > 1 && x >= period_end) {
      x = period_end + (times - 1) * set->period;
      times = 1;
    }
  }
}

void cover_set_walk(cover *c, const cover_set *set, cover_visitor *visit,
                    void *context) {
  cover_set one = *set;
  for (one.turn = 0; one.turn < one.turns && c->work >= 0; one.turn++)
    walk_turn(c, &one, visit, context);
}
