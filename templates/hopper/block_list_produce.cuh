// block_list_produce.cuh - the producing warps of block_list.cu, one for each consumer
// warpgroup: it claims tiles, walks their lists, and copies units of keys and values.
//
// In: the launch, the lists as bits. Out: the stages of the warpgroup's ring, where their
// units stand, and a message for each tile.
#pragma once

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

// 64 rows with one list, and the keys that some row may see.
struct listed_tile {
  int row, position; // of its first row; rows below 0 and from N on are none
  int line, keys;    // batch row and head; keys of the batch row
  int low, high;     // keys by their windows, high not included
  int full_low, full_high; // what all rows see of them
};

// Finds tile number `index`; returns whether it has rows. Tiles begin at multiples of 64
// positions, as blocks do. Of a line the last come first: causal ones see most keys.
DEVICE bool find_tile(const block_list_launch &run, u32 index, listed_tile &t) {
  t.line = index / run.line_tiles;
  int at = run.line_tiles - 1 - (index - t.line * run.line_tiles);
  t.keys = batch_keys(run, t.line / HEADS);
  int first = t.keys - run.of.N; // the position of row 0
  t.position = ((first >> 6) + at) * BLOCK_LIST_ROWS;
  t.row = t.position - first;
  row_keys top = keys_of(t.position, t.keys);
  row_keys bottom = keys_of(t.position + BLOCK_LIST_ROWS - 1, t.keys);
  t.low = top.low;
  t.high = bottom.high;
  t.full_low = bottom.low;
  t.full_high = top.high;
  return t.row < run.of.N && t.row > -BLOCK_LIST_ROWS;
}

// ---- a tile's list ---------------------------------------------------------

// A word of a list: bits of blocks 32 word ... that some row may see.
struct list_view {
  const unsigned *bits;
  int first, last; // blocks
};
DEVICE list_view list_of(const block_list_launch &run, const listed_tile &t) {
  const hopper_block_list &from = run.list;
  int row = dil_div(t.position, QUERY_BLOCK) - from.low;
  return {from.bits + t.line / HEADS * from.batch + t.line % HEADS * from.head +
              (long long)row * from.words,
          t.low / KEY_BLOCK, (t.high - 1) / KEY_BLOCK};
}
DEVICE u32 word_of(const list_view &l, int word) {
  if (word > l.last / 32) return 0;
  u32 held = l.bits[word];
  if (word == l.first / 32) held &= ~0u << l.first % 32;
  if (word == l.last / 32) held &= ~0u >> (31 - l.last % 32);
  return held;
}

// Calls f(key) for each unit of a tile's list, in the order of positions. The whole warp
// comes here.
template <class function>
DEVICE void each_unit(const block_list_launch &run, const listed_tile &t, function f) {
  if (t.high <= t.low) return;
  list_view l = list_of(run, t);
#pragma unroll 1
  for (int from = l.first / 32; from <= l.last / 32; from += 32) {
    u32 mine = word_of(l, from + thread_index() % 32);
    u32 some = __ballot_sync(~0u, mine != 0);
#pragma unroll 1
    for (; some; some &= some - 1) {
      int at = __ffs(some) - 1;
#pragma unroll 1
      for (u32 held = __shfl_sync(~0u, mine, at); held; held &= held - 1) {
        int key = ((from + at) * 32 + __ffs(held) - 1) * KEY_BLOCK;
        int end = min(key + KEY_BLOCK, t.high);
        if (KEY_BLOCK > BLOCK_LIST_ROWS)
          key = max(key, t.low / BLOCK_LIST_ROWS * BLOCK_LIST_ROWS);
#pragma unroll 1
        for (; key < end; key += BLOCK_LIST_ROWS) f(key);
      }
    }
  }
}

DEVICE int units_of(const block_list_launch &run, const listed_tile &t) {
  const int each = KEY_BLOCK / BLOCK_LIST_ROWS;
  if (t.high <= t.low) return 0;
  list_view l = list_of(run, t);
  int units = 0;
#pragma unroll 1
  for (int from = l.first / 32; from <= l.last / 32; from += 32) {
    int word = from + thread_index() % 32;
    u32 held = word_of(l, word);
    units += __popc(held) * each;
    if (each == 1) continue;
    bool first = word == l.first / 32 && held >> l.first % 32 & 1;
    bool last = word == l.last / 32 && held >> l.last % 32 & 1;
    if (first) units -= t.low / BLOCK_LIST_ROWS - l.first * each;
    if (last) units -= (l.last + 1) * each - (t.high - 1) / BLOCK_LIST_ROWS - 1;
  }
  return __reduce_add_sync(~0u, units);
}

// ---- copies ----------------------------------------------------------------

struct unit_stream {
  const block_list_launch &run;
  u32 base;
  u32 tile;              // that is sent now
  ring<STAGES> block;    // the next visit
  int place[UNITS];      // its units so far
  int units;
};

