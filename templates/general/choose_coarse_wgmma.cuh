/* choose_coarse_wgmma.cuh - products of rows and coarse means by wgmma. In: rows in
 * shared memory, means in registers. Out: sums of a warp. choose_coarse.cuh includes this
 * file.
 *
 * Units of 16 bytes at the same place of all rows lie side by side, since products read
 * those of eight rows at once; 16 bytes stand behind them, so that the units of one row
 * are written without conflicts. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_WGMMA_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_WGMMA_H
#include "templates/shared/wgmma.cuh"

/* Bytes from a unit of a row to the next one. */
DIL_INLINE int unit_distance(const coarse_place &s) {
  return DIL_COARSE_WHOLE(s.rows) * 16 + 16;
}

/* Number d of row n, the first of a unit or of half a unit. */
DIL_INLINE unsigned short *coarse_row(const coarse_place &s, int n, int d) {
  return (unsigned short *)((char *)CHOOSING.query + d / 8 * unit_distance(s) + n * 16) +
         d % 8;
}

/* Products see what the thread has written. */
DIL_INLINE void show_rows() { proxy_fence(); }

#define COARSE_PRODUCT_AS(name, N, line, a0, a1, a2, a3, b, add)                  \
  DEVICE void name(float(&d)[N / 2], const u32(&a)[4], u64 rows) {                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." MMA_TYPE       \
                 " {" NAMES_##line "}, {" a0 "," a1 "," a2 "," a3 "}, " b ", " add \
                 ", 1, 1, 0;\n"                                                   \
                 : TIED_##line                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));        \
  }
#define COARSE_PRODUCT(N, line, a0, a1, a2, a3, b)                                \
  COARSE_PRODUCT_AS(begin_rows, N, line, a0, a1, a2, a3, b, "0")                  \
  COARSE_PRODUCT_AS(add_rows, N, line, a0, a1, a2, a3, b, "1")
#if HEAD_DIM <= 128
SIZE_128(COARSE_PRODUCT)
#else
SIZE_64(COARSE_PRODUCT)
#endif

/* Rows `from` and those behind it meet the key blocks of four warps. */
DIL_INLINE void multiply_coarse(const coarse_place &s, const coarse_means &m, int from,
                                coarse_sums &sum) {
  enum { GROUP_OF_ROWS = 8 * 16 }; /* bytes */
  int apart = unit_distance(s);
  u32 low = uniform(shared_address(coarse_row(s, from, 0)) >> 4 | apart >> 4 << 16);
  float(&all)[COARSE_TILES * 4] = *(float(*)[COARSE_TILES * 4]) & sum;
  mma_fence();
#pragma unroll
  for (int step = 0; step < COARSE_STEPS; step++) {
    u64 rows = descriptor(low + step * (2 * apart >> 4), GROUP_OF_ROWS >> 4);
    if (step) add_rows(all, m.of[0][step], rows);
    else begin_rows(all, m.of[0][step], rows);
  }
  mma_commit();
  mma_wait<0>();
  settle(all);
}

#endif
