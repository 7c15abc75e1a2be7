// hopper_rows.cuh - copies of rows that follow each other to a stage of keys or of
// values, by a tensor map.
#pragma once

// Waits for a free stage and copies rows of keys or of values there.
DEVICE void load_rows(u32 base, u32 at, u32 full, u32 empty, int width, int chunk,
                      const hopper_map *map, const ring<STAGES> &block, int row,
                      int head, int batch) {
  u32 stage = block.stage(), to = base + at + stage * (TILE_KEYS * 2) * width;
  barrier_wait(base + empty + 8 * stage, block.phase() ^ 1);
  full += base + 8 * stage;
  barrier_expect(full, TILE_KEYS * 2 * width);
#pragma unroll 1
  for (int c = 0; c < width; c += chunk)
    load_box(to + c * (TILE_KEYS * 2), map, full, c, row, 0, head, batch, KEEP_LAST);
}
