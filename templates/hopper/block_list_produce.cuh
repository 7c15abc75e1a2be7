// block_list_produce.cuh - the producing warps of block_list.cu, one for each consumer
// warpgroup: it claims tiles, walks their lists, and copies units of keys and values.
//
// In: the launch, the lists as bits. Out: the stages of the warpgroup's ring, where their
// units stand, and a message for each tile.
#pragma once

#include "templates/hopper/block_list_view.cuh"

DEVICE int batch_keys(const block_list_launch &run, int batch) {
  int keys = run.of.M;
  return run.of.lengths ? max(0, min(run.of.lengths[batch], keys)) : keys;
}

// ---- tiles -----------------------------------------------------------------

// The keys that a row sees by its window; `keys` of its batch row.
struct row_keys {
  int low, high; // high not included
};
DEVICE row_keys keys_of(int position, int keys) {
  row_keys k = {0, keys};
  if (WINDOW_LEFT != DIL_FAR) k.low = max(position - WINDOW_LEFT, 0);
  if (WINDOW_RIGHT != DIL_FAR) k.high = min(keys, position + WINDOW_RIGHT + 1);
  return k;
}

// 64 rows with one list. Tiles begin at multiples of 64 positions, as blocks do.
struct listed_tile {
  int row, position; // of its first row; rows below 0 and from N on are none
  int line, keys;    // batch row and head; keys of the batch row
};

// Finds tile number `index`; returns whether it has rows. Of a line the last come first:
// causal ones see most keys.
DEVICE bool find_tile(const block_list_launch &run, u32 index, listed_tile &t) {
  t.line = index / run.line_tiles;
  int at = run.line_tiles - 1 - (index - t.line * run.line_tiles);
  t.keys = batch_keys(run, t.line / HEADS);
  int first = t.keys - run.of.N; // the position of row 0
  t.position = ((first >> 6) + at) * BLOCK_LIST_ROWS;
  t.row = t.position - first;
  return t.row < run.of.N && t.row > -BLOCK_LIST_ROWS;
}

// The keys that some row of a tile may see, and those that all rows see.
DEVICE row_keys keys_of_some(int position, int keys) {
  return {keys_of(position, keys).low,
          keys_of(position + BLOCK_LIST_ROWS - 1, keys).high};
}
DEVICE row_keys keys_of_all(int position, int keys) {
  return {keys_of(position + BLOCK_LIST_ROWS - 1, keys).low,
          keys_of(position, keys).high};
}

// ---- a tile's list ---------------------------------------------------------

// The list of a tile, and the blocks of it that some row may see.
DEVICE list_view list_of(const block_list_launch &run, int position, int line, int keys) {
  const hopper_block_list &from = run.list;
  row_keys seen = keys_of_some(position, keys);
  int row = dil_div(position, QUERY_BLOCK) - from.low;
  if (seen.high <= seen.low) return {from.bits, 0, -1};
  return {from.bits + line / HEADS * from.batch + line % HEADS * from.head +
              (long long)row * from.words,
          seen.low / KEY_BLOCK, (seen.high - 1) / KEY_BLOCK};
}
DEVICE int units_of(const block_list_launch &run, const listed_tile &t) {
  const int each = KEY_BLOCK / BLOCK_LIST_ROWS;
  list_view l = list_of(run, t.position, t.line, t.keys);
  row_keys seen = keys_of_some(t.position, t.keys);
  int units = 0;
#pragma unroll 1
  for (int from = l.first / 32; from <= l.last >> 5; from += 32) {
    int word = from + thread_index() % 32;
    u32 held = word_of(l, word);
    units += __popc(held) * each;
    if (each == 1) continue;
    bool first = word == l.first / 32 && held >> l.first % 32 & 1;
    bool last = word == l.last / 32 && held >> l.last % 32 & 1;
    if (first) units -= seen.low / BLOCK_LIST_ROWS - l.first * each;
    if (last) units -= (l.last + 1) * each - (seen.high - 1) / BLOCK_LIST_ROWS - 1;
  }
  return __reduce_add_sync(~0u, units);
}

// ---- copies ----------------------------------------------------------------

// The warp's state. Lane n of UNITS has the place of unit n of the next visit.
struct unit_stream {
  const block_list_launch &run;
  u32 base;
  u32 tile;              // that is sent now
  ring<STAGES> block;    // the next visit
  int place, units;      // the units that it has so far
};

// The message of a tile: {visits; -1 behind the last tile, position of its first row,
// keys of its batch row, line} and {row, keys that all rows see: from, to, 0}. It stays
// until the consumers have released the queries of the tile behind it.
DEVICE u32 message_of(u32 base, u32 tile) {
  return base + AT_TILE + tile % 2 * TILE_BYTES;
}

// Copies the units of a visit, a lane for each unit and chunk of columns.
DEVICE void load_units(const unit_stream &s, u32 at, u32 full, u32 empty,
                       const hopper_map *map, int width, int chunk) {
  u32 lane = thread_index() % 32, stage = s.block.stage();
  u32 to = s.base + at + stage * (TILE_KEYS * width * 2);
  barrier_wait(s.base + empty + 8 * stage, s.block.phase() ^ 1);
  full += s.base + 8 * stage;
  if (lane == 0) barrier_expect(full, TILE_KEYS * width * 2);
  __syncwarp();
  int column = lane / UNITS * chunk;
  if (column >= width) return;
  int line = shared_word(message_of(s.base, s.tile) + 12);
  load_box(to + (column * TILE_KEYS + lane % UNITS * BLOCK_LIST_ROWS * chunk) * 2, map,
           full, column, s.place, 0, line % HEADS / s.run.group, line / HEADS,
           KEEP_LAST);
}

