// grid_mask.cuh - pairs of a patch and a streamed box of cells that do not count. In: the
// message of the box, with its place, and what the producing warp says of the tile's
// patch. Out: scores of minus infinity.
#pragma once

// Shared memory describes the patches of two tiles in turn: the numbers of a patch's 64
// rows; for each box along x, row of a warp and lane of a row, the columns that the row
// sees along x; for each warp a box_spans.
#define PATCH_ALONG (64 * 4)
#define PATCH_SPANS (PATCH_ALONG + BOXES_X * 64 * 4)
DEVICE u32 patch_of(u32 base, u32 tile) {
  return base + AT_OWN + tile % 2 * GRID_PATCH_BYTES(BOXES_X);
}
static_assert(PATCH_SPANS + 4 * 16 == GRID_PATCH_BYTES(BOXES_X), "as both count");

#include "templates/hopper/grid_columns.cuh"

// The message of a box has its number along x, and where it begins along y and z.
DEVICE void mask_block(const consumer &c, int flags, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  const u32 all = TILE_KEYS == 128 ? ~0u : (1u << TILE_KEYS / 4 % 32) - 1;
  u32 message = message_of(c.base, block.slot()), lane = thread_index() % 32;
  u32 patch = patch_of(c.base, flags >> BLOCK_TILE & 3);
  u32 along = patch + PATCH_ALONG + (shared_word(message + 8) * 64 + lane) * 4;
  int4 seen = shared_load(patch + PATCH_SPANS + thread_index() / 32 % 4 * 16);
  u32 across = columns_across({{seen.x, seen.y}, {seen.z, seen.w}},
                              shared_word(message + 12), shared_word(message + 16));
  u32 kept[2] = {(u32)shared_word(along) & across,
                 (u32)shared_word(along + 32 * 4) & across};
  if (__any_sync(~0u, (kept[0] & kept[1]) != all)) hide_columns(s, kept);
}
