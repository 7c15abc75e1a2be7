/* general_product.cuh - the products of general.cu: scores of a tile of keys,
 * sums of its values, and values that are not finite. A warp has ROW_GROUPS
 * groups of 16 rows, which share each read of keys and values. Needs the
 * sizes that general.cu defines. */
#pragma once

/* Rows in shared memory: where they begin, bytes from one to the next, elements
 * of a row, and the same up to whole products. */
template <int AT, int PITCH, int DIM, int WIDTH> struct shared_rows {
  enum { at = AT, pitch = PITCH, dim = DIM, width = WIDTH, tiles = WIDTH / 8 };
};
typedef shared_rows<SHARED_Q, PITCH_K, HEAD_DIM, WIDTH_K> query_rows;
typedef shared_rows<SHARED_K, PITCH_K, HEAD_DIM, WIDTH_K> key_rows;
typedef shared_rows<SHARED_V, PITCH_V, VALUE_DIM, WIDTH_V> value_rows;

/* Sixteen rows by 32 bytes of the queries, as the products take them. */
struct query_fragment {
  unsigned x[4];
};

template <class ROWS = query_rows>
DIL_INLINE query_fragment load_query_fragment(int group, int kk) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int row = 16 * (ROW_GROUPS * warp + group) + (lane >> 3 & 1) * 8 + (lane & 7);
  query_fragment q;
  load_matrices(q.x, shared_address(shared + ROWS::at + row * ROWS::pitch +
                                    32 * kk + (lane >> 4) * 16));
  return q;
}

DIL_INLINE void
load_fragments(query_fragment (&fragments)[ROW_GROUPS][Q_FRAGMENTS]) {
#pragma unroll
  for (int i = 0; i < ROW_GROUPS * Q_FRAGMENTS; i++)
    fragments[i / Q_FRAGMENTS][i % Q_FRAGMENTS] =
        load_query_fragment(i / Q_FRAGMENTS, i % Q_FRAGMENTS);
}

/* s += 16 rows by two times 8 keys */
DIL_INLINE void multiply_keys(float (&s)[SCORE_TILES][4], int g,
                              const query_fragment &q, const unsigned (&low)[4],
                              const unsigned (&b)[4]) {
#if ELEMENT
  multiply_16(s[g], q.x, b[0], b[1]);
  multiply_16(s[g + 1], q.x, b[2], b[3]);
#else
  multiply_8(s[g], q.x, low, b[0], b[1]);
  multiply_8(s[g + 1], q.x, low, b[2], b[3]);
#endif
}

/* s = Q K^T; for gradients of other rows, too */
template <class ROWS = query_rows, class COLUMNS = key_rows>
DIL_INLINE void
make_scores(const query_fragment (&fragments)[ROW_GROUPS][Q_FRAGMENTS],
            float (&s)[ROW_GROUPS][SCORE_TILES][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 4) * 8 + (lane & 7);
  unsigned keys = shared_address(shared + COLUMNS::at + row * COLUMNS::pitch +
                                 (lane >> 3 & 1) * 16);
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES * ROW_GROUPS; e++)
    s[e / (4 * SCORE_TILES)][e / 4 % SCORE_TILES][e % 4] = 0;
#pragma unroll(ELEMENT ? 16 : 4)
  for (int kk = 0; kk < COLUMNS::width / DEPTH; kk++) {
    query_fragment q[ROW_GROUPS];
    unsigned low[ROW_GROUPS][4];
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) {
      q[r] = Q_IN_REGISTERS ? fragments[r][Q_IN_REGISTERS ? kk : 0]
                            : load_query_fragment<ROWS>(r, kk);
#pragma unroll
      for (int i = 0; i < 4; i++) low[r][i] = ELEMENT ? 0 : tf32_low(q[r].x[i]);
    }
#pragma unroll
    for (int g = 0; g < SCORE_TILES; g += 2) {
      unsigned b[4];
      load_matrices(b, keys + 8 * g * COLUMNS::pitch + 32 * kk);
#pragma unroll
      for (int r = 0; r < ROW_GROUPS; r++)
        multiply_keys(s[r], g, q[r], low[r], b);
    }
  }
}

