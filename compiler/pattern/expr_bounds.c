/* expr_bounds.c - what values an expression can take over a box of (i, j).
 *
 * In: a typed tree and inclusive ranges of i and j. Out: an interval that
 * holds every value the expression has there, in f32 and in float64
 * arithmetic; it may be too wide, never too narrow, and over a smaller box it
 * is never wider. Cover decides by it which tiles need no look at their
 * pairs. */
#include "expr_rules.h"
#include <math.h>
#include <stdlib.h>

static interval bounds_of(double low, double high) {
  return (interval){low, high, false};
}

static interval anything(void) {
  return (interval){-INFINITY, INFINITY, true};
}

static interval any_integer(void) { return bounds_of(INT32_MIN, INT32_MAX); }

static interval hull(interval a, interval b) {
  return (interval){fmin(a.low, b.low), fmax(a.high, b.high), a.nan || b.nan};
}

static bool is_single(interval x) { return x.low == x.high && !x.nan; }

static bool holds(interval x, double number) {
  return x.low <= number && number <= x.high;
}

/* ---- integers ------------------------------------------------------------ */

/* The sums low..high after wrapping: one run when all of them wrap alike. */
static interval wrapped(int64_t low, int64_t high) {
  int64_t turn = expr_wrap(low) - low;
  if (high + turn > INT32_MAX) return any_integer();
  return bounds_of((double)(low + turn), (double)(high + turn));
}

static interval corners(const int64_t product[4]) {
  int64_t low = product[0], high = product[0];
  for (int k = 1; k < 4; k++) {
    if (product[k] < low) low = product[k];
    if (product[k] > high) high = product[k];
  }
  return wrapped(low, high);
}

typedef struct range { int64_t low, high; } range;

static range range_of(interval x) {
  return (range){(int64_t)x.low, (int64_t)x.high};
}

static interval integer_product(range a, range b) {
  const int64_t product[4] = {a.low * b.low, a.low * b.high, a.high * b.low,
                              a.high * b.high};
  return corners(product);
}

/* A quotient is monotone in either side while the divisor keeps its sign. */
static interval quotient_corners(range a, range b) {
  const int64_t quotient[4] = {
      expr_floor_div(a.low, b.low), expr_floor_div(a.low, b.high),
      expr_floor_div(a.high, b.low), expr_floor_div(a.high, b.high)};
  return corners(quotient);
}

static interval modulo_positive(range a, range b) {
  if (is_single(bounds_of((double)b.low, (double)b.high))) {
    int64_t turns = expr_floor_div(a.low, b.low);
    if (turns == expr_floor_div(a.high, b.low))
      return bounds_of((double)(a.low - turns * b.low),
                       (double)(a.high - turns * b.low));
  }
  if (a.low >= 0 && a.high < b.low)
    return bounds_of((double)a.low, (double)a.high);
  double most = (double)(b.high - 1);
  return bounds_of(0, a.low >= 0 ? fmin(most, (double)a.high) : most);
}

/* The remainder by a negative divisor is that of the mirrored sides. */
static interval modulo_negative(range a, range b) {
  interval mirror = modulo_positive((range){-a.high, -a.low},
                                    (range){-b.high, -b.low});
  return bounds_of(-mirror.high, -mirror.low);
}

/* The parts of the divisor below, at and above 0, each by its own rule. */
static interval by_sign(range a, range b, interval (*negative)(range, range),
                        interval (*positive)(range, range)) {
  interval result = bounds_of(0, 0);
  bool any = b.low <= 0 && b.high >= 0;
  if (b.low < 0) {
    interval part = negative(a, (range){b.low, b.high < -1 ? b.high : -1});
    result = any ? hull(result, part) : part;
    any = true;
  }
  if (b.high > 0) {
    interval part = positive(a, (range){b.low > 1 ? b.low : 1, b.high});
    result = any ? hull(result, part) : part;
  }
  return result;
}

