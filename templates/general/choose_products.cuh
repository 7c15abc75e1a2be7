/* choose_products.cuh - estimates by matrix products: each row of a block of queries,
 * or the mean of a block, meets the means of key blocks. In: such rows, means in rows of
 * MEAN_DEPTH numbers. Out: for each block of queries the largest estimate.
 *
 * A mean is the sum of parts that matrix units take, and their products are summed in
 * f32, the small ones first. A warp takes 16 key blocks by all rows; where a sum is not
 * finite it begins again without products, since infinity has no such parts. choose.cuh
 * includes this file behind its loads. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_PRODUCTS_H

/* Whether no block of queries goes on behind the rows that meet key blocks at once, so
 * that its estimates are stored, all of them; else they become the largest so far. */
DIL_INLINE bool stores_all(const dil_choice_row &c) {
  return has_products(c) && DIL_CHOOSE_TALL % rows_of_block(c) == 0;
}

#if CHOICES_MEANS || (CHOICES_EACH && ELEMENT)
enum {
  WARP_KEYS = 16,
  TALL_TILES = DIL_CHOOSE_TALL / 8, /* of 8 rows */
  STRIP_TILES = DIL_CHOOSE_STRIP / 8
};

/* Rows in shared memory: elements as they are, or a part of a mean. */
DIL_INLINE unsigned short *tall_row(int n) {
  return (unsigned short *)CHOOSING.query + n * QUERY_PITCH;
}

/* ---- parts of means ---------------------------------------------------------- */

/* Three bf16, of 24 bits, of two numbers each. */
DIL_INLINE void split_pair(float x, float y, unsigned (&part)[3]) {
#pragma unroll
  for (int i = 0; i < 3; i++) {
    part[i] = pack_bf16(x, y);
    x = __fsub_rn(x, __uint_as_float(part[i] << 16));
    y = __fsub_rn(y, __uint_as_float(part[i] & 0xffff0000u));
  }
}
static_assert(DIL_CHOOSE_PARTS == 3, "a mean of queries has other parts");

/* A lane brings these parts of the means of key blocks for sixteen numbers; the parts
 * add up to the means. The order of numbers is free: a lane has numbers 4 c to 4 c + 3
 * of a row. */
struct bf16_parts {
  unsigned part[3][4];
};

DIL_INLINE void split_four(float4 x, bf16_parts &m, int half) {
  unsigned low[3], high[3];
  split_pair(x.x, x.y, low);
  split_pair(x.z, x.w, high);
#pragma unroll
  for (int i = 0; i < 3; i++) m.part[i][half] = low[i], m.part[i][half + 2] = high[i];
}

/* Rows of one part, or of as many as means: products below 2^-24 are left out. */
template <int TILES, int PARTS>
DIL_INLINE void multiply_parts(float (*sum)[4], const bf16_parts &m,
                               const uint2 (&q)[TILES][PARTS]) {
#pragma unroll
  for (int small = 2; small >= 0; small--)
#pragma unroll
    for (int j = 0; j < PARTS && j <= small; j++)
#pragma unroll
      for (int n = 0; n < TILES; n++)
        multiply_bf16(sum[n], m.part[small - j], q[n][j].x, q[n][j].y);
}

/* Two tf32, of 22 bits, for two steps of eight numbers: slots c and c + 4 of a step s
 * are numbers 4 c + 2 s and 4 c + 2 s + 1. An f16 is a tf32 as it is. */
struct tf32_parts {
  unsigned high[2][4], low[2][4];
};

DIL_INLINE void split_mean(float x, unsigned &high, unsigned &low) {
  high = round_tf32(__float_as_uint(x));
  low = round_tf32(__float_as_uint(__fsub_rn(x, __uint_as_float(high))));
}
DIL_INLINE void split_four(float4 x, tf32_parts &m, int half) {
  split_mean(x.x, m.high[0][half], m.low[0][half]);
  split_mean(x.y, m.high[0][half + 2], m.low[0][half + 2]);
  split_mean(x.z, m.high[1][half], m.low[1][half]);
  split_mean(x.w, m.high[1][half + 2], m.low[1][half + 2]);
}

#if ELEMENT == 1
typedef bf16_parts row_parts; /* those that meet rows of queries */
#else
typedef tf32_parts row_parts;
#endif

template <int TILES>
DIL_INLINE void multiply_parts(float (*sum)[4], const tf32_parts &m,
                               const uint2 (&q)[TILES][1]) {
#pragma unroll
  for (int step = 0; step < 2; step++)
#pragma unroll
    for (int i = 1; i >= 0; i--)
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        unsigned two = step ? q[n][0].y : q[n][0].x;
        multiply_tf32(sum[n], i ? m.low[step] : m.high[step],
                      __float_as_uint(dil_from_f16(two)),
                      __float_as_uint(dil_from_f16(two >> 16)));
      }
}

