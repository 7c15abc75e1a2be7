// hopper_consume.cuh - the consuming warpgroups: 64 query rows each.
//
// In: the stream of blocks and its messages. Out: O and lse of every row of
// every tile, each by one warpgroup.
#pragma once

struct consumer {
  const hopper_launch &run;
  u32 base;
  int group; // of warps
  // Releases stages for the warpgroup. One thread is enough: the products that
  // it waited for hold the four warps together, so that none is still reading
  // what came before them. Checkers of races, which do not know this of wgmma,
  // are given a thread of each warp (RELEASES 4).
  bool lead;
};
DEVICE void release(const consumer &c, u32 barrier) {
  if (RELEASES > 1) __syncwarp();
  if (c.lead) barrier_arrive(barrier);
}
// Of this thread's warp: its first row in the tile.
DEVICE int warp_row(u32 thread) { return (thread / 32 - 4) * 16; }

// Turns at the tensor cores go round the warpgroups.
DEVICE void wait_turn(const consumer &c) { turn_wait(2 + c.group, 256); }
DEVICE void pass_turn(const consumer &c) {
  turn_pass(2 + (c.group + 1) % WARPGROUPS, 256);
}

// Column x of a block stands `x / stride` keys from its first: exact while x
// and the stride are below 2^20 and 2^12.
DEVICE int keys_within(int distance, float per_stride) {
  const int most = 1 << 20;
  distance = max(-1, min(distance, most));
  return __float2int_rd((distance + 0.5f) * per_stride);
}

DEVICE void mask_block(const consumer &c, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.stage, block.phase);
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4, column = thread % 4 * 2;
  int4 m = shared_load(message), window = shared_load(message + 16);
  u32 tile = c.base + AT_TILE + (m.x >> BLOCK_TILE & 3) * 32;
  float per_stride = __int_as_float(m.w);
  int step = shared_word(tile + 4);
  int from = shared_word(tile) + row * step - m.z; // of the row in the block
  hide_after(s,
             min(keys_within(from + window.y, per_stride) + 1, window.z),
             min(keys_within(from + 8 * step + window.y, per_stride) + 1,
                 window.z),
             column);
  if (window.x < HOPPER_FAR)
    hide_before(s, keys_within(from - window.x - 1, per_stride) + 1,
                keys_within(from + 8 * step - window.x - 1, per_stride) + 1,
                column);
}

// Values that no row of the tile sees may hold NaN, and 0 * NaN is NaN: they
// are cleared. Each warpgroup does it for itself, zeros over zeros.
DEVICE void clear_values(const consumer &c, u32 values, int visible) {
  const int units = VALUE_CHUNK / 8; // of 16 bytes, a row of a chunk
#pragma unroll 1
  for (int i = visible * units + thread_index() % 128; i < TILE_KEYS * units;
       i += 128)
#pragma unroll
    for (int chunk = 0; chunk < VALUE_WIDTH / VALUE_CHUNK; chunk++)
      shared_store(values + chunk * (TILE_KEYS * VALUE_CHUNK * 2) + i * 16, 0,
                   0, 0, 0);
  proxy_fence();
  turn_wait(8 + c.group, 128);
}

// Sixteen rows of a warp that are all inside of the tile leave in one box.
DEVICE void store_rows(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                       u32 thread, int4 to, int head) {
  const int width = VALUE_CHUNK * 2, groups = VALUE_CHUNK / 16;
  u32 area = c.base + AT_OUTPUT + warp_row(thread) * VALUE_WIDTH * 2;
  u32 lane = thread % 32, row = lane & 15;
  u32 swizzle = width == 128 ? row & 7 : row >> 1 & 3;
  if (lane == 0) store_wait_read();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < VALUE_WIDTH / 16; i++) {
    u32 unit = i % groups * 2 + (lane >> 4);
    u32 at = area + i / groups * (16 * width) + row * width +
             ((unit ^ swizzle) << 4);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
            "r"(at),
        "r"(pack(o[8 * i], o[8 * i + 1])),
        "r"(pack(o[8 * i + 2], o[8 * i + 3])),
        "r"(pack(o[8 * i + 4], o[8 * i + 5])),
        "r"(pack(o[8 * i + 6], o[8 * i + 7]))
        : "memory");
  }
  proxy_fence();
  __syncwarp();
  if (lane != 0) return;
  for (int i = 0; i < VALUE_WIDTH / VALUE_CHUNK; i++)
    store_box(&c.run.o[0][0] + to.z, area + i * (16 * width), i * VALUE_CHUNK,
              to.x + warp_row(thread), to.y, head, to.w);
  store_commit();
}

