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
DEVICE u32 sums_of(u32 at) { return at >> 4 | (TILE_KEYS * CHUNK / 8) << 16; }
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

// The registers that a warpgroup carries from block to block.
struct fragments {
  float s[TILE_KEYS / 2]; // scores, then weights
  float d[TILE_KEYS / 2]; // dP
  float scored[HEAD_WIDTH / 2];
#if HOLDS_KEYS
  float weighted[VALUE_WIDTH / 2];
#else
  row_facts row[2];       // of the thread's own rows
  bool large;             // some lse of the warp is large
#endif
};

template <int count> DEVICE void clear(float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) x[i] = 0;
}

// ---- weights and gradients of scores ---------------------------------------

// No weight is above 1, but where scores are large the rounding of lse would
// make some. NaN stays NaN.
DEVICE void cap_pairs(u32 (&p)[TILE_KEYS / 4]) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++)
    asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(p[i]) : "r"(0x3f803f80u));
}
DEVICE float cap(float x) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(1.0f));
  return y;
}
DEVICE float low_half(u32 x) { return __int_as_float(x << 16); }
DEVICE float high_half(u32 x) { return __int_as_float(x & 0xffff0000u); }

#if HOLDS_KEYS
// The facts of the thread's columns 8 g, 8 g + 1.
DEVICE u32 own_facts(const consumer &c, const ring<STAGES> &block) {
  return facts_at(c.base, block.stage()) + thread_index() % 4 * 8;
}

DEVICE void weigh(const consumer &c, fragments &f, int4, float scale,
                  const ring<STAGES> &block) {
  barrier_wait(facts_barrier(c.base, block.stage()), block.phase());
  u32 facts = own_facts(c, block);
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    float2 lse = shared_pair(facts + i * 8);
    f.s[i] = exp2_fast(fmaf(f.s[i], scale, -lse.x));
    f.s[i + 1] = exp2_fast(fmaf(f.s[i + 1], scale, -lse.y));
    f.s[i + 2] = exp2_fast(fmaf(f.s[i + 2], scale, -lse.x));
    f.s[i + 3] = exp2_fast(fmaf(f.s[i + 3], scale, -lse.y));
  }
}

// dS from the weights as they were rounded, which spares registers.
DEVICE void differentiate(const consumer &c, const fragments &f,
                          const u32 (&p)[TILE_KEYS / 4],
                          u32 (&ds)[TILE_KEYS / 4],
                          const ring<STAGES> &block) {
  u32 facts = own_facts(c, block) + 4 * TILE_KEYS;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    float2 delta = shared_pair(facts + i * 8);
    ds[i / 2] = pack(low_half(p[i / 2]) * (f.d[i] - delta.x),
                     high_half(p[i / 2]) * (f.d[i + 1] - delta.y));
    ds[i / 2 + 1] = pack(low_half(p[i / 2 + 1]) * (f.d[i + 2] - delta.x),
                         high_half(p[i / 2 + 1]) * (f.d[i + 3] - delta.y));
  }
}
#else
DEVICE void weigh(const consumer &c, fragments &f, int4 m, float scale,
                  const ring<STAGES> &) {
  float bias = __int_as_float(m.y);
  float shift0 = bias - f.row[0].lse, shift1 = bias - f.row[1].lse;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    f.s[i] = exp2_fast(fmaf(f.s[i], scale, shift0));
    f.s[i + 1] = exp2_fast(fmaf(f.s[i + 1], scale, shift0));
    f.s[i + 2] = exp2_fast(fmaf(f.s[i + 2], scale, shift1));
    f.s[i + 3] = exp2_fast(fmaf(f.s[i + 3], scale, shift1));
  }
  if (!f.large) return;
  // A key that counts several times has a weight up to its multiplicity, whose
  // share of lse keeps it below 1.
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i++) f.s[i] = cap(f.s[i]);
}

DEVICE void differentiate(const fragments &f, u32 (&ds)[TILE_KEYS / 4]) {
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 2; i += 4) {
    ds[i / 2] = pack(f.s[i] * (f.d[i] - f.row[0].delta),
                     f.s[i + 1] * (f.d[i + 1] - f.row[0].delta));
    ds[i / 2 + 1] = pack(f.s[i + 2] * (f.d[i + 2] - f.row[1].delta),
                         f.s[i + 3] * (f.d[i + 3] - f.row[1].delta));
  }
}
#endif

// ---- a tile ----------------------------------------------------------------