#if ELEMENT
/* o += P V */
template <class ROWS = value_rows>
DIL_INLINE void add_values(const float (&w)[ROW_GROUPS][SCORE_TILES][4],
                           float (&o)[ROW_GROUPS][ROWS::tiles][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 3 & 1) * 8 + (lane & 7);
  unsigned values = shared_address(shared + ROWS::at + row * ROWS::pitch +
                                   (lane >> 4) * 16);
#pragma unroll
  for (int kk = 0; kk < TILE_KEYS / 16; kk++) {
    unsigned a[ROW_GROUPS][4];
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        a[r][i] = pack_pair(w[r][2 * kk + i / 2][i % 2 * 2],
                            w[r][2 * kk + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int g = 0; g < ROWS::tiles; g += 2) {
      unsigned b[4];
      load_matrices_transposed(b, values + 16 * kk * ROWS::pitch + 16 * g);
#pragma unroll
      for (int r = 0; r < ROW_GROUPS; r++) {
        multiply_16(o[r][g], a[r], b[0], b[1]);
        multiply_16(o[r][g + 1], a[r], b[2], b[3]);
      }
    }
  }
}
#else
/* o += P V. The order of a tile's keys is free: a thread's columns 2c, 2c + 1
 * are slots c and c + 4 of the product. Each tile is summed from zero, since
 * the tensor cores cut where f32 addition rounds. */
template <class ROWS = value_rows>
DIL_INLINE void add_values(const float (&w)[ROW_GROUPS][SCORE_TILES][4],
                           float (&o)[ROW_GROUPS][ROWS::tiles][4]) {
  int lane = threadIdx.x & 31;
  const char *values =
      shared + ROWS::at + lane % 4 * 2 * ROWS::pitch + lane / 4 * 4;
  unsigned a[ROW_GROUPS][SCORE_TILES][4], low[ROW_GROUPS][SCORE_TILES][4];
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES * ROW_GROUPS; e++) {
    int r = e / (4 * SCORE_TILES), kk = e / 4 % SCORE_TILES, i = e % 4;
    a[r][kk][i] = __float_as_uint(w[r][kk][i % 2 * 2 + i / 2]);
    low[r][kk][i] = tf32_low(a[r][kk][i]);
  }
#pragma unroll
  for (int g = 0; g < ROWS::tiles; g++) {
    float sum[ROW_GROUPS][4] = {};
#pragma unroll
    for (int kk = 0; kk < SCORE_TILES; kk++) {
      const char *from = values + 8 * kk * ROWS::pitch + 32 * g;
      unsigned b0 = *(const unsigned *)from;
      unsigned b1 = *(const unsigned *)(from + ROWS::pitch);
#pragma unroll
      for (int r = 0; r < ROW_GROUPS; r++)
        multiply_8(sum[r], a[r][kk], low[r][kk], b0, b1);
    }
#pragma unroll
    for (int e = 0; e < 4 * ROW_GROUPS; e++)
      o[e / 4][g][e % 4] += sum[e / 4][e % 4];
  }
}
#endif

/* ---- values that are not finite ------------------------------------------ */

/* NaN and Inf have every bit of the exponent. */
#define EXPONENT (ELEMENT == 2 ? 0x7c00u : ELEMENT == 1 ? 0x7f80u : 0u)
DIL_INLINE bool is_bad(unsigned word) {
  unsigned high = ELEMENT ? EXPONENT << 16 : 0x7f800000u;
  return (word & high) == high || (ELEMENT && (word & EXPONENT) == EXPONENT);
}

/* A unit of 16 bytes; padding is zero. */
DIL_INLINE bool is_bad_unit(const char *at) {
  uint4 x = *(const uint4 *)at;
  return is_bad(x.x) || is_bad(x.y) || is_bad(x.z) || is_bad(x.w);
}

