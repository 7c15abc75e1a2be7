// backward_weigh.cuh - weights of pairs and gradients of their scores, on the
// fragments of a block.
//
// In: scores S and products dP = dO V^T. Out: P = exp(S - lse), and dS = P (dP -
// delta). With dropout a pair that loses its weight has a negative one: the sign
// is taken off where dS needs the weight, and such weights become 0 where dV
// does. In f16 weights of held keys are in units of 2^-WEIGHT_BITS, and dS in
// units of a power of two that follows from the greatest dO, V and delta.
#pragma once

// The registers that a warpgroup carries from block to block.
struct fragments {
  float s[TILE_KEYS / 2]; // scores, then weights
#if MAKES_SCORED
  float d[TILE_KEYS / 2]; // dP
  float scored[HEAD_COLUMNS / 2];
#endif
#if SLOPED
  float slopes[TILE_KEYS / 2]; // derivatives of scores
#endif
#if MAKES_WEIGHTED
  float weighted[VALUE_COLUMNS / 2];
#endif
#if !HOLDS_KEYS
  row_facts row[2];       // of the thread's own rows
  bool large;             // some lse of the warp is large
#endif
};

// ---- halves of words -------------------------------------------------------

#if ELEMENT == 1
DEVICE float low_half(u32 x) { return __int_as_float(x << 16); }
DEVICE float high_half(u32 x) { return __int_as_float(x & 0xffff0000u); }
#define HALVES "bf16x2"
#define HALVES_ONE 0x3f803f80u // twice 1
#else
DEVICE float half_to_float(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
DEVICE float low_half(u32 x) { return half_to_float((unsigned short)x); }
DEVICE float high_half(u32 x) { return half_to_float((unsigned short)(x >> 16)); }
#define HALVES "f16x2"
#define HALVES_ONE 0x74007400u // twice 2^WEIGHT_BITS
#endif

// ---- no weight is above 1 --------------------------------------------------

// Where scores are large the rounding of lse would make some. NaN stays NaN.
DEVICE void cap_pairs(u32 (&p)[TILE_KEYS / 4]) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++) {
    asm("min.NaN." HALVES " %0, %0, %1;" : "+r"(p[i]) : "r"(HALVES_ONE));
    if (DROPS)
      asm("max.NaN." HALVES " %0, %0, %1;"
          : "+r"(p[i])
          : "r"(HALVES_ONE | 0x80008000u));
  }
}
DEVICE float cap(float x, float top) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(top));
  if (DROPS) asm("max.NaN.f32 %0, %0, %1;" : "+f"(y) : "f"(-top));
  return y;
}
DEVICE void cap_weights(float (&s)[TILE_KEYS / 2], float top) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++) s[i] = cap(s[i], top);
}

// ---- weights ---------------------------------------------------------------

// The factor of scores in exponents.
DEVICE float scale_of_scores(const hopper_launch &run) {
  if (!SCORED || SCORE_FORM == SCORE_LINEAR) return run.scale;
  return SCORE_FORM == SCORE_CAPPED ? 1.0f : LOG2_E;
}

#if HOLDS_KEYS
// The facts of the thread's columns 8 g, 8 g + 1.
DEVICE u32 own_facts(const consumer &c, const ring<STAGES> &block) {
  return facts_at(c.base, block.stage()) + thread_index() % 4 * 8;
}
// What exponents subtract: by column, from shared memory.
struct exponents {
  u32 facts;
};
DEVICE void weigh_some(float (&s)[TILE_KEYS / 2], int i, float scale,
                       const exponents &e) {
  float2 lse = shared_pair(e.facts + i * 8);
  s[i] = exp2_fast(fmaf(s[i], scale, -lse.x));
  s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -lse.y));
  s[i + 2] = exp2_fast(fmaf(s[i + 2], scale, -lse.x));
  s[i + 3] = exp2_fast(fmaf(s[i + 3], scale, -lse.y));
}
#else
// What exponents add: by row.
struct exponents {
  float shift[2];
};
DEVICE void weigh_some(float (&s)[TILE_KEYS / 2], int i, float scale,
                       const exponents &e) {
  s[i] = exp2_fast(fmaf(s[i], scale, e.shift[0]));
  s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, e.shift[0]));
  s[i + 2] = exp2_fast(fmaf(s[i + 2], scale, e.shift[1]));
  s[i + 3] = exp2_fast(fmaf(s[i + 3], scale, e.shift[1]));
}
#endif

