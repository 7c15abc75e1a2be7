/* choose_coarse.cuh - estimates of each row with means that are rounded to elements. In:
 * a strip of query blocks, whose rows go to shared memory together. Out: coarse
 * estimates beside them, of which choose_near.cuh makes some again with whole means; and
 * the length of the longest row of each block. A warp holds the means of some key blocks
 * in registers, and all rows walk by. choose_estimates.cuh includes this file. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_H

#if COARSE
enum {
  COARSE_STEPS = MEAN_DEPTH / 16,
#if CHOICES_WGMMA
  COARSE_TEAM = 4, /* warps that multiply together */
  COARSE_SETS = 1, /* of 16 key blocks, which a warp holds */
  COARSE_TILES = MEAN_DEPTH <= 128 ? 16 : 8, /* of 8 rows, which meet them at once */
  COARSE_RUN = 4, /* such tiles, which most blocks of queries do not part */
#else
  COARSE_TEAM = 1,
  COARSE_SETS = MEAN_DEPTH <= 128 ? 2 : 1,
  COARSE_TILES = MEAN_DEPTH <= 64 ? 4 : 2,
  COARSE_RUN = COARSE_TILES,
#endif
  COARSE_KEYS = COARSE_SETS * WARP_KEYS,
  COARSE_HALVES = COARSE_TILES / 8 /* of 64 rows, which meet key blocks at once */
};

/* Some blocks of queries of a head: a strip, or its part that exists; and in shared
 * memory, for each of them, its estimates and which key blocks are near. */
struct coarse_place {
  int b, h, first, blocks, rows;
  float *estimate; /* [blocks][width] */
  unsigned *near;  /* [blocks][32], a word of each lane that chooses for a block */
};

/* Means of key blocks as matrix units take them (coarse_mean). */
struct coarse_means {
  unsigned of[COARSE_SETS][COARSE_STEPS][4];
};

/* Of lane 4 g + c: key blocks g and 8 more of a set, rows 8 n + 2 c and 1 more. */
typedef float coarse_sums[COARSE_SETS][COARSE_TILES][4];

#if CHOICES_WGMMA
#include "templates/general/choose_coarse_wgmma.cuh"
#else
#include "templates/general/choose_coarse_mma.cuh"
#endif

/* ---- rows -------------------------------------------------------------------- */

/* Zeros stand behind rows, up to so many. */
DIL_INLINE int whole_rows(int rows) {
  return (rows + DIL_CHOOSE_TALL - 1) / DIL_CHOOSE_TALL * DIL_CHOOSE_TALL;
}

/* Rows of whole units: the loads of some of a lane's own are started together. */
DIL_INLINE void copy_rows(const dil_choose_params &p, const dil_choice_row &c,
                          const coarse_place &s) {
  enum { SOME = 8, APART = DIL_CHOOSE_WARPS * MEAN_ROWS };
  int lane = threadIdx.x & 31, t0 = s.first * c.query_block, unit = lane % MEAN_LANES;
  choose_place at = {s.b, 0, 0, 0, batch_keys(p.of, s.b)};
  int low = dil_max(at.M - p.of.N, 0), end = dil_min(at.M, t0 + s.rows);
  int own = threadIdx.x / 32 * MEAN_ROWS + lane / MEAN_LANES;
  bool inside = unit * MEAN_UNIT < HEAD_DIM;
  const element *row = nullptr;
  if (!has_cells(c)) row = query_at(p.of, c, at, t0 + own, s.h) + unit * MEAN_UNIT;
#pragma unroll 1
  for (int n = own; n < whole_rows(s.rows); n += SOME * APART) {
    uint4 x[SOME];
    unsigned there = 0;
#pragma unroll
    for (int i = 0; i < SOME; i++) {
      int t = t0 + n + i * APART;
      const element *from = row + (long long)(n - own + i * APART) * p.of.q_stride[1];
      x[i] = make_uint4(0, 0, 0, 0);
      if (t < low || t >= end) continue;
      there |= 1u << i;
      if (has_cells(c)) from = query_at(p.of, c, at, t, s.h) + unit * MEAN_UNIT;
      if (inside) x[i] = *(const uint4 *)from;
    }
#pragma unroll
    for (int i = 0; i < SOME; i++) {
      int to = n + i * APART;
      if (to >= whole_rows(s.rows)) break;
      if (unit == 0) CHOOSING.there[to] = there >> i & 1;
      if (unit < MEAN_UNITS) *(uint4 *)coarse_row(s, to, unit * MEAN_UNIT) = x[i];
    }
  }
}

