// hopper_stream.cuh - the stream between a producer and its consumers: rings of
// pipeline stages, and messages of blocks and tiles.
#pragma once

#include "templates/hopper/hopper_ring.cuh"

// ---- messages --------------------------------------------------------------

// The message of a key block: {flags, bias, first position, 1 / stride}, then
// {left, right, visible keys, -}, which only masking reads. Then {row, where,
// key head, batch row} for the loader of values. There are twice as many slots
// as stages: a message is written before its stage is free and read after the
// stage's release.
enum {
  BLOCK_NEW = 1,        // the block begins a tile
  BLOCK_END = 2,        // the stream ends
  BLOCK_LAST = 4,       // the tile's last block, if SAYS_LAST
  BLOCK_TILE = 4,       // shift: the tile's slot, modulo TILE_SLOTS
  BLOCK_TAKES = 8,      // shift: warpgroups that take part
  BLOCK_ONCE = 12,      // shift: warpgroups that ignore the bias
  BLOCK_MASKS = 16,     // shift: warpgroups that must mask
  BLOCK_HIDDEN = 20,    // shift: hidden keys in the previous block
  BLOCK_BAD = 1 << 29,  // with dropout: a value of this block is not finite
  BLOCK_BAD_BEFORE = 1 << 30 // the same of the previous block
};
DEVICE void message_arrive(u32 base, u32 slot) {
  barrier_arrive(base + AT_MESSAGE_FULL + slot * 8);
}
DEVICE u32 message_of(u32 base, u32 slot) {
  return base + AT_BLOCK + slot * MESSAGE_BYTES;
}
// The message of a tile: {position of row 0, stride, rows, head}, then {row and
// phase of row 0 in the map of o, map and hopper_finish, batch row}. With tile
// packing each warpgroup has its own message. Its row 0 is that of the tile's
// first warpgroup, computed backwards if the warpgroup has packed rows.
enum { TILE_FINISH = 8 }; // shift, above the map
// The call's number of a tile's row 0, from both halves of the tile's message.
DEVICE int first_row(int4 t, int4 to) { return to.x * t.y + to.y; }
