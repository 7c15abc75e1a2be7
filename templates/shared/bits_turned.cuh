/* bits_turned.cuh - parts of masks where a thread's two rows are keys, and the
 * columns of a block are query rows (BITS_TURNED). In `dil_block`, i are then
 * the positions of the two keys, and j is that of the first query row.
 *
 * The names are those of bits.cuh, and still speak of query rows and keys: here
 * a part of the query row alone is asked once a column by the whole warp, and a
 * part of the key alone is asked once for each of the thread's keys. */
#pragma once

/* A condition that depends on the query row alone. */
template <class Condition>
DIL_INLINE dil_bits bits_rows(const dil_block &x, Condition kept) {
  unsigned bits = 0;
#pragma unroll
  for (int q = 0; q < TILE_KEYS / 32; q++) {
    int column = 32 * q + (threadIdx.x & 31);
    bits |= bits_share(__ballot_sync(~0u, kept(x.j + column * x.step)), q);
  }
  return {{bits, bits}};
}

/* A condition that depends on the key alone. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_columns(const dil_block &x, Condition kept) {
  if (part >= 0 && x.known >> 2 * part & 1)
    return bits_all(x.known >> 2 * part & 2);
  return {{kept(x.i[0]) ? DIL_BITS_ALL : 0, kept(x.i[1]) ? DIL_BITS_ALL : 0}};
}

/* Evaluates the parts that depend on both. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_pairs(const dil_block &x, Condition kept) {
  if (part >= 0 && x.known >> 2 * part & 1)
    return bits_all(x.known >> 2 * part & 2);
  dil_bits bits = {{0, 0}};
  int i = x.j + 2 * (int)(threadIdx.x & 3) * x.step;
#pragma unroll 1
  for (int q = 0; q < TILE_KEYS / 32; q++) {
    unsigned row0 = 0, row1 = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      int at = i + (8 * (n >> 1) + (n & 1)) * x.step;
      row0 |= (unsigned)kept(at, x.i[0]) << (8 * (n >> 1) + (n & 1));
      row1 |= (unsigned)kept(at, x.i[1]) << (8 * (n >> 1) + (n & 1));
    }
    bits.row[0] |= row0 << 2 * q;
    bits.row[1] |= row1 << 2 * q;
    i += 32 * x.step;
  }
  return bits;
}

/* Parts that keep a range of the keys of each query row. */
template <int part, class Span>
DIL_INLINE dil_bits bits_ranges(const dil_block &x, Span span) {
  return bits_pairs<part>(x, [&](int i, int j) {
    dil_key_span keys = span(i);
    return keys.low <= j && j <= keys.high;
  });
}
/* Parts whose range may be unknown: their pairs are asked. */
template <int part, class Span, class Condition>
DIL_INLINE dil_bits bits_spans(const dil_block &x, Span, Condition kept) {
  return bits_pairs<part>(x, kept);
}
