/* expr.c - evaluates, folds and compares mask and score expressions.
 *
 * In: typed trees from check. Out: values, folded trees, equality. This file
 * is where the meaning of each operator is written; every target copies it:
 *   integers are 32-bit two's complement and wrap; `/` and `%` floor, and are
 *   0 for a divisor of 0; a float a % b is a - floor(a / b) * b, each of the
 *   operations rounded by itself; min and max of floats are NaN when either
 *   side is, and give the second side when the two are equal; the argument of
 *   int() is computed in f32 also where the rest is wide. */
#include "expr_rules.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *text;
  expr_rule rule;
} ops[EXPR_OP_COUNT] = {
#define OP(id, text, arguments, rule, derivative) {text, RULE_##rule},
#include "ops.def"
#undef OP
};

const char *expr_op_text(expr_op op) { return ops[op].text; }

expr_rule expr_rule_of(expr_op op) { return ops[op].rule; }

/* ---- integers ------------------------------------------------------------ */

int64_t expr_wrap(int64_t x) { return (int32_t)(uint32_t)(uint64_t)x; }

int64_t expr_floor_div(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t expr_floor_mod(int64_t a, int64_t b) {
  int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t expr_whole(double x) {
  if (isnan(x)) return 0;
  return (int64_t)fmax(INT32_MIN, fmin(INT32_MAX, floor(x)));
}

uint32_t expr_hash_step(uint32_t x, uint32_t a) {
  x ^= a;
  x ^= x >> 16;
  x *= 0x7FEB352D;
  x ^= x >> 15;
  x *= 0x846CA68B;
  return x ^ x >> 16;
}

static int64_t integer_result(expr_op op, int64_t a, int64_t b) {
  switch (op) {
  case EXPR_ADD: return expr_wrap(a + b);
  case EXPR_SUB: return expr_wrap(a - b);
  case EXPR_MUL: return expr_wrap(a * b);
  case EXPR_DIV: return b == 0 ? 0 : expr_wrap(expr_floor_div(a, b));
  case EXPR_MOD: return b == 0 ? 0 : expr_floor_mod(a, b);
  case EXPR_NEG: return expr_wrap(-a);
  case EXPR_ABS: return expr_wrap(a < 0 ? -a : a);
  case EXPR_MIN: return a < b ? a : b;
  case EXPR_MAX: return a > b ? a : b;
  case EXPR_FLOOR:
  case EXPR_CEIL: return a;
  default: abort();
  }
}

/* ---- floats -------------------------------------------------------------- */

/* An f32 operation is done in float64 and rounded once more: for + - * / and
 * sqrt of f32 operands that is the correctly rounded f32 result, because 53
 * bits are at least twice 24 and two. */
static double rounded(double x, bool wide) {
  return wide ? x : (double)(float)x;
}

static double smaller(double a, double b) {
  return a < b || a != a ? a : b;
}

static double larger(double a, double b) {
  return a > b || a != a ? a : b;
}

static double real_modulo(double a, double b, bool wide) {
  double turns = floor(rounded(a / b, wide));
  return rounded(a - rounded(turns * b, wide), wide);
}

static double real_result(expr_op op, double a, double b, bool wide) {
  switch (op) {
  case EXPR_ADD: return rounded(a + b, wide);
  case EXPR_SUB: return rounded(a - b, wide);
  case EXPR_MUL: return rounded(a * b, wide);
  case EXPR_DIV: return rounded(a / b, wide);
  case EXPR_MOD: return real_modulo(a, b, wide);
  case EXPR_NEG: return -a;
  case EXPR_ABS: return fabs(a);
  case EXPR_MIN: return smaller(a, b);
  case EXPR_MAX: return larger(a, b);
  case EXPR_FLOOR: return floor(a);
  case EXPR_CEIL: return ceil(a);
  case EXPR_EXP: return rounded(exp(a), wide);
  case EXPR_LOG: return rounded(log(a), wide);
  case EXPR_SQRT: return rounded(sqrt(a), wide);
  case EXPR_TANH: return rounded(tanh(a), wide);
  default: abort();
  }
}

/* ---- evaluation ---------------------------------------------------------- */

static double as_real(const expr *e, value v, bool wide) {
  return e->type == TYPE_F32 ? v.real : rounded((double)v.integer, wide);
}

static value of_integer(int64_t x) { return (value){.integer = x}; }
static value of_real(double x) { return (value){.real = x}; }

static value input_value(const expr *e, const expr_point *point, bool wide) {
  int32_t at[DIL_RANK_MAX] = {0};
  for (int32_t k = 0; k < e->count; k++)
    at[k] = (int32_t)expr_eval(e->arg[k], point, wide).integer;
  return point->input(point->context, (int32_t)e->integer, at);
}

static value leaf_value(const expr *e, const expr_point *point, bool wide) {
  switch (e->op) {
  case EXPR_INT: return of_integer(expr_wrap(e->integer));
  case EXPR_TRUTH: return of_integer(e->integer);
  case EXPR_REAL: return of_real(rounded(e->real, wide));
  case EXPR_B_: return of_integer(point->b);
  case EXPR_H_: return of_integer(point->h);
  case EXPR_I_: return of_integer(point->i);
  case EXPR_J_: return of_integer(point->j);
  case EXPR_S_: return of_real(rounded(point->s, wide));
  case EXPR_BATCH: return of_integer(point->B);
  case EXPR_N_: return of_integer(point->N);
  case EXPR_M_: return of_integer(point->M);
  case EXPR_INPUT: return input_value(e, point, wide);
  default: abort();
  }
}

#define COMPARED(op, a, b)                                                     \
  ((op) == EXPR_EQ   ? (a) == (b)                                              \
   : (op) == EXPR_NE ? (a) != (b)                                              \
   : (op) == EXPR_LT ? (a) < (b)                                               \
   : (op) == EXPR_LE ? (a) <= (b)                                              \
   : (op) == EXPR_GT ? (a) > (b)                                               \
                     : (a) >= (b))

static bool is_real(const expr *e) {
  for (int32_t k = 0; k < e->count; k++)
    if (e->arg[k]->type == TYPE_F32) return true;
  return false;
}

static value compare_value(const expr *e, const expr_point *point, bool wide) {
  value a = expr_eval(e->arg[0], point, wide);
  value b = expr_eval(e->arg[1], point, wide);
  if (!is_real(e)) return of_integer(COMPARED(e->op, a.integer, b.integer));
  double x = as_real(e->arg[0], a, wide), y = as_real(e->arg[1], b, wide);
  return of_integer(COMPARED(e->op, x, y));
}

static value logic_value(const expr *e, const expr_point *point, bool wide) {
  bool first = expr_eval(e->arg[0], point, wide).integer != 0;
  if (e->op == EXPR_NOT) return of_integer(!first);
  if (first == (e->op == EXPR_OR)) return of_integer(first);
  return of_integer(expr_eval(e->arg[1], point, wide).integer != 0);
}

static value choose_value(const expr *e, const expr_point *point, bool wide) {
  bool first = expr_eval(e->arg[0], point, wide).integer != 0;
  const expr *chosen = e->arg[first ? 1 : 2];
  value v = expr_eval(chosen, point, wide);
  return e->type == TYPE_F32 ? of_real(as_real(chosen, v, wide)) : v;
}

static value hash_value(const expr *e, const expr_point *point, bool wide) {
  uint32_t x = EXPR_HASH_START;
  for (int32_t k = 0; k < e->count; k++)
    x = expr_hash_step(
        x, (uint32_t)expr_eval(e->arg[k], point, wide).integer);
  return of_integer(x >> 1);
}

static value whole_value(const expr *e, const expr_point *point) {
  return of_integer(expr_whole(expr_eval(e->arg[0], point, false).real));
}

static value number_value(const expr *e, const expr_point *point, bool wide) {
  const expr *left = e->arg[0], *right = e->arg[e->count - 1];
  value a = expr_eval(left, point, wide);
  value b = e->count > 1 ? expr_eval(right, point, wide) : a;
  if (e->type == TYPE_I32)
    return of_integer(integer_result(e->op, a.integer, b.integer));
  return of_real(real_result(e->op, as_real(left, a, wide),
                             as_real(right, b, wide), wide));
}

value expr_eval(const expr *e, const expr_point *point, bool wide) {
  switch (ops[e->op].rule) {
  case RULE_LEAF: return leaf_value(e, point, wide);
  case RULE_COMPARE: return compare_value(e, point, wide);
  case RULE_LOGIC: return logic_value(e, point, wide);
  case RULE_CHOOSE: return choose_value(e, point, wide);
  case RULE_HASH: return hash_value(e, point, wide);
  case RULE_WHOLE: return whole_value(e, point);
  default: return number_value(e, point, wide);
  }
}

/* ---- questions ----------------------------------------------------------- */

bool expr_uses(const expr *e, expr_op leaf) {
  if (e->op == leaf) return true;
  for (int32_t k = 0; k < e->count; k++)
    if (expr_uses(e->arg[k], leaf)) return true;
  return false;
}

static bool same_leaf(const expr *a, const expr *b) {
  switch (a->op) {
  case EXPR_INT:
  case EXPR_TRUTH:
  case EXPR_INPUT: return a->integer == b->integer;
  case EXPR_REAL: return memcmp(&a->real, &b->real, sizeof a->real) == 0;
  default: return true;
  }
}

bool expr_same(const expr *a, const expr *b) {
  if (a == b) return true;
  if (a->op != b->op || a->type != b->type || a->count != b->count)
    return false;
  if (!same_leaf(a, b)) return false;
  for (int32_t k = 0; k < a->count; k++)
    if (!expr_same(a->arg[k], b->arg[k])) return false;
  return true;
}

/* ---- folding ------------------------------------------------------------- */

static bool is_constant(const expr *e) {
  return e->op == EXPR_INT || e->op == EXPR_REAL || e->op == EXPR_TRUTH;
}

static bool has_constants(const expr *e) {
  for (int32_t k = 0; k < e->count; k++)
    if (!is_constant(e->arg[k])) return false;
  return true;
}

static expr *constant(arena *a, const expr *e, expr_op op) {
  expr *folded = ARENA_NEW(a, expr);
  folded->op = op;
  folded->type = e->type;
  folded->at = e->at;
  return folded;
}

static expr *constant_integer(arena *a, const expr *e, int64_t x) {
  expr *folded =
      constant(a, e, e->type == TYPE_CONDITION ? EXPR_TRUTH : EXPR_INT);
  folded->integer = x;
  return folded;
}

/* Integer constants are of 64 bits; false where the result is not, or where
 * the divisor is 0: check has refused both. */
static bool integer_folded(expr_op op, int64_t a, int64_t b, int64_t *x) {
  switch (op) {
  case EXPR_ADD: return !__builtin_add_overflow(a, b, x);
  case EXPR_SUB: return !__builtin_sub_overflow(a, b, x);
  case EXPR_MUL: return !__builtin_mul_overflow(a, b, x);
  case EXPR_NEG: return !__builtin_sub_overflow(0, a, x);
  case EXPR_ABS:
    *x = a;
    return a >= 0 || !__builtin_sub_overflow(0, a, x);
  case EXPR_DIV:
  case EXPR_MOD:
    if (b == 0 || (a == INT64_MIN && b == -1)) return false;
    *x = op == EXPR_DIV ? expr_floor_div(a, b) : expr_floor_mod(a, b);
    return true;
  default: *x = integer_result(op, a, b); return true;
  }
}

static bool fits(const expr *e) {
  return e->op != EXPR_INT || e->integer == expr_wrap(e->integer);
}

/* A constant float expression becomes one constant only where float64 and
 * f32 arithmetic give that same constant, so that a mask and a score keep
 * their own roundings. */
static expr *fold_by_value(arena *a, expr *e) {
  for (int32_t k = 0; k < e->count && e->op != EXPR_HASH; k++)
    if (!fits(e->arg[k])) return e;
  const expr_point nowhere = {0};
  value exact = expr_eval(e, &nowhere, false);
  value wide = expr_eval(e, &nowhere, true);
  if (e->type != TYPE_F32)
    return exact.integer == wide.integer ? constant_integer(a, e, wide.integer)
                                         : e;
  double narrow = (double)(float)wide.real;
  if (memcmp(&narrow, &exact.real, sizeof narrow) != 0 || isnan(narrow))
    return e;
  expr *folded = constant(a, e, EXPR_REAL);
  folded->real = wide.real;
  return folded;
}

static expr *fold_constants(arena *a, expr *e) {
  if (is_real(e) || e->type == TYPE_F32 || expr_rule_of(e->op) == RULE_HASH)
    return fold_by_value(a, e);
  int64_t x = e->arg[0]->integer, y = e->arg[e->count - 1]->integer, result;
  switch (expr_rule_of(e->op)) {
  case RULE_COMPARE: return constant_integer(a, e, COMPARED(e->op, x, y));
  case RULE_LOGIC: return fold_by_value(a, e);
  default: break;
  }
  return integer_folded(e->op, x, y, &result) ? constant_integer(a, e, result)
                                              : e;
}

/* `true && x` and its like, where only one side is constant. */
static expr *fold_logic(expr *e) {
  if (e->op == EXPR_NOT) return e;
  for (int32_t k = 0; k < 2; k++) {
    expr *side = e->arg[k];
    if (side->op != EXPR_TRUTH) continue;
    return (side->integer != 0) == (e->op == EXPR_OR) ? side : e->arg[1 - k];
  }
  return e;
}

static expr *fold_choice(arena *a, expr *e) {
  if (e->arg[0]->op != EXPR_TRUTH) return e;
  expr *chosen = e->arg[e->arg[0]->integer ? 1 : 2];
  if (chosen->type == e->type) return chosen;
  return is_constant(chosen) && is_constant(e->arg[1]) &&
                 is_constant(e->arg[2])
             ? fold_by_value(a, e)
             : e;
}

/* Constants alone, which may be too few of a kind to be one constant. */
static bool is_fixed(const expr *e) {
  if (e->count == 0) return is_constant(e) && fits(e);
  for (int32_t k = 0; k < e->count; k++)
    if (!is_fixed(e->arg[k])) return false;
  return e->op != EXPR_INPUT;
}

static expr *fold_whole(arena *a, expr *e) {
  const expr_point nowhere = {0};
  if (!is_fixed(e->arg[0])) return e;
  return constant_integer(a, e, whole_value(e, &nowhere).integer);
}

static expr *copy_folded(arena *a, const expr *e) {
  expr *copy = ARENA_NEW(a, expr);
  *copy = *e;
  copy->arg = ARENA_ARRAY(a, expr *, e->count);
  for (int32_t k = 0; k < e->count; k++)
    copy->arg[k] = expr_fold(a, e->arg[k]);
  return copy;
}

expr *expr_leaf(arena *a, expr_op op, int64_t integer, span at) {
  expr *e = ARENA_NEW(a, expr);
  *e = (expr){.op = op, .type = TYPE_I32, .at = at, .integer = integer};
  return e;
}

expr *expr_pair(arena *a, expr_op op, expr_type type, expr *left, expr *right) {
  expr *e = ARENA_NEW(a, expr);
  *e = (expr){.op = op, .type = type, .at = left->at, .count = 2};
  e->arg = ARENA_ARRAY(a, expr *, 2);
  e->arg[0] = left;
  e->arg[1] = right;
  return e;
}

expr *expr_fold(arena *a, expr *e) {
  if (e->count == 0) return e;
  expr *copy = copy_folded(a, e);
  switch (ops[e->op].rule) {
  case RULE_LEAF: return copy;
  case RULE_CHOOSE: return fold_choice(a, copy);
  case RULE_LOGIC:
    return has_constants(copy) ? fold_constants(a, copy) : fold_logic(copy);
  case RULE_WHOLE: return fold_whole(a, copy);
  case RULE_ROUND:
    if (copy->type == TYPE_I32) return copy->arg[0];
    return has_constants(copy) ? fold_constants(a, copy) : copy;
  default: return has_constants(copy) ? fold_constants(a, copy) : copy;
  }
}
