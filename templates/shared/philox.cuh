/* philox.cuh - which weights dropout takes. A row and a key of a head have a
 * random word each, the first of Philox 4x32-10 (Salmon et al., SC 2011); a pair
 * mixes its two. The bits depend on positions, head and batch row alone. */
#ifndef DIL_TEMPLATES_SHARED_PHILOX_H
#define DIL_TEMPLATES_SHARED_PHILOX_H

static __device__ __forceinline__ unsigned
dil_philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0,
           unsigned k1) {
#pragma unroll 1
  for (int round = 0; round < 10; round++) {
    unsigned low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
    unsigned low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

enum { DIL_DROP_ROW, DIL_DROP_KEY };

/* The word of a row or a key at a position. */
static __device__ __forceinline__ unsigned
dil_drop_word(int side, int b, int h, int position, unsigned seed_low,
              unsigned seed_high) {
  return dil_philox((unsigned)position, (unsigned)h, (unsigned)b,
                    (unsigned)side, seed_low, seed_high);
}

/* Returns whether dropout takes the weight of the pair with these words. */
static __device__ __forceinline__ bool dil_dropped(unsigned row, unsigned key) {
  unsigned u = (row ^ key) * 0x7FEB352Du;
  u = (u ^ u >> 15) * 0x846CA68Bu;
  return u < (unsigned)DROPOUT;
}

#endif
