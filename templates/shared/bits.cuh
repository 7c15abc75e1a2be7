/* bits.cuh - masks over a block of keys at once. In: a thread's two rows, the
 * block's columns, and the parts that ranges have settled for the block before.
 * Out: which of the thread's pairs are kept, as bits.
 *
 * A condition is taken apart at its && and ||. A part that depends on the row
 * alone is asked once a row. A part that depends on the key alone is asked once
 * a key by the whole warp. A part that keeps a range of the keys of a row is a
 * comparison with the ends of the range. A part of the blocks of rows and keys is
 * asked once for each block, of keys where these are long. The other parts are
 * asked pair by pair. Parts that ranges settle, and sides that no longer matter to
 * the warp, are not asked.
 *
 * Column 32 q + 8 a + 2 c + e (c: lane % 4) is bit 8 a + 2 q + e of its
 * thread; fragments (softmax.cuh) hold it as element e of group 4 q + a. */
#ifndef DIL_TEMPLATES_SHARED_BITS_H
#define DIL_TEMPLATES_SHARED_BITS_H
#include "templates/shared/plan.cuh"
#include "templates/shared/spans.cuh"
#ifndef BITS_TURNED
#define BITS_TURNED 0 /* 1: rows are keys, and columns are query rows */
#endif

struct dil_bits {
  unsigned row[2];
};

struct dil_block {
  int i[2];       /* positions of the thread's rows */
  int j, step;    /* of column 0, and between columns */
  unsigned known; /* the word of dil_known */
};

/* Part `part` of the masks over a block. Bit 0: its range settles it. Bit 1: it
 * is then true. */
DIL_INLINE unsigned bits_settled(int part, dil_range condition) {
  return r_single(condition) ? (1u | (condition.low != 0) << 1) << 2 * part : 0;
}

/* The bits that a block of TILE_KEYS columns has. */
#define DIL_BITS_ALL                                                          \
  (TILE_KEYS == 128 ? ~0u : ((1u << TILE_KEYS / 16) - 1) * 0x01010101u)

DIL_INLINE dil_bits bits_all(bool kept) {
  unsigned all = kept ? DIL_BITS_ALL : 0;
  return {{all, all}};
}
DIL_INLINE dil_bits bits_not(dil_bits a) {
  return {{~a.row[0] & DIL_BITS_ALL, ~a.row[1] & DIL_BITS_ALL}};
}
/* The second side is asked only where it matters to some row of the warp. */
template <class Second> DIL_INLINE dil_bits bits_and(dil_bits a, Second b) {
  if (!__any_sync(~0u, (a.row[0] | a.row[1]) != 0)) return a;
  dil_bits x = b();
  return {{a.row[0] & x.row[0], a.row[1] & x.row[1]}};
}
template <class Second> DIL_INLINE dil_bits bits_or(dil_bits a, Second b) {
  if (__all_sync(~0u, (a.row[0] & a.row[1]) == DIL_BITS_ALL)) return a;
  dil_bits x = b();
  return {{a.row[0] | x.row[0], a.row[1] | x.row[1]}};
}

/* A thread's share of 32 columns from 32 q on. */
DIL_INLINE unsigned bits_share(unsigned columns, int q) {
  return (columns >> 2 * (threadIdx.x & 3) & 0x03030303u) << 2 * q;
}
/* Columns before `end`. */
DIL_INLINE unsigned bits_below(int end) {
  unsigned bits = 0;
#pragma unroll
  for (int q = 0; q < TILE_KEYS / 32; q++) {
    int n = dil_max(0, dil_min(end - 32 * q, 32));
    bits |= bits_share((unsigned)((1ull << n) - 1), q);
  }
  return bits;
}

/* Columns of positions before `at`. */
DIL_INLINE int columns_before(const dil_block &x, int at) {
  if (at <= x.j) return 0;
  int away = dil_min(at - x.j, TILE_KEYS * x.step);
  return x.step == 1 ? away : (away - 1) / x.step + 1;
}

/* A condition of each of the thread's two rows. */
template <class Condition>
DIL_INLINE dil_bits row_bits(const dil_block &x, Condition kept) {
  return {{kept(x.i[0]) ? DIL_BITS_ALL : 0, kept(x.i[1]) ? DIL_BITS_ALL : 0}};
}
/* A condition of each column: a lane asks for one of 32. */
template <class Condition>
DIL_INLINE dil_bits column_bits(const dil_block &x, Condition kept) {
  unsigned bits = 0;
#pragma unroll
  for (int q = 0; q < TILE_KEYS / 32; q++) {
    int column = 32 * q + (threadIdx.x & 31);
    bits |= bits_share(__ballot_sync(~0u, kept(x.j + column * x.step)), q);
  }
  return {{bits, bits}};
}
/* A condition of each pair of a row and a column. */
template <class Condition>
DIL_INLINE dil_bits pair_bits(const dil_block &x, Condition kept) {
  dil_bits bits = {{0, 0}};
  int column = x.j + 2 * (int)(threadIdx.x & 3) * x.step;
#pragma unroll 1
  for (int q = 0; q < TILE_KEYS / 32; q++) {
    unsigned row0 = 0, row1 = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      int at = column + (8 * (n >> 1) + (n & 1)) * x.step;
      row0 |= (unsigned)kept(x.i[0], at) << (8 * (n >> 1) + (n & 1));
      row1 |= (unsigned)kept(x.i[1], at) << (8 * (n >> 1) + (n & 1));
    }
    bits.row[0] |= row0 << 2 * q;
    bits.row[1] |= row1 << 2 * q;
    column += 32 * x.step;
  }
  return bits;
}

