/* splits.h - how calls with few rows split the keys of a row. In: how many keys the
 * rows of a batch row see at most (their reach), and how many tiles of rows read
 * the keys of a K/V head. Out: the number of splits. The batch has no part in it,
 * so that a row has the same bits alone or in a batch. Plain C: the run time and
 * the kernels read it. */
#ifndef DIL_TEMPLATES_SHARED_SPLITS_H
#define DIL_TEMPLATES_SHARED_SPLITS_H

#if defined __CUDACC__ || defined __CUDACC_RTC__
#define DIL_BOTH static __device__ __forceinline__
#else
#define DIL_BOTH static inline
#endif

enum {
  DIL_FEW_ROWS = 64,     /* calls with fewer rows have few */
  DIL_FEW_SPLITS = 64,   /* of a K/V head's keys, over all its tiles */
  DIL_FEW_BITS = 8,
  DIL_FEW_KEYS = 1 << DIL_FEW_BITS /* of a split, at least */
};

/* Keys of a split, max(256, 2^ceil(log2(reach * tiles / 64))), as a power of 2. */
DIL_BOTH int few_bits(long long reach, long long tiles) {
  int bits = DIL_FEW_BITS;
  while ((long long)DIL_FEW_SPLITS << bits < reach * tiles) bits++;
  return bits;
}

DIL_BOTH int few_splits(long long reach, long long tiles) {
  if (reach < 1) return 1;
  return (int)((reach - 1) >> few_bits(reach, tiles)) + 1;
}

/* The most splits of a row that reaches no more keys than that. */
DIL_BOTH int few_most(long long reach, long long tiles) {
  long long by_size = reach < 1 ? 1 : (reach - 1) / DIL_FEW_KEYS + 1;
  long long most = tiles < 1 ? 1 : (DIL_FEW_SPLITS - 1) / tiles + 1;
  return (int)(by_size < most ? by_size : most);
}

#endif
