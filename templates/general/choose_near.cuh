/* choose_near.cuh - coarse estimates that lie near the least that is chosen, made again
 * with whole means. In: a strip of query blocks, with its rows and coarse estimates in
 * shared memory. Out: estimates of which the same are best as if all were made so.
 *
 * Rounding takes a part of each mean, and a product with a row loses at most the row's
 * length times that part's (Cauchy-Schwarz). Where two estimates lie further apart than
 * both may have lost, the coarse ones have their order. choose.cuh includes this file
 * behind choose_lanes.cuh. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_NEAR_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_NEAR_H

#if COARSE
/* The sums of products of TALL rows, from row n of the strip on, with the means of a
 * lane's two key blocks. */
DIL_INLINE void multiply_near(const coarse_place &s, const lane_means &means, int n,
                              float (&sum)[TALL_TILES][4]) {
  int lane = threadIdx.x & 31;
  const unsigned short *row = coarse_row(s, n + lane / 4, lane % 4 * 4);
  int further = (int)(coarse_row(s, 0, 16) - coarse_row(s, 0, 0));
  int below = (int)(coarse_row(s, 1, 0) - coarse_row(s, 0, 0));
  multiply_means<row_parts, 1, TALL_TILES, MEANS_AHEAD>(means, row, further, below, sum);
}

/* A row's estimate one number after the other. */
DIL_INLINE float meet_row(const dil_choose_params &p, const element *row,
                          const float *mean) {
  float sum = 0;
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d++) sum = fmaf(widen(row[d]), mean[d], sum);
  return __fmul_rn(p.of.scale, sum);
}

/* Rows of block k of a strip meet up to 16 key blocks, whose numbers stand in `near`, with
 * whole means. Where a sum is not finite the block begins again without products. The
 * whole warp comes here. */
DIL_INLINE void meet_near(const dil_choose_params &p, const dil_choice_row &c,
                          const coarse_place &s, int k, const float *means,
                          const int *near, int count) {
  int lane = threadIdx.x & 31, depth = lane % 4 * 4, t0 = s.first * c.query_block;
  choose_place at = place_of(p, c, s.b, s.first + k);
  int one = near[dil_min(lane / 4, count - 1)];
  int other = near[dil_min(lane / 4 + 8, count - 1)];
  lane_means own = {{means + (long long)one * MEAN_DEPTH + depth,
                     means + (long long)other * MEAN_DEPTH + depth}};
  float best[2] = {not_a_number(), not_a_number()}, *estimate = s.estimate + k * p.width;
  bool finite[2] = {true, true};
#pragma unroll 1
  for (int from = 0; from < c.query_block; from += DIL_CHOOSE_TALL) {
    float sum[TALL_TILES][4];
    int n = dil_min(k * c.query_block + from, whole_rows(s.rows) - DIL_CHOOSE_TALL);
    multiply_near(s, own, n, sum);
#pragma unroll
    for (int e = 0; e < 4 * TALL_TILES; e++) {
      int t = t0 + n + 8 * (e / 4) + lane % 4 * 2 + e % 2, half = e % 4 / 2;
      if (t < at.first || t > at.last) continue;
      best[half] = fmaxf(best[half], __fmul_rn(p.of.scale, sum[e / 4][e % 4]));
      finite[half] &= fabsf(sum[e / 4][e % 4]) <= 3.402823466e38f;
    }
  }
  unsigned plain[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    best[half] = fmaxf(best[half], __shfl_xor_sync(0xffffffffu, best[half], 1));
    best[half] = fmaxf(best[half], __shfl_xor_sync(0xffffffffu, best[half], 2));
    plain[half] = __ballot_sync(0xffffffffu, !finite[half]);
    if (lane % 4 == half && 8 * half + lane / 4 < count)
      estimate[half ? other : one] = best[half];
  }
  if (!(plain[0] | plain[1])) return;
  __syncwarp();
  unsigned again = lane < 8 ? plain[0] : plain[1];
  if (lane >= count || !(again >> lane % 8 * 4 & 15)) return;
  float largest = not_a_number();
#pragma unroll 1
  for (int t = at.first; t <= at.last; t++)
    largest = fmaxf(largest, meet_row(p, query_at(p.of, c, at, t, s.h),
                                      means + (long long)near[lane] * MEAN_DEPTH));
  estimate[near[lane]] = largest;
}