#if DROPS
// The random numbers of some pairs are made while the next are exponentiated:
// the exponents after these follow from the numbers, as in weigh_dropping.
DEVICE void weigh_all(const consumer &c, float (&s)[TILE_KEYS / 2], float scale,
                      const exponents &e, const ring<STAGES> &block) {
  u32 words = words_at(c.base, block.stage());
  u32 thread = thread_index();
  u32 own = words + TILE_KEYS * 4 + (warp_row(thread) + thread % 32 / 4) * 4;
  u32 row0 = shared_word(own), row1 = shared_word(own + 32);
  words += thread % 4 * 16;
#pragma unroll
  for (int i = 0; i <= TILE_KEYS / 2; i += 8) {
    if (i < TILE_KEYS / 2) {
      weigh_some(s, i, scale, e);
      weigh_some(s, i + 4, scale, e);
    }
    if (i == 0) continue;
    u32 last = scale_dropped(s, i - 8, row0, row1,
                             shared_load(words + (i - 8) * 8), -1);
    scale = __uint_as_float(__float_as_uint(scale) | (last & c.run.zero));
  }
}
#else
DEVICE void weigh_all(const consumer &, float (&s)[TILE_KEYS / 2], float scale,
                      const exponents &e, const ring<STAGES> &) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) weigh_some(s, i, scale, e);
}
#endif

#if HOLDS_KEYS
// With dV weights are capped once they are packed.
DEVICE void weigh(const hopper_backward_launch &, const consumer &c,
                  fragments &f, int4, const ring<STAGES> &block) {
  barrier_wait(facts_barrier(c.base, block.stage()), block.phase());
  weigh_all(c, f.s, scale_of_scores(c.run), {own_facts(c, block)}, block);
  if (!MAKES_WEIGHTED && has_large(c.base, block.stage()))
    cap_weights(f.s, power_of_2(WEIGHT_BITS));
}
#else
DEVICE void weigh(const hopper_backward_launch &run, const consumer &c,
                  fragments &f, int4 m, const ring<STAGES> &block) {
  float bias = __int_as_float(m.y);
  if (DROPS)
    barrier_wait(facts_barrier(c.base, block.stage()), block.phase());
  weigh_all(c, f.s, scale_of_scores(c.run),
            {{bias - f.row[0].lse, bias - f.row[1].lse}}, block);
  // A key that counts several times has a weight up to its multiplicity, whose
  // share of lse keeps it below 1.
  if (f.large) cap_weights(f.s, power_of_2(WEIGHT_BITS + unit_bits(run)));
}
#endif

// ---- gradients of scores ---------------------------------------------------

// dS of a pair with weight p. Where keys are held, f16 has its unit here.
DEVICE float slope(float p, float d, float delta, float unit) {
  if (DROPS) {
    if (HOLDS_KEYS && ELEMENT == 2) d *= unit;
    return fmaf(fmaxf(p, 0), d, -fabsf(p) * delta);
  }
  if (HOLDS_KEYS && ELEMENT == 2) return p * fmaf(d, unit, -delta);
  return p * (d - delta);
}

// The same, before the score chain, of element i.
DEVICE float chain_slope(const fragments &f, int i, float ds) {
#if SLOPED && SCORE_FORM == SCORE_ANY
  return dil_slopes(ds, f.slopes[i]);
#elif SLOPED
  return ds * f.slopes[i];
#else
  return ds;
#endif
}

#if !MAKES_SCORED
#elif HOLDS_KEYS
// With dV from the weights as they were rounded, which spares registers.
#if MAKES_WEIGHTED
DEVICE float weight_of(const u32 (&p)[TILE_KEYS / 4], int i) {
  return i % 2 ? high_half(p[i / 2]) : low_half(p[i / 2]);
}
#else
DEVICE float weight_of(const float (&p)[TILE_KEYS / 2], int i) { return p[i]; }
#endif
template <class weights>
DEVICE void differentiate(const consumer &c, const fragments &f,
                          const weights &p, u32 (&ds)[TILE_KEYS / 4],
                          const ring<STAGES> &block) {
  u32 facts = own_facts(c, block) + 4 * TILE_KEYS;
  float unit = ELEMENT == 2 ? unit_at(c.base, block.stage()) : 1;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    float2 delta = shared_pair(facts + i * 8);
    auto of = [&](int n, float own) {
      return chain_slope(f, n, slope(weight_of(p, n), f.d[n], own, unit));
    };
    ds[i / 2] = pack(of(i, delta.x), of(i + 1, delta.y));
    ds[i / 2 + 1] = pack(of(i + 2, delta.x), of(i + 3, delta.y));
  }
}
#else
DEVICE void differentiate(const fragments &f, u32 (&ds)[TILE_KEYS / 4]) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    auto of = [&](int n) {
      float delta = f.row[n >> 1 & 1].delta;
      return chain_slope(f, n, slope(f.s[n], f.d[n], delta, 1));
    };
    ds[i / 2] = pack(of(i), of(i + 1));
    ds[i / 2 + 1] = pack(of(i + 2), of(i + 3));
  }
}
#endif