/* The means of a lane's two key blocks, from its own numbers on. */
struct lane_means {
  const float *of[2];
};

/* Of key blocks bj and those behind it. */
DIL_INLINE lane_means means_behind(const float *means, int bj) {
  int lane = threadIdx.x & 31;
  const float *mean = means + (long long)(bj + lane / 4) * MEAN_DEPTH + lane % 4 * 4;
  return {{mean, mean + 8 * MEAN_DEPTH}};
}

DIL_INLINE void load_means(const lane_means &from, int depth, float4 (&mean)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++)
    mean[half] = *(const float4 *)(from.of[half] + depth);
}

/* ---- rows -------------------------------------------------------------------- */

/* Means of the blocks of a strip that begins with block `first`, a part behind the
 * other. Zeros stand where a block has no rows. */
DIL_INLINE void load_mean_rows(const dil_choose_params &p, const dil_choice_row &c,
                               int b, int h, int first) {
  enum { UNITS = MEAN_DEPTH / 4 };
#pragma unroll 4
  for (int e = threadIdx.x; e < p.strip * UNITS; e += DIL_CHOOSE_THREADS) {
    int n = e / UNITS, d = e % UNITS * 4;
    choose_place at = place_of(p, c, b, first + n);
    bool there = at.bi < p.queries && at.first <= at.last;
    float4 x = make_float4(0, 0, 0, 0);
    unsigned low[3], high[3];
    if (there) x = *(const float4 *)(query_mean(p, b, h, at.bi) + d);
    split_pair(x.x, x.y, low);
    split_pair(x.z, x.w, high);
#pragma unroll
    for (int j = 0; j < 3; j++) {
      uint2 four = {low[j], high[j]};
      *(uint2 *)(tall_row(j * p.strip + n) + d) = four;
    }
    if (d == 0) CHOOSING.there[n] = there;
  }
}

/* Rows `from` and those behind it of a strip of `blocks` that begins with block `first`:
 * 16 bytes of a row a lane. Loads of all its rows are started together. They become rows
 * `to` and those behind it; at(n, unit) is where they stand. */
template <class At>
DIL_INLINE void load_tall_rows(const dil_choose_params &p, const dil_choice_row &c,
                               int b, int h, int first, int blocks, int from, int to,
                               At at) {
  enum { APART = DIL_CHOOSE_WARPS * MEAN_ROWS, TURNS = (DIL_CHOOSE_TALL - 1) / APART + 1 };
  int per = rows_of_block(c), lane = threadIdx.x & 31;
  int own = threadIdx.x / 32 * MEAN_ROWS + lane / MEAN_LANES;
  const element *source[TURNS];
#pragma unroll
  for (int i = 0; i < TURNS; i++) {
    int n = own + i * APART, row = from + n, block = row / per;
    choose_place place = place_of(p, c, b, first + block);
    int t = place.bi * c.query_block + row % per;
    bool there = block < blocks && place.bi < p.queries && t >= place.first &&
                 t <= place.last;
    source[i] = there ? query_at(p.of, c, place, t, h) : nullptr;
    if (n < DIL_CHOOSE_TALL && lane % MEAN_LANES == 0) CHOOSING.there[to + n] = there;
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
        *(uint4 *)at(to + own + i * APART, unit) = x[i];
  }
}

/* ---- products ---------------------------------------------------------------- */

template <int TILES> DIL_INLINE void clear_sums(float (&sum)[TILES][4]) {
#pragma unroll
  for (int e = 0; e < TILES * 4; e++) sum[e / 4][e % 4] = 0;
}

/* Adds the products of 16 numbers. The lane's numbers of rows lane / 4 and 8 n more begin
 * at `row`, those of other parts behind them, and rows stand `pitch` apart. Products of
 * AHEAD tiles stand between two that add to the same sums. */
template <int PARTS, int AHEAD, class parts, int TILES>
DIL_INLINE void multiply_step(const parts &m, const unsigned short *row, int pitch,
                              float (&sum)[TILES][4]) {
#pragma unroll
  for (int n = 0; n < TILES; n += AHEAD) {
    uint2 q[AHEAD][PARTS];
#pragma unroll
    for (int k = 0; k < AHEAD * PARTS; k++)
      q[k / PARTS][k % PARTS] =
          *(const uint2 *)(row + 8 * (k % PARTS * TILES + n + k / PARTS) * pitch);
    multiply_parts(sum + n, m, q);
  }
}

