/* pages.cuh - keys and values in pages of a cache. In: the pages of a call, the
 * position of a key. Out: where its row stands in the pool, and which keys of a visit
 * have none, since their page is outside: those do not count. */
#ifndef DIL_TEMPLATES_SHARED_PAGES_H
#define DIL_TEMPLATES_SHARED_PAGES_H
#include "templates/shared/score.cuh"

DIL_INLINE bool is_paged(const dil_params &p) { return PAGED && p.pages; }

/* The page of key j of batch row b; -1: it is outside the pool. */
DIL_INLINE int page_of(const dil_params &p, int b, int j) {
  int page = p.pages[b * p.pages_stride + (j >> p.page_shift)];
  return (unsigned)page < (unsigned)p.page_count ? page : -1;
}

/* That key's row in a pool; NULL: it has none. */
DIL_INLINE const element *page_row(const dil_params &p, const element *pool,
                                   int b, int j, const long long (&stride)[3]) {
  int page = page_of(p, b, j), row = j & ((1 << p.page_shift) - 1);
  return page < 0 ? nullptr : pool + page * stride[0] + row * stride[1];
}

#if PAGED
/* A visit with absent keys is no full one. */
DIL_INLINE void ask_of_absent(dil_visit &v) {
  if (!v.full || !(v.absent[0] | v.absent[1])) return;
  v.full = false;
  v.window = true;
}

/* Finds the keys of a visit that are absent, a lane each; where there are any,
 * pairs are to be looked at. All lanes of a warp. */
DIL_INLINE void find_absent(const dil_params &p, const dil_tile &t,
                            dil_visit &v) {
  v.absent[0] = v.absent[1] = 0;
  if (!is_paged(p) || !v.some) return;
#pragma unroll
  for (int half = 0; half < (TILE_KEYS + 31) / 32; half++) {
    int column = (threadIdx.x & 31) + 32 * half, n = v.n + column;
    bool there = column < TILE_KEYS && n < v.keys.end;
    bool gone = there && page_of(p, t.b, key_position(v.keys, n)) < 0;
    v.absent[half] = __ballot_sync(0xffffffffu, gone);
  }
  ask_of_absent(v);
}

/* The bits of a thread's pairs, without those of absent keys. */
DIL_INLINE unsigned without_absent(const dil_visit &v, unsigned bits) {
  if (!(v.absent[0] | v.absent[1])) return bits;
#pragma unroll 1
  for (int e = 0; e < TILE_KEYS / 2; e++) {
    int column = column_of(e);
    if ((column < 32 ? v.absent[0] : v.absent[1]) >> (column & 31) & 1)
      bits &= ~(1u << e);
  }
  return bits;
}
#endif

#endif
