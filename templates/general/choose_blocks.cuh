/* choose_blocks.cuh - which blocks of keys can be chosen, and the best of them, as
 * runtime/cpu/choose_blocks.c says. In: a block of queries, estimates in f32. Out: a
 * rank for each block of keys, and the least rank that is chosen. Ties go to the
 * smaller block number, and NaN is the smallest estimate. choose.cuh includes it
 * behind its shared memory and its sums. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_BLOCKS_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_BLOCKS_H

/* ---- candidates ---------------------------------------------------------- */

/* The first and the last position of low..high with this phase, counted from
 * `start`; none where low > high. */
DIL_INLINE void narrow_to_phase(int start, int dilation, int phase, int &low,
                                int &high) {
  low += dil_mod(phase - (low - start), dilation);
  high -= dil_mod(high - start - phase, dilation);
}

/* Returns whether a distance between keys j0..j1 and queries t0..t1 of one phase
 * lies in the window: distances are all multiples of the dilation. */
DIL_INLINE bool window_meets(const dil_choice_row &c, int dilation, int t0, int t1,
                             int j0, int j1) {
  if (t0 > t1 || j0 > j1) return false;
  int low = j0 - t1, high = j1 - t0;
  if (c.left != DIL_FAR && -c.left > low)
    low = -c.left + (dilation > 1 ? dil_mod(low + c.left, dilation) : 0);
  if (c.right != DIL_FAR) high = dil_min(high, c.right);
  return low <= high;
}

DIL_INLINE bool head_reaches(const dil_choice_row &c, const choose_place &at,
                             int h, int bj) {
  const dil_branch_row &b = BRANCH(c.branch);
  int j0 = bj * c.block, j1 = dil_min(j0 + c.block, at.M) - 1;
  int s = b.segment, phase = dil_phases[c.branch * HEADS + h];
  if (!serves(b, h) || at.first > at.last || j0 > j1) return false;
  int from = s ? dil_max(at.first, j0) / s : 0;
  int to = s ? dil_min(at.last, j1) / s : 0;
#pragma unroll 1
  for (int k = from; k <= to; k++) {
    int start = k * s, end = s ? start + s - 1 : at.M;
    int t0 = dil_max(at.first, start), t1 = dil_min(at.last, end);
    int k0 = dil_max(j0, start), k1 = dil_min(j1, end);
    if (b.dilation > 1) {
      narrow_to_phase(start, b.dilation, phase, t0, t1);
      narrow_to_phase(start, b.dilation, phase, k0, k1);
    }
    if (window_meets(c, b.dilation, t0, t1, k0, k1)) return true;
  }
  return false;
}

/* Returns whether the key block has a position of the query block, where no key
 * after a query is seen. */
DIL_INLINE bool is_diagonal(const dil_choice_row &c, int bi, int bj) {
  return c.right <= 0 && bj * c.block < (bi + 1) * c.query_block &&
         bi * c.query_block < (bj + 1) * c.block;
}

DIL_INLINE bool is_candidate(const dil_choose_params &p, const dil_choice_row &c,
                             const choose_place &at, int group, int bj) {
#pragma unroll 1
  for (int h = group * c.group; h < (group + 1) * c.group; h++) {
    dil_pair pair = {at.b, h, p.of.B, p.of.N, at.M, p.of.input};
    if (head_reaches(c, at, h, bj) &&
        dil_others_leave(p.choice, position_of(p.of, c, at.first),
                         position_of(p.of, c, bj * c.block), pair))
      return true;
  }
  return false;
}

