// gather_produce.cuh - the producing warps of gather.cu: one thread copies blocks of
// keys and values, a warp looks at the values, and two warps gather queries.
//
// In: the launch, and the tiles that gather_lists made. Out: the stages of the ring,
// queries in shared memory as tensor maps would swizzle them, and a message for each
// tile.
#pragma once

#include "templates/shared/ptx.cuh"

// A tile of this launch.
struct tile_place {
  gather_tile tile;
  int line, keys; // keys of its block
};

// Finds tile number `index`; returns whether there is one.
DEVICE bool find_tile(const gather_launch &run, u32 index, tile_place &t) {
  u32 number = index / run.tile_room, at = index - number * run.tile_room;
  t.line = run.first_line + number;
  if (at >= run.counts[t.line]) return false;
  t.tile = run.tiles[(long long)t.line * run.tile_room + at];
  t.keys = min(run.block,
               batch_keys(run, t.line / HEADS) - t.tile.block * run.block);
  return true;
}
DEVICE u32 tile_places(const gather_launch &run) { return run.lines * run.tile_room; }

DEVICE int visits_of(int keys) { return (keys + TILE_KEYS - 1) / TILE_KEYS; }

// ---- keys and values -------------------------------------------------------

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

DEVICE void load_blocks(const gather_launch &run, u32 base) {
  ring<STAGES> block = {0};
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run); index += grid_size()) {
    tile_place t;
    if (!find_tile(run, index, t)) continue;
    int batch = t.line / HEADS, head = t.line % HEADS / run.group;
#pragma unroll 1
    for (int n = 0; n < visits_of(t.keys); n++, block.next()) {
      int row = t.tile.block * run.block + n * TILE_KEYS;
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
  for (u32 index = blockIdx.x; index < tile_places(run); index += grid_size()) {
    tile_place t;
    if (!find_tile(run, index, t)) continue;
#pragma unroll 1
    for (int left = visits_of(t.keys); left > 0; left--, block.next())
      check_block(base, block);
  }
}

// ---- queries ---------------------------------------------------------------

// The message of a tile: {the query row at the first key's position, keys, 1; 0 behind
// the last tile, line}.
DEVICE void write_tile(const gather_launch &run, u32 message, const tile_place &t) {
  int row = t.tile.block * run.block - first_query(run, t.line / HEADS);
  shared_store(message, row, t.keys, 1, t.line);
}

// The items of a tile's rows; rows that it lacks have row -1.
DEVICE void copy_items(const gather_launch &run, u32 to, const tile_place &t,
                       int self) {
  const gather_item *from =
      run.items + (long long)t.line * run.entry_room + t.tile.first;
#pragma unroll 1
  for (int n = self; n < TILE_ROWS; n += GATHERERS) {
    gather_item x = n < t.tile.count ? from[n] : gather_item{-1, -1};
    shared_set(to + 8 * n, x.row);
    shared_set(to + 8 * n + 4, x.entry);
  }
}

// Where 16 bytes of a row stand: the chunks of a warpgroup's 64 rows follow each other.
DEVICE u32 query_unit(u32 row, u32 unit) {
  const u32 width = CHUNK * 2, units = CHUNK / 8;
  u32 swizzle = width == 128 ? row & 7 : row >> 1 & 3;
  return row / 64 * QUERY_BYTES + unit / units * (64 * width) + row % 64 * width +
         ((unit % units ^ swizzle) << 4);
}

// Neighbouring threads copy neighbouring units of a row.
DEVICE void copy_queries(const gather_launch &run, u32 to, u32 items,
                         const tile_place &t, int self) {
  const int units = HEAD_WIDTH / 8;
  const char *from = (const char *)run.of.q;
  long long line = t.line / HEADS * run.of.q_stride[0] +
                   t.line % HEADS * run.of.q_stride[2];
#pragma unroll 4
  for (int n = self; n < TILE_ROWS * units; n += GATHERERS) {
    int row = n / units, unit = n % units, at = shared_word(items + 8 * row);
    bool there = at >= 0 && unit < HEAD_DIM / 8;
    long long place = there ? line + at * run.of.q_stride[1] + unit * 8 : 0;
    copy_16(to + query_unit(row, unit), from + 2 * place, there);
  }
  copy_commit();
  copy_wait<0>();
  proxy_fence();
}

DEVICE void gather_queries(const gather_launch &run, u32 base) {
  int self = thread_index() - (128 - GATHERERS);
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run); index += grid_size()) {
    tile_place t;
    if (!find_tile(run, index, t)) continue;
    u32 stage = query_stage(tile), items = base + AT_ITEM + stage * ITEM_BYTES;
    barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
    if (self == 0) write_tile(run, base + AT_TILE + stage * TILE_BYTES, t);
    copy_items(run, items, t, self);
    named_barrier_sync(1, GATHERERS);
    copy_queries(run, base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES), items, t,
                 self);
    barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
    tile++;
  }
  u32 stage = query_stage(tile);
  barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  if (self == 0) shared_store(base + AT_TILE + stage * TILE_BYTES, 0, 0, 0, 0);
  barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
}
