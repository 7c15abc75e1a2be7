/* choose_coarse.cuh - estimates of each row with means that are rounded to elements. In:
 * a strip of query blocks, whose rows go to shared memory together. Out: coarse
 * estimates, of which choose_near.cuh makes some again with whole means; and the length
 * of the longest row of each block. A warp holds the means of some key blocks in
 * registers, and all rows walk by. choose_estimates.cuh includes this file. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_H

#if COARSE
enum {
  COARSE_STEPS = MEAN_DEPTH / 16,
  COARSE_SETS = MEAN_DEPTH <= 128 ? 2 : 1, /* of 16 key blocks, which a warp holds */
  COARSE_KEYS = COARSE_SETS * WARP_KEYS,
  COARSE_TILES = MEAN_DEPTH <= 64 ? 4 : 2 /* of 8 rows, whose products alternate */
};

/* ---- rows -------------------------------------------------------------------- */

/* Zeros stand behind rows, up to so many. */
DIL_INLINE int whole_rows(int rows) {
  return (rows + DIL_CHOOSE_TALL - 1) / DIL_CHOOSE_TALL * DIL_CHOOSE_TALL;
}

/* Some blocks of queries of a head: a strip, or its part that exists. */
struct coarse_place {
  int b, h, first, blocks, rows;
};

/* All rows are on their way at once. */
DIL_INLINE void copy_rows(const dil_choose_params &p, const dil_choice_row &c,
                          const coarse_place &s) {
  int lane = threadIdx.x & 31, t0 = s.first * c.query_block;
  choose_place at = {s.b, 0, 0, 0, batch_keys(p.of, s.b)};
  int low = dil_max(at.M - p.of.N, 0), end = dil_min(at.M, t0 + s.rows);
  int own = threadIdx.x / 32 * MEAN_ROWS + lane / MEAN_LANES;
  long long apart = DIL_CHOOSE_WARPS * MEAN_ROWS * p.of.q_stride[1];
  const element *row = nullptr;
  if (!has_cells(c)) row = query_at(p.of, c, at, t0 + own, s.h);
#pragma unroll 4
  for (int n = own; n < whole_rows(s.rows);
       n += DIL_CHOOSE_WARPS * MEAN_ROWS, row += apart) {
    int t = t0 + n;
    bool there = t >= low && t < end;
    if (has_cells(c) && there) row = query_at(p.of, c, at, t, s.h);
    if (lane % MEAN_LANES == 0) CHOOSING.there[n] = there;
#pragma unroll
    for (int unit = lane % MEAN_LANES; unit < MEAN_UNITS; unit += 32) {
      bool inside = there && unit * MEAN_UNIT < HEAD_DIM;
      copy_16(shared_address(tall_row(n) + unit * MEAN_UNIT),
              inside ? row + unit * MEAN_UNIT : (const element *)p.of.q, inside);
    }
  }
  copy_commit();
  copy_wait<0>();
}

/* Rows meet themselves, 16 a warp: the square of the length of each block's longest row.
 * Bits of numbers that are not negative have their order, and those of NaN are
 * greater. */
DIL_INLINE void find_reach(const coarse_place &s, int per) {
  int lane = threadIdx.x & 31, g = lane / 4;
#pragma unroll 1
  for (int from = threadIdx.x / 32 * 16; from < s.rows; from += DIL_CHOOSE_WARPS * 16) {
    float sum[2][4] = {};
    const unsigned short *row = tall_row(from + g) + lane % 4 * 4;
#pragma unroll
    for (int depth = 0; depth < MEAN_DEPTH; depth += 16) {
      uint2 one = *(const uint2 *)(row + depth);
      uint2 other = *(const uint2 *)(row + 8 * QUERY_PITCH + depth);
      unsigned both[4] = {one.x, other.x, one.y, other.y};
      multiply_16(sum[0], both, one.x, one.y);
      multiply_16(sum[1], both, other.x, other.y);
    }
    if (lane % 4 != g / 2) continue; /* others have products of two rows */
    float square[2] = {g % 2 ? sum[0][1] : sum[0][0], g % 2 ? sum[1][3] : sum[1][2]};
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (from + g + 8 * k < s.rows)
        atomicMax(&CHOOSING.reach[(from + g + 8 * k) / per],
                  __float_as_uint(fabsf(square[k])));
  }
}