/* The same for a condition that is one for all rows of a block of `size` positions.
 * A lane asks for one column of 32, once for each block of the warp's 16 rows. */
template <int size, class Condition>
DIL_INLINE dil_bits row_block_bits(const dil_block &x, Condition kept) {
  dil_bits bits = {{0, 0}};
  unsigned asked = 0;
  int before = 0;
#pragma unroll 1
  for (int n = 0; n < 16; n++) {
    int row = __shfl_sync(~0u, n < 8 ? x.i[0] : x.i[1], n % 8 * 4);
    int block = dil_div(row, size);
    if (!n || block != before)
      asked = column_bits(x, [&](int j) { return kept(row, j); }).row[0];
    before = block;
    bool own = (threadIdx.x & 31) / 4 == n % 8;
    if (own && n < 8) bits.row[0] = asked;
    if (own && n >= 8) bits.row[1] = asked;
  }
  return bits;
}
/* The same for one that is one for all columns of a block of `size` positions. It is
 * asked for both rows, once for each block of the columns. */
template <int size, class Condition>
DIL_INLINE dil_bits column_block_bits(const dil_block &x, Condition kept) {
  dil_bits bits = {{0, 0}};
  unsigned before = 0;
#pragma unroll 1
  for (int at = x.j, last = x.j + (TILE_KEYS - 1) * x.step; at <= last;) {
    int next = (dil_div(at, size) + 1) * size;
    unsigned below = next > last ? DIL_BITS_ALL : bits_below(columns_before(x, next));
    if (kept(x.i[0], at)) bits.row[0] |= below & ~before;
    if (kept(x.i[1], at)) bits.row[1] |= below & ~before;
    before = below;
    at = next;
  }
  return bits;
}
/* The same for a condition of the blocks of rows and columns, of which those of
 * columns may be short. */
template <int rows, int columns, class Condition>
DIL_INLINE dil_bits block_bits(const dil_block &x, Condition kept) {
  if constexpr (columns >= 16) return column_block_bits<columns>(x, kept);
  else return row_block_bits<rows>(x, kept);
}

/* Whether ranges have settled a part for the block, and what it then is. `part`:
 * its number among the parts that ranges may settle; -1: none. */
template <int part> DIL_INLINE bool is_settled(const dil_block &x) {
  return part >= 0 && x.known >> 2 * part & 1;
}
template <int part> DIL_INLINE dil_bits settled_bits(const dil_block &x) {
  return bits_all(x.known >> 2 * part & 2);
}

#if BITS_TURNED
#include "templates/shared/bits_turned.cuh"
#else
/* A condition that depends on the row alone. */
template <class Condition>
DIL_INLINE dil_bits bits_rows(const dil_block &x, Condition kept) {
  return row_bits(x, kept);
}
/* A condition that depends on the key alone. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_columns(const dil_block &x, Condition kept) {
  return is_settled<part>(x) ? settled_bits<part>(x) : column_bits(x, kept);
}
/* A condition that depends on both. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_pairs(const dil_block &x, Condition kept) {
  return is_settled<part>(x) ? settled_bits<part>(x) : pair_bits(x, kept);
}
/* One that depends on the blocks of rows and of keys, of so many positions. */
template <int part, int rows, int keys, class Condition>
DIL_INLINE dil_bits bits_blocks(const dil_block &x, Condition kept) {
  return is_settled<part>(x) ? settled_bits<part>(x)
                             : block_bits<rows, keys>(x, kept);
}

DIL_INLINE unsigned bits_within(const dil_block &x, dil_key_span keys) {
  int end = keys.high < DIL_LAST ? columns_before(x, keys.high + 1) : TILE_KEYS;
  return bits_below(end) & ~bits_below(columns_before(x, keys.low));
}
/* Parts that keep a range of the keys of each row. */
template <int part, class Span>
DIL_INLINE dil_bits bits_ranges(const dil_block &x, Span span) {
  if (is_settled<part>(x)) return settled_bits<part>(x);
  return {{bits_within(x, span(x.i[0])), bits_within(x, span(x.i[1]))}};
}
/* Parts whose range may be unknown. Pairs are then asked. */
template <int part, class Span, class Condition>
DIL_INLINE dil_bits bits_spans(const dil_block &x, Span span, Condition kept) {
  if (is_settled<part>(x)) return settled_bits<part>(x);
  dil_key_span a = span(x.i[0]), b = span(x.i[1]);
  if (!__all_sync(~0u, is_known(a) && is_known(b)))
    return bits_pairs<part>(x, kept);
  return {{bits_within(x, a), bits_within(x, b)}};
}
#endif

#endif
