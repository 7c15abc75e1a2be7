/* choose_coarse_mma.cuh - products of rows and coarse means by mma.sync. In: rows in
 * shared memory, means in registers. Out: sums of a warp. choose_coarse.cuh includes this
 * file. */
#ifndef DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_MMA_H
#define DIL_TEMPLATES_GENERAL_CHOOSE_COARSE_MMA_H

/* Number d of row n, the first of a unit or of half a unit. */
DIL_INLINE unsigned short *coarse_row(const coarse_place &, int n, int d) {
  return tall_row(n) + d;
}

DIL_INLINE void show_rows() {}

/* Rows `from` and those behind it meet the key blocks of the warp. */
DIL_INLINE void multiply_coarse(const coarse_place &s, const coarse_means &m, int from,
                                coarse_sums &sum) {
  int lane = threadIdx.x & 31;
  const unsigned short *row = coarse_row(s, from + lane / 4, lane % 4 * 4);
#pragma unroll
  for (int e = 0; e < COARSE_SETS * COARSE_TILES * 4; e++)
    sum[e / 4 / COARSE_TILES][e / 4 % COARSE_TILES][e % 4] = 0;
#pragma unroll
  for (int step = 0; step < COARSE_STEPS; step++)
#pragma unroll
    for (int n = 0; n < COARSE_TILES; n++) {
      uint2 q = *(const uint2 *)(row + 8 * n * QUERY_PITCH + 16 * step);
#pragma unroll
      for (int set = 0; set < COARSE_SETS; set++)
        multiply_16(sum[set][n], m.of[set][step], q.x, q.y);
    }
}

#endif
