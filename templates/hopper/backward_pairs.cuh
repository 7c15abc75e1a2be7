// backward_pairs.cuh - which pairs of a block masks keep, on the fragments of
// gradients.
//
// In: a block's message, with its predicates; where keys are held, its columns are
// query rows. Out: bits of the thread's pairs, asked while the products run.
#pragma once

#include "templates/hopper/hopper_pair_bits.cuh"

// The pairs of a block that any of its predicates keeps. What: {predicates, chain,
// streamed rows that there are, their stride}.
DEVICE dil_bits keep_pairs(const consumer &c, int4 m,
                           const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.slot()), thread = thread_index();
  int4 what = shared_load(message + 16);
  int4 t = shared_load(tile_message(c, tile_of(m)));
  int row = t.x + (warp_row(thread) + thread % 32 / 4) * t.y;
  dil_block x = {{row, row + 8 * t.y}, m.z, what.w, 0};
  dil_pair at = pair_of_block(c, m, block);
#if KNOWN_PARTS
  x.known = shared_word(message + 48 + 4 * c.group);
#endif
  dil_bits kept = bits_all(what.x == 0);
#pragma unroll 1
  for (u32 rest = what.x; rest; rest &= rest - 1) {
    int predicate = __ffs(rest) - 1;
    dil_bits one = window_bits(predicate, x, 15 * t.y, (what.z - 1) * what.w,
                               __int_as_float(m.w));
    if (dil_predicates[predicate].masked)
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

DEVICE dil_bits ask_pairs(const consumer &c, int4 m,
                          const ring<STAGES> &block) {
  return masks(c, m) ? keep_pairs(c, m, block) : bits_all(true);
}
