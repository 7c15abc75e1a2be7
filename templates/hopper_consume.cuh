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
  // what came before them. Checkers of races do not know this of wgmma: for
  // them all threads do (ALL_ARRIVE).
  bool lead;
};
DEVICE void release(const consumer &c, u32 barrier) {
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

// What the warpgroup is told of a tile.
DEVICE u32 tile_message(const consumer &c, int slot) {
  return c.base + AT_TILE + slot * TILE_BYTES + (GUESTS ? c.group * 32 : 0);
}

DEVICE void mask_block(const consumer &c, int flags,
                       float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block) {
  u32 message = message_of(c.base, block.slot());
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4, column = thread % 4 * 2;
  int4 window = shared_load(message + 16), m = shared_load(message);
  u32 tile = tile_message(c, flags >> BLOCK_TILE & 3);
  float per_stride = __int_as_float(m.w);
  int step = shared_word(tile + 4);
  int from = shared_word(tile) + row * step - m.z; // of the row in the block
  hide_after(s,
             min(keys_within(from + window.y, per_stride) + 1, window.z),
             min(keys_within(from + 8 * step + window.y, per_stride) + 1,
                 window.z),
             column);
  if (LEFT_WINDOWS && window.x < HOPPER_FAR)
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

#include "hopper_end.cuh"

// The last `hidden` keys of a block.
DEVICE void clear_hidden(const consumer &c, int hidden,
                         const ring<STAGES> &before) {
  if (hidden <= 0) return;
  barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage(), before.phase());
  clear_values(c, c.base + AT_VALUE + before.stage() * VALUE_BYTES,
               TILE_KEYS - hidden);
}

// Of a message's flags, the warpgroup's own: shifted here and now, since masks
// for each would be kept in registers that the loop has none left for.
DEVICE int own_flags(const consumer &c, int4 m) {
  int flags;
  asm("shr.b32 %0, %1, %2;" : "=r"(flags) : "r"(m.x), "r"(c.group));
  return flags;
}
DEVICE bool takes(const consumer &c, int4 m) {
  return own_flags(c, m) & 1 << BLOCK_TAKES;
}
DEVICE bool masks(const consumer &c, int4 m) {
  return own_flags(c, m) & 1 << BLOCK_MASKS;
}
// log2 of how often the block's keys count.
DEVICE float own_bias(const consumer &c, int4 m) {
  bool once = GUESTS && own_flags(c, m) & 1 << BLOCK_ONCE;
  return once ? 0 : __int_as_float(m.y);
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
  u32 group = c.group;
  asm volatile("" : "+r"(group)); // as above
  return descriptor_low(c.base + AT_QUERY + group * QUERY_BYTES +
                            query_stage(tile) * (WARPGROUPS * QUERY_BYTES),
                        16);
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
  barrier_wait(c.base + AT_KEY_FULL + 8 * block.stage(), block.phase());
}
DEVICE void wait_values(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_VALUE_FULL + 8 * block.stage(), block.phase());
}
DEVICE void release_keys(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_KEY_EMPTY + 8 * block.stage());
}
DEVICE void release_values(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_VALUE_EMPTY + 8 * block.stage());
}

// A block in which this warpgroup has no rows, or none that see anything: it
// only keeps turns and stages moving; of the values, those of the block before
// where these are given back late. The turn also orders its reads of the message
// before the release. Nothing holds the warps together, so that who gives a stage
// back waits for it, and nobody else: another might come late, find the stage
// filled again, and wait for ever.
DEVICE void idle(const consumer &c, int4 m, const ring<STAGES> &block) {
  ring<STAGES> values = block;
  if (LATE_VALUES) values.back();
  if (m.x & BLOCK_NEW) {
    if (c.lead) wait_queries(c, tile_of(m));
    release_queries(c, tile_of(m));
  }
  wait_turn(c);
  pass_turn(c);
  release_keys(c, block);
  if (c.lead) wait_values(c, values);
  release_values(c, values);
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
  if (masks(c, m)) mask_block(c, m.x, s, block);
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
  multiply_keys(s, q, key_descriptor(c, block.stage()));
  pass_turn(c);
  kept_pairs kept = ask_pairs(c, m, block);
  mma_wait<0>();
  settle(s);
  release_keys(c, block);
  release_early(c, m);
  settle_scores(c, m, s, block, kept);
  if (fresh) state_clear(f.r);
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  weigh(s, f.p, f.r, c.run.scale, own_bias(c, m));
  if (fresh) clear_sums(f.o);
  else if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
}