DIL_INLINE unsigned greater(unsigned a, unsigned b) { return a > b ? a : b; }

/* Calls see(r, estimate, lost) for each key block of the lane. */
template <int OWN_KEYS, class See>
DIL_INLINE void see_estimates(const float *estimate, const float *lost, See see) {
#pragma unroll
  for (int r = 0; r < OWN_KEYS; r += 4) {
    float4 x = *(const float4 *)(estimate + r), off = *(const float4 *)(lost + r);
    see(r, x.x, off.x);
    see(r + 1, x.y, off.y);
    see(r + 2, x.z, off.z);
    see(r + 3, x.w, off.w);
  }
}

/* Key blocks of the lane that lie so near the least estimate of the `best` that coarse
 * estimates may have another order. `reach`: the length of the longest row, scaled. */
template <int OWN_KEYS>
DIL_INLINE unsigned find_near(const float *estimate, const float *lost, float reach,
                              int lanes, unsigned scored, unsigned best) {
  unsigned least = 0, most = 0, near = 0; /* `least` is turned: the greatest is sought */
  see_estimates<OWN_KEYS>(estimate, lost, [&](int r, float x, float off) {
    if (best >> r & 1) least = greater(least, ~bits_of_estimate(x));
    if (scored >> r & 1) most = greater(most, __float_as_uint(off));
  });
  float edge = estimate_of_bits(~max_lanes(least, lanes));
  float other = __uint_as_float(max_lanes(most, lanes));
  __syncwarp(); /* numbers are read again, since there are no registers for all */
  see_estimates<OWN_KEYS>(estimate, lost, [&](int r, float x, float off) {
    float both = reach * (off + other);
    bool apart = both < 1e33f && fabsf(x - edge) > both; /* of NaN: false */
    if (!apart) near |= 1u << r;
  });
  return near & scored;
}

/* Key blocks of the lane about which the coarse estimates of block k, whose `best` are
 * these, may decide wrongly. */
template <int OWN_KEYS>
DIL_INLINE unsigned near_of_lane(const dil_choose_params &p, const coarse_place &s, int k,
                                 int lanes, const lane_choice &x, unsigned best,
                                 const float *estimate) {
  long long head = (long long)s.b * KV_HEADS + s.h / (HEADS / KV_HEADS);
  bool done = x.all || x.taken == 0;
  float scale = p.of.scale >= 0 ? p.of.scale : not_a_number();
  float longest = __fsqrt_rn(__uint_as_float(CHOOSING.reach[k]));
  /* Lanes that have no key blocks read numbers that they leave out. */
  int read = dil_min((int)(threadIdx.x & (lanes - 1)) * OWN_KEYS, p.width - OWN_KEYS);
  return find_near<OWN_KEYS>(estimate + read, p.lost + head * p.width + read,
                             scale * 1.001f * (longest + SMALLEST), lanes,
                             done ? 0 : x.own.scored, done ? 0 : best);
}

/* The numbers of up to 16 near key blocks behind `from` of them; `before` are those of
 * lanes before this one. */
DIL_INLINE void number_near(unsigned near, int first, int before, int from, int *numbers) {
  __syncwarp();
#pragma unroll 1
  for (int place = before - from; near; near &= near - 1, place++)
    if (place >= 0 && place < 16) numbers[place] = first + __ffs((int)near) - 1;
  __syncwarp();
}

/* Estimates of blocks first..end-1 of a strip about which coarse ones may decide wrongly
 * become whole; a lane has so many key blocks. All warps come here, and share the work. */
DIL_INLINE void refine(const dil_choose_params &p, const dil_choice_row &c,
                       const coarse_place &s, int first, int end, int lanes,
                       int own_keys) {
  int lane = threadIdx.x & 31, turn = threadIdx.x / 32; /* those of others come before */
  const float *means = mean_at(p, c, s.b, s.h / (HEADS / KV_HEADS), 0, 0);
  int *numbers = CHOOSING.near[threadIdx.x / 32];
#pragma unroll 1
  for (int k = first; k < end; k++) {
    unsigned own = lane < lanes ? s.near[k * 32 + lane] : 0;
    int before = sum_before(__popc(own), 32), all = sum_lanes(__popc(own), 32);
#pragma unroll 1
    for (; turn * 16 < all; turn += DIL_CHOOSE_WARPS) {
      number_near(own, lane * own_keys, before, turn * 16, numbers);
      meet_near(p, c, s, k, means, numbers, dil_min(all - turn * 16, 16));
    }
    turn -= (all + 15) / 16;
  }
}

