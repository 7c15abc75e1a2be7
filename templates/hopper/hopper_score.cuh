// hopper_score.cuh - score chains on the consumers' fragments.
//
// In: products of a block, the message of its tile and its own. Out: its
// scores. A chain of any form gives natural scores. A linear form leaves the
// scale of the products, so that its slopes are in their units. A capped form
// gives exponents in units of log2.
#pragma once

// A block's tile: {position, stride, rows, head}, and the values that
// expressions read besides positions.
struct pair_tile {
  int4 rows;
  dil_pair at;
};
DEVICE pair_tile pair_tile_of(const consumer &c, int4 m) {
  u32 tile = tile_message(c, tile_of(m));
  int4 rows = shared_load(tile), to = shared_load(tile + 16);
  int away = first_row(rows, to) + c.run.first - rows.x;
  return {rows, pair_at(c.run, to.w, rows.w, away)};
}

// This thread's first row and column.
DEVICE int pair_row(u32 thread) { return warp_row(thread) + thread % 32 / 4; }
DEVICE int pair_column(u32 thread) { return thread % 4 * 2; }

// ---- any form --------------------------------------------------------------

#if SCORE_FORM == SCORE_ANY
// Rewrites the products of a block to natural scores by score chain `chain`.
template <int chain>
DEVICE void rewrite_scores(const consumer &c, float (&s)[TILE_KEYS / 2],
                           int4 m, int step) {
  pair_tile t = pair_tile_of(c, m);
  u32 thread = thread_index();
  int row = t.rows.x + pair_row(thread) * t.rows.y;
  int j = m.z + pair_column(thread) * step;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++)
    s[i] = dil_chain(chain, __fmul_rn(s[i], c.run.natural),
                     row + (i & 2) * 4 * t.rows.y,
                     j + (i / 4 * 8 + (i & 1)) * step, t.at);
}
#endif

// ---- linear: s + slope * distance + what the row adds ----------------------

#if SCORE_SLOPES
// Below this slope a key, in natural units, distances inside a block are
// multiplied apart from that of the block, which rounds scores by 128 slopes /
// 2^24. Beyond it every pair is multiplied by itself, as the chain does: scores
// are exact where the distance is 0, and infinite slopes are its own.
#define STEEP 2.0f

// The distances of this thread's first key from position 0 or from its two
// rows.
DEVICE void distances_of(const consumer &c, int4 m, int step, float (&away)[2]) {
  u32 tile = tile_message(c, tile_of(m)), thread = thread_index();
  int key = m.z + pair_column(thread) * step, stride = shared_word(tile + 4);
  int row = shared_word(tile) + pair_row(thread) * stride;
  if (SCORE_DISTANCE == DISTANCE_KEY) row = stride = 0;
  away[0] = __int2float_rn(key - row);
  away[1] = __int2float_rn(key - row - 8 * stride);
}
DEVICE float slope_of(const consumer &c, int4 m) {
  return __int_as_float(shared_word(c.base + AT_SLOPE + 4 * tile_of(m)));
}

// The line that a block's scores rise along: what the next key adds, and what
// the thread's first row adds to all of its keys.
struct score_line {
  float rise;
#if BASES
  float base;
#endif
};
DEVICE score_line find_line(const consumer &c, int4 m,
                            const ring<STAGES> &block) {
  int step = shared_word(message_of(c.base, block.slot()) + 28);
  float slope = slope_of(c, m);
#if BASES
  float away[2];
  distances_of(c, m, step, away);
  return {slope * step, slope * away[0]};
#else
  return {slope * step};
#endif
}

// Adds slope * distance pair by pair.
DEVICE void add_steep(const consumer &c, float (&s)[TILE_KEYS / 2], int4 m,
                      const ring<STAGES> &block) {
  int step = shared_word(message_of(c.base, block.slot()) + 28);
  float away[2], slope = slope_of(c, m);
  distances_of(c, m, step, away);
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++) {
    float d = fmaf(step, float(i / 4 * 8 + (i & 1)), away[i >> 1 & 1]);
    if (SCORE_DISTANCE == DISTANCE_SIZE) d = fabsf(d);
    s[i] = fmaf(slope, d, s[i]);
  }
}

// Adds slope * distance. With BASES, the row's base becomes what all scores of
// this block still lack.
DEVICE void add_distances(const consumer &c, float (&s)[TILE_KEYS / 2], int4 m,
                          const ring<STAGES> &block, const score_line &line,
                          row_state &r) {
#if BASES
  bool steep = !(fabsf(line.rise) * c.run.natural < STEEP);
  r.base[0] = r.base[1] = 0;
  if (!steep) {
    int stride = shared_word(tile_message(c, tile_of(m)) + 4);
    if (SCORE_DISTANCE == DISTANCE_KEY) stride = 0;
    r.base[0] = line.base;
    r.base[1] = fmaf(slope_of(c, m), float(-8 * stride), line.base);
#pragma unroll
    for (int i = 0; i < TILE_KEYS / 2; i++)
      if (i / 4 * 8 + (i & 1))
        s[i] = fmaf(line.rise, float(i / 4 * 8 + (i & 1)), s[i]);
    return;
  }
#endif
  add_steep(c, s, m, block);
}
#endif

// ---- capped: exponents of cap * tanh(rate * s) -----------------------------

#if SCORE_FORM == SCORE_CAPPED
// Rewrites the products of a block to exponents. tanh(x) is 1 - 2 / (1 +
// 2^(2 x log2 e)). With STEADY they are less by the peak, which is the same for
// all rows.
DEVICE void cap_scores(const consumer &c, float (&s)[TILE_KEYS / 2]) {
  const float top = STEADY ? CAP_EXPONENT - STEADY_PEAK : CAP_EXPONENT;
  float rate = c.run.natural * (2 * LOG2_E * SCORE_RATE);
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++) {
    float power = exp2_fast(s[i] * rate);
    s[i] = fmaf(reciprocal(power + 1), -2 * CAP_EXPONENT, top);
  }
}
#endif
