// hopper_consumer.cuh - what every consumer warpgroup does with the stream:
// waits, messages, descriptors of tiles, windows.
//
// The file before this one defines `consumer`, with the launch `run`, the shared
// memory `base` and the number `group` of the warpgroup.
#pragma once

// The tile's row that is the first of this thread's warp. OWN_TILES: each warpgroup has
// tiles for itself.
DEVICE int warp_row(u32 thread) {
  return OWN_TILES ? thread / 32 % 4 * 16 : (thread / 32 - 4) * 16;
}

// The ping-pong scheduling of FlashAttention-3 (arXiv:2407.08608). Each
// warpgroup has a named barrier. A warpgroup waits at its own before it issues
// products and then arrives at that of the next one, which orders them.
DEVICE void pingpong_wait(const consumer &c) {
  if (TURNS) named_barrier_sync(2 + c.group, 256);
}
DEVICE void pingpong_arrive(const consumer &c) {
  if (TURNS) named_barrier_arrive(2 + (c.group + 1) % WARPGROUPS, 256);
}

// The number of keys that a distance in positions spans. It is exact while the
// distance is below 2^20 and the stride below 2^12.
DEVICE int keys_within(int distance, float per_stride) {
  const int most = 1 << 20;
  distance = max(-1, min(distance, most));
  return __float2int_rd((distance + 0.5f) * per_stride);
}

// The warpgroup's message of a tile.
DEVICE u32 tile_message(const consumer &c, int slot) {
  return c.base + AT_TILE + slot * TILE_BYTES +
         (TILE_PACKING ? c.group * 32 : 0);
}

#if !GATHERS && !OWN_TILES
DEVICE void mask_block(const consumer &c, int flags,
                       float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.slot());
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4, column = thread % 4 * 2;
  int4 window = shared_load(message + 16), m = shared_load(message);
  u32 tile = tile_message(c, flags >> BLOCK_TILE & 3);
  float per_stride = ROW_RANGES ? __fdividef(1, window.w) : __int_as_float(m.w);
  int step = shared_word(tile + 4);
  int from = shared_word(tile) + row * step - m.z; // block to row
  int end[2], first[2] = {0, 0};
  bool left = LEFT_WINDOWS && window.x < HOPPER_FAR;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int away = from + 8 * r * step;
    end[r] = min(keys_within(away + window.y, per_stride) + 1, window.z);
    if (left) first[r] = keys_within(away - window.x - 1, per_stride) + 1;
    bool sees = !ROW_RANGES || (row + 8 * r >= (m.w & 0xffff) &&
                                row + 8 * r < m.w >> 16);
    if (!sees) end[r] = 0;
  }
#if BACKWARD || SCORED || TILE_KEYS > 128
  hide_after(s, end[0], end[1], column);
  if (left) hide_before(s, first[0], first[1], column);
#else
  u32 kept[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    kept[r] = columns_below(end[r] - column);
    if (LEFT_WINDOWS) kept[r] &= ~columns_below(first[r] - column);
  }
  hide_columns(s, kept);
#endif
}
#endif

// The flags of a message, shifted so that bit x is the warpgroup's own. The asm
// makes the compiler shift at each use. Otherwise it would keep a mask for each
// flag in a register, and the loop has none left.
DEVICE int own_flags(const consumer &c, int4 m) {
  int flags;
  asm("shr.b32 %0, %1, %2;" : "=r"(flags) : "r"(m.x), "r"(c.group));
  return flags;
}
DEVICE bool takes(const consumer &c, int4 m) {
  return own_flags(c, m) & 1 << BLOCK_TAKES;
}
DEVICE bool masks(const consumer &c, int4 m) {
  return own_flags(c, m) & 1 << BLOCK_MASKS;
}
// The slot of a block's tile; and of the tile that the previous block belongs
// to.
DEVICE u32 tile_of(int4 m) { return m.x >> BLOCK_TILE & (TILE_SLOTS - 1); }
DEVICE u32 tile_before(int4 m) {
  return ((m.x >> BLOCK_TILE) - (m.x & BLOCK_NEW)) & (TILE_SLOTS - 1);
}

#include "templates/hopper/hopper_operands.cuh"
