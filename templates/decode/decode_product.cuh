/* decode_product.cuh - the products of decode.cu, by one warp: scores of the keys
 * of a stage, sums of its values, and values that are not finite. Boxes stand
 * swizzled: the 16-byte units of a row of 64 or 128 bytes change places. */
#pragma once

/* Where unit `unit` of a row stands in the boxes of a stage. */
template <int CHUNK> DIL_INLINE u32 unit_at(int row, int unit) {
  constexpr int units = CHUNK / 8;
  int turned = CHUNK == 64 ? row & 7 : row >> 1 & 3;
  return unit / units * (CHUNK * 2 * TILE_KEYS) + row * CHUNK * 2 +
         ((unit % units ^ turned) << 4);
}
DIL_INLINE u32 keys_at(unsigned stage) {
  return shared_address(shared) + stage * STAGE_BYTES;
}
DIL_INLINE u32 values_at(unsigned stage) { return keys_at(stage) + KEY_BYTES; }

/* Sixteen rows by 32 bytes of the queries, as the products take them. */
struct query_fragment {
  unsigned x[4];
};

DIL_INLINE query_fragment load_fragment(unsigned slot, int group, int kk) {
  int lane = threadIdx.x & 31;
  int row = slot * TILE_ROWS + 16 * group + (lane >> 3 & 1) * 8 + (lane & 7);
  query_fragment q;
  load_matrices(q.x, shared_address(shared + AT_QUERY) + row * PITCH_Q +
                         32 * kk + (lane >> 4) * 16);
  return q;
}

DIL_INLINE void
load_fragments(unsigned slot,
               query_fragment (&fragments)[ROW_GROUPS][Q_FRAGMENTS]) {
#pragma unroll
  for (int i = 0; i < ROW_GROUPS * Q_FRAGMENTS; i++)
    fragments[i / Q_FRAGMENTS][i % Q_FRAGMENTS] =
        load_fragment(slot, i / Q_FRAGMENTS, i % Q_FRAGMENTS);
}

/* s = Q K^T */
DIL_INLINE void
make_scores(unsigned stage, unsigned slot,
            const query_fragment (&fragments)[ROW_GROUPS][Q_FRAGMENTS],
            float (&s)[ROW_GROUPS][SCORE_TILES][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 4) * 8 + (lane & 7);
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES * ROW_GROUPS; e++)
    s[e / (4 * SCORE_TILES)][e / 4 % SCORE_TILES][e % 4] = 0;
#pragma unroll
  for (int kk = 0; kk < WIDTH_K / 16; kk++) {
    query_fragment q[ROW_GROUPS];
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++)
      q[r] = Q_IN_REGISTERS ? fragments[r][Q_IN_REGISTERS ? kk : 0]
                            : load_fragment(slot, r, kk);
    u32 from = keys_at(stage) + unit_at<CHUNK_K>(row, 2 * kk + (lane >> 3 & 1));
#pragma unroll
    for (int g = 0; g < SCORE_TILES; g += 2) {
      unsigned b[4];
      load_matrices(b, from + 8 * g * CHUNK_K * 2);
#pragma unroll
      for (int r = 0; r < ROW_GROUPS; r++) {
        multiply_16(s[r][g], q[r].x, b[0], b[1]);
        multiply_16(s[r][g + 1], q[r].x, b[2], b[3]);
      }
    }
  }
}

