/* pieces_read.c - masks as a disjunction of pieces.
 *
 * In: a condition. Out: pieces: windows (`i - j < w`), ranges of keys (`j < c`)
 * and of rows (`i < c`), residues (`i % r == j % r`, `(i - j) % r == c`), heads
 * (`h < c`), and the terms that are none of these. Of more residues than a
 * branch has, a divisor becomes its dilation. */
#include "pieces.h"
#include "runtime/base/arithmetic.h"
#include <string.h>

/* ---- terms --------------------------------------------------------------- */

/* The kinds of a side of a comparison. A distance of two positions never
 * overflows. */
typedef enum side_kind {
  SIDE_OTHER,
  SIDE_NUMBER,
  SIDE_I,
  SIDE_J,
  SIDE_BEHIND,
  SIDE_AHEAD,
  SIDE_APART
} side_kind;

static side_kind side_of(const expr *e) {
  if (e->op == EXPR_INT) return SIDE_NUMBER;
  if (e->op == EXPR_I_) return SIDE_I;
  if (e->op == EXPR_J_) return SIDE_J;
  if (e->op == EXPR_ABS) {
    side_kind inner = side_of(e->arg[0]);
    return inner == SIDE_BEHIND || inner == SIDE_AHEAD ? SIDE_APART
                                                       : SIDE_OTHER;
  }
  if (e->op != EXPR_SUB) return SIDE_OTHER;
  side_kind left = side_of(e->arg[0]), right = side_of(e->arg[1]);
  if (left == SIDE_I && right == SIDE_J) return SIDE_BEHIND;
  return left == SIDE_J && right == SIDE_I ? SIDE_AHEAD : SIDE_OTHER;
}

/* A comparison as low <= x <= high of one side x. */
typedef struct bounded {
  side_kind x;
  int64_t low, high;
} bounded;

static void bounded_negate(bounded *b, side_kind x) {
  int64_t low = b->low == INT64_MIN ? INT64_MAX : -b->low;
  b->low = b->high == INT64_MAX ? INT64_MIN : -b->high;
  b->high = low;
  b->x = x;
}

/* `x op c`, as bounds of x. */
static bool bounded_take(expr_op op, int64_t c, bounded *b) {
  b->low = INT64_MIN;
  b->high = INT64_MAX;
  switch (op) {
  case EXPR_LT:
    b->high = c - 1;
    return true;
  case EXPR_LE:
    b->high = c;
    return true;
  case EXPR_GT:
    b->low = c + 1;
    return true;
  case EXPR_GE:
    b->low = c;
    return true;
  case EXPR_EQ:
    b->low = b->high = c;
    return true;
  default:
    return false;
  }
}

static expr_op mirrored(expr_op op) {
  switch (op) {
  case EXPR_LT:
    return EXPR_GT;
  case EXPR_LE:
    return EXPR_GE;
  case EXPR_GT:
    return EXPR_LT;
  case EXPR_GE:
    return EXPR_LE;
  default:
    return op;
  }
}

/* False: the condition bounds no position or distance by a constant. */
static bool bounded_read(const expr *e, bounded *b) {
  if (e->count != 2) return false;
  side_kind x = side_of(e->arg[0]), y = side_of(e->arg[1]);
  if (x == SIDE_I && y == SIDE_J) {
    b->x = SIDE_BEHIND;
    return bounded_take(e->op, 0, b);
  }
  if (x == SIDE_J && y == SIDE_I) {
    b->x = SIDE_AHEAD;
    return bounded_take(e->op, 0, b);
  }
  if (y == SIDE_NUMBER && x > SIDE_NUMBER) {
    b->x = x;
    return bounded_take(e->op, e->arg[1]->integer, b);
  }
  b->x = y;
  return x == SIDE_NUMBER && y > SIDE_NUMBER &&
         bounded_take(mirrored(e->op), e->arg[0]->integer, b);
}

/* A condition that leaves no position stays a mask. */
static bool range_take(const bounded *b, position_range *range) {
  position_range narrow = *range;
  if (b->low > narrow.first) narrow.first = b->low;
  if (b->high < INT64_MAX && (!narrow.end || b->high + 1 < narrow.end))
    narrow.end = b->high + 1;
  if (b->high < 0 || (narrow.end && narrow.first >= narrow.end)) return false;
  *range = narrow;
  return true;
}

/* Rows may stand before position 0: a range without a first one has them. */
static bool rows_take(const bounded *b, position_range *rows) {
  bool has_first = b->low > 0 || b->low == INT64_MIN;
  return has_first && range_take(b, rows);
}

/* A condition that leaves no distance stays a mask. */
static bool window_take(bounded b, pair_bounds *to) {
  pair_bounds narrow = *to;
  if (b.x == SIDE_APART && b.low <= 0) {
    b.low = b.high == INT64_MAX ? INT64_MIN : -b.high;
  } else if (b.x == SIDE_BEHIND) {
    bounded_negate(&b, SIDE_AHEAD);
  } else if (b.x != SIDE_AHEAD) {
    return false;
  }
  if (b.low > INT64_MIN && -b.low < narrow.left) narrow.left = -b.low;
  if (b.high < narrow.right) narrow.right = b.high;
  bool some = narrow.left == DIL_ENDLESS || narrow.right == DIL_ENDLESS ||
              narrow.left + narrow.right >= 0;
  if (some) *to = narrow;
  return some;
}

bool pair_bounds_take(const expr *e, pair_bounds *to) {
  bounded b;
  if (!bounded_read(e, &b)) return false;
  if (b.x == SIDE_I) return rows_take(&b, &to->rows);
  return b.x == SIDE_J ? range_take(&b, &to->keys) : window_take(b, to);
}

