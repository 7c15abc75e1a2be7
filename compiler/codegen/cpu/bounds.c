/* bounds.c - what values a mask expression takes over a box of positions, as
 * scalar code: every rule is that of compiler/pattern/expr_bounds.c, wider than
 * the truth at times, never narrower. Integers are i64 pairs; floats are f32
 * pairs, whose rounding is that of the expression itself because rounding keeps
 * order; conditions are pairs (surely, possibly). This is interval arithmetic
 * (Moore, Interval Analysis, 1966). */
#include "cpu.h"
#include <math.h>
#include <stdlib.h>

static ref smaller(const emit *e, ref a, ref b) {
  return emit_lesser(e, a, b);
}

static ref larger(const emit *e, ref a, ref b) {
  return emit_greater(e, a, b);
}

static ref never(const emit *e) {
  return emit_truth(e, false);
}

static bounds pair(const emit *e, ref low, ref high) {
  return (bounds){low, high, never(e)};
}

static bounds single(const emit *e, ref x) {
  return pair(e, x, x);
}

static bounds anything(const emit *e) {
  return (bounds){emit_real(e, -INFINITY), emit_real(e, INFINITY),
                  emit_truth(e, true)};
}

static bounds any_integer(const emit *e) {
  return pair(e, emit_long(e, INT32_MIN), emit_long(e, INT32_MAX));
}

static bounds choose(const emit *e, ref condition, bounds yes, bounds no) {
  return (bounds){emit_select(e, condition, yes.low, no.low),
                  emit_select(e, condition, yes.high, no.high),
                  emit_select(e, condition, yes.nan, no.nan)};
}

/* The least interval that holds both; of conditions, likewise. */
static bounds hull(const emit *e, bounds a, bounds b) {
  if (LLVMTypeOf(a.low) == e->i1)
    return pair(e, emit_and(e, a.low, b.low), emit_or(e, a.high, b.high));
  return (bounds){smaller(e, a.low, b.low), larger(e, a.high, b.high),
                  emit_or(e, a.nan, b.nan)};
}

static ref is_single(const emit *e, bounds a) {
  return emit_and(e, emit_compare(e, IS_EQUAL, a.low, a.high),
                  emit_not(e, a.nan));
}

/* ---- integers ------------------------------------------------------------ */

/* Sums low..high after wrapping to i32: one run when all wrap alike. */
static bounds wrapped(const emit *e, ref low, ref high) {
  ref first = emit_convert(e, LLVMSExt, emit_convert(e, LLVMTrunc, low, e->i32),
                           e->i64);
  ref last = emit_add(e, first, emit_sub(e, high, low));
  ref split = emit_compare(e, IS_GREATER, last, emit_long(e, INT32_MAX));
  return choose(e, split, any_integer(e), pair(e, first, last));
}

static bounds corners(const emit *e, ref const corner[4]) {
  ref low = corner[0], high = corner[0];
  for (int k = 1; k < 4; k++) {
    low = smaller(e, corner[k], low);
    high = larger(e, corner[k], high);
  }
  return wrapped(e, low, high);
}

static bounds integer_product(const emit *e, bounds a, bounds b) {
  ref const corner[4] = {emit_mul(e, a.low, b.low), emit_mul(e, a.low, b.high),
                         emit_mul(e, a.high, b.low),
                         emit_mul(e, a.high, b.high)};
  return corners(e, corner);
}

static ref floor_divide(const emit *e, ref a, ref b) {
  ref zero = emit_long(e, 0);
  ref q = LLVMBuildSDiv(e->builder, a, b, "");
  ref rest = emit_sub(e, a, emit_mul(e, q, b));
  ref apart = emit_compare(e, IS_LESS, emit_xor(e, rest, b), zero);
  ref uneven = emit_compare(e, IS_UNEQUAL, rest, zero);
  return emit_sub(
      e, q, emit_convert(e, LLVMZExt, emit_and(e, apart, uneven), e->i64));
}

