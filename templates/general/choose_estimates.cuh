/* choose_estimates.cuh - the estimates of a strip of query blocks, by the estimate that a
 * choice names. In: a call and one of its choices. Out: numbers in f32 in the thread
 * block's own memory, for a head or summed over a group of heads. choose.cuh includes
 * this file behind its means. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_ESTIMATES_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_ESTIMATES_H

/* Rows that meet key blocks at once. */
DIL_INLINE int rows_at_once(const dil_choose_params &p, const dil_choice_row &c) {
  if (has_query_means(c)) return p.strip;
  return is_tall(c) ? DIL_CHOOSE_TALL : DIL_CHOOSE_ROWS;
}

/* Rows `from` and those behind it of a strip that begins with block `first`. */
DIL_INLINE void load_rows(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int h, int first, int from) {
  int per = rows_of_block(c);
#pragma unroll 1
  for (int e = threadIdx.x; e < DIL_CHOOSE_ROWS * MEAN_DEPTH;
       e += DIL_CHOOSE_THREADS) {
    int n = e / MEAN_DEPTH, d = e % MEAN_DEPTH, row = from + n;
    choose_place at = place_of(p, c, b, first + row / per);
    int t = at.bi * c.query_block + row % per, last = t;
    if (c.estimate == DIL_ESTIMATE_MEAN) t = at.first, last = at.last;
    bool there = row / per < p.strip && at.bi < p.queries &&
                 t >= at.first && t <= at.last;
    float sum = 0;
    int count = there ? last - t + 1 : 0;
#pragma unroll 4
    for (int k = 0; k < count && d < HEAD_DIM; k++)
      sum += widen(query_at(p.of, c, at, t + k, h)[d]);
    if (count > 1) sum = __fdiv_rn(sum, (float)count);
    query_row(n)[d] = sum;
    if (d == 0) CHOOSING.there[n] = there;
  }
}

/* Returns whether no query of blocks first..last sees a key of blocks low..high: the
 * window alone says so. */
DIL_INLINE bool window_misses(const dil_choice_row &c, int first, int last, int low,
                              int high) {
  long long t0 = (long long)first * c.query_block;
  long long t1 = (last + 1ll) * c.query_block - 1;
  bool after = c.right != DIL_FAR && (long long)low * c.block > t1 + c.right;
  bool before = c.left != DIL_FAR && (high + 1ll) * c.block - 1 < t0 - c.left;
  return after || before;
}

DIL_INLINE float not_a_number() { return __uint_as_float(0x7fffffffu); }

#include "templates/general/choose_products.cuh"
#include "templates/general/choose_coarse.cuh"

/* Rows of the strip meet the means of key block bj. Estimates become the largest
 * of them and of these. */
DIL_INLINE void meet_block(const dil_choose_params &p, const float *means, int per,
                           int from, int bj, float *estimate) {
  enum { STEP = 8 }; /* numbers of means that are read ahead */
  float sum[DIL_CHOOSE_ROWS] = {}, mean[STEP], next[STEP];
#pragma unroll
  for (int k = 0; k < STEP; k++) next[k] = means[(long long)k * p.width + bj];
#pragma unroll 1
  for (int d = 0; d < MEAN_DEPTH; d += STEP) {
    int ahead = d + STEP < MEAN_DEPTH ? d + STEP : d;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
      mean[k] = next[k];
      next[k] = means[(long long)(ahead + k) * p.width + bj];
    }
#pragma unroll
    for (int n = 0; n < DIL_CHOOSE_ROWS; n++)
#pragma unroll
      for (int k = 0; k < STEP; k += 4) {
        float4 q = *(const float4 *)(query_row(n) + d + k);
        sum[n] = fmaf(q.x, mean[k], sum[n]);
        sum[n] = fmaf(q.y, mean[k + 1], sum[n]);
        sum[n] = fmaf(q.z, mean[k + 2], sum[n]);
        sum[n] = fmaf(q.w, mean[k + 3], sum[n]);
      }
  }