// Writes where the units of a visit stand, in multiples of 64, times two: bit 0 of the
// first is set where some row does not see all of them.
DEVICE void write_places(const unit_stream &s) {
  u32 to = s.base + AT_PLACES + s.block.slot() * PLACE_BYTES, lane = thread_index() % 32;
  u32 message = message_of(s.base, s.tile);
  bool part = s.place < shared_word(message + 20) ||
              s.place + BLOCK_LIST_ROWS > shared_word(message + 24);
  part = __any_sync(~0u, lane < UNITS && part);
  if (lane < UNITS)
    shared_set(to + lane * 4, s.place / BLOCK_LIST_ROWS * 2 + (lane == 0 && part));
  __syncwarp();
}

// Lanes behind the first UNITS copy their columns of the same units.
DEVICE void send_unit(unit_stream &s, int key) {
  if (int(thread_index() % UNITS) == s.units) s.place = key;
  if (++s.units < UNITS) return;
  u32 stage = s.block.stage();
  barrier_wait(s.base + AT_KEY_EMPTY + 8 * stage, s.block.phase() ^ 1);
  write_places(s);
  load_units(s, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, &s.run.k, HEAD_WIDTH, CHUNK);
  load_units(s, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, &s.run.v, VALUE_WIDTH,
             VALUE_CHUNK);
  __syncwarp();
  s.block.next();
  s.units = 0;
}

DEVICE void send_block(unit_stream &s, int block) {
  int key = block * KEY_BLOCK;
  if (KEY_BLOCK == BLOCK_LIST_ROWS) {
    send_unit(s, key);
    return;
  }
  int4 tile = shared_load(message_of(s.base, s.tile));
  row_keys seen = keys_of_some(tile.y, tile.z);
  int end = min(key + KEY_BLOCK, seen.high);
  key = max(key, seen.low / BLOCK_LIST_ROWS * BLOCK_LIST_ROWS);
#pragma unroll 1
  for (; key < end; key += BLOCK_LIST_ROWS) send_unit(s, key);
}

// ---- the warp --------------------------------------------------------------

DEVICE void start_tile(const unit_stream &s, u32 index, int visits) {
  u32 full = s.base + AT_QUERY_FULL, message = message_of(s.base, s.tile);
  listed_tile t = {};
  barrier_wait(s.base + AT_QUERY_EMPTY, query_parity(s.tile) ^ 1);
  if (thread_index() % 32 == 0) {
    if (visits >= 0) find_tile(s.run, index, t);
    row_keys all = keys_of_all(t.position, t.keys);
    shared_store(message, visits, t.position, t.keys, t.line);
    shared_store(message + 16, t.row, all.low, all.high, 0);
    if (visits > 0) barrier_expect(full, QUERY_BYTES);
    else barrier_arrive(full);
  }
  __syncwarp();
  int column = thread_index() % 32 * CHUNK;
  if (visits <= 0 || column >= HEAD_WIDTH) return;
  int line = shared_word(message + 12);
  load_box(s.base + AT_QUERY + column * (BLOCK_LIST_ROWS * 2), &s.run.q, full, column,
           shared_word(message + 16), 0, line % HEADS, line / HEADS, KEEP_FIRST);
}

DEVICE void send_list(unit_stream &s) {
  int4 tile = shared_load(message_of(s.base, s.tile));
  list_view l = list_of(s.run, tile.y, tile.w, tile.z);
#pragma unroll 1
  for (int word = l.first / 32; word <= l.last >> 5; word += LISTED_WORDS) {
    int count = write_blocks(l, word, s.base + AT_LISTED);
#pragma unroll 1
    for (int n = 0; n < count; n++)
      send_block(s, shared_word(s.base + AT_LISTED + n * 4));
  }
  int none = (s.run.of.M + BLOCK_LIST_ROWS - 1) / BLOCK_LIST_ROWS * BLOCK_LIST_ROWS;
  while (s.units) send_unit(s, none); // behind all keys: zeros
}

DEVICE void send_tile(unit_stream &s, u32 index) {
  listed_tile t;
  if (!find_tile(s.run, index, t)) return;
  start_tile(s, index, (units_of(s.run, t) + UNITS - 1) / UNITS);
  __syncwarp();
  send_list(s);
  s.tile++;
}

// The next tile's number, from a global counter.
DEVICE u32 claim_tile(const block_list_launch &run) {
  u32 index = 0;
  if (thread_index() % 32 == 0)
    index = count_up(run.counters) + gridDim.x * WARPGROUPS;
  return index;
}

DEVICE void produce(const block_list_launch &run, u32 base) {
  unit_stream s = {run, base, 0, {0}, 0, 0};
  u32 index = blockIdx.x * WARPGROUPS + thread_index() / 32;
#pragma unroll 1
  while (index < run.of.batches * HEADS * run.line_tiles) {
    send_tile(s, index);
    index = __shfl_sync(~0u, claim_tile(run), 0);
  }
  start_tile(s, 0, -1);
  if (thread_index() % 32 == 0 &&
      count_up(run.counters + 1) == gridDim.x * WARPGROUPS - 1) {
    run.counters[0] = 0; // for the next launch
    run.counters[1] = 0;
  }
}
