/* gradient_score.cuh - weights of pairs and gradients of their scores, on the
 * fragments of a visit; and powers of two that keep the latter within f16. */
#pragma once

/* f16 has five bits of exponent: there, weights are multiplied by 2^9. */
#define WEIGHT_UNIT (ELEMENT == 2 ? DROPOUT_KEPT * 0x1p-9f : 1.0f)

#define TIMES ((const float *)(shared + SHARED_TIMES))

/* The facts of the query row of element e of the fragments. */
DIL_INLINE dil_facts facts_at(int e) {
  int row = 16 * (threadIdx.x >> 5) + (threadIdx.x & 31) / 4 + 8 * (e >> 1 & 1);
  return FACTS[HOLDS_KEYS ? column_of(e) : row];
}

/* A score becomes final, in natural units; its derivative by what it was. */
DIL_INLINE float rewrite_score(const dil_params &p, const dil_tile &t,
                               const dil_rows &rows, const dil_visit &v, int e,
                               float &x) {
  x = __fmul_rn(x, p.scale);
#if SCORED
  int r = e >> 1 & 1, row = rows.t[r];
  int column = column_position(v, column_of(e));
  return dil_chain_slope(BRANCH(v.keys.branch).chain, x,
                         pair_i(row, column), pair_j(row, column),
                         pair_of(p, t, rows.h[r]));
#else
  return 1;
#endif
}

/* Scores s become weights, of which dropout may take some. Products of dO and V,
 * d, become gradients of the scores before the chain. A pair of weight 0 has
 * none, whatever stands in its operands. For gradients of inputs s becomes the
 * score before the chain, and d its gradient behind the chain. */
DIL_INLINE void differentiate(const dil_params &p, const dil_tile &t,
                              const dil_visit &v, unsigned bits,
                              const dil_row_words &words,
                              float (&s)[SCORE_TILES][4],
                              float (&d)[SCORE_TILES][4]) {
  bool natural = SCORED || !(p.scale > 0);
  float c2 = natural ? DIL_LOG2_E : p.scale * DIL_LOG2_E;
  dil_rows rows = rows_of(p, t, 0);
  unsigned gone = 0;
#if DROPOUT
  if (p.flags & DIL_DROP)
    gone = drop_bits<TILE_KEYS>(p, t, rows, v, words,
                                (const unsigned *)(shared + SHARED_WORDS));
  float kept = p.flags & DIL_DROP ? DROPOUT_KEPT : 1.0f;
#else
  float kept = 1;
#endif
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES; e++) {
    float &x = s[e >> 2][e & 3], &y = d[e >> 2][e & 3];
    dil_facts row = facts_at(e);
#if MAKES & MAKES_INPUTS
    float before = __fmul_rn(x, p.scale);
#endif
    float slope = natural ? rewrite_score(p, t, rows, v, e, x) : 1.0f;
    float weight = power_of_2(fmaf(x, c2, -row.lse));
    if (weight > 1) weight = 1;
#if MULTIPLICITY
    if (v.merged) weight *= TIMES[column_of(e)];
#endif
    if (!(bits >> e & 1) || x == DIL_NONE) weight = 0; /* lse may be NaN */
    float share = gone >> e & 1 ? 0.0f : y * kept;
#if MAKES & MAKES_INPUTS
    y = weight == 0 ? 0.0f : weight * (share - row.delta);
    x = before;
    continue;
#endif
    y = weight == 0 ? 0.0f
                    : dil_slopes(weight * (share - row.delta), slope);
    x = gone >> e & 1 ? 0.0f : weight * (kept / WEIGHT_UNIT);
  }
}

/* ---- f16 ----------------------------------------------------------------- */

#define LEAST_UNIT __int_as_float(1 << 23)

/* The power of two that brings numbers up to `top` below 2^15. */
DIL_INLINE float unit_of(float top) {
  int exponent = __float_as_int(top) >> 23;
  return __int_as_float(most(exponent - 14, 1) << 23);
}

/* Gradients in units of the rows' greatest so far; the sums follow. */
DIL_INLINE void take_unit(float (&d)[SCORE_TILES][4],
                          float (&sums)[KEY_TILES][4], float (&unit)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = 0;
#pragma unroll
    for (int e = 0; e < 2 * SCORE_TILES; e++)
      top = fmaxf(top, fabsf(d[e >> 1][2 * r + (e & 1)]));
    float next = fmaxf(unit[r], unit_of(row_max(top)));
    if (next != unit[r]) {
#pragma unroll
      for (int e = 0; e < 2 * KEY_TILES; e++)
        sums[e >> 1][2 * r + (e & 1)] *= unit[r] / next;
    }
    unit[r] = next;
#pragma unroll
    for (int e = 0; e < 2 * SCORE_TILES; e++)
      d[e >> 1][2 * r + (e & 1)] *= 1 / next;
  }
}