enum { MEANS_AHEAD = MEAN_DEPTH % 32 == 0 ? 2 : 1 }; /* steps, which divide all */

/* The products of all numbers of such rows; from step to step they lie `further`. Means
 * are read READS_AHEAD steps ahead: registers that moved on would wait for their loads.
 * Of lane 4 g + c: key blocks g and 8 more, rows 8 n + 2 c and 1 more. */
template <class parts, int PARTS, int AHEAD, int READS_AHEAD, int TILES>
DIL_INLINE void multiply_means(const lane_means &means, const unsigned short *row,
                               int further, int pitch, float (&sum)[TILES][4]) {
  enum { TURNS = READS_AHEAD ? READS_AHEAD : 1 };
  float4 next[TURNS][2];
  clear_sums(sum);
#pragma unroll
  for (int k = 0; k < READS_AHEAD; k++) load_means(means, 16 * k, next[k]);
#pragma unroll 1
  for (int from = 0; from < MEAN_DEPTH; from += 16 * TURNS)
#pragma unroll
    for (int k = 0; k < TURNS; k++, row += further) {
      int depth = from + 16 * k, later = depth + 16 * READS_AHEAD;
      parts m;
      if (!READS_AHEAD) load_means(means, depth, next[k]);
      split_four(next[k][0], m, 0);
      split_four(next[k][1], m, 1);
      if (READS_AHEAD && later < MEAN_DEPTH) load_means(means, later, next[k]);
      multiply_step<PARTS, AHEAD>(m, row, pitch, sum);
    }
}

template <int TILES> DIL_INLINE bool are_finite(const float (&sum)[TILES][4]) {
  bool finite = true;
#pragma unroll
  for (int e = 0; e < TILES * 4; e++)
    finite &= fabsf(sum[e / 4][e % 4]) <= 3.402823466e38f;
  return __all_sync(0xffffffffu, finite);
}

/* A strip's rows that meet key blocks: those from `from` on. `per` rows are a block of
 * queries. */
struct tall_rows {
  int b, h, first, from, per;
};

/* Number d of row n. */
DIL_INLINE float row_number(const dil_choose_params &p, const dil_choice_row &c,
                            const tall_rows &r, int n, int d) {
  if (has_query_means(c)) return query_mean(p, r.b, r.h, r.first + n)[d];
  return widen((element)tall_row(n)[d]);
}

/* Rows meet a key block one number after the other. */
DIL_INLINE void meet_plainly(const dil_choose_params &p, const dil_choice_row &c,
                             const tall_rows &r, const float *mean, float *estimate) {
#pragma unroll 1
  for (int n = 0; n < rows_at_once(p, c); n++) {
    float sum = 0, *to = estimate + (long long)((r.from + n) / r.per) * p.width;
    float before = stores_all(c) && n % r.per == 0 ? not_a_number() : *to;
#pragma unroll 1
    for (int d = 0; d < MEAN_DEPTH && CHOOSING.there[n]; d++)
      sum = fmaf(row_number(p, c, r, n, d), mean[d], sum);
    *to = CHOOSING.there[n] ? fmaxf(before, __fmul_rn(p.of.scale, sum)) : before;
  }
}

/* Which of a lane's rows exist, a bit each: 8 n + 2 c and 1 more behind row `first`. */
template <int TILES> DIL_INLINE unsigned own_rows(int first) {
  const bool *own = CHOOSING.there + first + (threadIdx.x & 3) * 2;
  unsigned there = 0;
#pragma unroll
  for (int n = 0; n < TILES; n++) {
    unsigned two = *(const unsigned short *)(own + 8 * n);
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
DIL_INLINE void raise_estimate(const dil_choose_params &p, const dil_choice_row &c,
                               int bj, float best, float *estimate) {
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
  if ((threadIdx.x & 3) != 0 || bj >= p.keys) return;
  estimate[bj] = stores_all(c) ? best : fmaxf(estimate[bj], best);
}

/* Estimates of rows that are blocks of queries, as they stand. */
template <int TILES>
DIL_INLINE void store_rows(const dil_choose_params &p, unsigned there, int first_key,
                           const float (&sum)[TILES][4], float *estimate) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int bj = first_key + 8 * e + lane / 4;
    if (bj >= p.keys) continue;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      const float *two = sum[n] + e * 2;
      float *to = estimate + (long long)(8 * n + lane % 4 * 2) * p.width + bj;
      to[0] = estimate_of_row(p, there, 2 * n, two[0]);
      to[p.width] = estimate_of_row(p, there, 2 * n + 1, two[1]);
    }
  }
}

/* The largest estimate of eight rows, of which a lane has two. Where all exist, one
 * number is scaled: rounding keeps the order. */
