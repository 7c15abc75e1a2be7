/* oracle_dual.c - values and derivatives of expressions together, by dual
 * numbers.
 *
 * In: a tree, a point, and the slope of `s` or a read of an input. Out: the
 * value in float64, as expr_eval gives it, and its derivative. The rules:
 * abs'(0) = 0; min and max one half each at ties; integers, conditions, floor
 * and ceil 0; a % b has 1 and -floor(a / b); `?:` the taken side alone. A slope
 * that is exactly 0 stays 0, even times an infinite factor. */
#include "oracle_dual.h"
#include <math.h>
#include <stdlib.h>

double dual_product(double factor, double slope) {
  return factor == 0 || slope == 0 ? 0 : factor * slope;
}

static dual dual_constant(const expr *e, const dual_point *at) {
  value v = expr_eval(e, &at->point, true);
  return (dual){e->type == TYPE_F32 ? v.real : (double)v.integer, 0};
}

static dual dual_multiply(dual a, dual b) {
  return (dual){a.value * b.value, dual_product(b.value, a.slope) +
                                       dual_product(a.value, b.slope)};
}

static dual dual_divide(dual a, dual b) {
  double x = a.value / b.value;
  return (dual){x, dual_product(1 / b.value, a.slope) -
                       dual_product(x / b.value, b.slope)};
}

static dual dual_modulo(dual a, dual b) {
  double turns = floor(a.value / b.value);
  return (dual){a.value - turns * b.value,
                a.slope - dual_product(turns, b.slope)};
}

static dual dual_negative(dual a) { return (dual){-a.value, -a.slope}; }

static dual dual_size(dual a) {
  if (a.value > 0) return a;
  if (a.value < 0) return dual_negative(a);
  return (dual){fabs(a.value), 0};
}

/* The first is the result where it is NaN, the second where both are equal. */
static dual dual_smaller(dual a, dual b) {
  if (a.value == b.value) return (dual){b.value, (a.slope + b.slope) / 2};
  return a.value < b.value || isnan(a.value) ? a : b;
}

static dual dual_larger(dual a, dual b) {
  if (a.value == b.value) return (dual){b.value, (a.slope + b.slope) / 2};
  return a.value > b.value || isnan(a.value) ? a : b;
}

static dual dual_unary(expr_op op, dual a) {
  double x;
  switch (op) {
  case EXPR_NEG: return dual_negative(a);
  case EXPR_ABS: return dual_size(a);
  case EXPR_EXP: x = exp(a.value); return (dual){x, dual_product(x, a.slope)};
  case EXPR_LOG:
    return (dual){log(a.value), dual_product(1 / a.value, a.slope)};
  case EXPR_SQRT:
    x = sqrt(a.value);
    return (dual){x, dual_product(1 / (2 * x), a.slope)};
  case EXPR_TANH:
    x = tanh(a.value);
    return (dual){x, dual_product((1 - x) * (1 + x), a.slope)};
  case EXPR_FLOOR: return (dual){floor(a.value), 0};
  case EXPR_CEIL: return (dual){ceil(a.value), 0};
  default: abort();
  }
}

static dual dual_binary(expr_op op, dual a, dual b) {
  switch (op) {
  case EXPR_ADD: return (dual){a.value + b.value, a.slope + b.slope};
  case EXPR_SUB: return (dual){a.value - b.value, a.slope - b.slope};
  case EXPR_MUL: return dual_multiply(a, b);
  case EXPR_DIV: return dual_divide(a, b);
  case EXPR_MOD: return dual_modulo(a, b);
  case EXPR_MIN: return dual_smaller(a, b);
  case EXPR_MAX: return dual_larger(a, b);
  default: abort();
  }
}

static dual dual_choice(const expr *e, const dual_point *at) {
  bool first = expr_eval(e->arg[0], &at->point, true).integer != 0;
  return dual_eval(e->arg[first ? 1 : 2], at);
}

dual dual_eval(const expr *e, const dual_point *at) {
  dual constant;
  if (e->type != TYPE_F32) return dual_constant(e, at);
  switch (e->op) {
  case EXPR_S_: return (dual){at->point.s, at->slope};
  case EXPR_INPUT:
    constant = dual_constant(e, at);
    return (dual){constant.value, e == at->read ? 1 : 0};
  case EXPR_REAL: return dual_constant(e, at);
  case EXPR_CHOOSE: return dual_choice(e, at);
  default: break;
  }
  dual a = dual_eval(e->arg[0], at);
  if (e->count == 1) return dual_unary(e->op, a);
  return dual_binary(e->op, a, dual_eval(e->arg[1], at));
}