// Four words of each of the four threads of a row, transposed among them.
DEVICE int4 exchange(u32 a, u32 b, u32 c, u32 d, u32 lane) {
  bool odd = lane & 1, high = lane & 2;
  u32 x = __shfl_xor_sync(~0u, odd ? a : b, 1);
  u32 y = __shfl_xor_sync(~0u, odd ? c : d, 1);
  u32 low0 = odd ? x : a, low1 = odd ? b : x;
  u32 high0 = odd ? y : c, high1 = odd ? d : y;
  x = __shfl_xor_sync(~0u, high ? low0 : high0, 2);
  y = __shfl_xor_sync(~0u, high ? low1 : high1, 2);
  if (high) return make_int4(x, y, high0, high1);
  return make_int4(low0, low1, x, y);
}

// Rows straight from registers, 64 bytes of a row at once: those at the end of
// a tile that is not full, where a box would reach into rows of another cell,
// and all where nothing is staged.
DEVICE void store_direct(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                         u32 thread, int4 t, int batch) {
  int row = warp_row(thread) + thread % 32 / 4, lane = thread % 4;
  int n = t.x - c.run.first;
  unsigned short *out = (unsigned short *)c.run.o_data +
                        batch * c.run.o_batch + t.w * c.run.o_head;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    unsigned short *to = out + (n + at * t.y) * c.run.o_row;
#pragma unroll
    for (int g = 0; g < VALUE_WIDTH / 8; g += 4) {
      const float *x = o + 4 * g + half * 2;
      int4 eight = exchange(pack(x[0], x[1]), pack(x[4], x[5]),
                            pack(x[8], x[9]), pack(x[12], x[13]), lane);
      int column = 8 * (g + lane);
      if (at < t.z && column < VALUE_DIM) *(int4 *)(to + column) = eight;
    }
  }
}

// The log of a row's denominator; log2 0 is -infinity.
DEVICE float row_lse(const consumer &c, float peak, float sum) {
  const float ln_2 = 0.69314718055994530942f;
  return (peak * c.run.scale + log2_fast(sum)) * ln_2;
}

// By one of a row's four threads.
DEVICE void store_lse(const consumer &c, u32 thread, int4 t, int batch,
                      const float (&lse)[2]) {
  int row = warp_row(thread) + thread % 32 / 4;
  float *to = c.run.lse + batch * c.run.lse_batch + t.w * c.run.lse_head +
              (t.x - c.run.first + row * t.y) * c.run.lse_row;
  if (thread % 4 || row >= t.z) return;
  *to = lse[0];
  if (row + 8 < t.z) to[8 * t.y * c.run.lse_row] = lse[1];
}

// Rows that other passes or parts touch too, joined with what these left, O
// scaled by `mine`; false when they are left to the next one alone.
DEVICE bool finish_state(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                         u32 thread, int4 t, int batch, int finish,
                         float (&lse)[2], const float (&mine)[2]) {
  int row = warp_row(thread) + thread % 32 / 4, position = t.x + row * t.y;
  int n = position - c.run.first;
  state_rows rows = {{row < t.z, row + 8 < t.z},
                     {state_row(c.run, batch, n, t.w),
                      state_row(c.run, batch, n + 8 * t.y, t.w)}};
  join_rows(c.run, rows, finish, lse, mine, o);
  if (!(finish & HOPPER_LEAVE)) return true;
  if (finish & HOPPER_SOME) {
    rows.there[0] = rows.there[0] && is_kept(&c.run, position, t.w);
    rows.there[1] = rows.there[1] && is_kept(&c.run, position + 8 * t.y, t.w);
  }
  __syncwarp();
  leave_rows(c.run, rows, finish, lse, o);
  return finish & HOPPER_WRITE;
}