// The rows of a tile: of its messages, the number of row 0 in the call.
struct tile_rows_message {
  int first, step, rows, head, batch;
};
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
    if (row + 8 * i < t.rows)
      f.row[i] = facts_of(run, t.batch, t.head,
                          t.first + (row + 8 * i) * t.step);
  }
}
#endif

// Waits for S and dP of a block, and turns S into weights while dP is made.
DEVICE void take_scores(const consumer &c, fragments &f, int4 m,
                        const ring<STAGES> &block) {
  mma_wait<1>();
  settle(f.s);
  if (masks(c, m)) mask_block(c, m.x, f.s, block);
  weigh(c, f, m, c.run.scale, block);
  mma_wait<0>();
  settle(f.d);
  if (!HOLDS_KEYS) release_values(c, block);
}

// Computes S and dP of a tile's first block.
DEVICE void begin_tile(const consumer &c, fragments &f, int4 m, u32 q, u32 o,
                       const ring<STAGES> &block) {
  u32 stage = uniform(block.stage());
  multiply_keys(f.s, q, rows_of(keys_at(c, stage)));
  wait_values(c, block);
  multiply_keys(f.d, o, rows_of(values_at(c, stage)));
#if !HOLDS_KEYS
  f.large = __any_sync(~0u, is_large(f.row[0].lse) || is_large(f.row[1].lse));
#endif
  take_scores(c, f, m, block);
}

// Adds a block to the sums. The products of dV are awaited, those of dK or
// dQ are still in flight afterwards.
DEVICE void add_block(const consumer &c, fragments &f,
                      const ring<STAGES> &block) {
  u32 ds[TILE_KEYS / 4], stage = uniform(block.stage());
#if HOLDS_KEYS
  u32 p[TILE_KEYS / 4];
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++)
    p[i] = pack(f.s[2 * i], f.s[2 * i + 1]);
  if (shared_word(facts_at(c.base, stage) + 8 * TILE_KEYS)) cap_pairs(p);
  settle(f.weighted);
  multiply_values(f.weighted, p, sums_of(values_at(c, stage)));
  differentiate(c, f, p, ds, block);
#else
  differentiate(f, ds);
#endif
  wait_turn(c);
  settle(f.scored);
  multiply_values(f.scored, ds, sums_of(keys_at(c, stage)));
#if HOLDS_KEYS
  mma_wait<1>();
  settle(f.weighted);
#endif
}

#include "templates/hopper/backward_end.cuh"

// Consumes the blocks of a tile; `block` becomes the one after it.
DEVICE void run_tile(const hopper_backward_launch &run, const consumer &c,
                     int4 m, ring<STAGES> &block) {
  fragments f;
  u32 tile = tile_of(m);
  u32 q = query_descriptor(c, tile), o = held_descriptor(c, tile);
  clear(f.scored);
#if HOLDS_KEYS
  clear(f.weighted);
#else
  load_row_facts(run, read_tile(c, m), f);
#endif
  wait_queries(c, tile);
  begin_tile(c, f, m, q, o, block);
#pragma unroll 1
  for (;;) {
    if (m.x & BLOCK_LAST) break;
    ring<STAGES> before = block;
    add_block(c, f, before);
    block.next();
    u32 stage = uniform(block.stage());
    q = uniform(q);
    o = uniform(o);
    wait_keys(c, block);
    m = shared_load(message_of(c.base, block.slot()));
    multiply_keys(f.s, q, rows_of(keys_at(c, stage)));
    mma_wait<1>();
    settle(f.scored);
    if (HOLDS_KEYS) release_values(c, before);
    release_keys(c, before);
    wait_values(c, block);
    multiply_keys(f.d, o, rows_of(values_at(c, stage)));
    give_turn(c);
    take_scores(c, f, m, block);
  }
  tile_rows_message rows = read_tile(c, m);
  release_held(c, tile);
  add_block(c, f, block);
  give_turn(c);
  mma_wait<0>();
  settle(f.scored);
  if (HOLDS_KEYS) release_values(c, block);
  release_keys(c, block);
  end_tile(run, c, f, rows);
  block.next();
}

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

DEVICE void consume(const hopper_backward_launch &run, u32 base) {
  consumer c = {run.of, base, (int)threadIdx.x / 128 - 1};
  ring<STAGES> block = {0};
  if (PINGPONG && c.group == 0) named_barrier_arrive(2, 256);
#pragma unroll 1
  for (;;) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.slot()));
    if (m.x & BLOCK_END) break;
    if (takes(c, m)) run_tile(run, c, m, block);
    else pass_block(c, m, block);
  }
}