/* o += P V */
DIL_INLINE void add_values(unsigned stage,
                           const float (&w)[ROW_GROUPS][SCORE_TILES][4],
                           float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  int lane = threadIdx.x & 31;
  int row = (lane >> 3 & 1) * 8 + (lane & 7);
  unsigned a[ROW_GROUPS][SCORE_TILES / 2][4];
#pragma unroll
  for (int e = 0; e < 2 * SCORE_TILES * ROW_GROUPS; e++) {
    int r = e / (2 * SCORE_TILES), kk = e / 4 % (SCORE_TILES / 2), i = e % 4;
    a[r][kk][i] = pack_pair(w[r][2 * kk + i / 2][i % 2 * 2],
                            w[r][2 * kk + i / 2][i % 2 * 2 + 1]);
  }
#pragma unroll
  for (int g = 0; g < VALUE_TILES; g += 2) {
    u32 from = values_at(stage) + unit_at<CHUNK_V>(row, g + (lane >> 4));
#pragma unroll
    for (int kk = 0; kk < SCORE_TILES / 2; kk++) {
      unsigned b[4];
      load_matrices_transposed(b, from + 16 * kk * CHUNK_V * 2);
#pragma unroll
      for (int r = 0; r < ROW_GROUPS; r++) {
        multiply_16(o[r][g], a[r][kk], b[0], b[1]);
        multiply_16(o[r][g + 1], a[r][kk], b[2], b[3]);
      }
    }
  }
}

/* ---- values that are not finite ------------------------------------------ */

/* NaN and Inf have every bit of the exponent. */
#define EXPONENT (ELEMENT == 2 ? 0x7c00u : 0x7f80u)
DIL_INLINE bool is_bad(unsigned word) {
  return (word & EXPONENT << 16) == EXPONENT << 16 ||
         (word & EXPONENT) == EXPONENT;
}

/* Returns whether a stage has values that are not finite; what no row fills is
 * zero. */
DIL_INLINE bool has_bad_values(unsigned stage) {
  const uint4 *from =
      (const uint4 *)(shared + stage * STAGE_BYTES + KEY_BYTES);
  bool bad = false;
#pragma unroll 4
  for (int i = threadIdx.x & 31; i < (STAGE_BYTES - KEY_BYTES) / 16; i += 32) {
    uint4 x = from[i];
    bad |= is_bad(x.x) || is_bad(x.y) || is_bad(x.z) || is_bad(x.w);
  }
  return __any_sync(0xffffffffu, bad);
}

/* A row of values, which the weights of a key meet one by one: 0 meets none. */
DIL_INLINE void add_row(unsigned stage, int key,
                        const float (&w)[SCORE_TILES][4],
                        float (&o)[VALUE_TILES][4]) {
  float first, second;
  weights_of_key<SCORE_TILES>(key, w, first, second);
  if (first == 0 && second == 0) return;
#pragma unroll
  for (int e = 0; e < 4 * VALUE_TILES; e++) {
    float weight = e & 2 ? second : first;
    int column = column_of(e);
    const char *at = shared + stage * STAGE_BYTES + KEY_BYTES +
                     unit_at<CHUNK_V>(key, column / 8) + column % 8 * 2;
    o[e >> 2][e & 3] +=
        weight == 0 ? 0.0f : weight * widen(*(const element *)at);
  }
}

/* Takes rows with such values out of the product: their weights meet them one by
 * one, and the product meets zeros. The other rows' sums keep their bits. */
DIL_INLINE void take_bad_rows(unsigned stage,
                              const float (&w)[ROW_GROUPS][SCORE_TILES][4],
                              float (&o)[ROW_GROUPS][VALUE_TILES][4]) {
  const int unit = threadIdx.x & 31; /* of 16 bytes; a row has 32 at most */
#pragma unroll 1
  for (int key = 0; key < TILE_KEYS; key++) {
    uint4 *at = (uint4 *)(shared + stage * STAGE_BYTES + KEY_BYTES +
                          unit_at<CHUNK_V>(key, unit));
    bool some = unit < BOXES_V * CHUNK_V / 8;
    uint4 x = some ? *at : make_uint4(0, 0, 0, 0);
    bool bad = is_bad(x.x) || is_bad(x.y) || is_bad(x.z) || is_bad(x.w);
    if (!__any_sync(0xffffffffu, bad)) continue;
#pragma unroll
    for (int r = 0; r < ROW_GROUPS; r++) add_row(stage, key, w[r], o[r]);
    __syncwarp();
    if (some) *at = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}
