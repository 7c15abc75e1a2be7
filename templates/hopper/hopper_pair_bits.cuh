// hopper_pair_bits.cuh - windows and predicates as bits of a thread's pairs, and
// bits on the fragments. Both directions share them.
//
// In: a thread's two rows and the columns of a block (dil_block). Where tiles hold
// keys, these rows are keys and the columns are query rows, so that windows turn
// round. Out: which pairs are kept.
#pragma once

// The columns whose positions are first .. end - 1.
DEVICE u32 columns_between(const dil_block &x, int first, int end) {
  u32 bits = end == DIL_FAR ? DIL_BITS_ALL : bits_below(columns_before(x, end));
  return bits & ~bits_below(columns_before(x, first));
}

// The pairs that a predicate's ranges of rows and keys keep, on both sides.
DEVICE void bound_pairs(const dil_predicate_row &w, const dil_block &x,
                        dil_bits &bits) {
  int first = HOLDS_KEYS ? w.first : w.row_first;
  int end = HOLDS_KEYS ? w.end : w.row_end;
  u32 columns = HOLDS_KEYS ? columns_between(x, w.row_first, w.row_end)
                           : columns_between(x, w.first, w.end);
#pragma unroll
  for (int r = 0; r < 2; r++)
    bits.row[r] = x.i[r] < first || x.i[r] >= end ? 0 : bits.row[r] & columns;
}

// The pairs that a predicate's window keeps, for the rows at x.i. `rows` and
// `keys` are the distances in positions that the warp's rows and the block's
// keys span.
DEVICE dil_bits window_bits(int predicate, const dil_block &x, int rows,
                            int keys, float per_stride) {
  const dil_predicate_row &w = PREDICATE(predicate);
  int right = HOLDS_KEYS ? w.left : w.right, left = HOLDS_KEYS ? w.right : w.left;
  dil_bits bits = bits_all(true);
  int top = __shfl_sync(~0u, x.i[0], 0); // the warp's first row
  bool after = right != DIL_FAR && x.j + keys - top > right;
  bool before = left != DIL_FAR && top + rows - x.j > left;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int from = x.i[r] - x.j;
    if (after)
      bits.row[r] &= bits_below(keys_within(from + right, per_stride) + 1);
    if (before)
      bits.row[r] &= ~bits_below(keys_within(from - left - 1, per_stride) + 1);
    if (!BACKWARD && ROW_RANGES && (x.i[r] < w.row_first || x.i[r] >= w.row_end))
      bits.row[r] = 0;
  }
  if (PAIR_BOUNDS) bound_pairs(w, x, bits);
  return bits;
}

// The pairs of a block, of message m, that any of its predicates keeps. `what`:
// {predicates, chain, streamed rows that there are, their stride}; `step`: between
// held rows. `listed`: the pairs that the list holds, where a predicate has one.
template <class Listed>
DEVICE dil_bits predicate_bits(const dil_block &x, int4 m, int4 what, int step,
                               const dil_pair &at, const Listed &listed) {
  dil_bits kept = bits_all(what.x == 0);
#pragma unroll 1
  for (u32 rest = what.x; rest; rest &= rest - 1) {
    int predicate = __ffs(rest) - 1;
    dil_bits one = window_bits(predicate, x, 15 * step, (what.z - 1) * what.w,
                               __int_as_float(m.w));
#if LISTS
    if (dil_list_of[predicate] >= 0)
      one = bits_and(one, [&] { return listed; });
#endif
    if (PREDICATE(predicate).masked)
      one = bits_and(one, [&] { return dil_mask_bits(predicate, x, at); });
    kept.row[0] |= one.row[0];
    kept.row[1] |= one.row[1];
  }
  if (what.z < TILE_KEYS) {
    kept.row[0] &= bits_below(what.z);
    kept.row[1] &= bits_below(what.z);
  }
  return kept;
}

DEVICE void hide_pairs(float (&s)[TILE_KEYS / 2], const dil_bits &kept) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++) {
    int bit = i / 4 % 4 * 8 + i / 16 * 2 + (i & 1);
    if (!(kept.row[i >> 1 & 1] >> bit & 1)) s[i] = MINUS_INFINITY;
  }
}
