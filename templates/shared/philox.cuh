/* philox.cuh - Philox 4x32-10 (Salmon et al., SC 2011): one word of it, for
 * dropout. The bits depend on position, head and batch row alone. */
#ifndef DIL_TEMPLATES_SHARED_PHILOX_H
#define DIL_TEMPLATES_SHARED_PHILOX_H

static __device__ __forceinline__ unsigned
dil_philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0,
           unsigned k1, int word) {
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
  return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

/* Whether dropout takes the weight of the pair (t, j). */
static __device__ __forceinline__ bool dil_dropped(int b, int h, int t, int j,
                                                   unsigned seed_low,
                                                   unsigned seed_high) {
  return dil_philox((unsigned)(j >> 2), (unsigned)t, (unsigned)h, (unsigned)b,
                    seed_low, seed_high, j & 3) < (unsigned)DROPOUT;
}

#endif
