// backward_pairs.cuh - which pairs of a block masks keep, on the fragments of
// gradients.
//
// In: a block's message, with its predicates; where keys are held, its columns are
// query rows. Out: bits of the thread's pairs, asked while the products run.
#pragma once

#include "templates/hopper/hopper_pair_bits.cuh"

// The pairs of a block that any of its predicates keeps.
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
  return predicate_bits(x, m, what, t.y, at, 0); // there are no lists
}

DEVICE dil_bits ask_pairs(const consumer &c, int4 m,
                          const ring<STAGES> &block) {
  return masks(c, m) ? keep_pairs(c, m, block) : bits_all(true);
}
