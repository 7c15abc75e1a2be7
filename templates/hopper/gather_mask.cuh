// gather_mask.cuh - pairs of gathered rows that do not count: keys behind the row, and
// those behind the last of a block.
//
// In: the message of a block, whose third word is the number of the query row at the
// position of its first key; where keys are held, of the tile's first key. Out: scores
// of minus infinity.
#pragma once

#if HOLDS_KEYS
// The numbers of a stage's streamed rows.
DEVICE u32 numbers_at(u32 base, u32 stage) {
  return base + AT_FACTS + stage * FACT_BYTES + 8 * TILE_KEYS + 16;
}

// A column is hidden from the keys behind it.
DEVICE void mask_block(const consumer &c, int, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 thread = thread_index();
  int first = shared_word(message_of(c.base, block.slot()) + 8);
  int key = first + warp_row(thread) + thread % 32 / 4;
  u32 numbers = numbers_at(c.base, block.stage()) + thread % 4 * 8;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    int row0 = shared_word(numbers + i * 8), row1 = shared_word(numbers + i * 8 + 4);
    if (key > row0) s[i] = MINUS_INFINITY;
    if (key > row1) s[i + 1] = MINUS_INFINITY;
    if (key + 8 > row0) s[i + 2] = MINUS_INFINITY;
    if (key + 8 > row1) s[i + 3] = MINUS_INFINITY;
  }
}
#else
DEVICE void mask_block(const consumer &c, int flags, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 thread = thread_index(), message = message_of(c.base, block.slot());
  int first = shared_word(message + 8), visible = shared_word(message + 24);
  int row = warp_row(thread) + thread % 32 / 4;
  u32 items = shared_word(tile_message(c, flags >> BLOCK_TILE & 3));
  int end[2] = {visible, visible};
#pragma unroll
  for (int i = 0; CAUSAL && i < 2; i++)
    end[i] = min(visible, shared_word(items + 8 * (row + 8 * i)) - first + 1);
  hide_after(s, end[0], end[1], thread % 4 * 2);
}
#endif
