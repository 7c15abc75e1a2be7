/* pack.c - between the caller's strided rows and the layouts of the kernels.
 *
 * In: rows of q, k, v in their stored dtype at any stride. Out: keys and
 * values packed class by class, queries transposed so that they lie in the
 * vector lanes; and the way back for the sums. 16-bit storage becomes f32 on
 * the way unless the kernel computes in bf16 pairs (DIL_PACK_BF16_PAIRS). */
#include "pack.h"
#include "runtime/arch.h"
#include "runtime/code.h"
#include "runtime/rowset/walk.h"
#include <string.h>

typedef uint16_t half;

/* ---- rows ---------------------------------------------------------------- */

void row_to_f32(const void *from, dil_dtype dtype, int32_t width, float *out) {
  if (dtype == DIL_F32) memcpy(out, from, (size_t)width * sizeof(float));
  else if (dtype == DIL_F16) dil_host_arch.f16_to_f32(from, width, out);
  else dil_host_arch.bf16_to_f32(from, width, out);
}

void row_from_f32(const float *from, dil_dtype dtype, int32_t width,
                  void *out) {
  if (dtype == DIL_F32) memcpy(out, from, (size_t)width * sizeof(float));
  else if (dtype == DIL_F16) dil_host_arch.f32_to_f16(from, width, out);
  else dil_host_arch.f32_to_bf16(from, width, out);
}

/* ---- keys and values ----------------------------------------------------- */

int64_t pack_key_bytes(int32_t width, dil_pack pack) {
  return dil_code_cells(width, pack) * DIL_CODE_CELL;
}

int64_t pack_value_bytes(int32_t width, dil_pack pack) {
  return (int64_t)width * DIL_CODE_CELL / pack;
}

static const char *class_row_at(const row_view *from, const class_table *s,
                                int32_t c, int64_t low, int64_t n) {
  return row_view_at(from, low + class_table_row(s, c, n));
}

/* Rows lie far apart: no hardware prefetcher follows them. */
static inline void row_fetch(const row_view *from, const char *row) {
  int64_t bytes = from->width * (int64_t)dil_dtype_size(from->dtype);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

static inline void row_fetch_ahead(const row_view *from, const class_table *s,
                                   int32_t c, int64_t low, int64_t n,
                                   int64_t n1) {
  enum { AHEAD = 16 };
  if (n + AHEAD < n1) row_fetch(from, class_row_at(from, s, c, low, n + AHEAD));
}

void pack_keys(const row_view *from, const class_table *s, int32_t c,
               int64_t low, int64_t n0, int64_t n1, dil_pack pack, char *out) {
  int64_t bytes = pack_key_bytes(from->width, pack);
  for (int64_t n = n0; n < n1; n++) {
    const char *row = class_row_at(from, s, c, low, n);
    char *to = out + n * bytes;
    row_fetch_ahead(from, s, c, low, n, n1);
    if (pack == DIL_PACK_F32) {
      row_to_f32(row, from->dtype, from->width, (float *)to);
      continue;
    }
    memcpy(to, row, (size_t)from->width * 2);
    if (from->width % 2) memset(to + from->width * 2, 0, 2);
  }
}

static bool pack_pairs(const row_view *from, const class_table *s, int32_t c,
                       int64_t low, int64_t n0, int64_t n1, char *out) {
  static const half zero[DIL_HEAD_DIM_MAX];
  bool finite = true;
  for (int64_t n = n0; n < n1; n += 2) {
    const half *even = (const half *)class_row_at(from, s, c, low, n);
    const half *odd =
        n + 1 < n1 ? (const half *)class_row_at(from, s, c, low, n + 1) : zero;
    row_fetch_ahead(from, s, c, low, n, n1);
    row_fetch_ahead(from, s, c, low, n + 1, n1);
    finite &= dil_host_arch.interleave(
        even, odd, from->width, (half *)(out + n * from->width * 2));
  }
  return finite;
}

bool pack_values(const row_view *from, const class_table *s, int32_t c,
                 int64_t low, int64_t n0, int64_t n1, dil_pack pack,
                 char *out) {
  if (pack == DIL_PACK_BF16_PAIRS)
    return pack_pairs(from, s, c, low, n0, n1, out);
  bool finite = true;
  for (int64_t n = n0; n < n1; n++) {
    float *to = (float *)(out + n * from->width * 4);
    row_fetch_ahead(from, s, c, low, n, n1);
    row_to_f32(class_row_at(from, s, c, low, n), from->dtype, from->width, to);
    finite &= dil_host_arch.is_finite(to, from->width);
  }
  return finite;
}

/* ---- queries and sums ---------------------------------------------------- */

void pack_fetch_queries(const row_view *from, const int32_t *t, int32_t lanes) {
  for (int32_t lane = 0; lane < lanes; lane++)
    row_fetch(from, row_view_at(from, t[lane]));
}

void pack_queries(const row_view *from, const int32_t *t, int32_t lanes,
                  dil_pack pack, void *qt, float *spare) {
  const float *words[DIL_LANES_MAX];
  int32_t count = (int32_t)dil_code_cells(from->width, pack);
  bool copy =
      pack == DIL_PACK_BF16_PAIRS ? from->width % 2 : from->dtype != DIL_F32;
  for (int32_t lane = 0; lane < lanes; lane++) {
    const char *row = row_view_at(from, t[lane]);
    float *place = spare + (int64_t)lane * count;
    words[lane] = copy ? place : (const float *)row;
    if (copy && pack == DIL_PACK_F32)
      row_to_f32(row, from->dtype, from->width, place);
    if (copy && pack == DIL_PACK_BF16_PAIRS) {
      place[count - 1] = 0;
      memcpy(place, row, (size_t)from->width * 2);
    }
  }
  dil_host_arch.words_to_lanes(words, count, lanes, qt);
}

void unpack_rows(const float *o, int32_t width, int32_t lanes,
                 const float *factor, char *const *out, dil_dtype dtype,
                 bool add, float *spare) {
  float *row[DIL_LANES_MAX] = {0};
  bool straight = dtype == DIL_F32 && !add;
  for (int32_t lane = 0; lane < lanes; lane++)
    row[lane] = straight && out[lane] ? (float *)out[lane]
                                      : spare + (int64_t)lane * width;
  dil_host_arch.lanes_to_rows(o, width, lanes, factor, row);
  for (int32_t lane = 0; lane < lanes && !straight; lane++) {
    float *sum = (float *)out[lane];
    if (!out[lane]) continue;
    if (!add) row_from_f32(row[lane], dtype, width, out[lane]);
    else
      for (int32_t d = 0; d < width; d++) sum[d] += row[lane][d];
  }
}
