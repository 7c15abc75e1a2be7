// gather_hold_rows.cuh - the producing warps where tiles hold rows: one thread copies
// keys and values, and three warps gather rows of Q and dO.
//
// In: the launch, the tiles of the sorted entries. Out: the stream of blocks for the
// consumers, and a message for each tile and block.
#pragma once

// ---- keys and values -------------------------------------------------------

// Whether rows of a tile do not see all TILE_KEYS keys of a block. The rows of a step
// may stand in any order, and those of later steps behind them. `row`: the tile's
// first; `first`: that at the block's first key.
DEVICE bool hides(int visible, int first, int row) {
  if (visible < TILE_KEYS) return true;
  return CAUSAL && (row & -GATHER_STEP) < first + TILE_KEYS - 1;
}

DEVICE void load_tile_keys(const gather_backward_launch &run, u32 base, u32 tile,
                           const tile_place &t, ring<STAGES> &block) {
  const hopper_launch &of = run.back.of;
  int batch = t.line / HEADS, head = t.line % HEADS / run.call.group;
  int first = t.tile.block * run.call.block, visits = visits_of(t.keys);
  int away = first_query(run.call, batch), groups = t.tile.count > 64 ? 3 : 1;
  int row = run.call.items[(long long)t.line * run.call.entry_room + t.tile.first].row;
#pragma unroll 1
  for (int n = 0; n < visits; n++, block.next()) {
    u32 stage = block.stage(), message = message_of(base, block.slot());
    int key = first + n * TILE_KEYS, visible = t.keys - n * TILE_KEYS;
    bool masks = hides(visible, key - away, row);
    barrier_wait(base + AT_KEY_EMPTY + 8 * stage, block.phase() ^ 1);
    shared_store(message + 16, 0, 0, visible, 0);
    shared_store(message,
                 (n == 0 ? BLOCK_NEW : 0) | (n + 1 == visits ? BLOCK_LAST : 0) |
                     tile % TILE_SLOTS << BLOCK_TILE | groups << BLOCK_TAKES |
                     (masks ? groups << BLOCK_MASKS : 0),
                 0, key - away, 0);
    load_rows(base, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, HEAD_WIDTH, CHUNK, &of.k[0][1],
              block, key, head, batch);
    load_rows(base, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, VALUE_WIDTH, VALUE_CHUNK,
              &of.v[0][1], block, key, head, batch);
  }
}

DEVICE void load_blocks(const gather_backward_launch &run, u32 base) {
  ring<STAGES> block = {0};
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run.call); index += grid_size()) {
    tile_place t;
    if (find_tile(run.call, index, t)) load_tile_keys(run, base, tile++, t, block);
  }
  u32 stage = block.stage();
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, block.phase() ^ 1);
  shared_store(message_of(base, block.slot()), BLOCK_END | BLOCK_NEW, 0, 0, 0);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
}

// ---- rows ------------------------------------------------------------------

// The items of a tile; rows that it lacks have row -1.
DEVICE void copy_items(const gather_call &run, u32 to, const tile_place &t, int self) {
  const gather_item *from = run.items + (long long)t.line * run.entry_room + t.tile.first;
#pragma unroll 1
  for (int n = self; n < TILE_ROWS; n += GATHERERS) {
    gather_item x = n < t.tile.count ? from[n] : gather_item{-1, -1};
    shared_set(to + 8 * n, x.row);
    shared_set(to + 8 * n + 4, x.entry);
  }
}

DEVICE void load_held(const gather_call &run, u32 base, u32 tile, const tile_place &t,
                      int self) {
  u32 stage = query_stage(tile), slot = tile % TILE_SLOTS;
  u32 message = base + AT_TILE + slot * TILE_BYTES;
  u32 items = base + AT_ITEM + slot * ITEM_BYTES;
  barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  copy_items(run, items, t, self);
  if (self == 0) {
    shared_store(message, items, 1, t.tile.count, t.line % HEADS);
    shared_store(message + 16, items, 0, 0, t.line / HEADS);
  }
  named_barrier_sync(1, GATHERERS);
  gather_rows<HEAD_WIDTH, HEAD_DIM, CHUNK, TILE_ROWS, 64, GATHERERS>(
      base + AT_QUERY + stage * (WARPGROUPS * QUERY_BYTES), items, 8,
      source_of(run.of.q, run.of.q_stride, t.line), self);
  gather_rows<VALUE_WIDTH, VALUE_DIM, VALUE_CHUNK, TILE_ROWS, 64, GATHERERS>(
      base + AT_HELD + stage * (WARPGROUPS * HELD_BYTES), items, 8,
      source_of(run.of.o, run.of.o_stride, t.line), self);
  copy_commit();
  copy_wait<0>();
  proxy_fence();
  barrier_arrive(base + AT_QUERY_FULL + 8 * stage);
}

DEVICE void load_tiles(const gather_call &run, u32 base, int self) {
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x; index < tile_places(run); index += grid_size()) {
    tile_place t;
    if (find_tile(run, index, t)) load_held(run, base, tile++, t, self);
  }
}

DEVICE void produce(const gather_backward_launch &run, u32 base) {
  if (threadIdx.x == 0) load_blocks(run, base);
  else if (threadIdx.x >= 32) load_tiles(run.call, base, threadIdx.x - 32);
}
