/* choose_near.cuh - coarse estimates that lie near the least that is chosen, made again
 * with whole means. In: the coarse estimates of a block of queries, and its rows. Out:
 * estimates of which the same are best as if all were made so.
 *
 * Rounding takes a part of each mean, and a product with a row loses at most the row's
 * length times that part's (Cauchy-Schwarz). Where two estimates lie further apart than
 * both may have lost, the coarse ones have their order. choose.cuh includes this file
 * behind choose_lanes.cuh. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_NEAR_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_NEAR_H

#if COARSE
/* Rows come to shared memory in pieces of 16 numbers, each warp's own, some pieces ahead
 * of the products. */
enum { NEAR_STEPS = MEAN_DEPTH / 16, NEAR_UNITS = 16 / MEAN_UNIT };

DIL_INLINE element *near_row(int piece, int n) {
  int room = threadIdx.x / 32 * DIL_NEAR_PIECES + piece % DIL_NEAR_PIECES;
  return (element *)CHOOSING.query + (room * DIL_CHOOSE_TALL + n) * 16;
}

/* TALL rows of a block of queries, from row `first` on. */
struct near_rows {
  choose_place at;
  int h, first;
};

/* A piece of the rows is on its way. Zeros stand where there is no row. */
DIL_INLINE void begin_piece(const dil_choose_params &p, const dil_choice_row &c,
                            const near_rows &r, int piece) {
  enum { APART = 32 / NEAR_UNITS };
  int lane = threadIdx.x & 31, unit = piece * NEAR_UNITS + lane % NEAR_UNITS;
  bool whole = p.of.flags & DIL_WHOLE_Q;
#pragma unroll
  for (int n = lane / NEAR_UNITS; n < DIL_CHOOSE_TALL && piece < NEAR_STEPS; n += APART) {
    int t = r.first + n;
    const element *row = nullptr;
    if (t >= r.at.first && t <= r.at.last) row = query_at(p.of, c, r.at, t, r.h);
    element *to = near_row(piece, n) + lane % NEAR_UNITS * MEAN_UNIT;
    if (!whole) *(uint4 *)to = load_unit(row, unit, false);
    else if (!row || unit * MEAN_UNIT >= HEAD_DIM) copy_16(shared_address(to), p.of.q, false);
    else copy_16(shared_address(to), row + unit * MEAN_UNIT, true);
  }
  copy_commit();
}

/* The sums of products of TALL rows with the means of a lane's two key blocks. */
DIL_INLINE void multiply_near(const dil_choose_params &p, const dil_choice_row &c,
                              const near_rows &r, const lane_means &means,
                              float (&sum)[TALL_TILES][4]) {
  int lane = threadIdx.x & 31;
  float4 next[2];
  clear_sums(sum);
#pragma unroll 1
  for (int piece = 0; piece < DIL_NEAR_PIECES - 1; piece++) begin_piece(p, c, r, piece);
  load_means(means, 0, next);
#pragma unroll 1
  for (int step = 0; step < NEAR_STEPS; step++) {
    row_parts m;
    split_four(next[0], m, 0);
    split_four(next[1], m, 1);
    if (step + 1 < NEAR_STEPS) load_means(means, 16 * step + 16, next);
    copy_wait<DIL_NEAR_PIECES - 2>();
    __syncwarp();
    multiply_step<1, TALL_TILES>(m, near_row(step, lane / 4) + lane % 4 * 4, 16, sum);
    __syncwarp();
    begin_piece(p, c, r, step + DIL_NEAR_PIECES - 1);
  }
}

/* A row's estimate one number after the other. */
DIL_INLINE float meet_row(const dil_choose_params &p, const element *row,
                          const float *mean) {
  float sum = 0;
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d++) sum = fmaf(widen(row[d]), mean[d], sum);
  return __fmul_rn(p.of.scale, sum);
}

/* Rows meet up to 16 key blocks, whose numbers stand in `near`, with whole means. Where
 * a sum is not finite the block begins again without products. The whole warp comes
 * here. */
DIL_INLINE void meet_near(const dil_choose_params &p, const dil_choice_row &c,
                          const choose_place &at, int h, const float *means,
                          const int *near, int count, float *estimate) {
  int lane = threadIdx.x & 31, depth = lane % 4 * 4;
  int one = near[dil_min(lane / 4, count - 1)];
  int other = near[dil_min(lane / 4 + 8, count - 1)];
  lane_means own = {{means + (long long)one * MEAN_DEPTH + depth,
                     means + (long long)other * MEAN_DEPTH + depth}};
  float best[2] = {not_a_number(), not_a_number()};
  bool finite[2] = {true, true};
#pragma unroll 1
  for (int from = at.bi * c.query_block; from <= at.last; from += DIL_CHOOSE_TALL) {
    float sum[TALL_TILES][4];
    multiply_near(p, c, {at, h, from}, own, sum);
#pragma unroll
    for (int e = 0; e < 4 * TALL_TILES; e++) {
      int t = from + 8 * (e / 4) + lane % 4 * 2 + e % 2, half = e % 4 / 2;
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
    largest = fmaxf(largest, meet_row(p, query_at(p.of, c, at, t, h),
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

/* Key blocks of the lane about which the coarse estimates of block bi of queries, whose
 * `best` are these, may decide wrongly. */
template <int OWN_KEYS>
DIL_INLINE unsigned near_of_lane(const dil_choose_params &p, int b, int h, int bi,
                                 int lanes, const lane_choice &x, unsigned best,
                                 const float *estimate) {
  long long head = (long long)b * KV_HEADS + h / (HEADS / KV_HEADS);
  bool done = x.all || x.taken == 0;
  float scale = p.of.scale >= 0 ? p.of.scale : not_a_number();
  float longest = done ? 0 : p.reach[((long long)b * HEADS + h) * p.queries + bi];
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

/* Estimates of block bi of queries about which coarse ones may decide wrongly become
 * whole. The whole warp comes here, and takes its blocks in turn. */
template <int OWN_KEYS>
DIL_INLINE void refine(const dil_choose_params &p, const dil_choice_row &c, int b, int h,
                       int bi, int lanes, const lane_choice &x, unsigned best,
                       const float *estimate) {
  int lane = threadIdx.x & 31, first = (lane & (lanes - 1)) * OWN_KEYS;
  const float *means = mean_at(p, c, b, h / (HEADS / KV_HEADS), 0, 0);
  int *numbers = CHOOSING.near[threadIdx.x / 32];
  unsigned near = near_of_lane<OWN_KEYS>(p, b, h, bi, lanes, x, best, estimate);
#pragma unroll 1
  for (int from = 0; from < 32; from += lanes) {
    unsigned own = (lane & ~(lanes - 1)) == from ? near : 0;
    int before = sum_before(__popc(own), 32), all = sum_lanes(__popc(own), 32);
    int block = __shfl_sync(0xffffffffu, bi, from);
    choose_place at = place_of(p, c, b, block);
#pragma unroll 1
    for (int some = 0; some < all; some += 16) {
      number_near(own, first, before, some, numbers);
      meet_near(p, c, at, h, means, numbers, dil_min(all - some, 16),
                coarse_estimates(p, b, h, block));
    }
  }
  __syncwarp();
}

#else /* never called */

template <int OWN_KEYS>
DIL_INLINE void refine(const dil_choose_params &, const dil_choice_row &, int, int, int,
                       int, const lane_choice &, unsigned, const float *) {}

#endif
#endif
