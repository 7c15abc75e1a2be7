/* pair.cuh - the operations of mask and score expressions: integers that wrap
 * and floor, floats of single roundings, hash, inputs that read 0 outside.
 * Every operation means the same as in compiler/pattern/expr.c. */
#ifndef DIL_TEMPLATES_SHARED_PAIR_H
#define DIL_TEMPLATES_SHARED_PAIR_H
#include "templates/shared/launch.h"
#include "templates/shared/ptx.cuh"

/* The values that an expression reads besides i, j and s. */
struct dil_pair {
  int b, h, B, N, M;
  const dil_device_input *input;
};

DIL_INLINE int dil_add(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
DIL_INLINE int dil_sub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
DIL_INLINE int dil_mul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }

DIL_INLINE int dil_div(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return dil_sub(0, a);
  int q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

DIL_INLINE int dil_mod(int a, int b) {
  if (b == 0 || b == -1) return 0;
  int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

DIL_INLINE int dil_abs(int a) { return a < 0 ? dil_sub(0, a) : a; }
DIL_INLINE int dil_min(int a, int b) { return a < b ? a : b; }
DIL_INLINE int dil_max(int a, int b) { return a > b ? a : b; }

/* NaN when either side is; the second side when both are equal. */
DIL_INLINE float dil_minf(float a, float b) { return a < b || a != a ? a : b; }
DIL_INLINE float dil_maxf(float a, float b) { return a > b || a != a ? a : b; }

DIL_INLINE float dil_modf(float a, float b) {
  return __fsub_rn(a, __fmul_rn(floorf(__fdiv_rn(a, b)), b));
}

/* tanh of a score by one power and one reciprocal, in both directions. Its
 * error is 2e-7 at most, 6e-8 on average, of 1 and not of the result. */
DIL_INLINE float dil_tanh(float x) {
  float power = power_of_2(__fmul_rn(x, 2.885390081777926815f));
  return fmaf(-2.0f, reciprocal(__fadd_rn(power, 1.0f)), 1.0f);
}

/* The integer at or below, within 32 bits; 0 of NaN. */
DIL_INLINE int dil_whole(float a) { return __float2int_rd(a); }

/* The product of a factor and a derivative: 0 where either is exactly 0. */
DIL_INLINE float dil_slopes(float a, float b) {
  return a == 0 || b == 0 ? 0.0f : __fmul_rn(a, b);
}

DIL_INLINE unsigned dil_hash_step(unsigned x, int a) {
  x ^= (unsigned)a;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ x >> 16;
}

/* The kernels of sm_90 ask many pairs at once (EAGER): without branches, loads
 * that they share are made once. Elsewhere branches save registers. */
#if EAGER
#define DIL_AND &
#else
#define DIL_AND &&
#endif

/* log(e^x + e^y): sinks add up. -inf adds nothing; inf gives NaN. */
DIL_INLINE float dil_sinks_add(float x, float y) {
  float top = fmaxf(x, y);
  float base = top == __uint_as_float(0xff800000u) ? 0.0f : top;
  return base + logf(expf(x - base) + expf(y - base));
}

/* An index outside its dimension reads 0. */
DIL_INLINE bool dil_inside(const dil_device_input &in, int rank,
                           const int *at) {
  bool inside = true;
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < rank)
      inside = inside DIL_AND at[k] >= 0 DIL_AND at[k] < in.dim[k];
  return inside;
}

DIL_INLINE long long dil_offset(const dil_device_input &in, int rank,
                                const int *at) {
  long long offset = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < rank) offset += at[k] * in.stride[k];
  return offset;
}

DIL_INLINE float dil_from_bf16(unsigned short x) {
  return __uint_as_float((unsigned)x << 16);
}

/* Element x of an input, number `place` of its memory; outside, 0. */
#if EAGER
static __device__ const float dil_nothing = 0;
#define DIL_FETCH(stored, x, place)                                          \
  bool inside = dil_inside(in, rank, at);                                    \
  const stored *from = (const stored *)in.data + (place);                    \
  stored x = *(inside ? from : (const stored *)&dil_nothing)
#else
#define DIL_FETCH(stored, x, place)                                          \
  if (!dil_inside(in, rank, at)) return 0;                                   \
  stored x = ((const stored *)in.data)[place]
#endif

#define DIL_READER(name, stored, result, convert)                            \
  DIL_INLINE result name(const dil_device_input &in, int rank, int a, int b, \
                         int c, int d) {                                     \
    const int at[4] = {a, b, c, d};                                          \
    DIL_FETCH(stored, x, dil_offset(in, rank, at));                          \
    return convert(x);                                                       \
  }
DIL_READER(dil_read_f32, float, float, )
DIL_READER(dil_read_bf16, unsigned short, float, dil_from_bf16)
DIL_READER(dil_read_f16, unsigned short, float, dil_from_f16)
DIL_READER(dil_read_i32, int, int, )
DIL_READER(dil_read_u8, unsigned char, int, )
#undef DIL_READER

/* A bit of a table of blocks, whose strides count bits. Its rows follow one
 * another. */
DIL_INLINE int dil_read_bit(const dil_device_input &in, int rank, int a, int b,
                            int c, int d) {
  const int at[4] = {a, b, c, d};
  unsigned row = 0, words = (unsigned)(in.stride[rank - 2] >> 5);
#pragma unroll
  for (int k = 0; k < 3; k++)
    if (k < rank - 1) row = row * (unsigned)in.dim[k] + (unsigned)at[k];
  unsigned last = (unsigned)at[rank - 1];
  DIL_FETCH(unsigned, word, (unsigned long long)row * words + (last >> 5));
  return word >> (last & 31) & 1;
}

#endif
