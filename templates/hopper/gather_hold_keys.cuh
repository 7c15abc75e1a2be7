// gather_hold_keys.cuh - the producing warps where tiles hold keys: a warp claims tiles,
// and brings the numbers and facts of rows; one thread copies keys and values, and two
// warps gather the rows.
//
// In: the launch, the sorted entries. Out: the stream of blocks for the consumers: rows
// of Q and dO, their facts, and a message for each tile and block.
#pragma once

// Keys that a tile holds.
struct held_keys {
  int line, block; // a batch row and key head; the block of keys
  int first, keys; // key number 0, and how many there are
};

// Finds tile number `index`; returns whether it has keys. The tiles of a block follow
// each other: they gather the same rows. Causal rows choose the first blocks most often,
// and the longest tiles should come first.
DEVICE bool find_keys(const gather_call &run, u32 index, held_keys &t) {
  u32 parts = (run.block + TILE_ROWS - 1) / TILE_ROWS, rest = index / parts;
  int part = index - rest * parts;
  u32 lines = run.of.B * KV_HEADS;
  t.block = rest / lines;
  t.line = rest - t.block * lines;
  t.first = t.block * run.block + part * TILE_ROWS;
  int end = min((t.block + 1) * run.block, batch_keys(run, t.line / KV_HEADS));
  t.keys = min(TILE_ROWS, end - t.first);
  return t.keys > 0;
}
DEVICE u32 held_tiles(const gather_call &run) {
  u32 parts = (run.block + TILE_ROWS - 1) / TILE_ROWS;
  return run.of.B * KV_HEADS * run.blocks * parts;
}

// ---- keys and values -------------------------------------------------------

DEVICE void load_held(const hopper_launch &run, u32 base, u32 tile,
                      const held_keys &t) {
  int batch = t.line / KV_HEADS, head = t.line % KV_HEADS;
  u32 stage = query_stage(tile), full = base + AT_QUERY_FULL + 8 * stage;
  u32 message = base + AT_TILE + tile % TILE_SLOTS * TILE_BYTES;
  barrier_wait(base + AT_QUERY_EMPTY + 8 * stage, query_parity(tile) ^ 1);
  shared_store(message, t.first, 1, t.keys, head);
  shared_store(message + 16, t.first, 0, 0, batch);
  barrier_expect(full, WARPGROUPS * (QUERY_BYTES + HELD_BYTES));
#pragma unroll 1
  for (int w = 0; w < WARPGROUPS; w++) {
    u32 to = base + AT_QUERY + (stage * WARPGROUPS + w) * QUERY_BYTES;
    for (int c = 0; c < HEAD_WIDTH; c += CHUNK)
      load_box(to + c * (64 * 2), &run.q[0][1], full, c, t.first + w * 64, 0, head,
               batch, KEEP_FIRST);
    to = base + AT_HELD + (stage * WARPGROUPS + w) * HELD_BYTES;
    for (int c = 0; c < VALUE_WIDTH; c += VALUE_CHUNK)
      load_box(to + c * (64 * 2), &run.o[0][1], full, c, t.first + w * 64, 0, head,
               batch, KEEP_FIRST);
  }
}

// Claimed tiles, from load_facts. A slot is written again CLAIMS tiles later. Each tile
// has a block, and there are fewer stages, so that by then a later tile's keys are there.
DEVICE u32 claim_at(u32 base, u32 tile) { return base + AT_CLAIM + tile % CLAIMS * 4; }
DEVICE u32 claim_barrier(u32 base, u32 tile) {
  return base + AT_CLAIM_FULL + tile % CLAIMS * 8;
}

DEVICE void load_tiles(const gather_backward_launch &run, u32 base) {
#pragma unroll 1
  for (u32 tile = 0;; tile++) {
    held_keys t;
    barrier_wait(claim_barrier(base, tile), tile / CLAIMS & 1);
    u32 index = shared_word(claim_at(base, tile));
    if (index >= held_tiles(run.call)) break;
    find_keys(run.call, index, t);
    load_held(run.back.of, base, tile, t);
  }
}