/* A quotient is monotone in either side while the divisor keeps its sign. */
static bounds quotient_corners(const emit *e, bounds a, bounds b) {
  ref const corner[4] = {
      floor_divide(e, a.low, b.low), floor_divide(e, a.low, b.high),
      floor_divide(e, a.high, b.low), floor_divide(e, a.high, b.high)};
  return corners(e, corner);
}

static bounds modulo_positive(const emit *e, bounds a, bounds b) {
  ref zero = emit_long(e, 0), most = emit_sub(e, b.high, emit_long(e, 1));
  ref turns = floor_divide(e, a.low, b.low);
  ref together = emit_and(
      e, is_single(e, b),
      emit_compare(e, IS_EQUAL, turns, floor_divide(e, a.high, b.low)));
  ref shift = emit_mul(e, turns, b.low);
  ref whole = emit_compare(e, IS_GREATER_EQUAL, a.low, zero);
  ref under = emit_and(e, whole, emit_compare(e, IS_LESS, a.high, b.low));
  bounds spread =
      pair(e, zero, emit_select(e, whole, smaller(e, most, a.high), most));
  bounds near = pair(e, emit_sub(e, a.low, shift), emit_sub(e, a.high, shift));
  return choose(e, together, near, choose(e, under, a, spread));
}

static bounds mirrored(const emit *e, bounds a) {
  ref zero = emit_long(e, 0);
  return pair(e, emit_sub(e, zero, a.high), emit_sub(e, zero, a.low));
}

static bounds modulo_negative(const emit *e, bounds a, bounds b) {
  return mirrored(e, modulo_positive(e, mirrored(e, a), mirrored(e, b)));
}

typedef bounds (*division)(const emit *e, bounds a, bounds b);

/* The parts of the divisor below, at and above 0, each by its own rule. */
static bounds by_sign(const emit *e, bounds a, bounds b, division negative,
                      division positive) {
  ref zero = emit_long(e, 0), one = emit_long(e, 1), minus = emit_long(e, -1);
  if (LLVMIsAConstantInt(b.low) != NULL && LLVMConstIntGetSExtValue(b.low) > 0)
    return positive(e, a, b);
  ref below = emit_compare(e, IS_LESS, b.low, zero);
  ref above = emit_compare(e, IS_GREATER, b.high, zero);
  bounds under = negative(
      e, a, pair(e, smaller(e, b.low, minus), smaller(e, b.high, minus)));
  bounds over =
      positive(e, a, pair(e, larger(e, b.low, one), larger(e, b.high, one)));
  bounds either = choose(e, emit_and(e, below, above), hull(e, under, over),
                         choose(e, below, under, over));
  ref at = emit_and(e, emit_compare(e, IS_LESS_EQUAL, b.low, zero),
                    emit_compare(e, IS_GREATER_EQUAL, b.high, zero));
  bounds with = choose(e, emit_or(e, below, above),
                       hull(e, either, single(e, zero)), single(e, zero));
  return choose(e, at, with, either);
}

static bounds integer_absolute(const emit *e, bounds a) {
  ref zero = emit_long(e, 0);
  bounds back = mirrored(e, a);
  ref low = larger(e, larger(e, a.low, back.low), zero);
  return wrapped(e, low, larger(e, a.high, back.high));
}

