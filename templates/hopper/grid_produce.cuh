// grid_produce.cuh - the producing warps: one thread copies patches of queries and
// boxes of keys and values, and a warp looks for values that are not finite.
//
// In: the launch. Out: the stages of the ring, and a message for each tile.
#pragma once

#include "templates/hopper/grid_tile.cuh"

// ---- messages --------------------------------------------------------------

// The message of a tile: {first row along z, y, x, whether there is a tile},
// {first column along each, boxes along x}, {cells along each, map}, {boxes along y
// and along z, head, batch row}. The residue along an axis is the position's: the
// position of cell 0 follows from the map, so it is left to `base_of`.
enum { MESSAGE_ROWS = 0, MESSAGE_COLUMNS = 16, MESSAGE_CELLS = 32, MESSAGE_PLACE = 48 };

DEVICE void write_tile(const grid_launch &run, u32 message, const grid_tile &t) {
  int cells[PATCH_AXES];
#pragma unroll
  for (int k = 0; k < PATCH_AXES; k++)
    cells[k] = cells_of(run.of.patch[k], t.x.residue[k]);
  const dil_cells &rows = t.x.rows, &columns = t.x.columns;
  shared_store(message + MESSAGE_ROWS, SOLID ? rows.first[0] : 0,
               rows.first[LAST - 1], rows.first[LAST], true);
  shared_store(message + MESSAGE_COLUMNS, SOLID ? columns.first[0] : 0,
               columns.first[LAST - 1], columns.first[LAST], t.boxes[LAST]);
  shared_store(message + MESSAGE_CELLS, SOLID ? cells[0] : 1, cells[LAST - 1],
               cells[LAST], t.map);
  shared_store(message + MESSAGE_PLACE, t.boxes[LAST - 1],
               SOLID ? t.boxes[0] : 1, t.head, t.batch);
}

// ---- copies ----------------------------------------------------------------

DEVICE void load_queries(const grid_launch &run, u32 base, const grid_tile &t,
                         u32 stage) {
  u32 to = base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES);
  u32 full = base + AT_QUERY_FULL + 8 * stage;
  const dil_cells &rows = t.x.rows;
  barrier_expect(full, WARPGROUPS * QUERY_BYTES);
#pragma unroll 1
  for (int g = 0; g < WARPGROUPS; g++)
#pragma unroll 1
    for (int c = 0; c < HEAD_WIDTH / CHUNK; c++)
      load_cells(to + g * QUERY_BYTES + c * (64 * CHUNK * 2), &run.q[t.map], full,
                 c * CHUNK, rows.first[LAST],
                 rows.first[LAST - 1] + (SOLID ? 0 : g * GROUP_DEPTH),
                 rows.first[0] + g * GROUP_DEPTH, t.head, t.batch, KEEP_FIRST);
}

// Copies the boxes of a tile, the last axis fastest.
DEVICE void load_boxes(const grid_launch &run, u32 base, const grid_tile &t,
                       ring<STAGES> &block) {
  const dil_cells &first = t.x.columns;
  int head = t.head / run.group, x = 0, y = 0, z = 0;
#pragma unroll 1
  for (int left = all_boxes(t); left > 0; left--) {
    int at_x = first.first[LAST] + x * BOX_X;
    int at_y = first.first[LAST - 1] + y * BOX_Y, at_z = first.first[0] + z;
    load_block(base, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, HEAD_WIDTH, CHUNK,
               &run.k[t.map], block, at_x, at_y, at_z, head, t.batch);
    load_block(base, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, VALUE_WIDTH,
               VALUE_CHUNK, &run.v[t.map], block, at_x, at_y, at_z, head, t.batch);
    block.next();
    if (++x < t.boxes[LAST]) continue;
    x = 0;
    if (++y < t.boxes[LAST - 1]) continue;
    y = 0;
    z++;
  }
}

DEVICE void load_tiles(const grid_launch &run, u32 base) {
  ring<STAGES> block = {0};
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x; index < run.of.items; index += grid_size()) {
    grid_tile t;
    if (!find_tile(run, index, t)) continue;
    u32 stage = query_stage(tile);
    barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
    write_tile(run, base + AT_TILE + stage * TILE_BYTES, t);
    load_queries(run, base, t, stage);
    load_boxes(run, base, t, block);
    tile++;
  }
  u32 stage = query_stage(tile);
  barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  shared_store(base + AT_TILE + stage * TILE_BYTES + MESSAGE_ROWS, 0, 0, 0, false);
  barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
}

// ---- values that are not finite --------------------------------------------

// Looks at every block of values, by one warp.
DEVICE void check_values(const grid_launch &run, u32 base) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 index = blockIdx.x; index < run.of.items; index += grid_size()) {
    grid_tile t;
    if (!find_tile(run, index, t)) continue;
#pragma unroll 1
    for (int left = all_boxes(t); left > 0; left--, block.next())
      check_block(base, block);
  }
}