// The end of a tile: divides by the sums and writes O and lse.
DEVICE void finish_tile(const consumer &c, float (&o)[VALUE_WIDTH / 2],
                        const row_state &r, int slot) {
  u32 message = c.base + AT_TILE + slot * 32, thread = thread_index();
  int4 t = shared_load(message);
  int row = warp_row(thread);
  float sum0 = row_sum(r.sum[0]), sum1 = row_sum(r.sum[1]);
  float mine[2] = {sum0 == 0 ? 0 : __fdividef(c.run.weight, sum0),
                   sum1 == 0 ? 0 : __fdividef(c.run.weight, sum1)};
  float lse[2] = {row_lse(c, r.peak[0], sum0), row_lse(c, r.peak[1], sum1)};
  int4 to = shared_load(message + 16);
  int finish = to.z >> TILE_FINISH;
  to.z &= (1 << TILE_FINISH) - 1;
  if (finish) {
    if (!finish_state(c, o, thread, t, to.w, finish, lse, mine)) return;
    mine[0] = mine[1] = 1;
  }
  scale_rows(o, mine[0], mine[1]);
  if (c.run.lse) store_lse(c, thread, t, to.w, lse);
  if (STAGED && row + 16 <= t.z) store_rows(c, o, thread, to, t.w);
  else if (row < t.z) store_direct(c, o, thread, t, to.w);
}

// The last `hidden` keys of a block.
DEVICE void clear_hidden(const consumer &c, int hidden,
                         const ring<STAGES> &before) {
  if (hidden <= 0) return;
  barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage, before.phase);
  clear_values(c, c.base + AT_VALUE + before.stage * VALUE_BYTES,
               TILE_KEYS - hidden);
}

DEVICE bool takes(const consumer &c, int4 m) {
  return m.x >> (BLOCK_TAKES + c.group) & 1;
}
DEVICE bool masks(const consumer &c, int4 m) {
  return m.x >> (BLOCK_MASKS + c.group) & 1;
}
// The slot of a block's tile, and of the tile that runs up to this block.
DEVICE u32 tile_of(int4 m) { return m.x >> BLOCK_TILE & (TILE_SLOTS - 1); }
DEVICE u32 tile_before(int4 m) {
  return ((m.x >> BLOCK_TILE) - (m.x & BLOCK_NEW)) & (TILE_SLOTS - 1);
}
DEVICE void wait_queries(const consumer &c, u32 tile) {
  barrier_wait(c.base + AT_QUERY_FULL + 8 * query_stage(tile),
               query_parity(tile));
}
DEVICE void release_queries(const consumer &c, u32 tile) {
  release(c, c.base + AT_QUERY_EMPTY + 8 * query_stage(tile));
}
DEVICE u32 query_descriptor(const consumer &c, u32 tile) {
  return descriptor_low(c.base + AT_QUERY + c.group * QUERY_BYTES +
                            query_stage(tile) * (WARPGROUPS * QUERY_BYTES),
                        16);
}

// A block in which this warpgroup has no rows, or none that see anything: it
// only keeps turns and stages moving. The turn also orders its reads of the
// message before the release.
DEVICE void idle(const consumer &c, int4 m, const ring<STAGES> &block) {
  if (m.x & BLOCK_NEW) {
    wait_queries(c, tile_of(m));
    release_queries(c, tile_of(m));
  }
  wait_turn(c);
  pass_turn(c);
  release(c, c.base + AT_KEY_EMPTY + 8 * block.stage);
  barrier_wait(c.base + AT_VALUE_FULL + 8 * block.stage, block.phase);
  release(c, c.base + AT_VALUE_EMPTY + 8 * block.stage);
}

// What a warpgroup carries from block to block of a tile.
struct fragments {
  float o[VALUE_WIDTH / 2];
  u32 p[TILE_KEYS / 4]; // weights of the block before
  row_state r;
};

