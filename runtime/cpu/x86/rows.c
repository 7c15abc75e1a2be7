/* rows.c - rows of elements on x86-64, eight at a time: between 16-bit storage
 * and f32, pairs of bf16, and transposes between rows and lanes. Every machine
 * that has an instruction set of isa.def has what these need. */
#include "x86.h"
#include "runtime/tensor.h"
#include <immintrin.h>
#include <string.h>

#define VECTOR __attribute__((target("avx2,fma,f16c")))
/* Small arrays of registers stay in registers only when loops are unrolled. */
#define UNROLL _Pragma("GCC unroll 8")

/* ---- types --------------------------------------------------------------- */

VECTOR void x86_f16_to_f32(const uint16_t *from, int32_t n, float *out) {
  int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                  (const __m128i *)(from + i))));
  for (; i < n; i++) out[i] = _cvtsh_ss(from[i]);
}

VECTOR void x86_bf16_to_f32(const uint16_t *from, int32_t n, float *out) {
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(from + i)));
    _mm256_storeu_si256((__m256i *)(out + i), _mm256_slli_epi32(wide, 16));
  }
  for (; i < n; i++) out[i] = dil_bf16_to_f32(from[i]);
}

VECTOR void x86_f32_to_f16(const float *from, int32_t n, uint16_t *out) {
  int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i),
                                     _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; i++) out[i] = dil_f32_to_f16(from[i]);
}

/* Round to nearest even; a NaN stays a quiet NaN. */
VECTOR void x86_f32_to_bf16(const float *from, int32_t n, uint16_t *out) {
  const __m256i half_less_one = _mm256_set1_epi32(0x7fff);
  const __m256i one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x7fc0);
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 x = _mm256_loadu_ps(from + i);
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i sum =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, half_less_one));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i top =
        _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
    __m256i packed = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(top, top), 0x08);
    _mm_storeu_si128((__m128i *)(out + i), _mm256_castsi256_si128(packed));
  }
  for (; i < n; i++) out[i] = dil_f32_to_bf16(from[i]);
}

/* ---- checks and pairs ---------------------------------------------------- */

/* x * 0 is 0 for finite x and NaN for the others. */
VECTOR bool x86_is_finite(const float *x, int32_t n) {
  __m256 sum = _mm256_setzero_ps();
  float rest = 0;
  int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_setzero_ps(), sum);
  for (; i < n; i++) rest += x[i] * 0;
  return rest == 0 &&
         !_mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
}

/* All exponent bits set in some bf16 element of the n pairs? */
VECTOR bool x86_interleave(const uint16_t *even, const uint16_t *odd, int32_t n,
                              uint16_t *out) {
  const __m256i exponent = _mm256_set1_epi16(0x7f80);
  __m256i bad = _mm256_setzero_si256();
  bool finite = true;
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i a = _mm_loadu_si128((const __m128i *)(even + i));
    __m128i b = _mm_loadu_si128((const __m128i *)(odd + i));
    __m256i both = _mm256_set_m128i(_mm_unpackhi_epi16(a, b),
                                    _mm_unpacklo_epi16(a, b));
    bad = _mm256_or_si256(
        bad,
        _mm256_cmpeq_epi16(_mm256_and_si256(both, exponent), exponent));
    _mm256_storeu_si256((__m256i *)(out + 2 * i), both);
  }
  for (; i < n; i++) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
    finite &= (even[i] & 0x7f80) != 0x7f80 && (odd[i] & 0x7f80) != 0x7f80;
  }
  return finite && _mm256_testz_si256(bad, bad);
}

/* ---- 8 x 8 transposes of 32-bit words ------------------------------------ */

VECTOR static inline void transpose8(__m256 r[8]) {
  __m256 a[8], b[8];
  UNROLL
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  UNROLL
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  UNROLL
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

/* words[lane] holds `count` 32-bit words; out[word][lane]. */
VECTOR void x86_words_to_lanes(const float *const *words, int32_t count,
                                  int32_t lanes, float *out) {
  for (int32_t lane = 0; lane < lanes; lane += 8) {
    int32_t w = 0;
    for (; w + 8 <= count; w += 8) {
      __m256 r[8];
      UNROLL
      for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(words[lane + i] + w);
      transpose8(r);
      UNROLL
      for (int i = 0; i < 8; i++)
        _mm256_store_ps(out + (int64_t)(w + i) * lanes + lane, r[i]);
    }
    for (; w < count; w++)
      for (int i = 0; i < 8; i++)
        memcpy(out + (int64_t)w * lanes + lane + i, words[lane + i] + w, 4);
  }
}

/* Lane by lane, scaled, each to a row of f32; lanes are a multiple of 8. */
VECTOR void x86_lanes_to_rows(const float *o, int32_t width, int32_t lanes,
                                 const float *factor, float *const *out) {
  int32_t d = 0;
  for (; d + 8 <= width; d += 8)
    for (int32_t lane = 0; lane < lanes; lane += 8) {
      const float *from = o + (int64_t)d * lanes + lane;
      __m256 r[8], f = _mm256_loadu_ps(factor + lane);
      UNROLL
      for (int i = 0; i < 8; i++)
        r[i] = _mm256_mul_ps(f, _mm256_load_ps(from + (int64_t)i * lanes));
      transpose8(r);
      UNROLL
      for (int i = 0; i < 8; i++) _mm256_storeu_ps(out[lane + i] + d, r[i]);
    }
  for (; d < width; d++)
    for (int32_t lane = 0; lane < lanes; lane++)
      out[lane][d] = o[(int64_t)d * lanes + lane] * factor[lane];
}

/* ---- panels -------------------------------------------------------------- */

/* Rows by 16 lanes: twelve sums hide the latency, and leave registers. */
enum { PANEL_ROWS = 6 };

VECTOR static void panel_rows(const float *rows, const float *panel,
                              int32_t width, int32_t count, float *out) {
  __m256 sum[PANEL_ROWS][2];
  const float *row[PANEL_ROWS];
  UNROLL for (int n = 0; n < PANEL_ROWS; n++) {
    row[n] = rows + (n < count ? n : 0) * (int64_t)width;
    sum[n][0] = sum[n][1] = _mm256_setzero_ps();
  }
  for (int32_t d = 0; d < width; d++) {
    __m256 low = _mm256_loadu_ps(panel + d * 16);
    __m256 high = _mm256_loadu_ps(panel + d * 16 + 8);
    UNROLL for (int n = 0; n < PANEL_ROWS; n++) {
      __m256 x = _mm256_broadcast_ss(row[n] + d);
      sum[n][0] = _mm256_fmadd_ps(x, low, sum[n][0]);
      sum[n][1] = _mm256_fmadd_ps(x, high, sum[n][1]);
    }
  }
  UNROLL for (int n = 0; n < PANEL_ROWS; n++) { /* else the sums lie in memory */
    if (n >= count) continue;
    _mm256_storeu_ps(out + n * 16, sum[n][0]);
    _mm256_storeu_ps(out + n * 16 + 8, sum[n][1]);
  }
}

void x86_panel(const float *rows, int32_t count, const float *panel,
               int32_t width, float *out) {
  for (int32_t n = 0; n < count; n += PANEL_ROWS)
    panel_rows(rows + n * (int64_t)width, panel, width,
               count - n < PANEL_ROWS ? count - n : PANEL_ROWS, out + n * 16);
}
