/* cover.cuh - interval arithmetic: a mask over a whole tile. In: the ranges of
 * positions and heads. Out: a condition's range, {0, 0} when no pair is kept,
 * {1, 1} when all are. A range is never too narrow. Integers that might wrap
 * and floats that might be NaN have the widest range. Operations mean the same
 * as in pair.cuh. */
#ifndef DIL_TEMPLATES_SHARED_COVER_H
#define DIL_TEMPLATES_SHARED_COVER_H
#include "templates/shared/pair.cuh"

/* The facts known of a tile: it keeps no pair, may keep some, or keeps all. */
enum { DIL_EMPTY, DIL_PARTIAL, DIL_FULL };

struct dil_range { /* of i32 values or of a condition */
  long long low, high;
};
struct dil_reals { /* nan: may be NaN too */
  float low, high;
  bool nan;
};

#define DIL_INT_LEAST (-2147483648ll)
#define DIL_INT_MOST 2147483647ll

DIL_INLINE dil_range r_int(long long x) { return {x, x}; }
DIL_INLINE dil_range r_any() { return {DIL_INT_LEAST, DIL_INT_MOST}; }
DIL_INLINE dil_range r_fit(dil_range x) {
  return x.low < DIL_INT_LEAST || x.high > DIL_INT_MOST ? r_any() : x;
}
DIL_INLINE bool r_single(dil_range x) { return x.low == x.high; }
DIL_INLINE dil_range r_hull(dil_range a, dil_range b) {
  return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}

DIL_INLINE dil_reals f_any() {
  return {__int_as_float(0xff800000), __int_as_float(0x7f800000), true};
}
DIL_INLINE dil_reals r_float(float x) {
  if (x != x) return f_any();
  return {x, x, false};
}
/* A NaN bound says that nothing is known. */
DIL_INLINE dil_reals f_of(float low, float high, bool nan) {
  if (low != low || high != high) return f_any();
  return {low, high, nan};
}
DIL_INLINE dil_reals r_hull(dil_reals a, dil_reals b) {
  return {fminf(a.low, b.low), fmaxf(a.high, b.high), a.nan || b.nan};
}
DIL_INLINE dil_reals r_real(dil_range x) {
  return {__int2float_rn((int)x.low), __int2float_rn((int)x.high), false};
}

/* ---- integers ------------------------------------------------------------ */