static interval integer_absolute(range a) {
  if (a.low >= 0) return bounds_of((double)a.low, (double)a.high);
  if (a.high <= 0) return wrapped(-a.high, -a.low);
  return wrapped(0, a.high > -a.low ? a.high : -a.low);
}

static interval integer_bounds(expr_op op, interval x, interval y) {
  range a = range_of(x), b = range_of(y);
  switch (op) {
  case EXPR_ADD: return wrapped(a.low + b.low, a.high + b.high);
  case EXPR_SUB: return wrapped(a.low - b.high, a.high - b.low);
  case EXPR_MUL: return integer_product(a, b);
  case EXPR_DIV: return by_sign(a, b, quotient_corners, quotient_corners);
  case EXPR_MOD: return by_sign(a, b, modulo_negative, modulo_positive);
  case EXPR_NEG: return wrapped(-a.high, -a.low);
  case EXPR_ABS: return integer_absolute(a);
  case EXPR_MIN: return bounds_of(fmin(x.low, y.low), fmin(x.high, y.high));
  case EXPR_MAX: return bounds_of(fmax(x.low, y.low), fmax(x.high, y.high));
  case EXPR_FLOOR:
  case EXPR_CEIL: return x;
  default: abort();
  }
}

/* ---- floats -------------------------------------------------------------- */

/* The next f32 below or above, or x itself when it is one. A correctly
 * rounded float64 result lies between the same two f32 neighbours as the true
 * one, so this holds the f32 rounding and the float64 one. */
static double f32_down(double x) {
  float near = (float)x;
  return (double)near > x ? nextafterf(near, -INFINITY) : near;
}

static double f32_up(double x) {
  float near = (float)x;
  return (double)near < x ? nextafterf(near, INFINITY) : near;
}

/* A NaN bound (inf - inf, 0 * inf) says nothing about that side. */
static interval outward(double low, double high, bool nan) {
  nan = nan || isnan(low) || isnan(high);
  return (interval){isnan(low) ? -INFINITY : f32_down(low),
                    isnan(high) ? INFINITY : f32_up(high), nan};
}

static bool is_infinite(interval x) { return isinf(x.low) || isinf(x.high); }

static interval real_sum(interval a, interval b) {
  bool nan = a.nan || b.nan || (is_infinite(a) && is_infinite(b));
  return outward(a.low + b.low, a.high + b.high, nan);
}

static interval real_negative(interval a) {
  return (interval){-a.high, -a.low, a.nan};
}

/* Smallest and largest of four corners; one that is NaN makes all unknown. */
static interval real_corners(const double corner[4], bool nan) {
  double low = corner[0], high = corner[0];
  for (int k = 0; k < 4; k++) {
    if (isnan(corner[k])) return anything();
    low = fmin(low, corner[k]);
    high = fmax(high, corner[k]);
  }
  return outward(low, high, nan);
}

static interval real_product(interval a, interval b) {
  const double corner[4] = {a.low * b.low, a.low * b.high, a.high * b.low,
                            a.high * b.high};
  bool nan = (holds(a, 0) && is_infinite(b)) || (holds(b, 0) && is_infinite(a));
  return nan ? anything() : real_corners(corner, a.nan || b.nan);
}

static interval real_quotient(interval a, interval b) {
  if (holds(b, 0) || (is_infinite(a) && is_infinite(b))) return anything();
  const double corner[4] = {a.low / b.low, a.low / b.high, a.high / b.low,
                            a.high / b.high};
  return real_corners(corner, a.nan || b.nan);
}

static interval real_floor(interval a) {
  return (interval){floor(a.low), floor(a.high), a.nan};
}

static interval real_modulo(interval a, interval b) {
  interval turns = real_floor(real_quotient(a, b));
  return real_sum(a, real_negative(real_product(turns, b)));
}

static interval real_absolute(interval a) {
  if (a.low >= 0) return a;
  if (a.high <= 0) return real_negative(a);
  return (interval){0, fmax(-a.low, a.high), a.nan};
}

/* A rising function of the library, good to a few units in the last place of
 * float64: the f32 neighbours hold both roundings. */
