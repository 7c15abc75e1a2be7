/* philox.cuh - which weights dropout takes. A row and a key of a head have a
 * random word each, the first of Philox 4x32-10 (Salmon et al., SC 2011); a pair
 * mixes its two. The bits depend on positions, head and batch row alone. */
#ifndef DIL_TEMPLATES_SHARED_PHILOX_H
#define DIL_TEMPLATES_SHARED_PHILOX_H

enum { DIL_DROP_ROW, DIL_DROP_KEY };

/* The seed of a launch: where `seed_at` points to, else the launch's own. */
struct dil_seed {
  unsigned low, high;
};
template <typename launch>
static __device__ __forceinline__ dil_seed seed_of(const launch &run) {
  if (!run.seed_at) return {run.seed_low, run.seed_high};
  return {run.seed_at[0], run.seed_at[1]};
}

/* The words of several rows or keys of a head: `word` brings their positions. */
template <int count>
static __device__ __forceinline__ void
dil_drop_words(int side, int b, int h, unsigned seed_low, unsigned seed_high,
               unsigned (&word)[count]) {
  unsigned c1[count], c2[count], c3[count];
#pragma unroll
  for (int i = 0; i < count; i++) {
    c1[i] = (unsigned)h;
    c2[i] = (unsigned)b;
    c3[i] = (unsigned)side;
  }
#pragma unroll 1
  for (int round = 0; round < 10; round++) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      unsigned low0 = 0xD2511F53u * word[i];
      unsigned high0 = __umulhi(0xD2511F53u, word[i]);
      unsigned low1 = 0xCD9E8D57u * c2[i];
      unsigned high1 = __umulhi(0xCD9E8D57u, c2[i]);
      word[i] = high1 ^ c1[i] ^ seed_low;
      c1[i] = low1;
      c2[i] = high0 ^ c3[i] ^ seed_high;
      c3[i] = low0;
    }
    seed_low += 0x9E3779B9u;
    seed_high += 0xBB67AE85u;
  }
}

/* The word of a row or a key at a position. */
static __device__ __forceinline__ unsigned
dil_drop_word(int side, int b, int h, int position, unsigned seed_low,
              unsigned seed_high) {
  unsigned word[1] = {(unsigned)position};
  dil_drop_words(side, b, h, seed_low, seed_high, word);
  return word[0];
}

/* Returns the random number of the pair with these words. */
static __device__ __forceinline__ unsigned dil_drop_number(unsigned row,
                                                           unsigned key) {
  unsigned u = (row ^ key) * 0x7FEB352Du;
  return (u ^ u >> 15) * 0x846CA68Bu;
}

/* Returns whether dropout takes its weight. */
static __device__ __forceinline__ bool dil_dropped(unsigned row, unsigned key) {
  return dil_drop_number(row, key) < (unsigned)DROPOUT;
}

#endif
