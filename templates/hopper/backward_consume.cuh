// backward_consume.cuh - the consumer warpgroups of gradients: 64 held rows each.
//
// In: the stream of blocks, the facts of query rows. Out: the gradients of every
// row of every tile; each row is written by one warpgroup.
#pragma once

struct consumer {
  const hopper_launch &run;
  u32 base;
  int group; // the warpgroup, 0 .. WARPGROUPS - 1
};
#include "templates/hopper/hopper_consumer.cuh"

// Each warp releases for itself, since its lanes read messages and facts by
// ordinary loads.
DEVICE void release(u32 barrier) {
  __syncwarp();
  if (thread_index() % 32 == 0) barrier_arrive(barrier);
}
DEVICE void release_held(const consumer &c, u32 tile) {
  release(c.base + AT_QUERY_EMPTY + 8 * query_stage(tile));
}
DEVICE void release_keys(const consumer &c, const ring<STAGES> &block) {
  release(c.base + AT_KEY_EMPTY + 8 * block.stage());
}
DEVICE void release_values(const consumer &c, const ring<STAGES> &block) {
  release(c.base + AT_VALUE_EMPTY + 8 * block.stage());
}
DEVICE u32 held_descriptor(const consumer &c, u32 tile) {
  u32 at = query_stage(tile) * WARPGROUPS + c.group;
  return descriptor_low(c.base + AT_HELD + at * HELD_BYTES, 16);
}
// The descriptors of a stage's streamed rows, whose number is the same in all
// lanes: for S and dP (`rows`), and as what dS and P multiply (`sums`).
DEVICE u32 rows_of(u32 at) { return at >> 4 | 1 << 16; }
template <int chunk> DEVICE u32 sums_of(u32 at) {
  return at >> 4 | (TILE_KEYS * chunk / 8) << 16;
}
DEVICE u32 keys_at(const consumer &c, u32 stage) {
  return c.base + AT_KEY + stage * KEY_BYTES;
}
DEVICE u32 values_at(const consumer &c, u32 stage) {
  return c.base + AT_VALUE + stage * VALUE_BYTES;
}
DEVICE void wait_turn(const consumer &c) {
  if (PINGPONG) pingpong_wait(c);
}
DEVICE void give_turn(const consumer &c) {
  if (PINGPONG) pingpong_arrive(c);
}

template <int count> DEVICE void clear(float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) x[i] = 0;
}

// Adds P^T dO, dS^T Q or dS K to sums of `width` columns; v: the rows' descriptor.
template <int width, int chunk>
DEVICE void multiply_sums(float (&sums)[width / 2], u32 (&p)[TILE_KEYS / 4],
                          u32 v) {
  const u32 high = DESCRIPTOR_HIGH(chunk * 2);
  mma_fence();
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 16; i++)
    mma_weights(sums, p + 4 * i, descriptor(v + i * chunk * 2, high));
  mma_commit();
}
DEVICE void multiply_held(float (&d)[TILE_KEYS / 2], u32 o, u32 v) {
  mma_fence();
  mma_values(d, o, v);
  mma_commit();
}

#if GATHERS
#include "templates/hopper/gather_mask.cuh"
#elif PATCHED
#include "templates/hopper/grid_mask.cuh"
#elif OWN_TILES
#include "templates/hopper/block_list_mask.cuh"
#endif
#include "templates/hopper/backward_weigh.cuh"
#include "templates/hopper/backward_score.cuh"
#if PAIRWISE
#include "templates/hopper/backward_pairs.cuh"
#endif
#include "templates/hopper/backward_fused.cuh"

#if !HOLDS_KEYS
// Keys behind the last of a batch row may hold NaN, and 0 * NaN is NaN: here
// they, and their products with dO, become 0. The weights of these keys are 0.
DEVICE void clear_hidden(const consumer &c, fragments &f,
                         const ring<STAGES> &block) {
  const int units = CHUNK / 8; // units of 16 bytes in a row of a chunk
  int visible = max(shared_word(message_of(c.base, block.slot()) + 24), 0);
  if (visible >= TILE_KEYS) return;
  u32 keys = keys_at(c, block.stage()), thread = thread_index();
#pragma unroll 1
  for (int i = visible * units + thread % 128; i < TILE_KEYS * units; i += 128)
#pragma unroll
    for (int chunk = 0; chunk < HEAD_WIDTH / CHUNK; chunk++)
      shared_store(keys + chunk * (TILE_KEYS * CHUNK * 2) + i * 16, 0, 0, 0, 0);
  visible -= thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++)
    if (i / 4 * 8 + i % 2 >= visible) {
      f.d[i] = 0;
#if SLOPED
      f.slopes[i] = 0;
#endif
    }
  proxy_fence();
  named_barrier_sync(8 + c.group, 128);
}
#endif