DIL_INLINE float largest_of_tile(const dil_choose_params &p, unsigned there, int n,
                                 const float *two, bool whole) {
  if (whole) return fmaxf(two[0], two[1]);
  return fmaxf(estimate_of_row(p, there, 2 * n, two[0]),
               estimate_of_row(p, there, 2 * n + 1, two[1]));
}

/* Other blocks end where eight rows do: `block` is that of the first row, and ends
 * after `rows` of them. */
template <int TILES>
DIL_INLINE void store_blocks(const dil_choose_params &p, const dil_choice_row &c,
                             unsigned there, int block, int rows, int first_key,
                             const float (&sum)[TILES][4], float *estimate) {
  bool whole = there == 0xffffffffu >> (32 - 2 * TILES) && p.of.scale >= 0;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int bj = first_key + 8 * e + (threadIdx.x & 31) / 4, at = block, left = rows;
    float best = not_a_number();
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      best = fmaxf(best, largest_of_tile(p, there, n, sum[n] + e * 2, whole));
      left -= 8;
      if (left && n + 1 < TILES) continue;
      if (whole) best = __fmul_rn(p.of.scale, best);
      if (at < p.strip)
        raise_estimate(p, c, bj, best, estimate + (long long)at * p.width);
      best = not_a_number();
      left = rows_of_block(c);
      at++;
    }
  }
}

template <class parts, int TILES, int PARTS>
DIL_INLINE void meet_by_products(const dil_choose_params &p, const dil_choice_row &c,
                                 const tall_rows &r, const float *means,
                                 float *estimate) {
  enum {
    AHEAD = PARTS == 1 ? 4 : 2, /* tiles */
    READS_AHEAD = TILES < TALL_TILES ? MEANS_AHEAD : 0 /* where registers are left */
  };
  int block = r.from / r.per, last = (r.from + rows_at_once(p, c) - 1) / r.per;
  int rows = stores_all(c) ? r.per : (block + 1) * r.per - r.from;
  unsigned there = own_rows<TILES>(0);
  const unsigned short *row = tall_row((threadIdx.x & 31) / 4) + threadIdx.x % 4 * 4;
#pragma unroll 1
  for (int bj = threadIdx.x / 32 * WARP_KEYS; bj < p.keys;
       bj += DIL_CHOOSE_WARPS * WARP_KEYS) {
    float sum[TILES][4];
    bool missed = window_misses(c, r.first + block, r.first + last, bj,
                                bj + WARP_KEYS - 1);
    if (missed && !stores_all(c)) continue;
    if (!missed)
      multiply_means<parts, PARTS, AHEAD, READS_AHEAD>(means_behind(means, bj), row, 16,
                                                       QUERY_PITCH, sum);
    if (missed || are_finite(sum)) {
      unsigned any = missed ? 0 : there;
      if (r.per == 1) store_rows(p, any, bj, sum, estimate);
      else store_blocks(p, c, any, block, rows, bj, sum, estimate);
      continue;
    }
    int lane = threadIdx.x & 31, own = bj + lane;
    if (lane < WARP_KEYS && own < p.keys)
      meet_plainly(p, c, r, means + (long long)own * MEAN_DEPTH, estimate + own);
  }
}

/* Rows `from` and those behind it of a strip that begins with block `first` meet the
 * means of all key blocks. The whole thread block comes here. */
DIL_INLINE void estimate_by_products(const dil_choose_params &p,
                                     const dil_choice_row &c, int b, int h,
                                     const float *means, int first, int from,
                                     float *estimate) {
  tall_rows r = {b, h, first, from, rows_of_block(c)};
#if CHOICES_EACH && ELEMENT
  if (is_tall(c)) {
    load_tall_rows(p, c, b, h, first, p.strip, from, 0, [](int n, int unit) {
      return tall_row(n) + unit * MEAN_UNIT;
    });
    __syncthreads();
    meet_by_products<row_parts, TALL_TILES, 1>(p, c, r, means, estimate);
  }
#endif
#if CHOICES_MEANS
  if (!has_query_means(c)) return;
  load_mean_rows(p, c, b, h, first);
  __syncthreads();
  if (p.strip == DIL_CHOOSE_STRIP)
    meet_by_products<bf16_parts, STRIP_TILES, 3>(p, c, r, means, estimate);
  else meet_by_products<bf16_parts, STRIP_TILES / 2, 3>(p, c, r, means, estimate);
#endif
}

#else /* never called: has_products */

DIL_INLINE void estimate_by_products(const dil_choose_params &, const dil_choice_row &,
                                     int, int, const float *, int, int, float *) {}

#endif
#endif
