/* key_span.c - see key_span.h. In: a condition. Out: which keys of a row it
 * keeps, where these are a range. */
#include "key_span.h"

/* The element of `e` at position `leaf`: an integer input, whose last index is
 * that position and whose other indices are the same for all pairs. */
static bool is_element_at(const expr *e, expr_op leaf) {
  int32_t last = e->count - 1;
  if (e->op != EXPR_INPUT || e->type != TYPE_I32 || last < 0 ||
      e->arg[last]->op != leaf)
    return false;
  for (int32_t k = 0; k < last; k++)
    if (expr_uses(e->arg[k], EXPR_I_) || expr_uses(e->arg[k], EXPR_J_))
      return false;
  return true;
}

/* Whether two elements differ in their last index alone. */
static bool is_alike(const expr *row, const expr *key) {
  if (!is_element_at(row, EXPR_I_) || !is_element_at(key, EXPR_J_) ||
      row->integer != key->integer || row->count != key->count)
    return false;
  for (int32_t k = 0; k + 1 < row->count; k++)
    if (!expr_same(row->arg[k], key->arg[k])) return false;
  return true;
}

/* Reads `(leaf + c) / S`. */
static bool take_segment(const expr *e, expr_op leaf, key_span *to) {
  enum { MOST = 1 << 29 }; /* so that no position overflows */
  if (e->op != EXPR_DIV || e->type != TYPE_I32 || e->arg[1]->op != EXPR_INT)
    return false;
  const expr *sum = e->arg[0];
  bool less = sum->op == EXPR_SUB, moved = less || sum->op == EXPR_ADD;
  if (moved && sum->arg[1]->op != EXPR_INT) return false;
  if ((moved ? sum->arg[0] : sum)->op != leaf) return false;
  int64_t offset = moved ? sum->arg[1]->integer : 0;
  to->segment = e->arg[1]->integer;
  to->offset = less ? -offset : offset;
  return to->segment > 0 && to->segment <= MOST && to->offset <= MOST &&
         to->offset >= -MOST;
}

static bool take_segments(const expr *row, const expr *key, key_span *to) {
  key_span other;
  return take_segment(row, EXPR_I_, to) && take_segment(key, EXPR_J_, &other) &&
         to->segment == other.segment && to->offset == other.offset;
}

/* The comparison with its sides exchanged. */
static expr_op exchanged(expr_op op) {
  switch (op) {
  case EXPR_LT: return EXPR_GT;
  case EXPR_LE: return EXPR_GE;
  case EXPR_GT: return EXPR_LT;
  case EXPR_GE: return EXPR_LE;
  default: return op;
  }
}

static bool is_comparison(expr_op op) {
  return op == EXPR_EQ || op == EXPR_LT || op == EXPR_LE || op == EXPR_GT ||
         op == EXPR_GE;
}

static bool is_of_row(const expr *e) {
  return e->type == TYPE_I32 && !expr_uses(e, EXPR_J_);
}

key_span key_span_of(const expr *e) {
  const key_span none = {.kind = SPAN_NONE};
  key_span segment = {.kind = SPAN_SEGMENT};
  if (!expr_uses(e, EXPR_I_) && !expr_uses(e, EXPR_J_))
    return (key_span){.kind = SPAN_GUARD};
  if (!is_comparison(e->op) || e->count != 2) return none;
  const expr *one = e->arg[0], *other = e->arg[1];
  if (e->op == EXPR_EQ && is_alike(one, other))
    return (key_span){.kind = SPAN_ALIKE, .row = one};
  if (e->op == EXPR_EQ && is_alike(other, one))
    return (key_span){.kind = SPAN_ALIKE, .row = other};
  if (e->op == EXPR_EQ && (take_segments(one, other, &segment) ||
                           take_segments(other, one, &segment)))
    return segment;
  if (one->op == EXPR_J_ && is_of_row(other))
    return (key_span){.kind = SPAN_BESIDE, .row = other, .op = e->op};
  if (other->op == EXPR_J_ && is_of_row(one))
    return (key_span){
        .kind = SPAN_BESIDE, .row = one, .op = exchanged(e->op)};
  return none;
}