// ---- a tile ----------------------------------------------------------------

// The rows of a tile: of its messages, the number of row 0 in the call; of gathered
// rows, where their items stand in shared memory (gather_item); of a patch of a grid,
// where the numbers of its 64 rows stand there, -1 for those outside of the grid.
struct tile_rows_message {
  int first, step, rows, head, batch;
};
// The number of row n of a tile, and of the row to which its gradient goes.
DEVICE int row_number(const tile_rows_message &t, int n) {
  if (PATCHED) return shared_word(t.first + 4 * n);
  if (GATHERS_HELD) return shared_word(t.first + 8 * n);
  return t.first + n * t.step;
}
DEVICE int target_row(const tile_rows_message &t, int n) {
  if (GATHERS_HELD) return shared_word(t.first + 8 * n + 4);
  return row_number(t, n);
}
// Whether a tile has row n.
DEVICE bool has_row(const tile_rows_message &t, int n) {
  return PATCHED ? row_number(t, n) >= 0 : n < t.rows;
}
DEVICE tile_rows_message read_tile(const consumer &c, int4 m) {
  u32 tile = tile_message(c, tile_of(m));
  int4 t = shared_load(tile), to = shared_load(tile + 16);
  return {to.x * t.y + to.y, t.y, t.z, t.w, to.w};
}

#if !HOLDS_KEYS
DEVICE void load_row_facts(const hopper_backward_launch &run,
                           const tile_rows_message &t, fragments &f) {
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    f.row[i] = {INFINITE_LSE, 0};
    if (has_row(t, row + 8 * i))
      f.row[i] = facts_of(run, t.batch, t.head, row_number(t, row + 8 * i));
    if (ELEMENT == 2) f.row[i].lse -= WEIGHT_BITS + unit_bits(run);
  }
}

#if SCORE_ROWS
// Takes what the thread's rows add to their scores off their lse.
DEVICE void take_row_scores(const consumer &c, int4 m, fragments &f) {
  u32 tile = tile_message(c, tile_of(m)), thread = thread_index();
  int4 t = shared_load(tile);
  int row = warp_row(thread) + thread % 32 / 4, batch = shared_word(tile + 28);
#pragma unroll
  for (int i = 0; i < 2; i++)
    f.row[i].lse -= row_score(c.run, batch, t.w, t.x + (row + 8 * i) * t.y);
}
#endif
#endif

// Starts S of a block.
DEVICE void make_scores(const consumer &c, fragments &f, u32 q,
                        const ring<STAGES> &block) {
  multiply_keys(f.s, q, rows_of(keys_at(c, uniform(block.stage()))));
}
// Starts dP of a block, and turns S into weights meanwhile; then waits for dP.
DEVICE void take_scores(const hopper_backward_launch &run, const consumer &c,
                        fragments &f, int4 m, u32 o, bool turns,
                        const ring<STAGES> &block) {
#if PAIRWISE
  dil_bits kept = ask_pairs(c, m, block); // while S runs
#endif
  wait_values(c, block);
#if MAKES_SCORED
  multiply_held(f.d, o, rows_of(values_at(c, uniform(block.stage()))));
#endif
  if (turns) give_turn(c);
  mma_wait<MAKES_SCORED>();
  settle(f.s);
#if SCORED
  rewrite_scores(c, f, m, block);
#endif
#if PAIRWISE
  if (masks(c, m)) hide_pairs(f.s, kept);
#else
  if (masks(c, m)) mask_block(c, m.x, f.s, block);
#endif
  weigh(run, c, f, m, block);
#if MAKES_SCORED
  mma_wait<0>();
  settle(f.d);
#endif
#if !HOLDS_KEYS
  release_values(c, block);
  if (!OWN_TILES && run.of.lengths) clear_hidden(c, f, block);
#endif
}

#if MAKES_WEIGHTED
// Starts dV += P^T dO; p becomes the weights as they were rounded.
DEVICE void add_weights(const consumer &c, fragments &f, u32 (&p)[TILE_KEYS / 4],
                        u32 stage) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++)
    p[i] = pack(f.s[2 * i], f.s[2 * i + 1]);
  if (has_large(c.base, stage)) cap_pairs(p);
  u32 values = sums_of<VALUE_CHUNK>(values_at(c, stage));