// The message of a tile: {visits; -1 behind the last tile, position of its first row,
// keys of its batch row, line} and {row, full_low, full_high, 0}. It stays until the
// consumers have released the queries of the tile behind it.
DEVICE u32 message_of(u32 base, u32 tile) {
  return base + AT_TILE + tile % 2 * TILE_BYTES;
}

DEVICE void load_units(const unit_stream &s, int line, u32 to, u32 full,
                       const hopper_map *map, int width, int chunk) {
  int batch = line / HEADS, head = line % HEADS / s.run.group;
#pragma unroll 1
  for (int c = 0; c < width; c += chunk)
#pragma unroll
    for (int n = 0; n < UNITS; n++)
      load_box(to + (c * TILE_KEYS + n * BLOCK_LIST_ROWS * chunk) * 2, map, full, c,
               s.place[n], 0, head, batch, KEEP_LAST);
}

// Writes where the units of a visit stand, in multiples of 64, times two: bit 0 of the
// first is set where some row does not see all of them.
DEVICE void write_places(const unit_stream &s, u32 message) {
  u32 to = s.base + AT_PLACES + s.block.slot() * PLACE_BYTES;
  int low = shared_word(message + 20), high = shared_word(message + 24);
  bool whole = true;
#pragma unroll
  for (int n = 0; n < UNITS; n++)
    whole = whole && s.place[n] >= low && s.place[n] + BLOCK_LIST_ROWS <= high;
#pragma unroll
  for (int n = 0; n < UNITS; n++)
    shared_set(to + n * 4, s.place[n] / BLOCK_LIST_ROWS * 2 + (n == 0 && !whole));
}

DEVICE void start_visit(const unit_stream &s) {
  u32 message = message_of(s.base, s.tile), stage = s.block.stage();
  u32 full = s.base + AT_KEY_FULL + 8 * stage;
  barrier_wait(s.base + AT_KEY_EMPTY + 8 * stage, s.block.phase() ^ 1);
  write_places(s, message);
  barrier_expect(full, KEY_BYTES);
  int line = shared_word(message + 12);
  load_units(s, line, s.base + AT_KEY + stage * KEY_BYTES, full, &s.run.k, HEAD_WIDTH,
             CHUNK);
  full = s.base + AT_VALUE_FULL + 8 * stage;
  barrier_wait(s.base + AT_VALUE_EMPTY + 8 * stage, s.block.phase() ^ 1);
  barrier_expect(full, VALUE_BYTES);
  load_units(s, line, s.base + AT_VALUE + stage * VALUE_BYTES, full, &s.run.v,
             VALUE_WIDTH, VALUE_CHUNK);
}

DEVICE void send_unit(unit_stream &s, int key) {
#pragma unroll
  for (int n = 0; n < UNITS; n++)
    if (n == s.units) s.place[n] = key;
  if (++s.units < UNITS) return;
  if (thread_index() % 32 == 0) start_visit(s);
  __syncwarp();
  s.block.next();
  s.units = 0;
}

// ---- the warp --------------------------------------------------------------

DEVICE void start_tile(const unit_stream &s, const listed_tile &t, int visits) {
  u32 full = s.base + AT_QUERY_FULL, message = message_of(s.base, s.tile);
  barrier_wait(s.base + AT_QUERY_EMPTY, query_parity(s.tile) ^ 1);
  if (thread_index() % 32) return;
  shared_store(message, visits, t.position, t.keys, t.line);
  shared_store(message + 16, t.row, t.full_low, t.full_high, 0);
  if (visits <= 0) {
    barrier_arrive(full);
    return;
  }
  barrier_expect(full, QUERY_BYTES);
#pragma unroll 1
  for (int c = 0; c < HEAD_WIDTH; c += CHUNK)
    load_box(s.base + AT_QUERY + c * (BLOCK_LIST_ROWS * 2), &s.run.q, full, c, t.row, 0,
             t.line % HEADS, t.line / HEADS, KEEP_FIRST);
}

DEVICE void send_tile(unit_stream &s, const listed_tile &t) {
  int none = (s.run.of.M + BLOCK_LIST_ROWS - 1) / BLOCK_LIST_ROWS * BLOCK_LIST_ROWS;
  start_tile(s, t, (units_of(s.run, t) + UNITS - 1) / UNITS);
  each_unit(s.run, t, [&](int key) { send_unit(s, key); });
  while (s.units) send_unit(s, none); // behind all keys: zeros
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
  unit_stream s = {run, base, 0, {0}, {}, 0};
  u32 index = blockIdx.x * WARPGROUPS + thread_index() / 32;
#pragma unroll 1
  while (index < run.of.batches * HEADS * run.line_tiles) {
    u32 next = claim_tile(run); // it arrives while the tile is sent
    listed_tile t;
    if (find_tile(run, index, t)) send_tile(s, t);
    index = __shfl_sync(~0u, next, 0);
  }
  start_tile(s, {}, -1);
  if (thread_index() % 32 == 0 &&
      count_up(run.counters + 1) == gridDim.x * WARPGROUPS - 1) {
    run.counters[0] = 0; // for the next launch
    run.counters[1] = 0;
  }
}
