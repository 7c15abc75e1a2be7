/* choose_lanes.cuh - the best blocks of keys where there are few: some lanes of a warp
 * choose for a block of queries by themselves, and need no barrier. In: a block of
 * queries, estimates in f32. Out: the best of them, as least_chosen finds them; only where
 * a share is wanted to the last bits may they differ by a block. A lane has OWN_KEYS
 * neighbouring key blocks, a bit of a word each, and the lanes of a block of queries are
 * neighbours. choose.cuh includes this file behind choose_blocks.cuh. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_LANES_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_LANES_H

/* Lanes that have all key blocks: a power of 2. */
DIL_INLINE int lanes_of_keys(int own_keys, int keys) {
  int lanes = 1;
  while (lanes * own_keys < keys) lanes *= 2;
  return lanes;
}

/* The sum over the lanes of a block of queries, and over those before this one. */
DIL_INLINE int sum_lanes(int x, int lanes) {
  if (lanes == 32) return __reduce_add_sync(0xffffffffu, x);
#pragma unroll 1
  for (int away = 1; away < lanes; away *= 2)
    x += __shfl_xor_sync(0xffffffffu, x, away);
  return x;
}
DIL_INLINE int sum_before(int x, int lanes) {
  int lane = threadIdx.x & 31, upto = x;
#pragma unroll 1
  for (int away = 1; away < lanes; away *= 2) {
    int more = __shfl_sync(0xffffffffu, upto, lane - away);
    if ((lane & (lanes - 1)) >= away) upto += more;
  }
  return upto - x;
}

/* The sum of numbers of key blocks, of which a lane has 32 at most: two blocks of queries
 * have theirs in the halves of a word. */
DIL_INLINE int count_lanes(int x, int lanes) {
  if (lanes != 16) return sum_lanes(x, lanes);
  int half = threadIdx.x & 16;
  return __reduce_add_sync(0xffffffffu, x << half) >> half & 0xffff;
}

/* The largest over the lanes of a block of queries. */
DIL_INLINE unsigned max_lanes(unsigned x, int lanes) {
  if (lanes == 32) return __reduce_max_sync(0xffffffffu, x);
  if (lanes == 16) {
    bool high = threadIdx.x & 16;
    unsigned one = __reduce_max_sync(0xffffffffu, high ? 0 : x);
    unsigned other = __reduce_max_sync(0xffffffffu, high ? x : 0);
    return high ? other : one;
  }
#pragma unroll 1
  for (int away = 1; away < lanes; away *= 2) {
    unsigned other = __shfl_xor_sync(0xffffffffu, x, away);
    x = other > x ? other : x;
  }
  return x;
}

/* The lane's key blocks, from `first` on, that are chosen in any case, and those that
 * estimates decide about. */
struct lane_blocks {
  unsigned always, scored;
};

/* Bits of the numbers from..to among those that follow `first`. */
DIL_INLINE unsigned bits_between(int first, int from, int to) {
  from = dil_max(from - first, 0);
  to = dil_min(to - first, 31);
  return from > to ? 0 : 0xffffffffu << from & 0xffffffffu >> (31 - to);
}

/* Where a window alone decides, candidates are neighbours, and so are diagonal ones. */
DIL_INLINE lane_blocks find_neighbours(const dil_choice_row &c, const choose_place &at,
                                       int first) {
  if (at.first > at.last) return {0, 0};
  int low = c.left == DIL_FAR ? 0 : dil_max(at.first - c.left, 0) / c.block;
  int last = at.M - 1;
  if (c.right < last) last = dil_min(last, at.last + c.right);
  unsigned seen = last < 0 ? 0 : bits_between(first, low, last / c.block);
  unsigned diagonal = 0;
  if (c.right <= 0)
    diagonal = seen & bits_between(first, at.bi * c.query_block / c.block,
                                   ((at.bi + 1) * c.query_block - 1) / c.block);
  return {diagonal, seen & ~diagonal};
}

DIL_INLINE lane_blocks find_candidates(const dil_choose_params &p,
                                       const dil_choice_row &c, int b, int group,
                                       int bi, int first, int own_keys) {
  choose_place at = place_of(p, c, b, bi);
  lane_blocks own = {0, 0};
  unsigned mine = 0xffffffffu >> (32 - own_keys);
  if (CHOICES_PLAIN) {
    own = find_neighbours(c, at, first);
    return {own.always & mine, own.scored & mine};
  }
#pragma unroll 1
  for (int r = 0; r < own_keys && first + r < p.keys; r++) {
    if (!is_candidate(p, c, at, group, first + r)) continue;
    if (is_diagonal(c, bi, first + r)) own.always |= 1u << r;
    else own.scored |= 1u << r;
  }
  return own;
}

