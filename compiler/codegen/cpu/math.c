/* math.c - exponential, logarithm and hyperbolic tangent over lanes, inlined
 * where they stand: generated code calls no library. */
#include "cpu.h"
#include <math.h>

/* coefficient[0] + x (coefficient[1] + x (...)), one rounding a step. */
static ref polynomial(build *b, ref x, const double *coefficient, int degree) {
  emit *e = &b->emit;
  ref sum = emit_real(e, coefficient[degree]);
  for (int i = degree - 1; i >= 0; i--)
    sum = emit_fma(e, sum, x, emit_real(e, coefficient[i]));
  return sum;
}

/* Minimax polynomials of 2^r on [-1/2, 1/2] whose first coefficient is 1
 * exactly: a maximum that stays must give alpha = 1. */
static const double power_of_two[][6] = {
    [4] = {1, 0x1.62e0dcp-1, 0x1.ec06dap-3, 0x1.ca1440p-5, 0x1.3997d6p-7},
    [5] = {1, 0x1.62e428p-1, 0x1.ebf918p-3, 0x1.c6b6e4p-5, 0x1.3d0c52p-7,
           0x1.5c08e6p-10},
};

ref math_power(build *b, ref x, int degree) {
  emit *e = &b->emit;
  if (b->isa->scales_by_power) {
    ref n = emit_unary(e, "llvm.roundeven", x);
    ref r = emit_sub(e, x, n);
    ref p = polynomial(b, r, power_of_two[degree], degree);
    return host_arch.scale_by_power(&b->emit, p, n);
  }
  /* The exponent is added as bits. -inf and all that is too small give 0; a
   * NaN has the integer 0x80000000, whose low bits leave it as it is. */
  ref n = host_arch.nearest_words(&b->emit, x);
  ref r = emit_sub(e, x, emit_convert(e, LLVMSIToFP, n, e->f32));
  ref p = polynomial(b, r, power_of_two[degree], degree);
  ref bits = emit_add(e, emit_bits(e, p, e->i32), emit_shift_left(e, n, 23));
  ref small = emit_compare(e, IS_LESS, x, emit_real(e, -126));
  return emit_select(e, small, emit_real(e, 0), emit_bits(e, bits, e->f32));
}

/* ---- functions that scores may call -------------------------------------- */

/* 2^n as two factors, so that each is a normal number, for n in -300..300. */
static ref scale_twice(build *b, ref x, ref n) {
  emit *e = &b->emit;
  ref half = emit_shift_arithmetic(e, n, 1), rest = emit_sub(e, n, half);
  ref bias = emit_word(e, 127);
  ref first = emit_shift_left(e, emit_add(e, half, bias), 23);
  ref second = emit_shift_left(e, emit_add(e, rest, bias), 23);
  return emit_mul(e, emit_mul(e, x, emit_bits(e, first, e->f32)),
                  emit_bits(e, second, e->f32));
}

/* Cephes expf: x = n ln 2 + r with ln 2 in two parts. Beyond the bounds the
 * result is 0 or inf in any case; they keep n small and infinities out. */
ref math_exp(build *b, ref x) {
  emit *e = &b->emit;
  static const double p[] = {1,
                             1,
                             5.0000001201e-1,
                             1.6666665459e-1,
                             4.1665795894e-2,
                             8.3334519073e-3,
                             1.3981999507e-3,
                             1.9875691500e-4};
  x = emit_select(e, emit_compare(e, IS_GREATER, x, emit_real(e, 89)),
                  emit_real(e, 89), x);
  x = emit_select(e, emit_compare(e, IS_LESS, x, emit_real(e, -105)),
                  emit_real(e, -105), x);
  ref n = emit_unary(e, "llvm.roundeven",
                     emit_mul(e, x, emit_real(e, 0x1.715476p0)));
  ref r = emit_fma(e, n, emit_real(e, -0x1.62e400p-1), x);
  r = emit_fma(e, n, emit_real(e, -0x1.7f7d1cp-20), r);
  ref result = polynomial(b, r, p, 7);
  if (b->isa->scales_by_power)
    return host_arch.scale_by_power(&b->emit, result, n);
  return scale_twice(b, result, host_arch.nearest_words(&b->emit, n));
}

/* Cephes logf: x = m 2^n with m in [sqrt(1/2), sqrt 2). */
ref math_log(build *b, ref x) {
  emit *e = &b->emit;
  static const double p[] = {
      3.3333331174e-1,  -2.4999993993e-1, 2.0000714765e-1,
      -1.6668057665e-1, 1.4249322787e-1,  -1.2420140846e-1,
      1.1676998740e-1,  -1.1514610310e-1, 7.0376836292e-2};
  ref tiny = emit_compare(e, IS_LESS, x, emit_real(e, 0x1p-126));
  ref normal = emit_select(e, tiny, emit_mul(e, x, emit_real(e, 0x1p23)), x);
  /* Counting from sqrt(1/2) makes the exponent that of the wanted m. */
  ref bits =
      emit_sub(e, emit_bits(e, normal, e->i32), emit_word(e, 0x3f3504f3));
  ref n = emit_shift_arithmetic(e, bits, 23);
  ref m = emit_add(e, emit_and(e, bits, emit_word(e, 0x7fffff)),
                   emit_word(e, 0x3f3504f3));
  ref f = emit_sub(e, emit_bits(e, m, e->f32), emit_real(e, 1));
  n = emit_sub(e, n, emit_select(e, tiny, emit_word(e, 23), emit_word(e, 0)));
  ref turns = emit_convert(e, LLVMSIToFP, n, e->f32);
  ref square = emit_mul(e, f, f);
  ref y = emit_mul(e, emit_mul(e, polynomial(b, f, p, 8), f), square);
  y = emit_fma(e, turns, emit_real(e, -2.12194440e-4), y);
  y = emit_fma(e, square, emit_real(e, -0.5), y);
  ref result = emit_fma(e, turns, emit_real(e, 0.693359375), emit_add(e, f, y));
  ref huge = emit_compare(e, IS_EQUAL, x, emit_real(e, INFINITY));
  result = emit_select(e, huge, x, result);
  result = emit_select(e, emit_compare(e, IS_EQUAL, x, emit_real(e, 0)),
                       emit_real(e, -INFINITY), result);
  ref number = emit_compare(e, IS_GREATER_EQUAL, x, emit_real(e, 0));
  return emit_select(e, number, result, emit_real(e, NAN));
}

/* Cephes tanhf: a polynomial near 0, else 1 - 2 / (e^2|x| + 1). */
ref math_tanh(build *b, ref x) {
  emit *e = &b->emit;
  static const double p[] = {-3.33332819422e-1, 1.33314422036e-1,
                             -5.37397155531e-2, 2.06390887954e-2,
                             -5.70498872745e-3};
  ref size = emit_unary(e, "llvm.fabs", x), square = emit_mul(e, x, x);
  ref near =
      emit_fma(e, emit_mul(e, polynomial(b, square, p, 4), square), x, x);
  ref power = math_exp(b, emit_add(e, size, size));
  ref far = emit_sub(
      e, emit_real(e, 1),
      emit_divide(e, emit_real(e, 2), emit_add(e, power, emit_real(e, 1))));
  ref sign = emit_and(e, emit_bits(e, x, e->i32), emit_word(e, INT32_MIN));
  far = emit_bits(e, emit_or(e, emit_bits(e, far, e->i32), sign), e->f32);
  ref small = emit_compare(e, IS_LESS, size, emit_real(e, 0.625));
  return emit_select(e, small, near, far);
}