/* Returns whether all rows of the strip exist. */
DIL_INLINE bool load_coarse_rows(const dil_choose_params &p, const dil_choice_row &c,
                                 const coarse_place &s) {
  int missing = 0;
  if (threadIdx.x < DIL_CHOOSE_STRIP) CHOOSING.reach[threadIdx.x] = 0;
  if (p.of.flags & DIL_WHOLE_Q) copy_rows(p, c, s);
  else
#pragma unroll 1
    for (int from = 0; from < s.rows; from += DIL_CHOOSE_TALL)
      load_tall_rows(p, c, s.b, s.h, s.first, s.blocks, from, from);
  __syncthreads();
  find_reach(s, rows_of_block(c));
  for (int n = threadIdx.x; n < s.rows; n += DIL_CHOOSE_THREADS)
    missing += !CHOOSING.there[n];
  return block_sum(missing) == 0;
}

/* ---- products ---------------------------------------------------------------- */

/* Means of key blocks as matrix units take them, in the order of bf16_parts. */
struct coarse_means {
  unsigned of[COARSE_SETS][COARSE_STEPS][4];
};

DIL_INLINE void load_coarse_means(const unsigned short *means, coarse_means &m) {
  const uint4 *own = (const uint4 *)means + (threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < COARSE_SETS * COARSE_STEPS; k++) {
    uint4 x = own[32 * k];
    unsigned(&to)[4] = m.of[k / COARSE_STEPS][k % COARSE_STEPS];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
}

typedef float coarse_sums[COARSE_SETS][COARSE_TILES][4];

/* Rows `from` and those behind it meet the key blocks of the warp. */
DIL_INLINE void multiply_coarse(const coarse_means &m, int from, coarse_sums &sum) {
  int lane = threadIdx.x & 31;
  const unsigned short *row = tall_row(from + lane / 4) + lane % 4 * 4;
#pragma unroll
  for (int e = 0; e < COARSE_SETS * COARSE_TILES * 4; e++)
    sum[e / 4 / COARSE_TILES][e / 4 % COARSE_TILES][e % 4] = 0;
#pragma unroll
  for (int step = 0; step < COARSE_STEPS; step++)
#pragma unroll
    for (int n = 0; n < COARSE_TILES; n++) {
      uint2 q = *(const uint2 *)(row + 8 * n * QUERY_PITCH + 16 * step);
#pragma unroll
      for (int set = 0; set < COARSE_SETS; set++)
        multiply_16(sum[set][n], m.of[set][step], q.x, q.y);
    }
}

/* The largest sums of a lane's key blocks, 8 k + lane / 4 of the warp's. */
typedef float coarse_best[2 * COARSE_SETS];

DIL_INLINE void forget_best(coarse_best &best) {
#pragma unroll
  for (int k = 0; k < 2 * COARSE_SETS; k++) best[k] = not_a_number();
}

/* Of tile n, whose rows all exist, or those of `there`: bits of the lane's rows. */
DIL_INLINE void raise_best(const coarse_sums &sum, int n, coarse_best &best) {
#pragma unroll
  for (int k = 0; k < 2 * COARSE_SETS; k++) {
    const float *two = sum[k / 2][n] + k % 2 * 2;
    best[k] = fmaxf(best[k], fmaxf(two[0], two[1]));
  }
}
DIL_INLINE void raise_best(const coarse_sums &sum, int n, unsigned there,
                           coarse_best &best) {
#pragma unroll
  for (int e = 0; e < 4 * COARSE_SETS; e++)
    if (there >> (2 * n + e % 2) & 1)
      best[e / 2] = fmaxf(best[e / 2], sum[e / 4][n][e % 4]);
}

/* The largest of four lanes, each of which writes those of its own key blocks. */
DIL_INLINE void store_best(const dil_choose_params &p, coarse_best &best,
                           float *estimate) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < 2 * COARSE_SETS; k++) {
    best[k] = fmaxf(best[k], __shfl_xor_sync(0xffffffffu, best[k], 1));
    best[k] = fmaxf(best[k], __shfl_xor_sync(0xffffffffu, best[k], 2));
    if (lane % 4 == k) estimate[8 * k + lane / 4] = __fmul_rn(p.of.scale, best[k]);
  }
  forget_best(best);
}

