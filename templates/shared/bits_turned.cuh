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
  return column_bits(x, kept);
}
/* A condition that depends on the key alone. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_columns(const dil_block &x, Condition kept) {
  return is_settled<part>(x) ? settled_bits<part>(x) : row_bits(x, kept);
}
/* A condition that depends on both. */
template <int part, class Condition>
DIL_INLINE dil_bits bits_pairs(const dil_block &x, Condition kept) {
  auto turned = [&](int key, int row) { return kept(row, key); };
  return is_settled<part>(x) ? settled_bits<part>(x) : pair_bits(x, turned);
}

/* One that depends on the blocks of rows and of keys, of so many positions. */
template <int part, int rows, int keys, class Condition>
DIL_INLINE dil_bits bits_blocks(const dil_block &x, Condition kept) {
  auto turned = [&](int key, int row) { return kept(row, key); };
  return is_settled<part>(x) ? settled_bits<part>(x)
                             : block_bits<keys, rows>(x, turned);
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