/* Bits of the estimates that are scored; of others 0, which no threshold reaches. Rows
 * of estimates are as long as whole lanes' key blocks. */
template <int OWN_KEYS>
DIL_INLINE void read_estimates(const float *estimate, unsigned scored,
                               unsigned (&bits)[OWN_KEYS]) {
#pragma unroll
  for (int r = 0; r < OWN_KEYS; r += 4) {
    float4 x = make_float4(0, 0, 0, 0);
    if (scored) x = *(const float4 *)(estimate + r);
    bits[r] = scored >> r & 1 ? bits_of_estimate(x.x) : 0;
    bits[r + 1] = scored >> (r + 1) & 1 ? bits_of_estimate(x.y) : 0;
    bits[r + 2] = scored >> (r + 2) & 1 ? bits_of_estimate(x.z) : 0;
    bits[r + 3] = scored >> (r + 3) & 1 ? bits_of_estimate(x.w) : 0;
  }
}

/* Turns the bits of a lane's estimates: of OWN_KEYS bits side by side, number k of word
 * n becomes number n of word k. */
template <int OWN_KEYS> DIL_INLINE void turn_bits(unsigned (&bits)[OWN_KEYS]) {
  unsigned low = 0xffffffffu; /* the lower `half` bits of each group of twice as many */
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    low ^= low << half;
    if (half >= OWN_KEYS) continue;
#pragma unroll
    for (int n = 0; n < OWN_KEYS; n++) {
      if (n & half) continue;
      unsigned other = (bits[n] >> half ^ bits[n + half]) & low;
      bits[n] ^= other << half;
      bits[n + half] ^= other;
    }
  }
}

/* The weights of a lane's estimates beside that of the best, in units of 2^-30: whole
 * numbers have one sum in any order. They stand where rows of queries were, those of a
 * lane so far apart as a thread block has threads. */
DIL_INLINE unsigned *lane_weights() { return (unsigned *)CHOOSING.query + threadIdx.x; }

template <int OWN_KEYS>
DIL_INLINE void weigh(const unsigned (&bits)[OWN_KEYS], int lanes) {
  unsigned most = 0, *weight = lane_weights();
#pragma unroll
  for (int r = 0; r < OWN_KEYS; r++) most = bits[r] > most ? bits[r] : most;
  most = max_lanes(most, lanes);
  float best = estimate_of_bits(most);
#pragma unroll
  for (int r = 0; r < OWN_KEYS; r++) {
    float less = estimate_of_bits(bits[r]) - best; /* NaN: of infinite ones, or of NaN */
    float share = bits[r] == most ? 1 : less < 0 ? expf(less) : 0;
    weight[r * DIL_CHOOSE_THREADS] = (unsigned)(share * (1 << 30) + 0.5f);
  }
}

/* The sum of the weights of some key blocks of all lanes. */
DIL_INLINE unsigned long long sum_weights(unsigned some, int lanes) {
  enum { LOW = 25 }; /* bits of which 32 lanes have a sum */
  const unsigned *weight = lane_weights();
  unsigned long long sum = 0;
#pragma unroll 1
  for (; some; some &= some - 1)
    sum += weight[(__ffs((int)some) - 1) * DIL_CHOOSE_THREADS];
  unsigned long long high = sum_lanes((int)(sum >> LOW), lanes);
  return (high << LOW) + sum_lanes((int)(sum & ((1 << LOW) - 1)), lanes);
}

/* The first of some key blocks, so many. */
DIL_INLINE unsigned first_of_lanes(unsigned some, int wanted, int lanes) {
  unsigned first = 0;
  wanted -= sum_before(__popc(some), lanes);
#pragma unroll 1
  for (; some && wanted > 0; wanted--) {
    first |= some & -some;
    some &= some - 1;
  }
  return first;
}

/* The `taken` best of the key blocks that are scored; of equal ones the first. Where this
 * is `done`, nothing is asked for. The whole warp comes here. From the first bit on, those
 * that have it are better than those that are alike and have it not. */
