// grid_tile.cuh - a tile of the Hopper kernels for grids: a patch of cells, and the boxes
// of cells that it takes; copies of both.
//
// In: the launch, the number of a tile. Out: its patch and its boxes.
#pragma once

// A tile: its patch, the boxes of its keys along each axis, and where it stands.
struct grid_tile {
  dil_patch x;
  int boxes[PATCH_AXES];
  int map, head, batch;
};

DEVICE int boxes_along(int axis, int cells) {
  int depth = axis == LAST ? BOX_X : axis == LAST - 1 ? BOX_Y : 1;
  return (cells + depth - 1) / depth;
}

// Finds tile number `index`. Returns whether there is one: residues of fewer cells
// have fewer patches.
DEVICE bool find_tile(const grid_launch &run, u32 index, grid_tile &t) {
  u32 patches = run.of.blocks, above = index / patches, number = 0;
  bool some = find_patch(run.of, index - above * patches, t.x);
#pragma unroll
  for (int k = PATCH_AXES - 1; k >= 0; k--) {
    number = number * run.of.patch[k].residues + t.x.residue[k];
    t.boxes[k] = boxes_along(k, t.x.columns.count[k]);
  }
  t.batch = above / (u32)run.of.heads;
  t.head = above - t.batch * run.of.heads;
  t.map = number * run.batch_maps + (run.batch_maps > 1 ? t.batch : 0);
  return some;
}

DEVICE int all_boxes(const grid_tile &t) {
  int count = 1;
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++) count *= t.boxes[k];
  return count;
}

// ---- copies ----------------------------------------------------------------

// The box of a tensor that begins at a cell.
DEVICE void load_cells(u32 to, const hopper_map *map, u32 barrier, int column,
                       int x, int y, int z, int head, int batch, u64 keep) {
  if (SOLID) load_box(to, map, barrier, column, x, y, z, head, keep);
  else load_box(to, map, barrier, column, x, y, head, batch, keep);
}

// Waits for a free stage and copies a box of keys or of values there.
DEVICE void load_block(u32 base, u32 at, u32 full, u32 empty, int width, int chunk,
                       const hopper_map *map, const ring<STAGES> &block, int x,
                       int y, int z, int head, int batch) {
  u32 stage = block.stage(), to = base + at + stage * (TILE_KEYS * 2) * width;
  barrier_wait(base + empty + 8 * stage, block.phase() ^ 1);
  full += base + 8 * stage;
  barrier_expect(full, BOX_X * BOX_Y * 2 * width);
#pragma unroll 1
  for (int c = 0; c < width; c += chunk)
    load_cells(to + c * (TILE_KEYS * 2), map, full, c, x, y, z, head, batch,
               KEEP_LAST);
}