static bounds integer_bounds(const emit *e, expr_op op, bounds a, bounds b) {
  switch (op) {
  case EXPR_ADD:
    return wrapped(e, emit_add(e, a.low, b.low), emit_add(e, a.high, b.high));
  case EXPR_SUB:
    return wrapped(e, emit_sub(e, a.low, b.high), emit_sub(e, a.high, b.low));
  case EXPR_MUL: return integer_product(e, a, b);
  case EXPR_DIV: return by_sign(e, a, b, quotient_corners, quotient_corners);
  case EXPR_MOD: return by_sign(e, a, b, modulo_negative, modulo_positive);
  case EXPR_NEG: {
    bounds back = mirrored(e, a);
    return wrapped(e, back.low, back.high);
  }
  case EXPR_ABS: return integer_absolute(e, a);
  case EXPR_MIN:
    return pair(e, smaller(e, a.low, b.low), smaller(e, a.high, b.high));
  case EXPR_MAX:
    return pair(e, larger(e, a.low, b.low), larger(e, a.high, b.high));
  case EXPR_FLOOR:
  case EXPR_CEIL: return a;
  default: abort();
  }
}

/* ---- floats -------------------------------------------------------------- */

static ref is_nan(const emit *e, ref x) {
  return emit_compare(e, IS_UNEQUAL, x, x);
}

static ref is_infinite(emit *e, bounds a) {
  ref end = emit_real(e, INFINITY);
  return emit_or(
      e, emit_compare(e, IS_EQUAL, emit_unary(e, "llvm.fabs", a.low), end),
      emit_compare(e, IS_EQUAL, emit_unary(e, "llvm.fabs", a.high), end));
}

static ref holds_zero(const emit *e, bounds a) {
  ref zero = emit_real(e, 0);
  return emit_and(e, emit_compare(e, IS_LESS_EQUAL, a.low, zero),
                  emit_compare(e, IS_GREATER_EQUAL, a.high, zero));
}

/* A NaN bound (inf - inf) says nothing about that side. */
static bounds settled(const emit *e, ref low, ref high, ref nan) {
  ref no_low = is_nan(e, low), no_high = is_nan(e, high);
  nan = emit_or(e, nan, emit_or(e, no_low, no_high));
  return (bounds){emit_select(e, no_low, emit_real(e, -INFINITY), low),
                  emit_select(e, no_high, emit_real(e, INFINITY), high), nan};
}

static bounds real_sum(emit *e, bounds a, bounds b) {
  ref both = emit_and(e, is_infinite(e, a), is_infinite(e, b));
  ref nan = emit_or(e, both, emit_or(e, a.nan, b.nan));
  return settled(e, emit_add(e, a.low, b.low), emit_add(e, a.high, b.high),
                 nan);
}

static bounds real_negative(const emit *e, bounds a) {
  return (bounds){LLVMBuildFNeg(e->builder, a.high, ""),
                  LLVMBuildFNeg(e->builder, a.low, ""), a.nan};
}

/* Smallest and largest of four corners, unless `unknown`. */
static bounds real_corners(const emit *e, ref const corner[4], ref nan,
                           ref unknown) {
  ref low = corner[0], high = corner[0];
  for (int k = 0; k < 4; k++) {
    unknown = emit_or(e, unknown, is_nan(e, corner[k]));
    low = smaller(e, corner[k], low);
    high = larger(e, corner[k], high);
  }
  return choose(e, unknown, anything(e), (bounds){low, high, nan});
}

static bounds real_product(emit *e, bounds a, bounds b) {
  ref const corner[4] = {emit_mul(e, a.low, b.low), emit_mul(e, a.low, b.high),
                         emit_mul(e, a.high, b.low),
                         emit_mul(e, a.high, b.high)};
  ref unknown = emit_or(e, emit_and(e, holds_zero(e, a), is_infinite(e, b)),
                        emit_and(e, holds_zero(e, b), is_infinite(e, a)));
  return real_corners(e, corner, emit_or(e, a.nan, b.nan), unknown);
}

static bounds real_quotient(emit *e, bounds a, bounds b) {
  ref const corner[4] = {
      emit_divide(e, a.low, b.low), emit_divide(e, a.low, b.high),
      emit_divide(e, a.high, b.low), emit_divide(e, a.high, b.high)};
  ref unknown = emit_or(e, holds_zero(e, b),
                        emit_and(e, is_infinite(e, a), is_infinite(e, b)));
  return real_corners(e, corner, emit_or(e, a.nan, b.nan), unknown);
}