// ---- facts -----------------------------------------------------------------

// The entries that a tile streams: those of one query head after the other.
struct entry_stream {
  int head, heads;   // of the group; the first behind it
  int line, at, end; // its items that are left
};
DEVICE void next_head(const gather_call &run, int block, entry_stream &e) {
  while (e.at >= e.end && ++e.head < e.heads) {
    e.line++;
    const int *start = run.starts + (long long)e.line * (run.blocks + 1) + block;
    e.at = start[0];
    e.end = start[1];
  }
}
DEVICE entry_stream stream_of(const gather_call &run, const held_keys &t) {
  int head = t.line % KV_HEADS * run.group;
  int line = t.line / KV_HEADS * HEADS + head;
  entry_stream e = {head - 1, head + run.group, line - 1, 0, 0};
  next_head(run, t.block, e);
  return e;
}

// Whether some row of a block stands before the tile's last key. The rows of a step may
// stand in any order, and those of later steps behind them.
DEVICE bool hides(const held_keys &t, int first, int row) {
  return CAUSAL && (row & -GATHER_STEP) < first + t.keys - 1;
}

DEVICE void write_message(u32 message, int flags, const held_keys &t, int first,
                          int count, int head) {
  shared_store(message + 32, 0, 0, head, t.line / KV_HEADS);
  shared_store(message + 16, 0, 0, count, 0);
  shared_store(message, flags, 0, first, 0);
}

// Brings the numbers and facts of a block's rows, and its message, whose first flags are
// `flags`.
DEVICE void load_block_facts(const gather_backward_launch &run, u32 base, float unit,
                             int flags, const held_keys &t, const entry_stream &e,
                             const ring<STAGES> &block) {
  u32 stage = block.stage(), lane = thread_index() % 32;
  u32 facts = facts_at(base, stage), numbers = numbers_at(base, stage);
  int batch = t.line / KV_HEADS, count = min(e.end - e.at, TILE_KEYS);
  int first = t.first - first_query(run.call, batch);
  const gather_item *items =
      run.call.items + (long long)e.line * run.call.entry_room + e.at;
  row_facts f[OWN_FACTS];
  int row[OWN_FACTS];
#pragma unroll
  for (u32 k = 0; k < OWN_FACTS; k++)
    row[k] = (int)(lane + 32 * k) < count ? items[lane + 32 * k].row : -1;
#pragma unroll
  for (u32 k = 0; k < OWN_FACTS; k++) {
    f[k] = {INFINITE_LSE, 0};
    if (row[k] >= 0) f[k] = facts_of(run.back, batch, e.head, row[k]);
    f[k].lse -= WEIGHT_BITS;
  }
  bool masks = hides(t, first, __shfl_sync(~0u, row[0], 0));
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, block.phase() ^ 1);
  write_block_facts(f, unit, facts);
#pragma unroll
  for (u32 k = 0; k < OWN_FACTS; k++) shared_set(numbers + 4 * (lane + 32 * k), row[k]);
  int groups = t.keys > 64 ? 3 : 1;
  if (lane == 0)
    write_message(message_of(base, block.slot()),
                  flags | groups << BLOCK_TAKES | (masks ? groups << BLOCK_MASKS : 0),
                  t, first, count, e.head);
  barrier_arrive(facts_barrier(base, stage));
}

// A tile that no row chose has one block without rows.
DEVICE void load_tile_facts(const gather_backward_launch &run, u32 base, float unit,
                            u32 tile, const held_keys &t, ring<STAGES> &block) {
  entry_stream e = stream_of(run.call, t);
  int flags = BLOCK_NEW | tile % TILE_SLOTS << BLOCK_TILE;
#pragma unroll 1
  for (bool last = false; !last; block.next()) {
    entry_stream next = e;
    next.at = min(e.end, e.at + TILE_KEYS);
    next_head(run.call, t.block, next);
    last = next.at >= next.end;
    load_block_facts(run, base, unit, flags | (last ? BLOCK_LAST : 0), t, e, block);
    flags &= ~BLOCK_NEW;
    e = next;
  }
}

