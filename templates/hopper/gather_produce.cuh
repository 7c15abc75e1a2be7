// gather_produce.cuh - the producing warps of gather.cu: one thread copies blocks of
// keys and values, a warp looks at the values, and two warps gather queries.
//
// In: the launch, and the tiles that gather_lists made. Out: the stages of the ring,
// queries in shared memory as tensor maps would swizzle them, and a message for each
// tile.
#pragma once

#include "templates/hopper/gather_tiles.cuh"

// ---- keys and values -------------------------------------------------------

DEVICE void load_blocks(const gather_launch &run, u32 base) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run.call); index += grid_size()) {
    tile_place t;
    if (!find_tile(run.call, index, t)) continue;
    int batch = t.line / HEADS, head = t.line % HEADS / run.call.group;
#pragma unroll 1
    for (int n = 0; n < visits_of(t.keys); n++, block.next()) {
      int row = t.tile.block * run.call.block + n * TILE_KEYS;
      load_rows(base, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, HEAD_WIDTH, CHUNK, &run.k,
                block, row, head, batch);
      load_rows(base, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, VALUE_WIDTH,
                VALUE_CHUNK, &run.v, block, row, head, batch);
    }
  }
}

// Looks at every block of values, by one warp.
DEVICE void check_values(const gather_launch &run, u32 base) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run.call); index += grid_size()) {
    tile_place t;
    if (!find_tile(run.call, index, t)) continue;
#pragma unroll 1
    for (int left = visits_of(t.keys); left > 0; left--, block.next())
      check_block(base, block);
  }
}

// ---- queries ---------------------------------------------------------------

// The message of a tile: {the query row at the first key's position, keys, 1; 0 behind
// the last tile, line}.
DEVICE void write_tile(const gather_launch &run, u32 message, const tile_place &t) {
  int row = t.tile.block * run.call.block - first_query(run.call, t.line / HEADS);
  shared_store(message, row, t.keys, 1, t.line);
}

// The items of a tile's rows; rows that it lacks have row -1.
DEVICE void copy_items(const gather_launch &run, u32 to, const tile_place &t,
                       int self) {
  const gather_item *from =
      run.call.items + (long long)t.line * run.call.entry_room + t.tile.first;
#pragma unroll 1
  for (int n = self; n < TILE_ROWS; n += GATHERERS) {
    gather_item x = n < t.tile.count ? from[n] : gather_item{-1, -1};
    shared_set(to + 8 * n, x.row);
    shared_set(to + 8 * n + 4, x.entry);
  }
}

DEVICE void gather_queries(const gather_launch &run, u32 base) {
  int self = thread_index() - (128 - GATHERERS);
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run.call); index += grid_size()) {
    tile_place t;
    if (!find_tile(run.call, index, t)) continue;
    u32 stage = query_stage(tile), items = base + AT_ITEM + stage * ITEM_BYTES;
    barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
    if (self == 0) write_tile(run, base + AT_TILE + stage * TILE_BYTES, t);
    copy_items(run, items, t, self);
    named_barrier_sync(1, GATHERERS);
    gather_rows<HEAD_WIDTH, HEAD_DIM, CHUNK, TILE_ROWS, 64, GATHERERS>(
        base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES), items, 8,
        source_of(run.call.of.q, run.call.of.q_stride, t.line), self);
    copy_commit();
    copy_wait<0>();
    proxy_fence();
    barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
    tile++;
  }
  u32 stage = query_stage(tile);
  barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  if (self == 0) shared_store(base + AT_TILE + stage * TILE_BYTES, 0, 0, 0, 0);
  barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
}