/* Rows meet themselves, 16 a warp: the square of the length of each block's longest row.
 * Bits of numbers that are not negative have their order, and those of NaN are
 * greater. */
DIL_INLINE void find_reach(const coarse_place &s, int per) {
  int lane = threadIdx.x & 31, g = lane / 4;
  long long further = coarse_row(s, 0, 16) - coarse_row(s, 0, 0);
  long long below = coarse_row(s, 8, 0) - coarse_row(s, 0, 0);
#pragma unroll 1
  for (int from = threadIdx.x / 32 * 16; from < s.rows; from += DIL_CHOOSE_WARPS * 16) {
    float sum[2][4] = {};
    const unsigned short *row = coarse_row(s, from + g, lane % 4 * 4);
#pragma unroll
    for (int step = 0; step < COARSE_STEPS; step++, row += further) {
      uint2 one = *(const uint2 *)row, other = *(const uint2 *)(row + below);
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
      load_tall_rows(p, c, s.b, s.h, s.first, s.blocks, from, from, [&](int n, int unit) {
        return coarse_row(s, n, unit * MEAN_UNIT);
      });
  show_rows();
  __syncthreads();
  find_reach(s, rows_of_block(c));
  for (int n = threadIdx.x; n < s.rows; n += DIL_CHOOSE_THREADS)
    missing += !CHOOSING.there[n];
  return block_sum(missing) == 0;
}

/* ---- products ---------------------------------------------------------------- */

/* Zeros stand for means that a warp does not have. */
DIL_INLINE void load_coarse_means(const unsigned short *means, bool there,
                                  coarse_means &m) {
  const uint4 *own = (const uint4 *)means + (threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < COARSE_SETS * COARSE_STEPS; k++) {
    uint4 x = there ? own[32 * k] : make_uint4(0, 0, 0, 0);
    unsigned(&to)[4] = m.of[k / COARSE_STEPS][k % COARSE_STEPS];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
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
}

/* Rows of a block of queries that the warp's key blocks have yet to meet, and where its
 * estimates go. */
struct coarse_walk {
  int per, left; /* rows */
  float *to;     /* NULL: the warp has no key blocks */
  coarse_best best;
};

/* So many rows have met the key blocks, and may be the last of their block. */
DIL_INLINE void end_rows(const dil_choose_params &p, int rows, coarse_walk &w) {
  w.left -= rows;
  if (w.left) return;
  if (w.to) store_best(p, w.best, w.to);
  forget_best(w.best);
  w.left = w.per;
  w.to += w.to ? p.width : 0;
}

/* Tiles of rows behind row `from`, one by one: some may not exist, or end a block. */
DIL_INLINE void end_tiles(const dil_choose_params &p, int from, int rows,
                          const coarse_sums &sum, coarse_walk &w) {
  unsigned there = own_rows<COARSE_TILES>(from);
#pragma unroll
  for (int n = 0; n < COARSE_TILES; n++) {
    if (from + 8 * n >= rows) break;
    raise_best(sum, n, there, w.best);
    end_rows(p, 8, w);
  }
}

/* Rows that all exist, of which no block ends within a run of tiles. */
DIL_INLINE void end_runs(const dil_choose_params &p, int from, int rows,
                         const coarse_sums &sum, coarse_walk &w) {
#pragma unroll
  for (int run = 0; run < COARSE_TILES; run += COARSE_RUN) {
    if (from + 8 * run >= rows) break;
#pragma unroll
    for (int n = 0; n < COARSE_RUN; n++) raise_best(sum, run + n, w.best);
    end_rows(p, 8 * COARSE_RUN, w);
  }
}

/* Whether rows that meet key blocks at once are blocks of 64 rows, or belong to one. */
DIL_INLINE bool has_halves(int per) {
  return COARSE_HALVES && (per == 64 || per % (8 * COARSE_TILES) == 0);
}

#if CHOICES_WGMMA
/* Rows of these blocks, which all exist, are done. Four lanes have the largest sums of two
 * halves, of 64 rows, for each of two key blocks; and write one of the four each. */
DIL_INLINE void end_halves(const dil_choose_params &p, int from, int rows,
                           const coarse_sums &sum, const coarse_walk &w) {
  int lane = threadIdx.x & 31;
  bool odd = lane & 1, second = lane & 2, joined = COARSE_HALVES == 1 || w.per > 64;
  coarse_best best[2];
  float one[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    forget_best(best[half]);
#pragma unroll
    for (int n = 0; n < 8; n++)
      raise_best(sum, half % COARSE_HALVES * 8 + n, best[half]);
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float x = best[half][0], y = best[half][1];
    if (joined) x = fmaxf(x, best[1 - half][0]), y = fmaxf(y, best[1 - half][1]);
    one[half] = fmaxf(odd ? y : x, __shfl_xor_sync(0xffffffffu, odd ? x : y, 1));
  }
  float other = __shfl_xor_sync(0xffffffffu, second ? one[0] : one[1], 2);
  float largest = __fmul_rn(p.of.scale, fmaxf(second ? one[1] : one[0], other));
  if (second && !joined) from += 64;
  if (!w.to || (second && joined) || from >= rows) return;
  float *to = w.to + from / w.per * p.width + odd * 8 + lane / 4;
  *to = from % w.per ? fmaxf(*to, largest) : largest;
}
#else
DIL_INLINE void end_halves(const dil_choose_params &, int, int, const coarse_sums &,
                           const coarse_walk &) {}
#endif

/* Estimates of the rows of a strip. Key blocks behind the last, up to a whole width, have
 * such too; those that a window hides have none. */
DIL_INLINE void estimate_coarsely(const dil_choose_params &p, const dil_choice_row &c,
                                  const coarse_place &s) {
  enum { TEAM_KEYS = COARSE_TEAM * COARSE_KEYS };
  int warp = threadIdx.x / 32, own = warp % COARSE_TEAM * COARSE_KEYS;
  long long head = (long long)s.b * KV_HEADS + s.h / (HEADS / KV_HEADS);
  int per = rows_of_block(c), last = s.first + s.blocks - 1;
  bool whole = load_coarse_rows(p, c, s), runs = whole && per % (8 * COARSE_RUN) == 0;
#pragma unroll 1
  for (int bj = warp / COARSE_TEAM * TEAM_KEYS; bj < p.keys;
       bj += DIL_CHOOSE_WARPS * COARSE_KEYS) {
    if (window_misses(c, s.first, last, bj, bj + TEAM_KEYS - 1)) continue;
    bool has_keys = bj + own < p.width;
    coarse_means m;
    coarse_walk w = {per, per, has_keys ? s.estimate + bj + own : nullptr};
    load_coarse_means(p.coarse + (head * p.width + bj + own) * MEAN_DEPTH, has_keys, m);
    forget_best(w.best);
#pragma unroll 1
    for (int from = 0; from < s.rows; from += 8 * COARSE_TILES) {
      coarse_sums sum;
      multiply_coarse(s, m, from, sum);
      if (whole && has_halves(per)) end_halves(p, from, s.rows, sum, w);
      else if (runs) end_runs(p, from, s.rows, sum, w);
      else end_tiles(p, from, s.rows, sum, w);
    }
  }
}

#endif
#endif
