// backward_score.cuh - score chains on the fragments of gradients.
//
// In: products of a block, its message and that of its tile. Out: its scores,
// and where they vary, the derivatives of scores by products. A linear form
// leaves the scale of the products, and its derivatives are 1. A capped form
// gives exponents in units of log2, any other natural scores.
#pragma once

#if PAIRWISE || (SCORED && SCORE_FORM == SCORE_ANY)
// The values that expressions read besides positions. Where keys are held, each
// block has a query head.
DEVICE dil_pair pair_of_block(const consumer &c, int4 m,
                              const ring<STAGES> &block) {
  u32 tile = tile_message(c, tile_of(m));
  u32 message = message_of(c.base, block.slot());
  int batch = shared_word(HOLDS_KEYS ? message + 44 : tile + 28);
  int head = shared_word(HOLDS_KEYS ? message + 40 : tile + 12);
  return pair_at(c.run, batch, head, away_of(&c.run, batch));
}
#endif

#if SCORED
// The positions of a thread's pairs: of its first row and column, and between
// rows, between columns.
struct pair_positions {
  int held, streamed, rows, columns;
};
DEVICE pair_positions positions_of(const consumer &c, int4 m,
                                   const ring<STAGES> &block) {
  u32 tile = tile_message(c, tile_of(m)), thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4, column = thread % 4 * 2;
  int step = shared_word(message_of(c.base, block.slot()) + 28);
  int rows = shared_word(tile + 4);
  return {shared_word(tile) + row * rows, m.z + column * step, rows, step};
}

#if SCORE_FORM == SCORE_ANY
DEVICE void rewrite_scores(const consumer &c, fragments &f, int4 m,
                           const ring<STAGES> &block) {
  pair_positions p = positions_of(c, m, block);
  dil_pair at = pair_of_block(c, m, block);
#pragma unroll
  for (int n = 0; n < TILE_KEYS / 2; n++) {
    int held = p.held + (n & 2) * 4 * p.rows;
    int streamed = p.streamed + (n / 4 * 8 + (n & 1)) * p.columns;
    int i = HOLDS_KEYS ? streamed : held, j = HOLDS_KEYS ? held : streamed;
    float s = __fmul_rn(f.s[n], c.run.natural);
#if SLOPED
    f.slopes[n] = dil_chain_slope(0, s, i, j, at) * (1 / SLOPE_UNIT);
#else
    s = dil_chain(0, s, i, j, at);
#endif
    f.s[n] = s;
  }
}
#elif SCORE_FORM == SCORE_LINEAR
#if SCORE_SLOPES
// What scores of a distance of 1 gain, in units of products.
DEVICE float slope_of(const consumer &c, int4 m, const ring<STAGES> &block) {
#if HOLDS_KEYS
  barrier_wait(facts_barrier(c.base, block.stage()), block.phase());
  return slope_at(c.base, block.stage());
#else
  return __int_as_float(shared_word(c.base + AT_SLOPE + 4 * tile_of(m)));
#endif
}
#endif

// Adds slope * distance pair by pair: the score is exact where the distance is
// 0.
DEVICE void rewrite_scores(const consumer &c, fragments &f, int4 m,
                           const ring<STAGES> &block) {
#if SCORE_SLOPES
  const bool from_row = SCORE_DISTANCE != DISTANCE_KEY;
  pair_positions p = positions_of(c, m, block);
  int key = HOLDS_KEYS ? p.held : p.streamed;
  int row = HOLDS_KEYS ? p.streamed : p.held;
  int below = HOLDS_KEYS ? p.rows : from_row ? -p.rows : 0;
  int step = HOLDS_KEYS ? from_row ? -p.columns : 0 : p.columns;
  int first = from_row ? key - row : key;
  float slope = slope_of(c, m, block), next = __int2float_rn(step);
  float away[2] = {__int2float_rn(first), __int2float_rn(first + 8 * below)};
#pragma unroll
  for (int n = 0; n < TILE_KEYS / 2; n++) {
    float d = fmaf(next, float(n / 4 * 8 + (n & 1)), away[n >> 1 & 1]);
    if (SCORE_DISTANCE == DISTANCE_SIZE) d = fabsf(d);
    f.s[n] = fmaf(slope, d, f.s[n]);
  }
#endif
}
#else
// cap * tanh(x) is cap - 2 cap r with r = 1 / (1 + 2^(2 x log2 e)), and its
// derivative by x is 4 cap r (1 - r).
DEVICE void rewrite_scores(const consumer &c, fragments &f, int4,
                           const ring<STAGES> &) {
  float rate = c.run.natural * (2 * LOG2_E * SCORE_RATE);
#pragma unroll
  for (int n = 0; n < TILE_KEYS / 2; n++) {
    float r = reciprocal(exp2_fast(f.s[n] * rate) + 1);
    f.s[n] = fmaf(r, -2 * CAP_EXPONENT, CAP_EXPONENT);
#if SLOPED
    f.slopes[n] = fmaf(-r, r, r);
#endif
  }
}
#endif
#endif
