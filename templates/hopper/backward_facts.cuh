// backward_facts.cuh - the facts of query rows: their lse in units of log2, and
// their delta; and the random words of dropout.
//
// In: the launch. Out: where keys are held, the facts of each streamed block in
// shared memory, from which the multiplicity of the block's pairs is taken off.
// With dropout the words of the block's rows, and of the rows that the tile
// holds, whose words change with the query head.
#pragma once

#define INFINITE_LSE __int_as_float(0x7f800000) // exp2(s - it) is 0

struct row_facts {
  float lse, delta;
};

// The facts of query row n.
DEVICE row_facts facts_of(const hopper_backward_launch &run, int batch,
                          int head, int n) {
  long long row = ((long long)batch * run.query_heads + head) * run.query_rows;
  float2 both = ((const float2 *)run.facts)[row + n];
  return {both.x, both.y};
}

// The address of the facts of a stage: those of lse, then those of delta.
DEVICE u32 facts_at(u32 base, u32 stage) {
  return base + AT_FACTS + stage * FACT_BYTES;
}
DEVICE u32 facts_barrier(u32 base, u32 stage) {
  return base + AT_FACTS_FULL + 8 * stage;
}

DEVICE u32 words_at(u32 base, u32 stage) {
  return facts_at(base, stage) + WORDS_AT;
}
DEVICE bool has_large(u32 base, u32 stage) {
  return shared_word(facts_at(base, stage) + 8 * TILE_KEYS);
}
DEVICE float unit_at(u32 base, u32 stage) {
  return __int_as_float(shared_word(facts_at(base, stage) + 8 * TILE_KEYS + 4));
}
DEVICE float slope_at(u32 base, u32 stage) {
  return __int_as_float(shared_word(facts_at(base, stage) + 8 * TILE_KEYS + 8));
}

#if SCORE_ROWS
// What a row adds to all of its scores, in units of log2.
DEVICE float row_score(const hopper_launch &run, int batch, int head, int i) {
  dil_pair at = pair_at(run, batch, head, away_of(&run, batch));
  return dil_row_score(i, at) * LOG2_E;
}
#endif

// ---- units of f16 ----------------------------------------------------------

// Weights are in units of 2^-WEIGHT_BITS: f16 has five bits of exponent. dS is
// in units of 2^-(WEIGHT_BITS + unit_bits), in which it stays below 2^15.
#define WEIGHT_BITS (ELEMENT == 2 ? 14 : 0)

DEVICE float power_of_2(int n) { return __int_as_float((n + 127) << 23); }
// The least n with x < 2^n, for positive x.
DEVICE int bits_of(float x) { return (__float_as_int(x) >> 23) - 126; }
// |dP - delta| < 2^-unit_bits, by the Cauchy-Schwarz inequality.
DEVICE int unit_bits(const hopper_backward_launch &run) {
  if (ELEMENT != 2) return 0;
  int product = (bits_of(run.tops[0] * run.tops[1]) + 1) >> 1;
  int top = max(product, bits_of(run.tops[2])) + 1;
  return -max(-96, min(top, 96));
}

// ---- of a block ------------------------------------------------------------

// From here on the rounding of lse shows in weights, and some would be above 1.
DEVICE bool is_large(float lse) {
  return fabsf(lse) > 1024 && lse < INFINITE_LSE;
}

// Lane x of the warp holds the facts of the rows x, x + 32, ... of a block.
#define OWN_FACTS ((TILE_KEYS + 31) / 32)

DEVICE void write_block_facts(row_facts (&f)[OWN_FACTS], float unit, u32 to) {
  bool large = false;
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int i = thread_index() % 32 + 32 * k;
    if (i >= TILE_KEYS) continue;
    if (ELEMENT == 2) f[k].delta *= unit;
    shared_set(to + 4 * i, __float_as_int(f[k].lse));
    shared_set(to + 4 * (TILE_KEYS + i), __float_as_int(f[k].delta));
    large |= is_large(f[k].lse);
  }
#if SCORE_ROWS
  large = true; // lse has been rounded with the row's part
#endif
  large = __any_sync(~0u, large);
  if (thread_index() % 32) return;
  shared_set(to + 8 * TILE_KEYS, large);
  shared_set(to + 8 * TILE_KEYS + 4, __float_as_int(unit));
}

DEVICE float2 shared_pair(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "r"(address)
               : "memory");
  return x;
}
