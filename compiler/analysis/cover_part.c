/* cover_part.c - a box whose conditions come apart: every part that sees both i
 * and j is settled by its bounds, and all others see one of the two. In: a box
 * of a piece, inside the band. Out: its pairs, or its rows with a key, in time
 * that grows with rows plus keys: rows that answer alike are counted together,
 * and so are keys.
 *
 * Branches written as one mask come to this, segments being settled and
 * residues seen by rows and keys alone. */
#include "cover_set.h"

enum { LEAVES = 32, SIDES = 6 }; /* parts of all kinds; of rows, or of keys */

/* A part of the conditions, in the order of their trees. */
typedef struct leaf {
  enum { SETTLED, OF_ROWS, OF_KEYS } kind;
  int32_t number;      /* its truth, or its number among those of its side */
} leaf;

typedef struct split {
  const expr_box *at;
  leaf leaf[LEAVES];
  int32_t count;
  const expr *rows[SIDES], *keys[SIDES];
  int32_t row_count, key_count;
} split;

static bool is_joint(const expr *e) {
  return e->op == EXPR_AND || e->op == EXPR_OR || e->op == EXPR_NOT;
}

static bool add_side(split *s, int kind, const expr **side, int32_t *count,
                     const expr *e) {
  if (*count == SIDES) return false;
  s->leaf[s->count++] = (leaf){kind, *count};
  side[(*count)++] = e;
  return true;
}

static bool add_settled(split *s, const expr *e) {
  interval x = expr_bounds(e, s->at);
  if (x.low != x.high) return false;
  s->leaf[s->count++] = (leaf){SETTLED, x.low != 0};
  return true;
}

/* False: some part is not settled, or there are too many. */
static bool take_apart(split *s, const expr *e) {
  if (is_joint(e)) {
    for (int32_t k = 0; k < e->count; k++)
      if (!take_apart(s, e->arg[k])) return false;
    return true;
  }
  bool row = expr_uses(e, EXPR_I_), key = expr_uses(e, EXPR_J_);
  if (s->count == LEAVES) return false;
  if (row == key) return add_settled(s, e);
  return row ? add_side(s, OF_ROWS, s->rows, &s->row_count, e)
             : add_side(s, OF_KEYS, s->keys, &s->key_count, e);
}

static bool take_condition(split *s, const cover_condition *one) {
  if (one->mask) return take_apart(s, one->mask);
  for (int32_t k = 0; k < one->level->count; k++) {
    const keep *any = &one->level->keep[k];
    if (any->kind != KEEP_EXPR || !take_apart(s, any->condition)) return false;
  }
  return true;
}

/* ---- answers ------------------------------------------------------------- */

/* Bits: which of the parts of one side hold at a point. */
static uint32_t answers(const expr *const *side, int32_t count,
                        const expr_point *point) {
  uint32_t bits = 0;
  for (int32_t k = 0; k < count; k++)
    bits |= (uint32_t)(expr_eval(side[k], point, false).integer != 0) << k;
  return bits;
}

/* The truth of a tree, its leaves from *next on. */
static bool truth(const split *s, const expr *e, uint32_t row, uint32_t key,
                  int32_t *next) {
  if (e->op == EXPR_NOT) return !truth(s, e->arg[0], row, key, next);
  if (is_joint(e)) {
    bool a = truth(s, e->arg[0], row, key, next);
    bool b = truth(s, e->arg[1], row, key, next);
    return e->op == EXPR_AND ? a && b : a || b;
  }
  const leaf *at = &s->leaf[(*next)++];
  if (at->kind == SETTLED) return at->number;
  return (at->kind == OF_ROWS ? row : key) >> at->number & 1;
}

static bool all_hold(const split *s, const cover_set *set, uint32_t row,
                     uint32_t key) {
  bool all = true;
  int32_t next = 0;
  for (int32_t k = 0; k < set->condition_count; k++) {
    const cover_condition *one = &set->conditions[k];
    bool holds = one->mask && truth(s, one->mask, row, key, &next);
    for (int32_t n = 0; !one->mask && n < one->level->count; n++)
      holds |= truth(s, one->level->keep[n].condition, row, key, &next);
    all &= holds;
  }
  return all;
}

/* ---- a box --------------------------------------------------------------- */

/* Rows and keys by what they answer. */
typedef struct tally {
  split split;
  double rows[1 << SIDES], keys[1 << SIDES];
} tally;

static uint32_t row_answers(const cover_piece *p, const split *s, int64_t u) {
  expr_point point = s->at->point;
  point.i = (int32_t)(p->origin + p->step * u);
  return answers(s->rows, s->row_count, &point);
}

static uint32_t key_answers(const cover_piece *p, const split *s, int64_t v) {
  expr_point point = s->at->point;
  point.j = (int32_t)(p->origin + p->step * v);
  return answers(s->keys, s->key_count, &point);
}

static bool tally_make(const cover_piece *p, const expr_box *at,
                       const int64_t first[2], const int64_t last[2],
                       tally *t) {
  *t = (tally){.split.at = at};
  split *s = &t->split;
  for (int32_t k = 0; k < p->set->condition_count; k++)
    if (!take_condition(s, &p->set->conditions[k])) return false;
  for (int64_t u = first[0]; u <= last[0]; u++) t->rows[row_answers(p, s, u)]++;
  for (int64_t v = first[1]; v <= last[1]; v++) t->keys[key_answers(p, s, v)]++;
  return true;
}

/* Keys of the box that rows of one answer see. */
static double keys_seen(const cover_piece *p, const tally *t, uint32_t row) {
  double count = 0;
  for (uint32_t key = 0; key < 1u << t->split.key_count; key++)
    if (t->keys[key] > 0 && all_hold(&t->split, p->set, row, key))
      count += t->keys[key];
  return count;
}

bool cover_parts_count(const cover_piece *p, const expr_box *at,
                       const int64_t first[2], const int64_t last[2],
                       double *count) {
  tally t;
  if (!tally_make(p, at, first, last, &t)) return false;
  *count = 0;
  for (uint32_t row = 0; row < 1u << t.split.row_count; row++)
    if (t.rows[row] > 0) *count += t.rows[row] * keys_seen(p, &t, row);
  return true;
}

bool cover_parts_mark(const cover_piece *p, const expr_box *at,
                      const int64_t first[2], const int64_t last[2],
                      uint8_t *covered) {
  tally t;
  bool seen[1 << SIDES];
  if (!tally_make(p, at, first, last, &t)) return false;
  for (uint32_t row = 0; row < 1u << t.split.row_count; row++)
    seen[row] = t.rows[row] > 0 && keys_seen(p, &t, row) > 0;
  for (int64_t u = first[0]; u <= last[0]; u++)
    covered[u - p->u0] |= seen[row_answers(p, &t.split, u)];
  return true;
}