template <int OWN_KEYS>
DIL_INLINE unsigned best_by_count(const float *estimate, int lanes, unsigned scored,
                                  int taken, bool done) {
  unsigned plane[OWN_KEYS], best = 0, alike = scored;
  read_estimates(estimate, scored, plane);
  turn_bits(plane);
  bool all_done = false;
#pragma unroll
  for (int bit = 31; bit >= 0; bit--) {
    if (all_done) break;
    unsigned have = plane[bit % OWN_KEYS] >> bit / OWN_KEYS * OWN_KEYS & alike;
    int count = count_lanes(__popc(have), lanes);
    bool more = count > taken;
    if (!done && (!more || count == 1)) {
      best |= have;
      taken = more ? 0 : taken - count;
    }
    alike = more ? have : alike & ~have;
    done |= taken == 0;
    all_done = __all_sync(0xffffffffu, done);
  }
  return all_done ? best : best | first_of_lanes(done ? 0 : alike, taken, lanes);
}

/* The fewest of the `alike` that have the weight which is lacking, the best of them. All
 * have it together, where this is `asked`. The whole warp comes here. */
template <int OWN_KEYS>
DIL_INLINE unsigned best_by_weight(const unsigned (&bits)[OWN_KEYS], int lanes,
                                   unsigned alike, unsigned long long lacking,
                                   bool asked) {
  unsigned best = 0;
  int count = 1;
#pragma unroll 1
  for (int bit = 31; bit >= 0; bit--) {
    unsigned have = 0;
#pragma unroll
    for (int r = 0; r < OWN_KEYS; r++) have |= (bits[r] >> bit & 1) << r;
    have &= alike;
    unsigned long long sum = sum_weights(have, lanes);
    bool more = sum >= lacking;
    if (!more) best |= have, lacking -= sum;
    alike = more ? have : alike & ~have;
    count = count_lanes(__popc(alike), lanes);
    if (__all_sync(0xffffffffu, !asked || count == 1)) break;
  }
  unsigned long long each = sum_weights(alike, lanes) / dil_max(count, 1);
  int enough = asked ? (int)((lacking - 1) / each + 1) : 0;
  return best | first_of_lanes(alike, enough, lanes);
}

/* The best by estimates, at most so many; with BY_SHARE the fewest that have this share of
 * all weights, which is asked where the best that are allowed have more. */
template <int OWN_KEYS, bool BY_SHARE>
DIL_INLINE unsigned best_blocks(const float *estimate, int lanes, unsigned scored,
                                int taken, double share, bool done) {
  unsigned best = best_by_count<OWN_KEYS>(estimate, lanes, scored, taken, done);
  if (!BY_SHARE) return best;
  unsigned bits[OWN_KEYS];
  read_estimates(estimate, scored, bits);
  weigh(bits, lanes);
  unsigned long long wanted =
      (unsigned long long)ceil(share * sum_weights(scored, lanes));
  unsigned long long reached = sum_weights(best, lanes);
  bool asked = !done && reached >= wanted;
  if (!__any_sync(0xffffffffu, asked)) return best;
  unsigned fewest = best_by_weight(bits, lanes, best, wanted, asked);
  return asked ? fewest : best;
}

/* The choice of the lanes of a block of queries: so many of the key blocks that are
 * scored, or `all` of them. */
struct lane_choice {
  lane_blocks own;
  int taken;
  bool all;
};

DIL_INLINE lane_choice choice_of_lanes(const dil_choose_params &p,
                                       const dil_choice_row &c, int b, int group,
                                       int bi, int lanes, int own_keys, bool there) {
  int first = (int)(threadIdx.x & (lanes - 1)) * own_keys;
  lane_blocks own = {0, 0};
  if (there) own = find_candidates(p, c, b, group, bi, first, own_keys);
  int always = count_lanes(__popc(own.always), lanes);
  int scored = count_lanes(__popc(own.scored), lanes);
  int taken = dil_min(dil_max(c.most - always, 0), scored);
  return {own, taken, taken == scored && c.share <= 0};
}

/* The choice of a lane whose best key blocks are these. */
DIL_INLINE unsigned chosen_of(const lane_choice &x, unsigned best) {
  if (x.all) return x.own.always | x.own.scored;
  return x.taken > 0 ? x.own.always | best : x.own.always;
}

#endif
