/* softmax.cuh - the running softmax over fragments of mma.sync (and of wgmma,
 * whose rows lie alike): a thread holds columns 8g + 2 (lane % 4) + {0, 1} of
 * two rows, lane / 4 and lane / 4 + 8 of its warp's sixteen. */
#ifndef DIL_TEMPLATES_SHARED_SOFTMAX_H
#define DIL_TEMPLATES_SHARED_SOFTMAX_H
#include "templates/shared/plan.cuh"
#include "templates/shared/ptx.cuh"

#define DIL_LOG2_E 1.44269504088896340736f
#define DIL_LN_2 0.69314718055994530942f
#define DIL_NONE __int_as_float(0xff800000) /* -infinity */

/* Over the four lanes that share a row. */
DIL_INLINE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DIL_INLINE float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Rows of a thread: m, the largest score so far in units of log2 (-infinity:
 * none), the same in the four lanes of a row; l, this lane's share of the sum
 * of weights. A NaN score does not move m, but makes l and the sums NaN. */
struct dil_state {
  float m[2], l[2];
};

/* From such an m on, f32 may lie more than 1 from the product that it was
 * rounded from, and from 2^31 on the power of that difference overflows. */
#define DIL_LARGE_MAXIMUM 16777216.0f /* 2^24 */

/* Where the maximum of row r (0, 1) of a thread is large, subtracts it from the
 * scores, each step rounded by itself: the largest score then has the weight 1.
 * The power of the row's scores is left with the factor 1 and no shift. */
template <int TILES>
DIL_INLINE void subtract_maximum(float (&s)[TILES][4], int r, float &c2,
                                 float &base) {
  if (fabsf(base) < DIL_LARGE_MAXIMUM) return;
#pragma unroll
  for (int e = 0; e < 2 * TILES; e++) {
    float &x = s[e >> 1][2 * r + (e & 1)];
    x = __fmul_rn(x, c2) - base;
  }
  c2 = 1;
  base = 0;
}

/* Scores become weights 2^(c2 * s - m); alpha is the factor of older sums. A
 * key that counts several times has its column's number in `times` (shared
 * memory; NULL: all count once). */
template <int TILES>
DIL_INLINE void softmax_step(dil_state &state, float (&s)[TILES][4], float c2,
                             const float *times, float (&alpha)[2]) {
  float base[2], factor[2] = {c2, c2};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = DIL_NONE;
#pragma unroll
    for (int g = 0; g < TILES; g++)
      top = fmaxf(top, fmaxf(s[g][2 * r], s[g][2 * r + 1]));
    float m = fmaxf(state.m[r], __fmul_rn(row_max(top), c2));
    base[r] = m == DIL_NONE ? 0.0f : m; /* all -infinity: weights are 0 */
    alpha[r] = power_of_2(state.m[r] - base[r]);
    state.m[r] = m;
  }
  bool small = fmaxf(fabsf(base[0]), fabsf(base[1])) < DIL_LARGE_MAXIMUM;
  if (__any_sync(0xffffffffu, !small)) { /* one branch for both rows */
    subtract_maximum<TILES>(s, 0, factor[0], base[0]);
    subtract_maximum<TILES>(s, 1, factor[1], base[1]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int e = 0; e < 2 * TILES; e++) {
      float &x = s[e >> 1][2 * r + (e & 1)];
      x = power_of_2(fmaf(x, factor[r], -base[r]));
    }
  if (times) {
#pragma unroll
    for (int e = 0; e < 4 * TILES; e++)
      s[e >> 2][e & 3] *= times[8 * (e >> 2) + 2 * (threadIdx.x & 3) + (e & 1)];
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < TILES; g++) sum += s[g][2 * r] + s[g][2 * r + 1];
    state.l[r] = state.l[r] * alpha[r] + sum;
  }
}

/* Older sums times the factors of their rows. */
template <int TILES>
DIL_INLINE void scale_sums(const float (&alpha)[2], float (&o)[TILES][4]) {
  if (!__any_sync(0xffffffffu, alpha[0] != 1 || alpha[1] != 1)) return;
#pragma unroll
  for (int e = 0; e < 4 * TILES; e++) o[e >> 2][e & 3] *= alpha[e >> 1 & 1];
}

/* Pairs whose bits are 0 do not count. */
template <int TILES>
DIL_INLINE void hide_pairs(unsigned bits, float (&s)[TILES][4]) {
#pragma unroll
  for (int e = 0; e < 4 * TILES; e++)
    if (!(bits >> e & 1)) s[e >> 2][e & 3] = DIL_NONE;
}

/* The weights that the thread's two rows give a key, whichever lane has them. */
template <int TILES>
DIL_INLINE void weights_of_key(int key, const float (&w)[TILES][4],
                               float &first, float &second) {
  unsigned x = 0, y = 0; /* the weights of the key, in this lane or not */
#pragma unroll
  for (int g = 0; g < TILES; g++) {
    unsigned here = key >> 3 == g ? 0xffffffffu : 0;
    x |= here & __float_as_uint(key & 1 ? w[g][1] : w[g][0]);
    y |= here & __float_as_uint(key & 1 ? w[g][3] : w[g][2]);
  }
  int owner = (threadIdx.x & 28) | (key >> 1 & 3);
  first = __uint_as_float(__shfl_sync(0xffffffffu, x, owner));
  second = __uint_as_float(__shfl_sync(0xffffffffu, y, owner));
}

#endif