// The next tile's number, from a global counter.
DEVICE u32 claim_tile(const hopper_launch &run) {
  u32 index = 0;
  if (thread_index() % 32 == 0) index = count_up(run.counters) + grid_size();
  return __shfl_sync(~0u, index, 0);
}
DEVICE void tell_claim(u32 base, u32 tile, u32 index) {
  if (thread_index() % 32) return;
  shared_set(claim_at(base, tile), index);
  barrier_arrive(claim_barrier(base, tile));
}

DEVICE void load_facts(const gather_backward_launch &run, u32 base) {
  const float unit = power_of_2(unit_bits(run.back));
  ring<STAGES> block = {0};
  u32 tile = 0;
#pragma unroll 1
  for (u32 index = blockIdx.x;; index = claim_tile(run.back.of)) {
    held_keys t;
    if (index >= held_tiles(run.call)) break;
    if (!find_keys(run.call, index, t)) continue;
    tell_claim(base, tile, index);
    load_tile_facts(run, base, unit, tile++, t, block);
  }
  tell_claim(base, tile, ~0u);
  if (thread_index() % 32 == 0 &&
      count_up(run.back.of.counters + 1) == grid_size() - 1) {
    run.back.of.counters[0] = 0; // for the next launch
    run.back.of.counters[1] = 0;
  }
  barrier_wait(base + AT_KEY_EMPTY + 8 * block.stage(), block.phase() ^ 1);
  if (thread_index() % 32 == 0)
    shared_store(message_of(base, block.slot()), BLOCK_END | BLOCK_NEW, 0, 0, 0);
  barrier_arrive(facts_barrier(base, block.stage()));
}

// ---- rows ------------------------------------------------------------------

DEVICE void start_rows(const gather_call &run, u32 base, u32 message, u32 stage,
                       int self) {
  u32 numbers = numbers_at(base, stage);
  int line = shared_word(message + 44) * HEADS + shared_word(message + 40);
  gather_rows<HEAD_WIDTH, HEAD_DIM, CHUNK, TILE_KEYS, TILE_KEYS, GATHERERS>(
      base + AT_KEY + stage * KEY_BYTES, numbers, 4,
      source_of(run.of.q, run.of.q_stride, line), self);
  gather_rows<VALUE_WIDTH, VALUE_DIM, VALUE_CHUNK, TILE_KEYS, TILE_KEYS, GATHERERS>(
      base + AT_VALUE + stage * VALUE_BYTES, numbers, 4,
      source_of(run.of.o, run.of.o_stride, line), self);
  copy_commit();
}

// The rows of a block are there.
DEVICE void end_rows(u32 base, u32 stage) {
  proxy_fence();
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
  barrier_arrive(base + AT_VALUE_FULL + 8 * stage);
}

// The copies of a block run while those of the next are started.
DEVICE void load_streamed(const gather_backward_launch &run, u32 base, int self) {
  ring<STAGES> block = {0};
  u32 before = STAGES; // none
#pragma unroll 1
  for (;; block.next()) {
    u32 stage = block.stage(), message = message_of(base, block.slot());
    barrier_wait(facts_barrier(base, stage), block.phase());
    if (shared_word(message) & BLOCK_END) break;
    barrier_wait(base + AT_VALUE_EMPTY + 8 * stage, block.phase() ^ 1);
    start_rows(run.call, base, message, stage, self);
    if (before < STAGES) {
      copy_wait<1>();
      end_rows(base, before);
    }
    before = stage;
  }
  copy_wait<0>();
  if (before < STAGES) end_rows(base, before);
  barrier_arrive(base + AT_KEY_FULL + 8 * block.stage());
}

DEVICE void produce(const gather_backward_launch &run, u32 base) {
  if (threadIdx.x == 0) load_tiles(run, base);
  else if (threadIdx.x >= 32 && threadIdx.x < 64) load_facts(run, base);
  else if (threadIdx.x >= 64) load_streamed(run, base, threadIdx.x - 64);
}
