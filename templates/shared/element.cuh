/* element.cuh - elements in memory and in the registers of mma.sync: packing,
 * rounding, and the products of 16 rows by 8 columns. */
#ifndef DIL_TEMPLATES_SHARED_ELEMENT_H
#define DIL_TEMPLATES_SHARED_ELEMENT_H
#include "templates/shared/plan.cuh"
#include "templates/shared/ptx.cuh"

#if ELEMENT == 0
typedef float element;
#define ELEMENT_BYTES 4
#else
typedef unsigned short element;
#define ELEMENT_BYTES 2
#endif

DIL_INLINE unsigned shared_address(const void *p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

DIL_INLINE unsigned pack_pair(float low, float high) {
  return ELEMENT == 2 ? pack_f16(low, high) : pack_bf16(low, high);
}

DIL_INLINE float widen(element x) {
#if ELEMENT == 0
  return x;
#elif ELEMENT == 1
  return dil_from_bf16(x);
#else
  return dil_from_f16(x);
#endif
}

DIL_INLINE element narrow(float x) {
#if ELEMENT == 0
  return x;
#else
  return (element)pack_pair(x, 0.0f);
#endif
}

/* d += a b for 16-bit elements: 16 x 16 by 16 x 8. */
DIL_INLINE void multiply_16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                            unsigned b1) {
  if (ELEMENT == 2) multiply_f16(d, a, b0, b1);
  else multiply_bf16(d, a, b0, b1);
}

/* The low part of a float, which tf32 does not see: the second operand of its
 * three products (3xTF32). A product drops 13 bits, so the low part is exact;
 * of an infinity it is NaN. With `fast` it is the float's tf32. */
DIL_INLINE unsigned tf32_low(unsigned x) {
  if (FAST) return round_tf32(x);
  float high = __uint_as_float(x & 0xffffe000u);
  return __float_as_uint(__fsub_rn(__uint_as_float(x), high));
}

/* d += a b in f32: 16 x 8 by 8 x 8, the small products first. A score has the
 * same bits, whichever of its operands is `a`: the low part of the query comes
 * first (HOLDS_KEYS of walk.cuh: `a` is the key). */
DIL_INLINE void multiply_8(float (&d)[4], const unsigned (&a)[4],
                           const unsigned (&low)[4], unsigned b0, unsigned b1) {
  unsigned c0 = tf32_low(b0), c1 = tf32_low(b1);
  if (FAST) {
    multiply_tf32(d, low, c0, c1);
    return;
  }
#if HOLDS_KEYS
  multiply_tf32(d, a, c0, c1);
  multiply_tf32(d, low, b0, b1);
#else
  multiply_tf32(d, low, b0, b1);
  multiply_tf32(d, a, c0, c1);
#endif
  multiply_tf32(d, a, b0, b1);
}

#endif