#if DROPS
  u32 kept[TILE_KEYS / 4];
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++)
    asm("max.NaN." HALVES " %0, %1, %2;" : "=r"(kept[i]) : "r"(p[i]), "r"(0));
#else
  u32(&kept)[TILE_KEYS / 4] = p;
#endif
  settle(f.weighted);
  multiply_sums<VALUE_COLUMNS, VALUE_CHUNK>(f.weighted, kept, values);
}
#endif

// Adds a block to the sums. The products of dV are awaited unless they are the
// only ones; the last are still in flight afterwards.
DEVICE void add_block(const consumer &c, fragments &f,
                      const ring<STAGES> &block) {
  u32 stage = uniform(block.stage());
#if MAKES_WEIGHTED
  u32 p[TILE_KEYS / 4];
  if (!MAKES_SCORED) wait_turn(c);
  add_weights(c, f, p, stage);
#endif
#if MAKES_SCORED
  u32 ds[TILE_KEYS / 4];
#if MAKES_WEIGHTED
  differentiate(c, f, p, ds, block);
#elif HOLDS_KEYS
  differentiate(c, f, f.s, ds, block);
#else
  differentiate(f, ds);
#endif
  wait_turn(c);
  settle(f.scored);
  multiply_sums<HEAD_COLUMNS, CHUNK>(f.scored, ds,
                                   sums_of<CHUNK>(keys_at(c, stage)));
#endif
#if MAKES_SCORED && MAKES_WEIGHTED
  mma_wait<1>();
  settle(f.weighted);
#endif
}
// The last products of add_block have been awaited.
DEVICE void settle_sums(fragments &f) {
#if MAKES_SCORED
  settle(f.scored);
#else
  settle(f.weighted);
#endif
}
// The same products have been awaited, and need `block` no more.
DEVICE void settle_block(const consumer &c, fragments &f,
                         const ring<STAGES> &block) {
  settle_sums(f);
  if (HOLDS_KEYS) release_values(c, block);
  release_keys(c, block);
}

#include "templates/hopper/backward_end.cuh"

DEVICE void begin_tile(const hopper_backward_launch &run, const consumer &c,
                       fragments &f, int4 m) {
#if MAKES_SCORED
  clear(f.scored);
#endif
#if MAKES_WEIGHTED
  clear(f.weighted);
#endif
#if !HOLDS_KEYS
  load_row_facts(run, read_tile(c, m), f);
  f.large = __any_sync(~0u, is_large(f.row[0].lse) || is_large(f.row[1].lse));
#if SCORE_ROWS
  f.large = true; // lse has been rounded with the row's part
  take_row_scores(c, m, f);
#endif
#endif
}

// Goes on to the next block, whose message it returns: starts its scores, which
// alone are in flight afterwards.
DEVICE int4 next_scores(const consumer &c, fragments &f, u32 &q, u32 &o,
                        ring<STAGES> &block) {
  block.next();
  q = uniform(q);
  o = uniform(o);
  wait_keys(c, block);
  int4 m = shared_load(message_of(c.base, block.slot()));
  make_scores(c, f, q, block);
  mma_wait<1>();
  return m;
}

#if FUSED
// Adds a block to the sums of dK and dV, and starts dQ of the block before it,
// which alone is in flight afterwards.
DEVICE void add_fused(const consumer &c, fragments &f, u32 tile, int keys,
                      bool first, const ring<STAGES> &block, slopes &shared,
                      float (&added)[HEAD_WIDTH / 2]) {
  u32 stage = uniform(block.stage());
  u32 p[TILE_KEYS / 4], ds[TILE_KEYS / 4];
  add_weights(c, f, p, stage);
  differentiate(c, f, p, ds, block);
  hide_missing_keys(ds, keys);
  share_slopes(c, shared, ds);
  wait_turn(c);
  settle(f.scored);
  multiply_sums<HEAD_COLUMNS, CHUNK>(f.scored, ds,
                                   sums_of<CHUNK>(keys_at(c, stage)));
  multiply_slopes(c, tile, shared.number - 2, !first, added);
  mma_wait<1>();
  settle(f.weighted);
  settle(f.scored);
  release_values(c, block);
  release_keys(c, block);
}