// What there is before the first block.
DEVICE void begin_sums(fragments &f) {
  clear_sums(f.o);
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++) f.p[i] = 0;
  state_clear(f.r);
}

// Whether the stream runs on from another tile into this block's.
DEVICE bool runs_on(int4 m) { return QUERY_STAGES > 1 && m.x & BLOCK_NEW; }

// A block that runs behind another: its scores, and that one's values. Peaks
// are found while the values are multiplied; weights take the place of those
// that were. `done`: the rows' state of that block, whose tile may have ended.
DEVICE void follow_block(const consumer &c, fragments &f, int4 m, u32 q,
                         const ring<STAGES> &block,
                         const ring<STAGES> &before, row_state &done) {
  u32 k = key_descriptor(c, block.stage());
  u32 v = value_descriptor(c, before.stage());
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
  if (runs_on(m)) {
    keep_state(c, done, f.r);
    state_clear(f.r);
  }
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  settle(s);
  mma_wait<0>();
  settle(f.o);
  settle(f.p);
  release_values(c, before);
  weigh(s, f.p, f.r, c.run.scale, own_bias(c, m));
}

// The values of a block that no other runs behind; given back late, they are
// the next one's to give.
DEVICE void last_values(const consumer &c, fragments &f,
                        const ring<STAGES> &before) {
  wait_values(c, before);
  settle(f.o);
  multiply_values(f.o, f.p, value_descriptor(c, before.stage()));
  mma_wait<0>();
  settle(f.o);
  if (!LATE_VALUES) release_values(c, before);
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

// A message that changes more than the block, for the stream up to it (unless
// it is the first): whether the warpgroup goes on with it. A tile whose last
// block was not known as such gives its queries back here.
DEVICE bool turn_over(const consumer &c, int4 m, const ring<STAGES> &before,
                      bool first) {
  bool fresh = m.x & BLOCK_NEW;
  if (first) return true;
  clear_hidden(c, m.x >> BLOCK_HIDDEN, before);
  if (fresh || !takes(c, m)) release_queries(c, tile_before(m));
  return takes(c, m) && (QUERY_STAGES > 1 || !fresh);
}

// From the first block that this warpgroup takes part in on, across tiles,
// until one that it does not, or to the tile's end where its queries are held
// once; `block` is left behind that.
//
// The first block runs on as if from another tile, whose sums are nobody's: what
// lies in the stage before is multiplied by no weights. So the code of a block
// stands once; not where queries are held once, since each tile would pay for
// that product.
//
// The code of a tile's end is long: compilers are done a quarter sooner where
// it stands once, whether another tile runs on or not, and the inner loop is
// left its registers where it stands outside of that.
DEVICE void run_blocks(const consumer &c, int4 m, ring<STAGES> &block) {
  fragments f;
  ring<STAGES> before;
  row_state done;
  u32 q = query_descriptor(c, tile_of(m)), tile;
  bool first = LATE_VALUES;
  if (first) {
    block.back();
    begin_sums(f);
  } else {
    begin_block<true>(c, f, m, q, block);
  }
#pragma unroll 1
  for (;;) {
    bool ends;
#pragma unroll 1
    for (;;) {
      ends = is_last(m);
      before = block;
      block.next();
      if (LATE_VALUES) // or the loop has an instruction more, at D 64
        asm volatile("" : "+r"(block.number));
      tile = tile_of(m);
      if (ends) {
        u32 message = message_of(c.base, before.slot());
        clear_hidden(c, TILE_KEYS - shared_word(message + 24), before);
        break;
      }
      wait_keys(c, block);
      m = shared_load(message_of(c.base, block.slot()));
      if ((m.x & (BLOCK_NEW | ~0u << BLOCK_HIDDEN)) || !takes(c, m)) {
        ends = !turn_over(c, m, before, first);
        if (ends) break;
        q = query_descriptor(c, tile_of(m));
        wait_queries(c, tile_of(m)); // long there, but in a new tile
      }
      follow_block(c, f, m, q, block, before, done);
      if (runs_on(m)) break;
      if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
    }
    if (ends) {
      keep_state(c, done, f.r);
      last_values(c, f, before);
    }
    settle(f.p);
    settle(f.r.sum);
    if (!first)
      finish_tile(c, f.o, done, QUERY_STAGES > 1 ? tile_before(m) : tile);
    if (ends) return;
    first = false;
    clear_sums(f.o);
  }
}

DEVICE void consume(const consumer &c) {
  ring<STAGES> block = {0};
  if (c.group == 0) turn_pass(2, 256);
#pragma unroll 1
  for (;;) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.slot()));
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