#pragma unroll
  for (int n = 0; n < DIL_CHOOSE_ROWS; n++) {
    if (!CHOOSING.there[n]) continue;
    float *to = estimate + (long long)((from + n) / per) * p.width + bj;
    *to = fmaxf(*to, __fmul_rn(p.of.scale, sum[n])); /* of NaN, the other */
  }
}

/* Estimates of a strip of query blocks. Those of key blocks that no query can see
 * stay NaN. Other threads may read them after a barrier. */
DIL_INLINE void estimate_head(const dil_choose_params &p, const dil_choice_row &c,
                              int b, int h, int first, float *estimate) {
  int per = rows_of_block(c), blocks = p.strip;
  const float *means = mean_at(p, c, b, h / (HEADS / KV_HEADS), 0, 0);
  for (int bj = threadIdx.x; bj < p.keys && !stores_all(c); bj += DIL_CHOOSE_THREADS)
    for (int k = 0; k < blocks; k++)
      estimate[(long long)k * p.width + bj] = not_a_number();
#pragma unroll 1
  for (int from = 0; from < blocks * per; from += rows_at_once(p, c)) {
    __syncthreads();
    if (has_products(c)) {
      estimate_by_products(p, c, b, h, means, first, from, estimate);
      continue;
    }
    load_rows(p, c, b, h, first, from);
    __syncthreads();
    int last = (from + rows_at_once(p, c) - 1) / per;
#pragma unroll 1
    for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
      if (!window_misses(c, first + from / per, first + last, bj, bj))
        meet_block(p, means, per, from, bj, estimate);
  }
  __syncthreads();
}

/* The call's own numbers, in whatever rank they have. A thread has those of several
 * query blocks in flight. */
DIL_INLINE void read_head(const dil_choose_params &p, const dil_choice_row &c,
                          int b, int h, int first, float *estimate) {
  enum { AHEAD = 8 };
  const dil_device_input &g = p.of.input[c.gate];
  int rank = dil_inputs[c.gate].rank;
  const float *from = (const float *)g.data;
  if (rank > 3) from += b * g.stride[rank - 4];
  if (rank > 2) from += h * g.stride[rank - 3];
  int blocks = dil_min(p.strip, p.queries - first);
  long long apart = g.stride[rank - 2];
#pragma unroll 1
  for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
#pragma unroll 1
    for (int k = 0; k < blocks; k += AHEAD) {
      const float *at = from + (first + k) * apart + bj * g.stride[rank - 1];
      float x[AHEAD], *to = estimate + (long long)k * p.width + bj;
#pragma unroll
      for (int i = 0; i < AHEAD; i++, at += apart)
        if (k + i < blocks) x[i] = *at;
#pragma unroll
      for (int i = 0; i < AHEAD; i++, to += p.width)
        if (k + i < blocks) *to = x[i];
    }
}

DIL_INLINE bool serves(const dil_branch_row &branch, int h) {
  return h >= branch.head_first && h <= branch.head_last;
}

DIL_INLINE void estimate_one(const dil_choose_params &p, const dil_choice_row &c,
                             int b, int h, int first, float *estimate) {
  if (c.estimate == DIL_ESTIMATE_INPUT) read_head(p, c, b, h, first, estimate);
  else estimate_head(p, c, b, h, first, estimate);
}

/* Estimates of a group of heads: the sums over those that the branch serves. Where
 * heads choose alone there is no room for sums. Each thread adds those of its own
 * key blocks. Returns where the sums are. */
DIL_INLINE float *estimate_group(const dil_choose_params &p,
                                 const dil_choice_row &c, int b, int group,
                                 int first, float *estimate, float *total) {
  bool begun = false;
#pragma unroll 1
  for (int h = group * c.group; h < (group + 1) * c.group; h++) {
    if (!serves(BRANCH(c.branch), h)) continue;
    estimate_one(p, c, b, h, first, estimate);
    if (c.group == 1) return estimate;
    for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS)
      for (int k = 0; k < p.strip; k++) {
        long long at = (long long)k * p.width + bj;
        total[at] = begun ? __fadd_rn(total[at], estimate[at]) : estimate[at];
      }
    begun = true;
    __syncthreads();
  }
  return total;
}

#endif