/* `x % r` of a term, with r > 1; 0: it is none. */
static int64_t modulus_of(const expr *e) {
  bool is =
      e->op == EXPR_MOD && e->arg[1]->op == EXPR_INT && e->arg[1]->integer > 1;
  return is ? e->arg[1]->integer : 0;
}

/* (i - j) % modulus == shift; modulus 0: the term says no such thing. */
typedef struct residue {
  int64_t modulus, shift;
} residue;

/* `i % r == j % r`. */
static residue residue_of_sides(const expr *x, const expr *y) {
  int64_t r = modulus_of(x);
  if (!r || modulus_of(y) != r) return (residue){0, 0};
  side_kind a = side_of(x->arg[0]), b = side_of(y->arg[0]);
  bool is = (a == SIDE_I && b == SIDE_J) || (a == SIDE_J && b == SIDE_I);
  return (residue){is ? r : 0, 0};
}

/* `(i - j) % r == c` or `(j - i) % r == c`. */
static residue residue_of_distance(const expr *x, const expr *c) {
  int64_t r = modulus_of(x);
  if (!r || c->op != EXPR_INT || c->integer < 0 || c->integer >= r)
    return (residue){0, 0};
  side_kind side = side_of(x->arg[0]);
  if (side == SIDE_BEHIND) return (residue){r, c->integer};
  if (side == SIDE_AHEAD) return (residue){r, floor_mod(-c->integer, r)};
  return (residue){0, 0};
}

static residue residue_of(const expr *e) {
  if (e->op != EXPR_EQ) return (residue){0, 0};
  residue x = residue_of_sides(e->arg[0], e->arg[1]);
  if (!x.modulus) x = residue_of_distance(e->arg[0], e->arg[1]);
  if (!x.modulus) x = residue_of_distance(e->arg[1], e->arg[0]);
  return x;
}

/* The most residues that a branch has: a divisor of r. */
static int64_t residues_of_branch(int64_t r) {
  int64_t most = r < DIL_PERIOD_MAX ? r : DIL_PERIOD_MAX;
  while (r % most) most--;
  return most;
}

/* False: the condition stays a mask, though its residues may be fewer keys. */
static bool each_take(const expr *e, piece *p) {
  residue x = residue_of(e);
  if (p->each > 1) return x.modulus == p->each && x.shift == p->shift;
  if (!x.modulus) return false;
  p->each = residues_of_branch(x.modulus);
  p->shift = x.shift % p->each;
  return p->each == x.modulus;
}

/* ---- heads --------------------------------------------------------------- */

/* RUNS_MOST: ranges of heads that a condition may leave of a piece. */
enum { RUNS_MOST = 4 };

static bool is_of_head(const expr *e) {
  static const expr_op others[] = {EXPR_B_, EXPR_I_,    EXPR_J_, EXPR_S_,
                                   EXPR_N_, EXPR_BATCH, EXPR_M_, EXPR_INPUT};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (expr_uses(e, others[i])) return false;
  return expr_uses(e, EXPR_H_);
}

static bool holds_for(const expr *e, int32_t head) {
  expr_point point = {.h = head};
  return expr_eval(e, &point, false).integer != 0;
}

/* The piece in ranges of those heads for which the condition holds. False: there
 * are too many, or the pieces are full. */
static bool heads_take(const expr *e, const piece *p, pieces *to) {
  int32_t runs = 0;
  for (int32_t h = p->head_first; h <= p->head_last; h++) {
    if (!holds_for(e, h)) continue;
    if (h > p->head_first && holds_for(e, h - 1)) {
      to->of[to->count - 1].head_last = h;
      continue;
    }
    if (++runs > RUNS_MOST || to->count == PIECES) return false;
    to->of[to->count] = *p;
    to->of[to->count].head_first = to->of[to->count].head_last = h;
    to->count++;
  }
  return true;
}

/* ---- reading ------------------------------------------------------------- */

static void piece_and(piece *p, expr *e, bool *full) {
  if (each_take(e, p) || pair_bounds_take(e, &p->pairs)) return;
  if (p->rest_count == PIECE_TERMS)
    *full = true;
  else
    p->rest[p->rest_count++] = e;
}

void pieces_append(pieces *to, const pieces *from) {
  to->full |= from->full || to->count + from->count > PIECES;
  if (to->full) return;
  memcpy(to->of + to->count, from->of, (size_t)from->count * sizeof *to->of);
  to->count += from->count;
}

/* False: the condition stays a mask. */
static bool pieces_take_heads(arena *a, pieces *p, const expr *e) {
  pieces *made = ARENA_NEW(a, pieces);
  for (int32_t i = 0; i < p->count; i++)
    if (!heads_take(e, &p->of[i], made)) return false;
  p->count = made->count;
  memcpy(p->of, made->of, (size_t)made->count * sizeof *made->of);
  return true;
}

void pieces_and(arena *a, pieces *p, expr *e) {
  if (e->op == EXPR_AND) {
    for (int32_t i = 0; i < e->count && !p->full; i++)
      pieces_and(a, p, e->arg[i]);
  } else if (e->op == EXPR_OR) {
    pieces *given = ARENA_NEW(a, pieces), *one = ARENA_NEW(a, pieces);
    *given = *p;
    p->count = 0;
    for (int32_t i = 0; i < e->count && !p->full; i++) {
      *one = *given;
      pieces_and(a, one, e->arg[i]);
      pieces_append(p, one);
    }
  } else if (!is_of_head(e) || !pieces_take_heads(a, p, e)) {
    for (int32_t i = 0; i < p->count; i++) piece_and(&p->of[i], e, &p->full);
  }
}