/* A lane's part of block k of a strip: its choice, and of its key blocks, the first of
 * which has number `low`, the best and those about which coarse estimates may decide
 * wrongly. */
struct coarse_lane {
  int k, lanes, low;
  lane_choice x;
  unsigned best, near;
};

template <int OWN_KEYS>
DIL_INLINE void find_best(const dil_choose_params &p, const coarse_place &s,
                          coarse_lane &l, bool coarse) {
  const float *estimate = s.estimate + l.k * p.width;
  l.best = best_blocks<OWN_KEYS, false>(estimate + l.low, l.lanes, l.x.own.scored,
                                        l.x.taken, 0, l.x.all || l.x.taken == 0);
  if (coarse) l.near = near_of_lane<OWN_KEYS>(p, s, l.k, l.lanes, l.x, l.best, estimate);
}

/* The best that are not near stay the best. The best of those that are near fill up what is
 * missing: each is compared with all. A block's words in memory have room for 32 of them.
 * The whole warp comes here. */
DIL_INLINE void choose_among_near(const dil_choose_params &p, const coarse_place &s,
                                  coarse_lane &l, int count) {
  int self = threadIdx.x & (l.lanes - 1), before = sum_before(__popc(l.near), l.lanes);
  int missing = l.x.taken - count_lanes(__popc(l.best & ~l.near), l.lanes);
  unsigned *of = s.near + l.k * 32, better = 0, place = before;
  const float *estimate = s.estimate + l.k * p.width + l.low;
#pragma unroll 1
  for (unsigned rest = l.near; rest; rest &= rest - 1)
    of[place++] = bits_of_estimate(estimate[__ffs((int)rest) - 1]);
  __syncwarp();
#pragma unroll 1
  for (int n = self; n < count; n += l.lanes) {
    int greater = 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) greater += of[i] > of[n] || (of[i] == of[n] && i < n);
    better |= (unsigned)(greater < missing) << n;
  }
  __syncwarp();
#pragma unroll 1
  for (int n = self; n < count; n += l.lanes) of[n] = better >> n & 1;
  __syncwarp();
  l.best &= ~l.near;
  place = before;
#pragma unroll 1
  for (unsigned rest = l.near; rest; rest &= rest - 1)
    if (of[place++]) l.best |= rest & -rest;
}

/* The lanes of a strip's blocks choose among coarse estimates; and again when those that
 * are near have become whole, among these if they are few. Calls write(k, low, lanes,
 * chosen, there). The whole thread block comes here. */
template <class Write>
DIL_INLINE void choose_coarsely(const dil_choose_params &p, const dil_choice_row &c,
                                const coarse_place &s, Write write) {
  int own_keys = DIL_CHOOSE_OF_LANE(p.keys), lanes = lanes_of_keys(own_keys, p.keys);
  int self = threadIdx.x & (lanes - 1), each = DIL_CHOOSE_THREADS / lanes;
#pragma unroll 1
  for (int from = 0; from < s.blocks; from += each) {
    int end = dil_min(from + each, s.blocks), k = from + threadIdx.x / lanes, count = 0;
    bool busy = from + (int)(threadIdx.x & ~31) / lanes < end, there = k < end;
    coarse_lane l = {dil_min(k, end - 1), lanes, self * own_keys};
    if (busy) l.x = choice_of_lanes(p, c, s.b, s.h, s.first + k, lanes, own_keys, there);
#pragma unroll 1
    for (bool coarse = true;; coarse = false) {
      if (busy && __any_sync(0xffffffffu, coarse || count > 32)) {
        if (own_keys == DIL_CHOOSE_SOME) find_best<DIL_CHOOSE_SOME>(p, s, l, coarse);
        else find_best<DIL_CHOOSE_MOST>(p, s, l, coarse);
      } else if (busy) {
        choose_among_near(p, s, l, count);
      }
      if (!coarse) break;
      if (busy) count = count_lanes(__popc(l.near), lanes);
      if (there) s.near[k * 32 + self] = l.near;
      __syncthreads();
      refine(p, c, s, from, end, lanes, own_keys);
      __syncthreads();
    }
    if (busy) write(k, l.low, lanes, chosen_of(l.x, l.best), there);
  }
}

#endif
#endif