DEVICE void clear_sums(float (&o)[VALUE_WIDTH / 2]) {
#pragma unroll
  for (int i = 0; i < VALUE_WIDTH / 2; i++) o[i] = 0;
}

DEVICE u32 key_descriptor(const consumer &c, u32 stage) {
  return descriptor_low(c.base + AT_KEY + stage * KEY_BYTES, 16);
}
DEVICE u32 value_descriptor(const consumer &c, u32 stage) {
  return descriptor_low(c.base + AT_VALUE + stage * VALUE_BYTES,
                        TILE_KEYS * VALUE_CHUNK * 2);
}
DEVICE void wait_keys(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_KEY_FULL + 8 * block.stage, block.phase);
}
DEVICE void wait_values(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_VALUE_FULL + 8 * block.stage, block.phase);
}
DEVICE void release_keys(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_KEY_EMPTY + 8 * block.stage);
}
DEVICE void release_values(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_VALUE_EMPTY + 8 * block.stage);
}

// Queries that are held once are given back as soon as they are multiplied: the
// next ones come while the tile ends.
DEVICE bool is_last(int4 m) { return QUERY_STAGES == 1 && m.x & BLOCK_LAST; }
DEVICE void release_early(const consumer &c, int4 m) {
  if (is_last(m)) release_queries(c, tile_of(m));
}

#if PAIRED
#include "hopper_pair_score.cuh"
#else
// Windows are all there is, and need no asking ahead.
struct kept_pairs {};
DEVICE kept_pairs ask_pairs(const consumer &, int4, const ring<STAGES> &) {
  return {};
}
DEVICE void settle_scores(const consumer &c, int4 m,
                          float (&s)[TILE_KEYS / 2],
                          const ring<STAGES> &block, kept_pairs) {
  if (masks(c, m)) mask_block(c, s, block);
}
#endif

// The first block of a tile that no other runs into, or (not fresh) one that
// goes on with sums that wait for nothing.
template <bool fresh>
DEVICE void begin_block(const consumer &c, fragments &f, int4 m, u32 q,
                        const ring<STAGES> &block) {
  float s[TILE_KEYS / 2];
  if (fresh) wait_queries(c, tile_of(m));
  wait_turn(c);
  multiply_keys(s, q, key_descriptor(c, block.stage));
  pass_turn(c);
  kept_pairs kept = ask_pairs(c, m, block);
  mma_wait<0>();
  settle(s);
  release_keys(c, block);
  release_early(c, m);
  settle_scores(c, m, s, block, kept);
  if (fresh) state_clear(f.r);
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  weigh(s, f.p, f.r, c.run.scale, __int_as_float(m.y));
  if (fresh) clear_sums(f.o);
  else if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
}

// Whether the stream runs on from another tile into this block's.
DEVICE bool runs_on(int4 m) { return QUERY_STAGES > 1 && m.x & BLOCK_NEW; }

// A block that runs behind another: its scores, and that one's values. Peaks
// are found while the values are multiplied; weights take the place of those
// that were. `done`: the rows' state of that block, whose tile may have ended.
DEVICE void follow_block(const consumer &c, fragments &f, int4 m, u32 q,
                         const ring<STAGES> &block,
                         const ring<STAGES> &before, row_state &done) {
  u32 k = key_descriptor(c, block.stage), v = value_descriptor(c, before.stage);
  float s[TILE_KEYS / 2];
  q = uniform(q); // in the loop it has become one of each thread
  wait_turn(c);
  multiply_keys(s, q, k);
  wait_values(c, before);
  settle(f.o);
  multiply_values(f.o, f.p, v, [&] { pass_turn(c); });
  kept_pairs kept = ask_pairs(c, m, block);
  mma_wait<1>();
  settle(s);
  release_keys(c, block);
  release_early(c, m);
  settle_scores(c, m, s, block, kept);
  done = f.r;
  if (runs_on(m)) state_clear(f.r);
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  settle(s);
  mma_wait<0>();
  settle(f.o);
  settle(f.p);
  release_values(c, before);
  weigh(s, f.p, f.r, c.run.scale, __int_as_float(m.y));
}