/* Greater for the greater estimate. */
DIL_INLINE unsigned bits_of_estimate(float estimate) {
  unsigned bits = __float_as_uint(estimate + 0.0f); /* -0 is 0 */
  if (estimate != estimate) return 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DIL_INLINE dil_rank rank_of(float estimate, int block) {
  return (dil_rank)bits_of_estimate(estimate) << 32 |
         (0xffffffffu - (unsigned)block);
}

DIL_INLINE float estimate_of_bits(unsigned bits) {
  if (bits == 0) return not_a_number();
  return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

DIL_INLINE float estimate_of(dil_rank rank) {
  return estimate_of_bits((unsigned)(rank >> 32));
}

DIL_INLINE bool is_scored(dil_rank r) {
  return r != RANK_NONE && r != RANK_ALWAYS;
}

/* ---- the best ------------------------------------------------------------ */

/* Finds the digit at which `wanted` of the counts, from the largest digit down,
 * are reached, and how many of them are of that digit. One warp. */
DIL_INLINE void find_digit(int wanted) {
  enum { EACH_LANE = DIGITS / 32 };
  int lane = threadIdx.x & 31, top = DIGITS - 1 - lane * EACH_LANE, sum = 0;
  for (int k = 0; k < EACH_LANE; k++) sum += CHOOSING.digit[top - k];
  int upto = sum;
#pragma unroll
  for (int away = 1; away < 32; away *= 2) {
    int more = __shfl_sync(0xffffffffu, upto, lane - away);
    if (lane >= away) upto += more;
  }
  unsigned reached = __ballot_sync(0xffffffffu, upto >= wanted);
  if (lane != __ffs((int)reached) - 1) return;
  int rest = wanted - (upto - sum), digit = top;
  while (rest > CHOOSING.digit[digit]) rest -= CHOOSING.digit[digit--];
  CHOOSING.found = digit;
  CHOOSING.rest = rest;
}

/* The smallest of the `wanted` greatest ranks that are scored, or a number below
 * it that has no other above it; 1 <= wanted <= their count. */
DIL_INLINE dil_rank least_of_best(const dil_rank *rank, int keys, int wanted) {
  dil_rank prefix = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    CHOOSING.digit[threadIdx.x] = 0;
    __syncthreads();
    for (int bj = threadIdx.x; bj < keys; bj += DIL_CHOOSE_THREADS) {
      dil_rank r = rank[bj];
      bool alike = shift == 56 || r >> (shift + 8) == prefix >> (shift + 8);
      if (is_scored(r) && alike) atomicAdd(&CHOOSING.digit[r >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) find_digit(wanted);
    __syncthreads();
    wanted = CHOOSING.rest;
    prefix |= (dil_rank)CHOOSING.found << shift;
    bool all = wanted == CHOOSING.digit[CHOOSING.found];
    __syncthreads();
    if (all) break;
  }
  return prefix;
}

/* Sorts the ranks that are scored into `sorted`, the greatest first. */
DIL_INLINE void sort_ranks(const dil_choose_params &p, const dil_rank *rank,
                           dil_rank *sorted) {
  for (int k = threadIdx.x; k < p.sorted; k += DIL_CHOOSE_THREADS)
    sorted[k] = k < p.keys && is_scored(rank[k]) ? rank[k] : RANK_NONE;
#pragma unroll 1
  for (int size = 2; size <= p.sorted; size *= 2)
#pragma unroll 1
    for (int away = size / 2; away > 0; away /= 2) {
      __syncthreads();
      for (int k = threadIdx.x; k < p.sorted; k += DIL_CHOOSE_THREADS) {
        if ((k ^ away) < k) continue; /* the other's thread has both */
        dil_rank a = sorted[k], b = sorted[k ^ away];
        if ((a < b) != !(k & size) || a == b) continue;
        sorted[k] = b;
        sorted[k ^ away] = a;
      }
    }
  __syncthreads();
}

/* e^(estimate - best); equal ones, infinite ones too, weigh 1. */
DIL_INLINE double weight_of(float estimate, float best) {
  if (best != best) return 1;
  if (estimate != estimate) return 0;
  return estimate == best ? 1 : exp((double)estimate - (double)best);
}

/* The sum of all weights; or, where `share` is not negative, the number of the
 * first candidate with which it is reached, of `count` candidates. */
DIL_INLINE double walk_weights(const dil_rank *sorted, int count, double share) {
  float best = estimate_of(sorted[0]);
  double before = 0;
  if (threadIdx.x == 0) CHOOSING.found = count - 1;
#pragma unroll 1
  for (int from = 0; from < count; from += DIL_CHOOSE_THREADS) {
    int k = from + threadIdx.x;
    double own = k < count ? weight_of(estimate_of(sorted[k]), best) : 0;
    double sum = before + block_scan(own);
    before += CHOOSING.sum[DIL_CHOOSE_THREADS - 1];
    if (share < 0) continue;
    bool reached = k < count && sum >= share;
    int left = block_sum(k < count && !reached);
    if (left == dil_min(count - from, DIL_CHOOSE_THREADS)) continue;
    if (threadIdx.x == 0) CHOOSING.found = from + left;
    break;
  }
  __syncthreads();
  return before;
}

/* The least rank that is chosen. */
DIL_INLINE dil_rank least_chosen(const dil_choose_params &p,
                                 const dil_choice_row &c, const dil_rank *rank,
                                 dil_rank *sorted) {
  int always = 0, scored = 0;
  for (int bj = threadIdx.x; bj < p.keys; bj += DIL_CHOOSE_THREADS) {
    always += rank[bj] == RANK_ALWAYS;
    scored += is_scored(rank[bj]);
  }
  always = block_sum(always);
  scored = block_sum(scored);
  int taken = dil_min(dil_max(c.most - always, 0), scored);
  if (taken == 0) return RANK_ALWAYS;
  if (c.share > 0) {
    sort_ranks(p, rank, sorted);
    double all = walk_weights(sorted, scored, -1);
    walk_weights(sorted, taken, c.share * all);
    return sorted[CHOOSING.found];
  }
  return taken == scored ? 1 : least_of_best(rank, p.keys, taken);
}

#endif
