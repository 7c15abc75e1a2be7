/* choose_products.cuh - estimates by matrix products: each row of a block of queries
 * meets the means of key blocks. In: rows of queries, means in rows of MEAN_DEPTH
 * numbers. Out: for each block of queries the largest estimate.
 *
 * An element of 16 bits is a tf32 as it is. A mean is the sum of two, to 22 bits,
 * and their products are summed in f32, the small ones first. A warp takes 16 key
 * blocks by all rows; where a sum is not finite it begins again without products,
 * since infinity has no such parts. choose.cuh includes this file behind its loads. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H

#if CHOICES_EACH && ELEMENT
enum {
  KEY_TILES = 1, /* of 16 key blocks */
  ROW_TILES = DIL_CHOOSE_TALL / 8,
  WARP_KEYS = 16 * KEY_TILES
};

/* Rows in shared memory, elements as they are. */
DIL_INLINE element *tall_row(int n) {
  return (element *)CHOOSING.query + n * QUERY_PITCH;
}

/* Rows `from` and those behind it of a strip that begins with block `first`. */
DIL_INLINE void load_tall_rows(const dil_choose_params &p, const dil_choice_row &c,
                               int b, int h, int first, int from) {
  int per = rows_of_block(c), lane = threadIdx.x & 31;
#pragma unroll 1
  for (int n = threadIdx.x / 32; n < DIL_CHOOSE_TALL; n += CHOOSE_WARPS) {
    int row = from + n, block = row / per;
    choose_place at = place_of(p, c, b, first + block);
    int t = at.bi * c.query_block + row % per;
    bool there = block < p.strip && at.bi < p.queries && t >= at.first &&
                 t <= at.last;
    const element *source = there ? query_at(p.of, c, at, t, h) : nullptr;
#pragma unroll 4
    for (int d = lane; d < MEAN_DEPTH; d += 32)
      tall_row(n)[d] = there && d < HEAD_DIM ? source[d] : (element)0;
    if (lane == 0) CHOOSING.there[n] = there;
  }
}

/* Of lane 4 g + c: key blocks 16 t + g and 8 more, rows 8 n + 2 c and 1 more. */
typedef float product_sums[KEY_TILES][ROW_TILES][4];

/* The two tf32 of the means that a lane brings, for two steps of eight numbers. The
 * order of numbers is free: slots c and c + 4 of a step s are numbers 4 c + 2 s and
 * 4 c + 2 s + 1 of sixteen. */
struct mean_parts {
  unsigned high[2][4], low[2][4];
};

DIL_INLINE void split_mean(float x, unsigned &high, unsigned &low) {
  high = round_tf32(__float_as_uint(x));
  low = round_tf32(__float_as_uint(__fsub_rn(x, __uint_as_float(high))));
}

DIL_INLINE mean_parts load_means(const float *means, int bj, int depth) {
  int lane = threadIdx.x & 31;
  mean_parts m;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float *row = means + (long long)(bj + 8 * half + lane / 4) * MEAN_DEPTH;
    float4 x = *(const float4 *)(row + depth + lane % 4 * 4);
    split_mean(x.x, m.high[0][half], m.low[0][half]);
    split_mean(x.y, m.high[0][half + 2], m.low[0][half + 2]);
    split_mean(x.z, m.high[1][half], m.low[1][half]);
    split_mean(x.w, m.high[1][half + 2], m.low[1][half + 2]);
  }
  return m;
}

DIL_INLINE void multiply_part(float (&sum)[4], const mean_parts &m, int step,
                              const element *two) {
  unsigned b0 = __float_as_uint(widen(two[0]));
  unsigned b1 = __float_as_uint(widen(two[1]));
  multiply_tf32(sum, m.low[step], b0, b1);
  multiply_tf32(sum, m.high[step], b0, b1);
}

DIL_INLINE void multiply_means(const float *means, int bj, product_sums &sum) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int e = 0; e < KEY_TILES * ROW_TILES * 4; e++)
    sum[e / (4 * ROW_TILES)][e / 4 % ROW_TILES][e % 4] = 0;
#pragma unroll 1
  for (int depth = 0; depth < MEAN_DEPTH; depth += 16) {
    mean_parts m[KEY_TILES];
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++)
      m[t] = load_means(means, bj + 16 * t, depth);
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const element *row = tall_row(8 * n + lane / 4) + depth;
      uint2 q = *(const uint2 *)(row + lane % 4 * 4);
      const element four[4] = {(element)q.x, (element)(q.x >> 16), (element)q.y,
                               (element)(q.y >> 16)};