/* Rows of the values that have such a unit, as flags; whether any has. */
template <class ROWS> DIL_INLINE bool find_bad_rows(char *bad) {
  constexpr int units = ROWS::width * ELEMENT_BYTES / 16;
  bool found = false;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS * units; i += THREADS)
    found |= is_bad_unit(shared + ROWS::at + i / units * ROWS::pitch +
                         i % units * 16);
  if (!__syncthreads_or(found)) return false;
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS; i += THREADS) {
    bad[i] = 0;
#pragma unroll 1
    for (int k = 0; k < units; k++)
      if (is_bad_unit(shared + ROWS::at + i * ROWS::pitch + 16 * k)) bad[i] = 1;
  }
  __syncthreads();
  return true;
}

/* A row of values to the pairs of one group that are kept. */
template <class ROWS>
DIL_INLINE void add_row(int key, const float (&w)[SCORE_TILES][4],
                        float (&o)[ROWS::tiles][4]) {
  float first, second;
  weights_of_key<SCORE_TILES>(key, w, first, second);
  const element *row = (const element *)(shared + ROWS::at + key * ROWS::pitch);
  if (first == 0 && second == 0) return;
#pragma unroll
  for (int e = 0; e < 4 * ROWS::tiles; e++) {
    float weight = e & 2 ? second : first;
    o[e >> 2][e & 3] += weight == 0 ? 0.0f : weight * widen(row[column_of(e)]);
  }
}

/* A partial tile must not meet 0 * NaN: rows with NaN or Inf are taken out of
 * the product and given to the pairs that are kept, one by one. */
template <class ROWS = value_rows>
DIL_INLINE void take_bad_values(const float (&w)[ROW_GROUPS][SCORE_TILES][4],
                                float (&o)[ROW_GROUPS][ROWS::tiles][4]) {
  char *bad = shared + SHARED_BAD;
  if (!find_bad_rows<ROWS>(bad)) return;
#pragma unroll 1
  for (int key = 0; key < TILE_KEYS; key++) {
    if (!bad[key]) continue;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) add_row<ROWS>(key, w[r], o[r]);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < TILE_KEYS * ROWS::dim; i += THREADS)
    if (bad[i / ROWS::dim])
      ((element *)(shared + ROWS::at + i / ROWS::dim * ROWS::pitch))
          [i % ROWS::dim] = 0;
  __syncthreads();
}

/* ---- a second look ------------------------------------------------------- */

/* A sum can become NaN where it should not, in two ways. One is a triple tf32
 * product with an infinity. The other is a bad value times the weight of a pair
 * that is dropped or scored -inf, since a full tile does not ask about pairs.
 * The kernel goes over such a tile of rows once more with care. It then treats
 * all key tiles as partial, and takes plain products for triple tf32 ones. */
enum { PLAINLY = !ELEMENT && !FAST, CARES = PLAINLY || HIDING || DROPOUT || GRADIENT };

template <int count> DIL_INLINE bool is_lost(const float (&o)[count][4]) {
  bool lost = false;
#pragma unroll
  for (int e = 0; e < 4 * count; e++)
    lost |= o[e >> 2][e & 3] != o[e >> 2][e & 3];
  return lost;
}

/* s = Q K^T, a thread's pairs one by one. */
template <class ROWS = query_rows, class COLUMNS = key_rows>
DIL_INLINE void make_scores_plainly(float (&s)[ROW_GROUPS][SCORE_TILES][4]) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const char *queries = shared + ROWS::at +
                        (16 * ROW_GROUPS * warp + lane / 4) * ROWS::pitch;
  const char *keys = shared + COLUMNS::at + lane % 4 * 2 * COLUMNS::pitch;
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES * ROW_GROUPS; e++)
    s[e / (4 * SCORE_TILES)][e / 4 % SCORE_TILES][e % 4] = 0;
#pragma unroll 1
  for (int i = 0; i < ROWS::dim; i++) {
#pragma unroll
    for (int e = 0; e < 4 * SCORE_TILES * ROW_GROUPS; e++) {
      int r = e / (4 * SCORE_TILES), g = e / 4 % SCORE_TILES;
      const char *q = queries + (16 * r + 8 * (e >> 1 & 1)) * ROWS::pitch;
      const char *k = keys + (8 * g + (e & 1)) * COLUMNS::pitch;
      s[r][g][e % 4] += ((const float *)q)[i] * ((const float *)k)[i];
    }
  }
}
