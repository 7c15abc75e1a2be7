/* choose_warp.cuh - the best blocks of keys where there are few: a warp chooses for a
 * block of queries by itself, and needs no barrier. In: a block of queries, estimates
 * in f32. Out: its lists, those that choose_block would write. Lane l has key blocks
 * l, 32 + l, ... in slots 0, 1, ... choose.cuh includes this file behind its lists. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_WARP_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_WARP_H

enum { WARP_SLOTS = 32 };

/* A bit for each slot of a lane. */
struct warp_slots {
  unsigned always, scored;
};

/* Returns whether warps choose: not by `keep mass`, which sorts, and where each
 * warp has a block of queries. */
DIL_INLINE bool warps_choose(const dil_choose_params &p, const dil_choice_row &c) {
  return p.keys <= 32 * WARP_SLOTS && !(c.share > 0) && strip_of(c) >= CHOOSE_WARPS;
}

DIL_INLINE int count_lanes(bool x) {
  return __popc(__ballot_sync(0xffffffffu, x));
}

/* Bits of the estimates that are scored; of others 0, which no threshold reaches. */
DIL_INLINE void read_slots(const float *estimate, int slots, unsigned scored,
                           unsigned (&bits)[WARP_SLOTS]) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < WARP_SLOTS; r++) {
    bits[r] = 0;
    if (r < slots && scored >> r & 1)
      bits[r] = bits_of_estimate(estimate[32 * r + lane]);
  }
}

/* A threshold that `wanted` of the bits reach, or else the largest that more reach;
 * 0 where fewer are above 0. */
DIL_INLINE unsigned find_threshold(const unsigned (&bits)[WARP_SLOTS], int slots,
                                   int wanted) {
  unsigned found = 0;
#pragma unroll 1
  for (unsigned one = 1u << 31; one; one >>= 1) {
    int count = 0;
#pragma unroll
    for (int r = 0; r < WARP_SLOTS; r++) {
      if (r >= slots) break;
      count += count_lanes(bits[r] >= (found | one));
    }
    if (count >= wanted) found |= one;
    if (count == wanted) break;
  }
  return found;
}

/* The slots of the `taken` best that are scored; of equal ones the first. */
DIL_INLINE unsigned best_slots(const float *estimate, int slots, unsigned scored,
                               int taken) {
  unsigned bits[WARP_SLOTS], best = 0, below = (1u << (threadIdx.x & 31)) - 1;
  read_slots(estimate, slots, scored, bits);
  unsigned least = find_threshold(bits, slots, taken);
#pragma unroll
  for (int r = 0; r < WARP_SLOTS; r++) {
    if (r >= slots) break;
    taken -= count_lanes(bits[r] > least);
  }
#pragma unroll
  for (int r = 0; r < WARP_SLOTS; r++) {
    if (r >= slots) break;
    bool equal = (scored >> r & 1) && bits[r] == least;
    unsigned all = __ballot_sync(0xffffffffu, equal);
    bool chosen = bits[r] > least || (equal && __popc(all & below) < taken);
    best |= (unsigned)chosen << r;
    taken -= __popc(all);
  }
  return best;
}

DIL_INLINE void write_slots(const dil_choose_params &p, const dil_choice_row &c,
                            int b, int group, int bi, int slots, unsigned chosen) {
  int lane = threadIdx.x & 31, written = 0;
#pragma unroll 1
  for (int r = 0; r < slots; r++) {
    bool own = chosen >> r & 1;
    unsigned all = __ballot_sync(0xffffffffu, own);
    int place = written + __popc(all & ((1u << lane) - 1));
    if (own) write_place(p, c, b, group, bi, place, 32 * r + lane);
    written += __popc(all);
  }
  write_lengths(p, c, b, group, bi, written, lane, 32);
}

DIL_INLINE void choose_by_warp(const dil_choose_params &p, const dil_choice_row &c,
                               int b, int group, int bi, const float *estimate) {
  choose_place at = place_of(p, c, b, bi);
  int slots = (p.keys + 31) / 32, always = 0, scored = 0;
  warp_slots own = {0, 0};
#pragma unroll 1
  for (int r = 0; r < slots; r++) {
    int bj = 32 * r + (threadIdx.x & 31);
    bool candidate = bj < p.keys && is_candidate(p, c, at, group, bj);
    bool must = candidate && is_diagonal(c, bi, bj), may = candidate && !must;
    own.always |= (unsigned)must << r;
    own.scored |= (unsigned)may << r;
    always += count_lanes(must);
    scored += count_lanes(may);
  }
  int taken = dil_min(dil_max(c.most - always, 0), scored);
  unsigned chosen = own.always;
  if (taken == scored) chosen |= own.scored;
  else if (taken > 0) chosen |= best_slots(estimate, slots, own.scored, taken);
  write_slots(p, c, b, group, bi, slots, chosen);
}

#endif