static bounds rounded(emit *e, const char *how, bounds a) {
  return (bounds){emit_unary(e, how, a.low), emit_unary(e, how, a.high), a.nan};
}

static bounds real_modulo(emit *e, bounds a, bounds b) {
  bounds turns = rounded(e, "llvm.floor", real_quotient(e, a, b));
  return real_sum(e, a, real_negative(e, real_product(e, turns, b)));
}

static bounds real_absolute(emit *e, bounds a) {
  bounds back = real_negative(e, a);
  ref low = larger(e, larger(e, a.low, back.low), emit_real(e, 0));
  return (bounds){low, larger(e, a.high, back.high), a.nan};
}

static bounds real_bounds(emit *e, expr_op op, bounds a, bounds b) {
  switch (op) {
  case EXPR_ADD: return real_sum(e, a, b);
  case EXPR_SUB: return real_sum(e, a, real_negative(e, b));
  case EXPR_MUL: return real_product(e, a, b);
  case EXPR_DIV: return real_quotient(e, a, b);
  case EXPR_MOD: return real_modulo(e, a, b);
  case EXPR_NEG: return real_negative(e, a);
  case EXPR_ABS: return real_absolute(e, a);
  case EXPR_MIN:
    return (bounds){smaller(e, a.low, b.low), smaller(e, a.high, b.high),
                    emit_or(e, a.nan, b.nan)};
  case EXPR_MAX:
    return (bounds){larger(e, a.low, b.low), larger(e, a.high, b.high),
                    emit_or(e, a.nan, b.nan)};
  case EXPR_FLOOR: return rounded(e, "llvm.floor", a);
  case EXPR_CEIL: return rounded(e, "llvm.ceil", a);
  default:
    abort(); /* a mask has exact operators only */
  }
}

/* ---- conditions ---------------------------------------------------------- */

static bounds negated(const emit *e, bounds a) {
  return pair(e, emit_not(e, a.high), emit_not(e, a.low));
}

static bounds equal_bounds(const emit *e, bounds a, bounds b) {
  ref apart = emit_or(e, emit_compare(e, IS_LESS, a.high, b.low),
                      emit_compare(e, IS_LESS, b.high, a.low));
  ref same = emit_and(e, emit_and(e, is_single(e, a), is_single(e, b)),
                      emit_compare(e, IS_EQUAL, a.low, b.low));
  return pair(e, same, emit_not(e, apart));
}

static bounds order_bounds(const emit *e, emit_relation relation, bounds a,
                           bounds b) {
  ref numbers = emit_not(e, emit_or(e, a.nan, b.nan));
  return pair(e, emit_and(e, emit_compare(e, relation, a.high, b.low), numbers),
              emit_compare(e, relation, a.low, b.high));
}

static bounds compare_bounds(const emit *e, expr_op op, bounds a, bounds b) {
  switch (op) {
  case EXPR_EQ: return equal_bounds(e, a, b);
  case EXPR_NE: return negated(e, equal_bounds(e, a, b));
  case EXPR_LT: return order_bounds(e, IS_LESS, a, b);
  case EXPR_LE: return order_bounds(e, IS_LESS_EQUAL, a, b);
  case EXPR_GT: return order_bounds(e, IS_LESS, b, a);
  case EXPR_GE: return order_bounds(e, IS_LESS_EQUAL, b, a);
  default: abort();
  }
}

/* ---- trees --------------------------------------------------------------- */

static bounds as_real(const emit *e, bounds a) {
  if (emit_is_float(a.low)) return a;
  return (bounds){emit_convert(e, LLVMSIToFP, a.low, e->f32),
                  emit_convert(e, LLVMSIToFP, a.high, e->f32), a.nan};
}

