// block_list_mask.cuh - pairs of a listed unit that windows hide, and those behind the
// last row. In: the message of a unit, with its position and those between which rows
// are. Out: scores of minus infinity.
#pragma once

DEVICE void mask_block(const consumer &c, int flags, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 thread = thread_index(), message = message_of(c.base, block.slot());
  int first = shared_word(message + 8), column = thread % 4 * 2;
  int low = shared_word(message + 16), high = shared_word(message + 20);
  int held = shared_word(tile_message(c, flags >> BLOCK_TILE & 3)) + warp_row(thread) +
             thread % 32 / 4;
  int from[2], end[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    streamed_span seen = streamed_by(held + 8 * i, low, high);
    from[i] = seen.low - first;
    end[i] = seen.high - first;
  }
  hide_after(s, end[0], end[1], column);
  if (HELD_LEFT != DIL_FAR) hide_before(s, from[0], from[1], column);
}