DIL_INLINE dil_range r_add(dil_range a, dil_range b) {
  return r_fit({a.low + b.low, a.high + b.high});
}
DIL_INLINE dil_range r_sub(dil_range a, dil_range b) {
  return r_fit({a.low - b.high, a.high - b.low});
}
DIL_INLINE dil_range r_neg(dil_range a) { return r_sub(r_int(0), a); }
DIL_INLINE dil_range r_mul(dil_range a, dil_range b) {
  dil_range x = r_hull(r_int(a.low * b.low), r_int(a.high * b.high));
  return r_fit(r_hull(x, r_hull(r_int(a.low * b.high), r_int(a.high * b.low))));
}
DIL_INLINE dil_range r_abs(dil_range a) {
  if (a.low >= 0) return a;
  dil_range negated = r_neg(a);
  if (a.high <= 0 || negated.low == DIL_INT_LEAST) return negated;
  return {0, a.high > negated.high ? a.high : negated.high};
}
DIL_INLINE dil_range r_min(dil_range a, dil_range b) {
  return {a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high};
}
DIL_INLINE dil_range r_max(dil_range a, dil_range b) {
  return {a.low > b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}
DIL_INLINE long long r_floor(long long a, long long b) {
  long long q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
/* For a divisor of one sign the extremes are at the corners. */
DIL_INLINE dil_range r_div(dil_range a, dil_range b) {
  if (b.low == 0 && b.high == 0) return r_int(0);
  if (b.low <= 0 && b.high >= 0) return r_any();
  dil_range x = r_hull(r_int(r_floor(a.low, b.low)),
                       r_int(r_floor(a.high, b.high)));
  return r_fit(r_hull(x, r_hull(r_int(r_floor(a.low, b.high)),
                                r_int(r_floor(a.high, b.low)))));
}
DIL_INLINE dil_range r_mod(dil_range a, dil_range b) {
  long long n = b.low;
  if (r_single(b) && n > 0 && r_floor(a.low, n) == r_floor(a.high, n))
    return {a.low - r_floor(a.low, n) * n, a.high - r_floor(a.high, n) * n};
  return {b.low < 0 ? b.low + 1 : 0, b.high > 0 ? b.high - 1 : 0};
}
DIL_INLINE dil_range r_floor(dil_range a) { return a; }
DIL_INLINE dil_range r_ceil(dil_range a) { return a; }

/* ---- floats: every operation rounds monotonically ------------------------ */

/* With an infinite end, inf - inf or 0 * inf may stand inside the box although
 * no corner is NaN. */
DIL_INLINE bool f_infinite(dil_reals a) {
  return fabsf(a.low) > 3.402823466e38f || fabsf(a.high) > 3.402823466e38f;
}
DIL_INLINE bool f_zero(dil_reals a) { return a.low <= 0 && a.high >= 0; }
DIL_INLINE dil_reals r_add(dil_reals a, dil_reals b) {
  return f_of(__fadd_rn(a.low, b.low), __fadd_rn(a.high, b.high),
              a.nan || b.nan || (f_infinite(a) && f_infinite(b)));
}
DIL_INLINE dil_reals r_neg(dil_reals a) { return {-a.high, -a.low, a.nan}; }
DIL_INLINE dil_reals r_sub(dil_reals a, dil_reals b) {
  return r_add(a, r_neg(b));
}
DIL_INLINE dil_reals f_corners(float a, float b, float c, float d, bool nan) {
  if (a != a || b != b || c != c || d != d) return f_any();
  return {fminf(fminf(a, b), fminf(c, d)), fmaxf(fmaxf(a, b), fmaxf(c, d)),
          nan};
}
DIL_INLINE dil_reals r_mul(dil_reals a, dil_reals b) {
  if ((f_zero(a) && f_infinite(b)) || (f_zero(b) && f_infinite(a)))
    return f_any();
  return f_corners(__fmul_rn(a.low, b.low), __fmul_rn(a.low, b.high),
                   __fmul_rn(a.high, b.low), __fmul_rn(a.high, b.high),
                   a.nan || b.nan);
}
DIL_INLINE dil_reals r_div(dil_reals a, dil_reals b) {
  if (b.low <= 0 && b.high >= 0) return f_any();
  return f_corners(__fdiv_rn(a.low, b.low), __fdiv_rn(a.low, b.high),
                   __fdiv_rn(a.high, b.low), __fdiv_rn(a.high, b.high),
                   a.nan || b.nan);
}
DIL_INLINE dil_reals r_mod(dil_reals, dil_reals) { return f_any(); }
DIL_INLINE dil_reals r_abs(dil_reals a) {
  if (a.low >= 0) return a;
  if (a.high <= 0) return r_neg(a);
  return {0, fmaxf(-a.low, a.high), a.nan};
}
DIL_INLINE dil_reals r_min(dil_reals a, dil_reals b) {
  return {fminf(a.low, b.low), fminf(a.high, b.high), a.nan || b.nan};
}
DIL_INLINE dil_reals r_max(dil_reals a, dil_reals b) {
  return {fmaxf(a.low, b.low), fmaxf(a.high, b.high), a.nan || b.nan};
}
DIL_INLINE dil_reals r_floor(dil_reals a) {
  return {floorf(a.low), floorf(a.high), a.nan};
}
DIL_INLINE dil_reals r_ceil(dil_reals a) {
  return {ceilf(a.low), ceilf(a.high), a.nan};
}

DIL_INLINE dil_range r_whole(dil_reals a) {
  dil_range x = {dil_whole(a.low), dil_whole(a.high)};
  return a.nan ? r_hull(x, r_int(0)) : x;
}

/* ---- conditions ---------------------------------------------------------- */

DIL_INLINE dil_range r_truth(bool always, bool ever) {
  return {always, ever};
}
DIL_INLINE dil_range r_not(dil_range a) { return {1 - a.high, 1 - a.low}; }
#define DIL_RELATIONS(ranges, nan)                                            \
  DIL_INLINE dil_range r_lt(ranges a, ranges b) {                             \
    return r_truth(!(nan) && a.high < b.low, (nan) || a.low < b.high);        \
  }                                                                           \
  DIL_INLINE dil_range r_le(ranges a, ranges b) {                             \
    return r_truth(!(nan) && a.high <= b.low, (nan) || a.low <= b.high);      \
  }                                                                           \
  DIL_INLINE dil_range r_gt(ranges a, ranges b) { return r_lt(b, a); }        \
  DIL_INLINE dil_range r_ge(ranges a, ranges b) { return r_le(b, a); }        \
  DIL_INLINE dil_range r_eq(ranges a, ranges b) {                             \
    bool one = a.low == a.high && b.low == b.high && a.low == b.low;          \
    return r_truth(!(nan) && one,                                             \
                   (nan) || (a.low <= b.high && b.low <= a.high));            \
  }                                                                           \
  DIL_INLINE dil_range r_ne(ranges a, ranges b) { return r_not(r_eq(a, b)); }
DIL_RELATIONS(dil_range, false)
DIL_RELATIONS(dil_reals, (a.nan || b.nan))
#undef DIL_RELATIONS
DIL_INLINE dil_range r_and(dil_range a, dil_range b) { return r_min(a, b); }
DIL_INLINE dil_range r_or(dil_range a, dil_range b) { return r_max(a, b); }
DIL_INLINE dil_range r_choose(dil_range c, dil_range a, dil_range b) {
  return c.low ? a : c.high ? r_hull(a, b) : b;
}
DIL_INLINE dil_reals r_choose(dil_range c, dil_reals a, dil_reals b) {
  return c.low ? a : c.high ? r_hull(a, b) : b;
}

/* ---- hash: known where every argument is --------------------------------- */

struct dil_hashed {
  unsigned x;
  bool known;
};
DIL_INLINE dil_hashed r_hash_begin() { return {0x9E3779B9u, true}; }
DIL_INLINE dil_hashed r_hash_step(dil_hashed h, dil_range a) {
  return {dil_hash_step(h.x, (int)a.low), h.known && r_single(a)};
}
DIL_INLINE dil_range r_hash_end(dil_hashed h) {
  if (h.known) return r_int(h.x >> 1);
  return {0, DIL_INT_MOST};
}

/* ---- inputs: few elements one by one, others by the bounds of blocks ------ */

/* Elements along one axis that are read one by one. */
enum { DIL_ELEMENTS_MOST = 16 };

/* Returns how many elements the ranges name, where all lie on one axis. 0: they
 * do not, or they are too many to be read one by one. */
DIL_INLINE int r_elements(const dil_range *at) {
  long long more = 0; /* elements after the first */
#pragma unroll
  for (int k = 0; k < 4; k++) {
    long long along = at[k].high - at[k].low;
    if (along && more) return 0;
    more += along;
  }
  return more < DIL_ELEMENTS_MOST ? (int)more + 1 : 0;
}

/* The index of element number n of them. */
DIL_INLINE int r_index(dil_range at, int n) {
  return (int)(at.low + n < at.high ? at.low + n : at.high);
}
template <class Result, class Element>
DIL_INLINE Result r_each(int count, Element element) {
  Result x = element(0);
#pragma unroll 1
  for (int n = 1; n < count; n++) x = r_hull(x, element(n));
  return x;
}

/* Blocks of a range that are looked at; a longer one is anything. */
enum { DIL_BOUNDS_MOST = 64 };
enum { DIL_WORDS_MOST = DIL_BOUNDS_MOST * DIL_BOUNDS_BLOCK / 32 };

/* The number of the row (all axes but the last) that the ranges name. False:
 * they name several. -1: it is outside of the input. */
DIL_INLINE bool r_row(const dil_device_input &in, int rank,
                      const dil_range *at, long long *row) {
  *row = 0;
#pragma unroll
  for (int k = 0; k < 3; k++) {
    if (k >= rank - 1) continue;
    if (!r_single(at[k])) return false;
    bool inside = at[k].low >= 0 && at[k].low < in.dim[k];
    *row = inside && *row >= 0 ? *row * in.dim[k] + at[k].low : -1;
  }
  return true;
}

DIL_INLINE void r_pair(const float *at, dil_reals *x) {
  *x = f_of(at[0], at[1], false);
}
DIL_INLINE void r_pair(const int *at, dil_range *x) { *x = {at[0], at[1]}; }

/* Over the blocks that a range of the last axis touches; outside reads 0. */
template <class Result, class Stored>
DIL_INLINE Result r_blocks(const dil_device_input &in, int rank,
                           const dil_range *at, Result zero, Result any) {
  long long row, size = in.dim[rank - 1];
  if (!in.bounds || !r_row(in, rank, at, &row)) return any;
  dil_range last = at[rank - 1];
  if (row < 0 || last.high < 0 || last.low >= size) return zero;
  long long low = last.low > 0 ? last.low : 0;
  long long high = last.high < size ? last.high : size - 1;
  int blocks = (int)((size - 1) / DIL_BOUNDS_BLOCK + 1);
  int from = (int)(low / DIL_BOUNDS_BLOCK), to = (int)(high / DIL_BOUNDS_BLOCK);
  if (to - from >= DIL_BOUNDS_MOST) return any;
  const Stored *pair = (const Stored *)in.bounds + 2 * (row * blocks + from);
  Result x, next;
  r_pair(pair, &x);
#pragma unroll 1
  for (int block = from + 1; block <= to; block++) {
    r_pair(pair + 2 * (block - from), &next);
    x = r_hull(x, next);
  }
  return low == last.low && high == last.high ? x : r_hull(x, zero);
}

#define DIL_READER(name, result, stored, reader, point, any)                  \
  DIL_INLINE result name(const dil_device_input &in, int rank, dil_range a,   \
                         dil_range b, dil_range c, dil_range d) {             \
    const dil_range at[4] = {a, b, c, d};                                     \
    int count = r_elements(at);                                               \
    if (!count)                                                               \
      return r_blocks<result, stored>(in, rank, at, point(0), any);           \
    return r_each<result>(count, [&](int n) {                                 \
      return point(reader(in, rank, r_index(a, n), r_index(b, n),             \
                          r_index(c, n), r_index(d, n)));                     \
    });                                                                       \
  }
DIL_READER(r_read_f32, dil_reals, float, dil_read_f32, r_float, f_any())
DIL_READER(r_read_bf16, dil_reals, float, dil_read_bf16, r_float, f_any())
DIL_READER(r_read_f16, dil_reals, float, dil_read_f16, r_float, f_any())
DIL_READER(r_read_i32, dil_range, int, dil_read_i32, r_int, r_any())
DIL_READER(r_read_u8, dil_range, int, dil_read_u8, r_int, (dil_range{0, 255}))
#undef DIL_READER

/* Kernels that hold keys walk the queries of a block of keys: a column of a table
 * of bits. They read the table turned round, whose rows are its columns. */
#ifndef TURNED_BITS
#define TURNED_BITS 0
#endif

/* Words of a row of a table of bits that is turned round, and its memory
 * (lists.cuh). */
DIL_INLINE long long turned_words(const dil_device_input &in, int rank) {
  return (in.dim[rank - 2] + 31) / 32;
}
DIL_INLINE unsigned *turned_bits(const dil_device_input &in) {
  return (unsigned *)in.bounds;
}

/* The number of the table of bits that the axes before the last two name, as
 * r_row. */
DIL_INLINE bool r_table(const dil_device_input &in, int rank,
                        const dil_range *at, long long *table) {
  *table = 0;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    if (k >= rank - 2) continue;
    if (!r_single(at[k])) return false;
    bool inside = at[k].low >= 0 && at[k].low < in.dim[k];
    *table = inside && *table >= 0 ? *table * in.dim[k] + at[k].low : -1;
  }
  return true;
}

/* The bits of some rows of table number `table`, word by word; outside reads 0.
 * With TURNED_BITS, those of some columns. Up to as many rows as single elements. */
DIL_INLINE dil_range r_bits(const dil_device_input &in, int rank,
                            long long table, dil_range rows,
                            dil_range columns) {
  dil_range lines = TURNED_BITS ? columns : rows;
  dil_range along = TURNED_BITS ? rows : columns;
  int count = (int)in.dim[TURNED_BITS ? rank - 1 : rank - 2];
  int size = (int)in.dim[TURNED_BITS ? rank - 2 : rank - 1];
  int line = dil_max((int)lines.low, 0), low = dil_max((int)along.low, 0);
  int last = dil_min((int)lines.high, count - 1);
  int high = dil_min((int)along.high, size - 1);
  if (table < 0 || line > last || low > high) return {0, 0};
  if (last - line >= DIL_ELEMENTS_MOST || high / 32 - low / 32 >= DIL_WORDS_MOST)
    return {0, 1};
  long long apart =
      TURNED_BITS ? turned_words(in, rank) : in.stride[rank - 2] / 32;
  const unsigned *words =
      TURNED_BITS ? turned_bits(in) : (const unsigned *)in.data;
  words += (table * count + line) * apart;
  unsigned some = 0, missing = line != lines.low || last != lines.high ||
                               low != along.low || high != along.high;
#pragma unroll 1
  for (; line <= last; line++, words += apart)
#pragma unroll 1
    for (int word = low / 32; word <= high / 32; word++) {
      unsigned asked = ~0u;
      if (word == low / 32) asked &= ~0u << low % 32;
      if (word == high / 32) asked &= ~0u >> (31 - high % 32);
      some |= words[word] & asked;
      missing |= ~words[word] & asked;
    }
  return {!missing, some != 0};
}

DIL_INLINE dil_range r_read_bit(const dil_device_input &in, int rank,
                                dil_range a, dil_range b, dil_range c,
                                dil_range d) {
  const dil_range at[4] = {a, b, c, d};
  long long table;
  if (r_table(in, rank, at, &table))
    return r_bits(in, rank, table, at[rank - 2], at[rank - 1]);
  int count = r_elements(at);
  if (!count) return {0, 1};
  return r_each<dil_range>(count, [&](int n) {
    return r_int(dil_read_bit(in, rank, r_index(a, n), r_index(b, n),
                              r_index(c, n), r_index(d, n)));
  });
}

#endif