static bounds word_bounds(const emit *e, ref word) {
  return single(e, emit_convert(e, LLVMSExt, word, e->i64));
}

static bounds choose_bounds(build *b, interval_box *x, const expr *tree) {
  emit *e = &b->emit;
  bounds condition = bounds_of(b, x, tree->arg[0]);
  bounds yes = bounds_of(b, x, tree->arg[1]);
  bounds no = bounds_of(b, x, tree->arg[2]);
  if (tree->type == TYPE_F32) {
    yes = as_real(e, yes);
    no = as_real(e, no);
  }
  return choose(e, condition.low, yes,
                choose(e, condition.high, hull(e, yes, no), no));
}

/* Known only where every argument is. */
static bounds hash_bounds(build *b, interval_box *x, const expr *tree) {
  const emit *e = &b->emit;
  ref h = hash_start(b), known = emit_truth(e, true);
  for (int32_t k = 0; k < tree->count; k++) {
    bounds a = bounds_of(b, x, tree->arg[k]);
    known = emit_and(e, known, is_single(e, a));
    h = hash_step(b, h, emit_convert(e, LLVMTrunc, a.low, e->i32));
  }
  bounds value_of = word_bounds(e, hash_end(b, h));
  return choose(e, known, value_of,
                pair(e, emit_long(e, 0), emit_long(e, INT32_MAX)));
}

static bounds leaf_bounds(build *b, interval_box *x, const expr *tree) {
  const emit *e = &b->emit;
  switch (tree->op) {
  case EXPR_I_: return x->i;
  case EXPR_J_: return x->j;
  case EXPR_INPUT: return input_bounds(b, x, tree);
  case EXPR_TRUTH:
  case EXPR_REAL: {
    ref leaf = expression_value(b, &x->site, tree);
    bool nan = tree->op == EXPR_REAL && isnan(tree->real);
    return (bounds){leaf, leaf, emit_truth(e, nan)};
  }
  default: return word_bounds(e, expression_value(b, &x->site, tree));
  }
}

static bounds whole_bounds(emit *e, bounds a) {
  bounds x = pair(e, emit_convert(e, LLVMSExt, emit_whole(e, a.low), e->i64),
                  emit_convert(e, LLVMSExt, emit_whole(e, a.high), e->i64));
  return choose(e, a.nan, hull(e, x, single(e, emit_long(e, 0))), x);
}

static bounds operator_bounds(build *b, interval_box *x, const expr *tree) {
  emit *e = &b->emit;
  bounds first = bounds_of(b, x, tree->arg[0]), second = first;
  if (tree->op == EXPR_NOT) return negated(e, first);
  if (tree->op == EXPR_TO_INT) return whole_bounds(e, first);
  if (tree->count > 1) second = bounds_of(b, x, tree->arg[1]);
  if (tree->op == EXPR_AND || tree->op == EXPR_OR) {
    ref (*both)(const emit *, ref, ref) =
        tree->op == EXPR_AND ? emit_and : emit_or;
    return pair(e, both(e, first.low, second.low),
                both(e, first.high, second.high));
  }
  bool real = tree->type == TYPE_F32 || emit_is_float(first.low) ||
              emit_is_float(second.low);
  if (real) {
    first = as_real(e, first);
    second = as_real(e, second);
  }
  if (tree->type == TYPE_CONDITION)
    return compare_bounds(e, tree->op, first, second);
  return real ? real_bounds(e, tree->op, first, second)
              : integer_bounds(e, tree->op, first, second);
}

bounds bounds_of(build *b, interval_box *x, const expr *tree) {
  build_locate(b, tree->at);
  if (tree->op == EXPR_HASH) return hash_bounds(b, x, tree);
  if (tree->op == EXPR_CHOOSE) return choose_bounds(b, x, tree);
  if (tree->op == EXPR_INPUT || tree->count == 0)
    return leaf_bounds(b, x, tree);
  return operator_bounds(b, x, tree);
}
