// block_list_stream.cuh - the producing warps of block_list_backward.cu, one for each
// consumer warpgroup: it claims tiles, walks their lists, copies rows and brings facts.
//
// In: the launch, the lists as bits. Out: the stream of units for the consumers, and a
// message for each tile and unit.
#pragma once

#include "templates/hopper/block_list_view.cuh"
#include "templates/hopper/hopper_rows.cuh"

// ---- tiles -----------------------------------------------------------------

// 64 rows that a tile holds, from a multiple of 64 positions on. It stands in the tile's
// message, since the warp has no registers for it.
struct held_tile {
  int batch, head, row, rows, position;
};

// Finds tile number `index`. Causal queries see the more keys the later they stand, and
// keys are seen the more the earlier: the longest tiles of a line come first.
DEVICE held_tile find_tile(const block_list_backward_launch &run, u32 index) {
  held_tile t;
  u32 line = index / run.line_tiles;
  int at = index - line * run.line_tiles;
  t.batch = line / HELD_HEADS;
  t.head = line - t.batch * HELD_HEADS;
  t.row = (HOLDS_KEYS ? at : run.line_tiles - 1 - at) * BLOCK_LIST_ROWS;
  t.rows = min(BLOCK_LIST_ROWS, run.back.held_rows - t.row);
  t.position = run.held_first + t.row;
  return t;
}

// The streamed positions that some row of a tile may see, and those that all rows see.
DEVICE streamed_span streamed_by_some(const block_list_backward_launch &run,
                                      const held_tile &t) {
  int low = run.streamed_first, high = low + run.back.streamed_rows;
  return {streamed_by(t.position, low, high).low,
          streamed_by(t.position + BLOCK_LIST_ROWS - 1, low, high).high};
}
DEVICE streamed_span streamed_by_all(const block_list_backward_launch &run,
                                     const held_tile &t) {
  int low = run.streamed_first, high = low + run.back.streamed_rows;
  return {streamed_by(t.position + BLOCK_LIST_ROWS - 1, low, high).low,
          streamed_by(t.position, low, high).high};
}

// The list of a tile for a query head, of blocks that some row may see; bit 0 of it is
// block number `low`.
DEVICE list_view list_of(const block_list_backward_launch &run, const held_tile &t,
                         const streamed_span &seen, int head, int low) {
  const hopper_block_list &from = HOLDS_KEYS ? run.turned : run.list;
  int row = dil_div(t.position, HELD_BLOCK) - from.low;
  if (seen.high <= seen.low) return {from.bits, 0, -1};
  return {from.bits + t.batch * from.batch + head * from.head +
              (long long)row * from.words,
          dil_div(seen.low, STREAMED_BLOCK) - low,
          dil_div(seen.high - 1, STREAMED_BLOCK) - low};
}

// ---- units -----------------------------------------------------------------

// The warp's state.
struct unit_stream {
  const block_list_backward_launch &run;
  u32 base;
  float unit;            // of f16's gradients of scores
  u32 tile;              // that is sent now
  ring<STAGES> block;    // the next unit
  int flags;             // of its message
  int position, head;    // of a unit that waits until it is known whether it is the last
  bool waits;
};

DEVICE u32 tile_message_of(const unit_stream &s) {
  return s.base + AT_TILE + s.tile % TILE_SLOTS * TILE_BYTES;
}

// The tile that is sent now.
DEVICE held_tile tile_of(const unit_stream &s) {
  int4 t = shared_load(tile_message_of(s)), to = shared_load(tile_message_of(s) + 16);
  return {to.w, t.w, to.x, t.z, t.x};
}

// Copies the held rows of a tile, when those of the tile before have been released.
DEVICE void start_tile(const unit_stream &s, const held_tile &t) {
  u32 full = s.base + AT_QUERY_FULL, message = tile_message_of(s);
  barrier_wait(s.base + AT_QUERY_EMPTY, query_parity(s.tile) ^ 1);
  if (thread_index() % 32) return;
  shared_store(message, t.position, 1, t.rows, t.head);
  shared_store(message + 16, t.row, 0, 0, t.batch);
  barrier_expect(full, QUERY_BYTES + HELD_BYTES);
  for (int c = 0; c < HEAD_WIDTH; c += CHUNK)
    load_box(s.base + AT_QUERY + c * (64 * 2), &s.run.back.of.q[0][1], full, c, t.row, 0,
             t.head, t.batch, KEEP_FIRST);
  for (int c = 0; c < VALUE_WIDTH; c += VALUE_CHUNK)
    load_box(s.base + AT_HELD + c * (64 * 2), &s.run.back.of.o[0][1], full, c, t.row, 0,
             t.head, t.batch, KEEP_FIRST);
}

// Whether some row of a tile does not see all rows of a unit.
DEVICE bool is_part(const unit_stream &s, const held_tile &t) {
  streamed_span all = streamed_by_all(s.run, t);
  return s.position < all.low || s.position + TILE_KEYS > all.high;
}

DEVICE void write_message(const unit_stream &s, int more) {
  u32 message = message_of(s.base, s.block.slot());
  int low = s.run.streamed_first, high = low + s.run.back.streamed_rows;
  int flags = s.flags | more | s.tile % TILE_SLOTS << BLOCK_TILE | 1 << BLOCK_TAKES;
  if (is_part(s, tile_of(s))) flags |= 1 << BLOCK_MASKS;
  shared_store(message + 16, low, high, 0, 0);
  shared_store(message, flags, 0, s.position, 0);
}