// The values of a block that no other runs behind.
DEVICE void last_values(const consumer &c, fragments &f,
                        const ring<STAGES> &before) {
  wait_values(c, before);
  settle(f.o);
  multiply_values(f.o, f.p, value_descriptor(c, before.stage));
  mma_wait<0>();
  settle(f.o);
  release_values(c, before);
}

// Sums that a block before left, when another one's weights are there: those of
// a tile that has ended are written, and new ones begun.
DEVICE void settle_sums(const consumer &c, fragments &f, int4 m,
                        const row_state &done) {
  if (runs_on(m)) {
    settle(f.p);
    settle(f.r.sum);
    finish_tile(c, f.o, done, tile_before(m));
    // Or ptxas moves that into the next products, and serialises them.
    if (PAIRED) asm volatile("// the tile has ended" ::: "memory");
    clear_sums(f.o);
  } else if (f.r.moved) {
    scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
  }
}

// A message that changes more than the block, for the stream up to it: whether
// the warpgroup goes on with it. A tile whose last block was not known as such
// gives its queries back here.
DEVICE bool turn_over(const consumer &c, int4 m, const ring<STAGES> &before) {
  bool fresh = m.x & BLOCK_NEW;
  clear_hidden(c, m.x >> BLOCK_HIDDEN, before);
  if (fresh || !takes(c, m)) release_queries(c, tile_before(m));
  return takes(c, m) && (QUERY_STAGES > 1 || !fresh);
}

// The code of a tile's end is long: compilers are done a quarter sooner where
// it stands once, whether another tile runs on or not. With three warpgroups
// there are no registers for that: much would be reckoned anew for each block.
#define ENDS_ONCE (WARPGROUPS != 3)

// From the first block that this warpgroup takes part in on, across tiles,
// until one that it does not, or to the tile's end where its queries are held
// once; `block` is left behind that.
DEVICE void run_blocks(const consumer &c, int4 m, ring<STAGES> &block) {
  fragments f;
  ring<STAGES> before;
  row_state done;
  u32 q = query_descriptor(c, tile_of(m)), tile;
  begin_block<true>(c, f, m, q, block);
#pragma unroll 1
  for (;;) {
    bool ends = is_last(m);
    before = block;
    block.next();
    tile = tile_of(m);
    if (ends) {
      u32 message = message_of(c.base, before.stage, before.phase);
      clear_hidden(c, TILE_KEYS - shared_word(message + 24), before);
    } else {
      wait_keys(c, block);
      m = shared_load(message_of(c.base, block.stage, block.phase));
      if ((m.x & (BLOCK_NEW | ~0u << BLOCK_HIDDEN)) || !takes(c, m)) {
        ends = !turn_over(c, m, before);
        if (!ENDS_ONCE && ends) break;
        q = query_descriptor(c, tile_of(m));
        if (!ends) wait_queries(c, tile_of(m)); // long there, but in a new tile
      }
    }
    if (!ENDS_ONCE && ends) break;
    done = f.r;
    if (ends) last_values(c, f, before);
    else follow_block(c, f, m, q, block, before, done);
    if (ends || runs_on(m)) {
      settle(f.p);
      settle(f.r.sum);
      finish_tile(c, f.o, done, QUERY_STAGES > 1 ? tile_before(m) : tile);
      if (ends) return;
      clear_sums(f.o);
    } else if (f.r.moved) {
      scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
    }
  }
  last_values(c, f, before);
  finish_tile(c, f.o, f.r, QUERY_STAGES > 1 ? tile_before(m) : tile);
}

DEVICE void consume(const consumer &c) {
  ring<STAGES> block = {0, 0};
  if (c.group == 0) turn_pass(2, 256);
#pragma unroll 1
  for (;;) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.stage, block.phase));
    if (m.x & BLOCK_END) break;
    if (takes(c, m)) {
      run_blocks(c, m, block);
    } else {
      idle(c, m, block);
      block.next();
    }
  }
  store_wait();
}
