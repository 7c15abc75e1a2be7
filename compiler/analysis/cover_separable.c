/* cover_separable.c - counts a box of pairs whose conditions are separable: the
 * bounds settle every term that sees both i and j, and each other term sees one
 * of the two. In: a box of a subrange, inside the band. Out: its pairs, or its
 * rows with a key, in time that grows with rows plus keys: rows for which the
 * same terms hold are counted together, and so are keys.
 *
 * Branches that are written as one mask come to this: bounds settle their
 * segments, and rows and keys alone see their residues. */
#include "cover_set.h"

enum {
  TERMS_MOST = 32, /* of all kinds */
  SIDE_TERMS = 6   /* of rows, or of keys */
};

/* A term of the conditions, in the order of their trees. */
typedef struct separable_term {
  enum { SETTLED, OF_ROWS, OF_KEYS } kind;
  int32_t number; /* its truth, or its number among those of its side */
} separable_term;

typedef struct separation {
  const expr_box *at;
  separable_term terms[TERMS_MOST];
  int32_t count;
  const expr *rows[SIDE_TERMS], *keys[SIDE_TERMS];
  int32_t row_count, key_count;
} separation;

static bool is_joint(const expr *e) {
  return e->op == EXPR_AND || e->op == EXPR_OR || e->op == EXPR_NOT;
}

static bool add_side_term(separation *s, int kind, const expr **side,
                          int32_t *count, const expr *e) {
  if (*count == SIDE_TERMS) return false;
  s->terms[s->count++] = (separable_term){kind, *count};
  side[(*count)++] = e;
  return true;
}

static bool add_settled_term(separation *s, const expr *e) {
  interval x = expr_bounds(e, s->at);
  if (x.low != x.high) return false;
  s->terms[s->count++] = (separable_term){SETTLED, x.low != 0};
  return true;
}

/* False: some term is not settled, or there are too many. */
static bool separate_expr(separation *s, const expr *e) {
  if (is_joint(e)) {
    for (int32_t k = 0; k < e->count; k++)
      if (!separate_expr(s, e->arg[k])) return false;
    return true;
  }
  bool row = expr_uses(e, EXPR_I_), key = expr_uses(e, EXPR_J_);
  if (s->count == TERMS_MOST) return false;
  if (row == key) return add_settled_term(s, e);
  return row ? add_side_term(s, OF_ROWS, s->rows, &s->row_count, e)
             : add_side_term(s, OF_KEYS, s->keys, &s->key_count, e);
}

static bool separate_condition(separation *s, const cover_condition *one) {
  if (one->mask) return separate_expr(s, one->mask);
  for (int32_t k = 0; k < one->level->count; k++) {
    const keep *any = &one->level->keep[k];
    if (!separate_expr(s, any->condition)) return false;
  }
  return true;
}

/* ---- answers ------------------------------------------------------------- */

/* Bits: which of the terms of one side hold at a point. */
static uint32_t side_answers(const expr *const *side, int32_t count,
                             const expr_point *point) {
  uint32_t bits = 0;
  for (int32_t k = 0; k < count; k++)
    bits |= (uint32_t)(expr_eval(side[k], point, false).integer != 0) << k;
  return bits;
}

/* The truth of a tree, its terms from *next on. */
static bool tree_holds(const separation *s, const expr *e, uint32_t row,
                       uint32_t key, int32_t *next) {
  if (e->op == EXPR_NOT) return !tree_holds(s, e->arg[0], row, key, next);
  if (is_joint(e)) {
    bool a = tree_holds(s, e->arg[0], row, key, next);
    bool b = tree_holds(s, e->arg[1], row, key, next);
    return e->op == EXPR_AND ? a && b : a || b;
  }
  const separable_term *at = &s->terms[(*next)++];
  if (at->kind == SETTLED) return at->number;
  return (at->kind == OF_ROWS ? row : key) >> at->number & 1;
}

static bool conditions_hold(const separation *s, const cover_set *set,
                            uint32_t row, uint32_t key) {
  bool all = true;
  int32_t next = 0;
  for (int32_t k = 0; k < set->condition_count; k++) {
    const cover_condition *one = &set->conditions[k];
    bool holds = one->mask && tree_holds(s, one->mask, row, key, &next);
    for (int32_t n = 0; !one->mask && n < one->level->count; n++)
      holds |= tree_holds(s, one->level->keep[n].condition, row, key, &next);
    all &= holds;
  }
  return all;
}

/* ---- a box --------------------------------------------------------------- */

/* Rows and keys by what they answer. */
typedef struct answer_counts {
  separation separation;
  double rows[1 << SIDE_TERMS], keys[1 << SIDE_TERMS];
} answer_counts;

static uint32_t row_answers(const cover_subrange *p, const separation *s,
                            int64_t u) {
  expr_point point = s->at->point;
  point.i = (int32_t)(p->origin + p->step * u);
  return side_answers(s->rows, s->row_count, &point);
}

static uint32_t key_answers(const cover_subrange *p, const separation *s,
                            int64_t v) {
  expr_point point = s->at->point;
  point.j = (int32_t)(p->origin + p->step * v);
  return side_answers(s->keys, s->key_count, &point);
}

static bool answer_counts_make(const cover_subrange *p, const expr_box *at,
                               const int64_t first[2], const int64_t last[2],
                               answer_counts *t) {
  *t = (answer_counts){.separation.at = at};
  separation *s = &t->separation;
  for (int32_t k = 0; k < p->set->condition_count; k++)
    if (!separate_condition(s, &p->set->conditions[k])) return false;
  for (int64_t u = first[0]; u <= last[0]; u++) t->rows[row_answers(p, s, u)]++;
  for (int64_t v = first[1]; v <= last[1]; v++) t->keys[key_answers(p, s, v)]++;
  return true;
}

/* Keys of the box that rows of one answer see. */
static double keys_seen(const cover_subrange *p, const answer_counts *t,
                        uint32_t row) {
  double count = 0;
  for (uint32_t key = 0; key < 1u << t->separation.key_count; key++)
    if (t->keys[key] > 0 && conditions_hold(&t->separation, p->set, row, key))
      count += t->keys[key];
  return count;
}

bool cover_separable_count(const cover_subrange *p, const expr_box *at,
                           const int64_t first[2], const int64_t last[2],
                           double *count) {
  answer_counts t;
  if (!answer_counts_make(p, at, first, last, &t)) return false;
  *count = 0;
  for (uint32_t row = 0; row < 1u << t.separation.row_count; row++)
    if (t.rows[row] > 0) *count += t.rows[row] * keys_seen(p, &t, row);
  return true;
}

bool cover_separable_mark(const cover_subrange *p, const expr_box *at,
                          const int64_t first[2], const int64_t last[2],
                          uint8_t *covered) {
  answer_counts t;
  bool seen[1 << SIDE_TERMS];
  if (!answer_counts_make(p, at, first, last, &t)) return false;
  for (uint32_t row = 0; row < 1u << t.separation.row_count; row++)
    seen[row] = t.rows[row] > 0 && keys_seen(p, &t, row) > 0;
  for (int64_t u = first[0]; u <= last[0]; u++)
    covered[u - p->u0] |= seen[row_answers(p, &t.separation, u)];
  return true;
}
