/* choose_products.cuh - estimates by matrix products: each row of a block of queries
 * meets the means of key blocks. In: rows of queries, means in rows of MEAN_DEPTH
 * numbers. Out: for each block of queries the largest estimate.
 *
 * A mean is the sum of parts that matrix units take, and their products are summed in
 * f32, the small ones first. A warp takes 16 key blocks by all rows; where a sum is not
 * finite it begins again without products, since infinity has no such parts. choose.cuh
 * includes this file behind its loads. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H

#if CHOICES_EACH && ELEMENT
enum {
  WARP_KEYS = 16,
  ROW_TILES = DIL_CHOOSE_TALL / 8,
  ROWS_AHEAD = 4 /* such tiles whose products alternate */
};

/* Rows in shared memory, elements as they are. */
DIL_INLINE element *tall_row(int n) {
  return (element *)CHOOSING.query + n * QUERY_PITCH;
}

/* Rows `from` and those behind it of a strip that begins with block `first`: 16 bytes
 * of a row a lane. Loads of all its rows are started together. */
DIL_INLINE void load_tall_rows(const dil_choose_params &p, const dil_choice_row &c,
                               int b, int h, int first, int from) {
  enum { APART = CHOOSE_WARPS * MEAN_ROWS, TURNS = (DIL_CHOOSE_TALL + APART - 1) / APART };
  int per = rows_of_block(c), lane = threadIdx.x & 31;
  int own = threadIdx.x / 32 * MEAN_ROWS + lane / MEAN_LANES;
  const element *source[TURNS];
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    int n = own + i * APART, row = from + n, block = row / per;
    choose_place at = place_of(p, c, b, first + block);
    int t = at.bi * c.query_block + row % per;
    bool there = block < p.strip && at.bi < p.queries && t >= at.first &&
                 t <= at.last;
    source[i] = there ? query_at(p.of, c, at, t, h) : nullptr;
    if (n < DIL_CHOOSE_TALL && lane % MEAN_LANES == 0) CHOOSING.there[n] = there;
  }
#pragma unroll
  for (int k = 0; k < MEAN_SLOTS; k++) {
    int unit = lane % MEAN_LANES + 32 * k;
    uint4 x[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++)
      x[i] = load_unit(source[i], unit, p.of.flags & DIL_WHOLE_Q);
#pragma unroll
    for (int i = 0; i < TURNS; i++)
      if (unit < MEAN_UNITS && own + i * APART < DIL_CHOOSE_TALL)
        *(uint4 *)(tall_row(own + i * APART) + unit * MEAN_UNIT) = x[i];
  }
}

/* Of lane 4 g + c: key blocks g and 8 more, rows 8 n + 2 c and 1 more. */
typedef float product_sums[ROW_TILES][4];

/* A lane brings these parts of the means for sixteen numbers; the parts add up to the
 * means. The order of numbers is free: a lane has numbers 4 c to 4 c + 3 of a row. */
#if ELEMENT == 1

/* Three bf16, of 24 bits. */
struct mean_parts {
  unsigned part[3][4];
};

DIL_INLINE void split_pair(float x, float y, mean_parts &m, int at) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    unsigned two = pack_bf16(x, y);
    m.part[i][at] = two;
    x = __fsub_rn(x, __uint_as_float(two << 16));
    y = __fsub_rn(y, __uint_as_float(two & 0xffff0000u));
  }
}
DIL_INLINE void split_four(float4 x, mean_parts &m, int half) {
  split_pair(x.x, x.y, m, half);
  split_pair(x.z, x.w, m, half + 2);
}

DIL_INLINE void multiply_parts(float (*sum)[4], const mean_parts &m,
                               const uint2 (&q)[ROWS_AHEAD]) {
#pragma unroll
  for (int i = 2; i >= 0; i--)
#pragma unroll
    for (int n = 0; n < ROWS_AHEAD; n++)
      multiply_bf16(sum[n], m.part[i], q[n].x, q[n].y);
}

#else

/* Two tf32, of 22 bits, for two steps of eight numbers: slots c and c + 4 of a step s
 * are numbers 4 c + 2 s and 4 c + 2 s + 1. An f16 is a tf32 as it is. */
struct mean_parts {
  unsigned high[2][4], low[2][4];
};

DIL_INLINE void split_mean(float x, unsigned &high, unsigned &low) {
  high = round_tf32(__float_as_uint(x));
  low = round_tf32(__float_as_uint(__fsub_rn(x, __uint_as_float(high))));
}
DIL_INLINE void split_four(float4 x, mean_parts &m, int half) {
  split_mean(x.x, m.high[0][half], m.low[0][half]);
  split_mean(x.y, m.high[0][half + 2], m.low[0][half + 2]);
  split_mean(x.z, m.high[1][half], m.low[1][half]);
  split_mean(x.w, m.high[1][half + 2], m.low[1][half + 2]);
}

DIL_INLINE void multiply_parts(float (*sum)[4], const mean_parts &m,
                               const uint2 (&q)[ROWS_AHEAD]) {
#pragma unroll
  for (int step = 0; step < 2; step++)
#pragma unroll
    for (int i = 1; i >= 0; i--)
#pragma unroll
      for (int n = 0; n < ROWS_AHEAD; n++) {
        unsigned two = step ? q[n].y : q[n].x;
        multiply_tf32(sum[n], i ? m.low[step] : m.high[step],
                      __float_as_uint(widen((element)two)),
                      __float_as_uint(widen((element)(two >> 16))));
      }
}