/* Rows of a block of queries that the warp's key blocks have yet to meet, and where its
 * estimates go. */
struct coarse_walk {
  int left;
  float *to;
  coarse_best best;
};

/* Tiles of rows behind row `from`, one by one: some may not exist, or end a block. */
DIL_INLINE void end_tiles(const dil_choose_params &p, int per, int from, int rows,
                          const coarse_sums &sum, coarse_walk &w) {
  unsigned there = own_rows<COARSE_TILES>(from);
#pragma unroll
  for (int n = 0; n < COARSE_TILES; n++) {
    if (from + 8 * n >= rows) break;
    raise_best(sum, n, there, w.best);
    w.left -= 8;
    if (w.left) continue;
    store_best(p, w.best, w.to);
    w.left = per;
    w.to += p.width;
  }
}

/* Where the coarse estimates of block bi stand. */
DIL_INLINE float *coarse_estimates(const dil_choose_params &p, int b, int h, int bi) {
  int head = b * HEADS + h - p.first_head;
  return p.estimates + ((long long)head * p.queries + bi) * p.width;
}

/* Estimates of the rows of a strip that begins with block `first`. Key blocks behind the
 * last, up to a whole width, have such too. */
DIL_INLINE void estimate_coarsely(const dil_choose_params &p, const dil_choice_row &c,
                                  int b, int h, int first) {
  enum { AT_ONCE = 8 * COARSE_TILES };
  long long head = (long long)b * KV_HEADS + h / (HEADS / KV_HEADS);
  int per = rows_of_block(c), blocks = dil_min(p.coarse_strip, p.queries - first);
  coarse_place s = {b, h, first, blocks, blocks * per};
  bool whole = load_coarse_rows(p, c, s) && per % AT_ONCE == 0;
  if (threadIdx.x < blocks)
    p.reach[((long long)b * HEADS + h) * p.queries + first + threadIdx.x] =
        __fsqrt_rn(__uint_as_float(CHOOSING.reach[threadIdx.x]));
#pragma unroll 1
  for (int bj = threadIdx.x / 32 * COARSE_KEYS; bj < p.keys;
       bj += DIL_CHOOSE_WARPS * COARSE_KEYS) {
    if (window_misses(c, first, first + blocks - 1, bj, bj + COARSE_KEYS - 1)) continue;
    coarse_means m;
    coarse_walk w = {per, coarse_estimates(p, b, h, first) + bj};
    load_coarse_means(p.coarse + (head * p.width + bj) * MEAN_DEPTH, m);
    forget_best(w.best);
#pragma unroll 1
    for (int from = 0; from < s.rows; from += AT_ONCE) {
      coarse_sums sum;
      multiply_coarse(m, from, sum);
      if (!whole) {
        end_tiles(p, per, from, s.rows, sum, w);
        continue;
      }
#pragma unroll
      for (int n = 0; n < COARSE_TILES; n++) raise_best(sum, n, w.best);
      w.left -= AT_ONCE;
      if (w.left) continue;
      store_best(p, w.best, w.to);
      w.left = per;
      w.to += p.width;
    }
  }
}

#endif
#endif