// Consumes the blocks of a tile, in which this warpgroup may have no rows.
DEVICE void run_tile(const hopper_backward_launch &run, const consumer &c,
                     int4 m, ring<STAGES> &block, slopes &shared) {
  fragments f;
  float added[HEAD_WIDTH / 2];
  u32 tile = tile_of(m);
  u32 q = query_descriptor(c, tile), o = held_descriptor(c, tile);
  int keys = read_tile(c, m).rows;
  query_rows rows = {run.query_sums, 0, 0}; // none before the first block
  begin_tile(run, c, f, m);
  wait_queries(c, tile);
  clear_missing_keys(c, tile, keys);
  make_scores(c, f, q, block);
  take_scores(run, c, f, m, o, false, block);
#pragma unroll 1
  for (bool first = true;; first = false) {
    if (m.x & BLOCK_LAST) {
      query_rows last = query_rows_of(run, c, block);
      tile_rows_message written = read_tile(c, m);
      add_fused(c, f, tile, keys, first, block, shared, added);
      give_turn(c);
      mma_wait<0>();
      if (!first) add_queries(c, shared.number - 2, rows, added);
      multiply_slopes(c, tile, shared.number - 1, true, added);
      mma_wait<0>();
      add_queries(c, shared.number - 1, last, added);
      release_held(c, tile);
      end_tile(run, c, f, written);
      break;
    }
    query_rows next = query_rows_of(run, c, block);
    add_fused(c, f, tile, keys, first, block, shared, added);
    m = next_scores(c, f, q, o, block);
    if (first) settle(added);
    else add_queries(c, shared.number - 2, rows, added);
    rows = next;
    take_scores(run, c, f, m, o, true, block);
  }
  block.next();
}
#else
#if PAIRWISE
#include "templates/hopper/backward_pass.cuh"
#else
// A block of a tile in which this warpgroup has no rows.
DEVICE void pass_block(const consumer &c, int4 m, ring<STAGES> &block) {
  if (m.x & BLOCK_NEW) {
    wait_queries(c, tile_of(m));
    release_held(c, tile_of(m));
  }
  wait_turn(c);
  give_turn(c);
  release_values(c, block);
  release_keys(c, block);
  block.next();
}

// Consumes the blocks of a tile but its last, of which it returns the message.
DEVICE int4 consume_tile(const hopper_backward_launch &run, const consumer &c,
                         fragments &f, int4 m, u32 q, u32 o,
                         ring<STAGES> &block) {
  make_scores(c, f, q, block);
  take_scores(run, c, f, m, o, false, block);
#pragma unroll 1
  for (;;) {
    if (m.x & BLOCK_LAST) break;
    ring<STAGES> before = block;
    add_block(c, f, before);
    m = next_scores(c, f, q, o, block);
    settle_block(c, f, before);
    take_scores(run, c, f, m, o, true, block);
  }
  return m;
}
// The last block, whose weights are made.
DEVICE void consume_last(const consumer &c, fragments &f,
                         const ring<STAGES> &block) {
  add_block(c, f, block);
  give_turn(c);
  mma_wait<0>();
  settle_block(c, f, block);
}
#endif

// Consumes the blocks of a tile; `block` becomes the one after it.
DEVICE void run_tile(const hopper_backward_launch &run, const consumer &c,
                     int4 m, ring<STAGES> &block) {
  fragments f;
  u32 tile = tile_of(m);
  u32 q = query_descriptor(c, tile), o = held_descriptor(c, tile);
  if (GATHERS_HELD) wait_queries(c, tile); // items arrive with them
  begin_tile(run, c, f, m);
  wait_queries(c, tile);
  m = consume_tile(run, c, f, m, q, o, block);
  tile_rows_message rows = read_tile(c, m);
  release_held(c, tile);
  consume_last(c, f, block);
  end_tile(run, c, f, rows);
  block.next();
}
#endif

DEVICE void consume(const hopper_backward_launch &run, u32 base) {
  consumer c = {run.of, base, OWN_TILES ? 0 : (int)threadIdx.x / 128 - 1};
  ring<STAGES> block = {0};
#if FUSED
  slopes shared = {0};
#endif
  if (PINGPONG && c.group == 0) named_barrier_arrive(2, 256);
#pragma unroll 1
  for (;;) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.slot()));
    if (m.x & BLOCK_END) break;
#if FUSED
    run_tile(run, c, m, block, shared);
#elif PAIRWISE
    run_tile(run, c, m, block);
#else
    if (takes(c, m)) run_tile(run, c, m, block);
    else pass_block(c, m, block);
#endif
  }
}
