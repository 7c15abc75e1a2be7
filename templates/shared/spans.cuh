/* spans.cuh - the keys of a row that a comparison keeps, where these are a
 * range. `x[b, i] == x[b, j]` is one where the input is sorted. intervals.cuh
 * then stores the range of each element, once a call. `j < f(i)` always is one,
 * and so is a segment that begins anywhere, `(i + c) / S == (j + c) / S`. */
#ifndef DIL_TEMPLATES_SHARED_SPANS_H
#define DIL_TEMPLATES_SHARED_SPANS_H
#include "templates/shared/cover.cuh"

/* Keys low .. high. A `high` of DIL_UNKNOWN: the pairs must be asked. */
struct dil_key_span {
  int low, high;
};
#define DIL_UNKNOWN ((int)DIL_INT_LEAST)
#define DIL_LAST ((int)DIL_INT_MOST)

DIL_INLINE bool is_known(dil_key_span x) { return x.high != DIL_UNKNOWN; }
DIL_INLINE dil_key_span span_unknown() { return {0, DIL_UNKNOWN}; }

/* ---- j op v: of one row, and of the rows of a range ----------------------- */

/* No position is the least or the greatest integer. */
DIL_INLINE dil_key_span span_lt(int v) {
  return {DIL_UNKNOWN, v == DIL_UNKNOWN ? v : v - 1};
}
DIL_INLINE dil_key_span span_le(int v) { return {DIL_UNKNOWN, v}; }
DIL_INLINE dil_key_span span_gt(int v) {
  return {v == DIL_LAST ? v : v + 1, DIL_LAST};
}
DIL_INLINE dil_key_span span_ge(int v) { return {v, DIL_LAST}; }
DIL_INLINE dil_key_span span_eq(int v) { return {v, v}; }

DIL_INLINE dil_range r_keys_lt(dil_range v) {
  return {DIL_INT_LEAST, v.high - 1};
}
DIL_INLINE dil_range r_keys_le(dil_range v) { return {DIL_INT_LEAST, v.high}; }
DIL_INLINE dil_range r_keys_gt(dil_range v) { return {v.low + 1, DIL_INT_MOST}; }
DIL_INLINE dil_range r_keys_ge(dil_range v) { return {v.low, DIL_INT_MOST}; }
DIL_INLINE dil_range r_keys_eq(dil_range v) { return v; }
DIL_INLINE dil_range r_meet(dil_range a, dil_range b) {
  return {a.low > b.low ? a.low : b.low, a.high < b.high ? a.high : b.high};
}

/* ---- segments with an offset, and conditions of neither position ---------- */

DIL_INLINE dil_key_span span_segment(int i, int length, int offset) {
  int low = dil_mul(dil_div(i + offset, length), length) - offset;
  return {low, low + (length - 1)};
}
DIL_INLINE dil_range r_keys_segment(dil_range i, long long length,
                                    long long offset) {
  return {r_floor(i.low + offset, length) * length - offset,
          (r_floor(i.high + offset, length) + 1) * length - offset - 1};
}
DIL_INLINE dil_range r_keys_if(dil_range condition) {
  if (condition.high) return r_any();
  return {DIL_INT_MOST, DIL_INT_LEAST};
}

/* ---- elements that are alike ---------------------------------------------- */

DIL_INLINE long long input_rows(const dil_device_input &in, int rank) {
  long long rows = 1;
#pragma unroll
  for (int axis = 0; axis < 3; axis++)
    if (axis < rank - 1) rows *= in.dim[axis];
  return rows;
}
DIL_INLINE long long input_blocks(const dil_device_input &in, int rank) {
  return (in.dim[rank - 1] - 1) / DIL_BOUNDS_BLOCK + 1;
}
/* The spans of all elements stand behind the bounds, with the last axis
 * fastest. */
DIL_INLINE dil_key_span *input_spans(const dil_device_input &in, int rank) {
  return (dil_key_span *)((char *)in.bounds +
                      DIL_BOUND_BYTES * input_rows(in, rank) * input_blocks(in, rank));
}

/* Whether the elements of each block rise. */
DIL_INLINE unsigned *input_rises(const dil_device_input &in, int rank) {
  return (unsigned *)(input_spans(in, rank) +
                      input_rows(in, rank) * in.dim[rank - 1]);
}

/* The keys below M whose element equals that at a row's index. */
DIL_INLINE dil_key_span span_alike(const dil_device_input &in, int rank, int M,
                               int a, int b, int c, int d) {
  const int at[4] = {a, b, c, d};
  long long row = 0;
  if (!in.bounds || in.dim[rank - 1] < M || !dil_inside(in, rank, at))
    return span_unknown();
#pragma unroll
  for (int axis = 0; axis < 4; axis++)
    if (axis < rank) row = row * in.dim[axis] + at[axis];
  return input_spans(in, rank)[row];
}

/* The spans of the first and the last row of a range; of a sorted input, those
 * between lie between. */
struct dil_row_spans {
  dil_key_span first, last;
  bool known;
};
DIL_INLINE dil_row_spans spans_alike(const dil_device_input &in, int rank, int M,
                                 dil_range a, dil_range b, dil_range c,
                                 dil_range d) {
  const dil_range at[4] = {a, b, c, d};
  dil_row_spans x = {span_unknown(), span_unknown(), false};
#pragma unroll
  for (int axis = 0; axis < 3; axis++)
    if (axis < rank - 1 && !r_single(at[axis])) return x;
  x.first = span_alike(in, rank, M, (int)a.low, (int)b.low, (int)c.low,
                       (int)d.low);
  x.last = span_alike(in, rank, M, (int)a.high, (int)b.high, (int)c.high,
                      (int)d.high);
  x.known = is_known(x.first) && is_known(x.last);
  return x;
}
/* The keys of all these rows. */
DIL_INLINE dil_range r_keys_alike(const dil_row_spans &x) {
  if (!x.known) return r_any();
  return {x.first.low, x.last.high};
}
/* Whether keys of a range are alike with these rows. `plain` asks the bounds. */
template <class Plain>
DIL_INLINE dil_range r_alike(const dil_row_spans &x, int M, dil_range j,
                             Plain plain) {
  if (!x.known || j.low < 0 || j.high >= M) return plain();
  if (j.high < x.first.low || j.low > x.last.high) return r_int(0);
  bool all = x.last.low <= j.low && j.high <= x.first.high;
  return {all, 1};
}

#endif
