/* pack.h - between the caller's rows and the layouts of a kernel. */
#ifndef DIL_RUNTIME_CPU_PACK_H
#define DIL_RUNTIME_CPU_PACK_H

#include "runtime/code.h"
#include "runtime/rowset/walk.h"

/* One tensor's rows for one batch row and head: the row at position first + i *
 * step lies at base + i * stride bytes. In pages of a cache, each of 2^page_shift
 * rows, row n of page p lies at base + p * page_stride + n * stride. */
typedef struct row_view {
  const char *base;
  int64_t stride;
  int64_t first, step;
  dil_dtype dtype;
  int32_t width;  /* elements a row */
  int32_t page_shift;
  const int32_t *page; /* their numbers; NULL: rows stand in no pages */
  int64_t page_stride;
} row_view;

static inline const char *row_view_at(const row_view *r, int64_t position) {
  int64_t n = position - r->first;
  if (__builtin_expect(r->page != NULL, 0)) {
    int64_t row = n & (((int64_t)1 << r->page_shift) - 1);
    return r->base + r->page[n >> r->page_shift] * r->page_stride +
           row * r->stride;
  }
  return r->base + (r->step == 1 ? n : n / r->step) * r->stride;
}

/* Packed bytes of one key row, for a dil_pack. */
int64_t pack_key_bytes(int32_t width, dil_pack pack);
int64_t pack_value_bytes(int32_t width, dil_pack pack);
/* Packs key rows n0..n1-1 of class c; row n goes to the n-th packed row of
 * `out`. */
void pack_keys(const row_view *from, const class_table *s, int32_t c,
               int64_t low, int64_t n0, int64_t n1, dil_pack pack, char *out);
/* Value rows likewise; with DIL_PACK_BF16_PAIRS, n0 is even and an odd end is
 * padded with a zero row. True when every element is finite. */
bool pack_values(const row_view *from, const class_table *s, int32_t c,
                 int64_t low, int64_t n0, int64_t n1, dil_pack pack, char *out);
/* `lanes` query rows at positions t[] to the transposed layout. Here and
 * below, spare is room for `lanes` rows of f32. */
void pack_queries(const row_view *from, const int32_t *t, int32_t lanes,
                  dil_pack pack, void *qt, float *spare);
/* Asks for rows that will be packed soon. */
void pack_fetch_queries(const row_view *from, const int32_t *t, int32_t lanes);
/* Rows of f32 sums o[width][lanes], each times factor[lane], to memory; or
 * added to what is there (f32 only). out[lane] NULL skips a lane. */
void unpack_rows(const float *o, int32_t width, int32_t lanes,
                 const float *factor, char *const *out, dil_dtype dtype,
                 bool add, float *spare);
/* One row of `width` elements to f32, and back. */
void row_to_f32(const void *from, dil_dtype dtype, int32_t width, float *out);
void row_from_f32(const float *from, dil_dtype dtype, int32_t width, void *out);

#endif