#if HOLDS_KEYS
// Lane x holds the facts of rows x and x + 32.
DEVICE void read_facts(const unit_stream &s, row_facts (&f)[OWN_FACTS]) {
  int row = s.position - s.run.streamed_first + thread_index() % 32;
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    f[k] = {INFINITE_LSE, 0};
    if (row + 32 * k < s.run.back.query_rows)
      f[k] = facts_of(s.run.back, tile_of(s).batch, s.head, row + 32 * k);
    f[k].lse -= WEIGHT_BITS;
  }
}
#endif

// Sends the unit that waits; `more`: flags.
DEVICE void send_unit(unit_stream &s, int more) {
  const hopper_launch &of = s.run.back.of;
  u32 stage = s.block.stage(), lane = thread_index() % 32;
#if HOLDS_KEYS
  row_facts f[OWN_FACTS];
  read_facts(s, f);
#endif
  if (lane == 0) write_message(s, more);
  barrier_wait(s.base + AT_KEY_EMPTY + 8 * stage, s.block.phase() ^ 1);
  if (lane == 0) {
    int row = s.position - s.run.streamed_first, batch = tile_of(s).batch;
    int head = HOLDS_KEYS ? s.head : s.head / s.run.group;
    load_rows(s.base, AT_KEY, AT_KEY_FULL, AT_KEY_EMPTY, HEAD_WIDTH, CHUNK, &of.k[0][1],
              s.block, row, head, batch);
    load_rows(s.base, AT_VALUE, AT_VALUE_FULL, AT_VALUE_EMPTY, VALUE_WIDTH, VALUE_CHUNK,
              &of.v[0][1], s.block, row, head, batch);
  }
  __syncwarp();
#if HOLDS_KEYS
  write_block_facts(f, s.unit, facts_at(s.base, stage));
  barrier_arrive(facts_barrier(s.base, stage)); // each lane for its own writes
#endif
  s.block.next();
  s.flags = 0;
}

DEVICE void add_unit(unit_stream &s, int position, int head) {
  if (s.waits) send_unit(s, 0);
  s.waits = true;
  s.position = position;
  s.head = head;
}

// Adds the units of a block that some row of the tile may see.
DEVICE void add_block(unit_stream &s, int block, int head) {
  int at = block * STREAMED_BLOCK;
  if (STREAMED_BLOCK == TILE_KEYS) {
    add_unit(s, at, head);
    return;
  }
  streamed_span seen = streamed_by_some(s.run, tile_of(s));
  int end = min(at + STREAMED_BLOCK, seen.high);
  at = max(at, dil_div(seen.low, TILE_KEYS) * TILE_KEYS);
#pragma unroll 1
  for (; at < end; at += TILE_KEYS) add_unit(s, at, head);
}

// ---- the warp --------------------------------------------------------------

DEVICE void add_list(unit_stream &s, int head) {
  int low = HOLDS_KEYS ? s.run.list.low : 0;
  held_tile t = tile_of(s);
  list_view l = list_of(s.run, t, streamed_by_some(s.run, t), head, low);
#pragma unroll 1
  for (int word = l.first / 32; word <= l.last >> 5; word += LISTED_WORDS) {
    int count = write_blocks(l, word, s.base + AT_LISTED);
#pragma unroll 1
    for (int n = 0; n < count; n++)
      add_block(s, shared_word(s.base + AT_LISTED + n * 4) + low, head);
  }
}

// A tile with an empty list has one unit, behind all rows: zeros.
DEVICE void send_tile(unit_stream &s, u32 index) {
  start_tile(s, find_tile(s.run, index));
  __syncwarp();
  int head = tile_of(s).head, heads = 1;
  if (HOLDS_KEYS) head *= heads = s.run.group;
  s.flags = BLOCK_NEW;
  s.waits = false;
#pragma unroll 1
  for (int h = head; h < head + heads; h++) add_list(s, h);
  if (!s.waits) {
    int rows = s.run.back.streamed_rows + TILE_KEYS - 1;
    add_unit(s, s.run.streamed_first + rows / TILE_KEYS * TILE_KEYS, head);
  }
  send_unit(s, BLOCK_LAST);
  s.tile++;
}

DEVICE void stream_lists(const block_list_backward_launch &run, u32 base) {
  unsigned *counters = run.back.of.counters;
  const u32 streams = grid_size() * CONSUMERS;
  unit_stream s = {run, base, power_of_2(unit_bits(run.back))};
  u32 index = blockIdx.x * CONSUMERS + thread_index() / 32, next = 0;
#pragma unroll 1
  while (index < run.lines * run.line_tiles) {
    if (thread_index() % 32 == 0) next = count_up(counters) + streams;
    send_tile(s, index);
    index = __shfl_sync(~0u, next, 0);
  }
  end_stream(base, s.block);
  if (thread_index() % 32 == 0 && count_up(counters + 1) == streams - 1) {
    counters[0] = 0; // for the next launch
    counters[1] = 0;
  }
}