static interval rising(double (*function)(double), interval a, bool nan) {
  return outward(nextafterf((float)function(a.low), -INFINITY),
                 nextafterf((float)function(a.high), INFINITY), nan);
}

/* log and sqrt are NaN below 0, and both are read from 0 up. */
static interval rising_from_zero(double (*function)(double), interval a) {
  if (a.high < 0) return anything();
  bool nan = a.nan || a.low < 0;
  return rising(function, (interval){fmax(a.low, 0), a.high, nan}, nan);
}

static interval real_bounds(expr_op op, interval a, interval b) {
  switch (op) {
  case EXPR_ADD: return real_sum(a, b);
  case EXPR_SUB: return real_sum(a, real_negative(b));
  case EXPR_MUL: return real_product(a, b);
  case EXPR_DIV: return real_quotient(a, b);
  case EXPR_MOD: return real_modulo(a, b);
  case EXPR_NEG: return real_negative(a);
  case EXPR_ABS: return real_absolute(a);
  case EXPR_MIN:
    return (interval){fmin(a.low, b.low), fmin(a.high, b.high),
                      a.nan || b.nan};
  case EXPR_MAX:
    return (interval){fmax(a.low, b.low), fmax(a.high, b.high),
                      a.nan || b.nan};
  case EXPR_FLOOR: return real_floor(a);
  case EXPR_CEIL: return (interval){ceil(a.low), ceil(a.high), a.nan};
  case EXPR_EXP: return rising(exp, a, a.nan);
  case EXPR_TANH: return rising(tanh, a, a.nan);
  case EXPR_LOG: return rising_from_zero(log, a);
  case EXPR_SQRT: return rising_from_zero(sqrt, a);
  default: abort();
  }
}

/* ---- conditions ---------------------------------------------------------- */

static interval decided(bool surely, bool possibly) {
  return bounds_of(surely, possibly);
}

static interval negated(interval a) {
  return bounds_of(1 - a.high, 1 - a.low);
}

static interval equal_bounds(interval a, interval b) {
  bool apart = a.high < b.low || b.high < a.low;
  return decided(is_single(a) && is_single(b) && a.low == b.low, !apart);
}

static interval less_bounds(interval a, interval b) {
  return decided(a.high < b.low && !a.nan && !b.nan, a.low < b.high);
}

static interval least_bounds(interval a, interval b) {
  return decided(a.high <= b.low && !a.nan && !b.nan, a.low <= b.high);
}

static interval compare_bounds(expr_op op, interval a, interval b) {
  switch (op) {
  case EXPR_EQ: return equal_bounds(a, b);
  case EXPR_NE: return negated(equal_bounds(a, b));
  case EXPR_LT: return less_bounds(a, b);
  case EXPR_LE: return least_bounds(a, b);
  case EXPR_GT: return less_bounds(b, a);
  case EXPR_GE: return least_bounds(b, a);
  default: abort();
  }
}

static interval logic_bounds(const expr *e, const expr_box *box) {
  interval a = expr_bounds(e->arg[0], box);
  if (e->op == EXPR_NOT) return negated(a);
  if (e->op == EXPR_AND && a.high == 0) return a;
  if (e->op == EXPR_OR && a.low == 1) return a;
  interval b = expr_bounds(e->arg[1], box);
  if (e->op == EXPR_AND)
    return bounds_of(fmin(a.low, b.low), fmin(a.high, b.high));
  return bounds_of(fmax(a.low, b.low), fmax(a.high, b.high));
}

/* ---- trees --------------------------------------------------------------- */

/* An integer may be rounded when it becomes an f32. */
static interval as_real(const expr *e, interval x) {
  return e->type == TYPE_F32 ? x : outward(x.low, x.high, false);
}