#endif

/* `row`: the lane's numbers of the mean of its first key block. */
DIL_INLINE mean_parts load_means(const float *row) {
  mean_parts m;
#pragma unroll
  for (int half = 0; half < 2; half++)
    split_four(*(const float4 *)(row + half * 8 * MEAN_DEPTH), m, half);
  return m;
}

/* Products of several rows stand between two that add to the same sums. */
DIL_INLINE void multiply_means(const float *means, int bj, product_sums &sum) {
  int lane = threadIdx.x & 31;
  const float *mean = means + (long long)(bj + lane / 4) * MEAN_DEPTH + lane % 4 * 4;
  const element *row = tall_row(lane / 4) + lane % 4 * 4;
#pragma unroll
  for (int e = 0; e < ROW_TILES * 4; e++) sum[e / 4][e % 4] = 0;
#pragma unroll 1
  for (int depth = 0; depth < MEAN_DEPTH; depth += 16, mean += 16, row += 16) {
    mean_parts m = load_means(mean);
#pragma unroll
    for (int n = 0; n < ROW_TILES; n += ROWS_AHEAD) {
      uint2 q[ROWS_AHEAD];
#pragma unroll
      for (int k = 0; k < ROWS_AHEAD; k++)
        q[k] = *(const uint2 *)(row + 8 * (n + k) * QUERY_PITCH);
      multiply_parts(sum + n, m, q);
    }
  }
}

DIL_INLINE bool are_finite(const product_sums &sum) {
  bool finite = true;
#pragma unroll
  for (int e = 0; e < ROW_TILES * 4; e++)
    finite &= fabsf(sum[e / 4][e % 4]) <= 3.402823466e38f;
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

/* Which of a lane's rows exist, a bit each: 8 n + 2 c and 1 more. */
DIL_INLINE unsigned own_rows() {
  unsigned there = 0;
#pragma unroll
  for (int n = 0; n < ROW_TILES; n++) {
    unsigned two =
        *(const unsigned short *)&CHOOSING.there[8 * n + (threadIdx.x & 3) * 2];
    there |= ((two & 1) | (two >> 7 & 2)) << 2 * n;
  }
  return there;
}

/* The row's estimate; NaN, which adds nothing, where the row does not exist. */
DIL_INLINE float estimate_of_row(const dil_choose_params &p, unsigned there, int n,
                                 float sum) {
  return there >> n & 1 ? __fmul_rn(p.of.scale, sum) : not_a_number();
}

/* The largest of four lanes goes to the estimate of a block of queries. */
DIL_INLINE void raise_estimate(const dil_choose_params &p, int bj, float best,
                               float *estimate) {
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
  if ((threadIdx.x & 3) == 0 && bj < p.keys)
    estimate[bj] = fmaxf(estimate[bj], best);
}

/* Estimates of rows that are blocks of one query, as they stand. */
DIL_INLINE void store_rows(const dil_choose_params &p, unsigned there, int first_key,
                           const product_sums &sum, float *estimate) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int bj = first_key + 8 * e + lane / 4;
    if (bj >= p.keys) continue;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float *two = sum[n] + e * 2;
      float *to = estimate + (long long)(8 * n + lane % 4 * 2) * p.width + bj;
      to[0] = estimate_of_row(p, there, 2 * n, two[0]);
      to[p.width] = estimate_of_row(p, there, 2 * n + 1, two[1]);
    }
  }
}

/* Other blocks end where eight rows do: `block` is that of the first row, and ends
 * after `rows` of them. */
DIL_INLINE void store_blocks(const dil_choose_params &p, unsigned there, int per,
                             int block, int rows, int first_key,
                             const product_sums &sum, float *estimate) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int bj = first_key + 8 * e + (threadIdx.x & 31) / 4, at = block, left = rows;
    float best = not_a_number();
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
      const float *two = sum[n] + e * 2;
      best = fmaxf(best, estimate_of_row(p, there, 2 * n, two[0]));
      best = fmaxf(best, estimate_of_row(p, there, 2 * n + 1, two[1]));
      left -= 8;
      if (left && n + 1 < ROW_TILES) continue;
      if (at < p.strip)
        raise_estimate(p, bj, best, estimate + (long long)at * p.width);
      best = not_a_number();
      left = per;
      at++;
    }
  }
}

DIL_INLINE void meet_by_products(const dil_choose_params &p,
                                 const dil_choice_row &c, const float *means,
                                 int first, int from, float *estimate) {
  int per = rows_of_block(c), block = from / per;
  unsigned there = own_rows();
#pragma unroll 1
  for (int bj = threadIdx.x / 32 * WARP_KEYS; bj < p.keys;
       bj += CHOOSE_WARPS * WARP_KEYS) {
    product_sums sum;
    if (window_misses(c, first, from, bj, bj + WARP_KEYS - 1)) continue;
    multiply_means(means, bj, sum);
    if (are_finite(sum)) {
      if (per == 1) store_rows(p, there, bj, sum, estimate);
      else
        store_blocks(p, there, per, block, (block + 1) * per - from, bj, sum, estimate);
      continue;
    }
    int lane = threadIdx.x & 31, own = bj + lane;
    if (lane < WARP_KEYS && own < p.keys)
      meet_plainly(p, means + (long long)own * MEAN_DEPTH, per, from,
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