#pragma unroll
      for (int t = 0; t < KEY_TILES; t++) {
        multiply_part(sum[t][n], m[t], 0, four);
        multiply_part(sum[t][n], m[t], 1, four + 2);
      }
    }
  }
}

DIL_INLINE bool are_finite(const product_sums &sum) {
  bool finite = true;
#pragma unroll
  for (int e = 0; e < KEY_TILES * ROW_TILES * 4; e++)
    finite &= fabsf(sum[e / (4 * ROW_TILES)][e / 4 % ROW_TILES][e % 4]) <=
              3.402823466e38f;
  return __all_sync(0xffffffffu, finite);
}

/* Rows meet a key block one number after the other. */
DIL_INLINE void meet_plainly(const dil_choose_params &p, const float *mean, int per,
                             int from, float *estimate) {
#pragma unroll 1
  for (int n = 0; n < DIL_CHOOSE_TALL; n++) {
    if (!CHOOSING.there[n]) continue;
    float sum = 0, *to = estimate + (long long)((from + n) / per) * p.width;
#pragma unroll 1
    for (int d = 0; d < MEAN_DEPTH; d++)
      sum = fmaf(widen(tall_row(n)[d]), mean[d], sum);
    *to = fmaxf(*to, __fmul_rn(p.of.scale, sum));
  }
}

/* The row's estimate; NaN, which adds nothing, where the row does not exist. */
DIL_INLINE float estimate_of_row(const dil_choose_params &p, int n, float sum) {
  return CHOOSING.there[n] ? __fmul_rn(p.of.scale, sum) : not_a_number();
}

/* The largest of four lanes goes to the estimate of a block of queries. */
DIL_INLINE void raise_estimate(const dil_choose_params &p, int bj, float best,
                               float *estimate) {
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
  if ((threadIdx.x & 3) == 0 && bj < p.keys)
    estimate[bj] = fmaxf(estimate[bj], best);
}

/* Rows of blocks of one query are estimates as they stand; other blocks end where
 * eight rows do. */
DIL_INLINE void store_products(const dil_choose_params &p, const dil_choice_row &c,
                               int from, int first_key, const product_sums &sum,
                               float *estimate) {
  int per = rows_of_block(c), end_row = p.strip * per;
  int lane = threadIdx.x & 31, row = lane % 4 * 2;
#pragma unroll
  for (int e = 0; e < KEY_TILES * 2; e++) {
    int bj = first_key + 8 * e + lane / 4;
    float best = not_a_number();
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float *two = sum[e / 2][n] + e % 2 * 2;
      float x = estimate_of_row(p, 8 * n + row, two[0]);
      float y = estimate_of_row(p, 8 * n + row + 1, two[1]);
      int end = from + 8 * n + 8;
      if (per == 1) {
        float *to = estimate + (long long)(8 * n + row) * p.width + bj;
        if (bj < p.keys) to[0] = x, to[p.width] = y;
        continue;
      }
      best = fmaxf(best, fmaxf(x, y));
      if ((end % per && n + 1 < ROW_TILES) || end > end_row) continue;
      raise_estimate(p, bj, best,
                     estimate + (long long)((end - 1) / per) * p.width);
      best = not_a_number();
    }
  }
}

DIL_INLINE void meet_by_products(const dil_choose_params &p,
                                 const dil_choice_row &c, const float *means,
                                 int first, int from, float *estimate) {
#pragma unroll 1
  for (int bj = threadIdx.x / 32 * WARP_KEYS; bj < p.keys;
       bj += CHOOSE_WARPS * WARP_KEYS) {
    product_sums sum;
    if (window_misses(c, first, from, bj, bj + WARP_KEYS - 1)) continue;
    multiply_means(means, bj, sum);
    if (are_finite(sum)) {
      store_products(p, c, from, bj, sum, estimate);
      continue;
    }
    int lane = threadIdx.x & 31, own = bj + lane;
    if (lane < WARP_KEYS && own < p.keys)
      meet_plainly(p, means + (long long)own * MEAN_DEPTH, rows_of_block(c), from,
                   estimate + own);
  }
}

#else /* never called: is_tall */

DIL_INLINE void load_tall_rows(const dil_choose_params &, const dil_choice_row &,
                               int, int, int, int) {}
DIL_INLINE void meet_by_products(const dil_choose_params &, const dil_choice_row &,
                                 const float *, int, int, float *) {}

#endif
#endif