static interval input_bounds(const expr *e, const expr_box *box) {
  interval all = e->type == TYPE_F32 ? anything() : any_integer();
  int32_t at[DIL_RANK_MAX] = {0}, axis = 0, ranging = 0;
  range along = {0, 0};
  for (int32_t k = 0; k < e->count; k++) {
    interval x = expr_bounds(e->arg[k], box);
    at[k] = (int32_t)x.low;
    if (k == 0 || !is_single(x)) along = range_of(x), axis = k;
    ranging += !is_single(x);
  }
  if (ranging > 1 || box->range == NULL) return all;
  return box->range(box->point.context, (int32_t)e->integer, axis, at,
                    (int32_t)along.low, (int32_t)along.high);
}

static interval leaf_bounds(const expr *e, const expr_box *box) {
  const expr_point *point = &box->point;
  switch (e->op) {
  case EXPR_INT: return wrapped(expr_wrap(e->integer), expr_wrap(e->integer));
  case EXPR_TRUTH: return decided(e->integer != 0, e->integer != 0);
  case EXPR_REAL: return outward(e->real, e->real, isnan(e->real));
  case EXPR_B_: return bounds_of(point->b, point->b);
  case EXPR_H_: return bounds_of(point->h, point->h);
  case EXPR_I_: return bounds_of(box->i0, box->i1);
  case EXPR_J_: return bounds_of(box->j0, box->j1);
  case EXPR_S_: return anything();
  case EXPR_BATCH: return bounds_of(point->B, point->B);
  case EXPR_N_: return bounds_of(point->N, point->N);
  case EXPR_M_: return bounds_of(point->M, point->M);
  case EXPR_INPUT: return input_bounds(e, box);
  default: abort();
  }
}

static interval choose_bounds(const expr *e, const expr_box *box) {
  interval condition = expr_bounds(e->arg[0], box);
  interval arm[2] = {{0, 0, false}, {0, 0, false}};
  for (int k = 0; k < 2; k++) {
    const expr *chosen = e->arg[1 + k];
    arm[k] = expr_bounds(chosen, box);
    if (e->type == TYPE_F32) arm[k] = as_real(chosen, arm[k]);
  }
  if (condition.low == 1) return arm[0];
  if (condition.high == 0) return arm[1];
  return hull(arm[0], arm[1]);
}

/* Known only where every argument is. */
static interval hash_bounds(const expr *e, const expr_box *box) {
  uint32_t x = EXPR_HASH_START;
  for (int32_t k = 0; k < e->count; k++) {
    interval a = expr_bounds(e->arg[k], box);
    if (!is_single(a)) return bounds_of(0, INT32_MAX);
    x = expr_hash_step(x, (uint32_t)(int64_t)a.low);
  }
  return bounds_of(x >> 1, x >> 1);
}

static interval whole_bounds(const expr *e, const expr_box *box) {
  interval a = expr_bounds(e->arg[0], box);
  interval x = bounds_of((double)expr_whole(a.low), (double)expr_whole(a.high));
  return a.nan ? hull(x, bounds_of(0, 0)) : x;
}

static interval operator_bounds(const expr *e, const expr_box *box) {
  const expr *left = e->arg[0], *right = e->arg[e->count - 1];
  interval a = expr_bounds(left, box);
  interval b = e->count > 1 ? expr_bounds(right, box) : a;
  bool compare = expr_rule_of(e->op) == RULE_COMPARE;
  bool real = compare ? left->type == TYPE_F32 || right->type == TYPE_F32
                      : e->type == TYPE_F32;
  if (real) a = as_real(left, a), b = as_real(right, b);
  if (compare) return compare_bounds(e->op, a, b);
  return real ? real_bounds(e->op, a, b) : integer_bounds(e->op, a, b);
}

interval expr_bounds(const expr *e, const expr_box *box) {
  switch (expr_rule_of(e->op)) {
  case RULE_LEAF: return leaf_bounds(e, box);
  case RULE_LOGIC: return logic_bounds(e, box);
  case RULE_CHOOSE: return choose_bounds(e, box);
  case RULE_HASH: return hash_bounds(e, box);
  case RULE_WHOLE: return whole_bounds(e, box);
  default: return operator_bounds(e, box);
  }
}
