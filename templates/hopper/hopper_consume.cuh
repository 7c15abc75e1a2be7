// hopper_consume.cuh - the consumer warpgroups: 64 query rows each.
//
// In: the stream of key blocks and its messages. Out: O and lse of every row of
// every tile; each row is written by one warpgroup.
#pragma once

struct consumer {
  const hopper_launch &run;
  u32 base;
  int group; // the warpgroup, 0 .. WARPGROUPS - 1
  // This thread releases stages for its warpgroup, or for its warp (RELEASES). One
  // thread of a warpgroup is enough: the wgmma that it waited for synchronises the
  // four warps, so none still reads what came before it. Race checkers do not know
  // this about wgmma, so ALL_ARRIVE makes every thread arrive.
  bool lead;
};
DEVICE void release(const consumer &c, u32 barrier) {
  if (c.lead) barrier_arrive(barrier);
}

#include "templates/hopper/hopper_consumer.cuh"

// Sets the values from `visible` on to 0. No row of the tile sees them, but
// they may hold NaN, and 0 * NaN is NaN. Every warpgroup does this, so several
// may write the same zeros.
DEVICE void clear_values(const consumer &c, u32 values, int visible) {
  const int units = VALUE_CHUNK / 8; // units of 16 bytes in a row of a chunk
#pragma unroll 1
  for (int i = visible * units + thread_index() % 128; i < TILE_KEYS * units;
       i += 128)
#pragma unroll
    for (int chunk = 0; chunk < VALUE_WIDTH / VALUE_CHUNK; chunk++)
      shared_store(values + chunk * (TILE_KEYS * VALUE_CHUNK * 2) + i * 16, 0,
                   0, 0, 0);
  proxy_fence();
  named_barrier_sync(8 + c.group, 128);
}

#include "templates/hopper/hopper_end.cuh"

// Sets the values of the last `hidden` keys of a block to 0.
DEVICE void clear_hidden(const consumer &c, int hidden,
                         const ring<STAGES> &before) {
  if (hidden <= 0) return;
  barrier_wait(c.base + AT_VALUE_FULL + 8 * before.stage(), before.phase());
  clear_values(c, c.base + AT_VALUE + before.stage() * VALUE_BYTES,
               TILE_KEYS - hidden);
}

// log2 of the multiplicity of the block's keys.
DEVICE float own_bias(const consumer &c, int4 m) {
  bool once = TILE_PACKING && own_flags(c, m) & 1 << BLOCK_ONCE;
  return once ? 0 : __int_as_float(m.y);
}

// Returns the number of hidden keys in the block before.
DEVICE int hidden_before(int4 m) {
  return DROPS ? m.x >> BLOCK_HIDDEN & 511 : m.x >> BLOCK_HIDDEN;
}
DEVICE void release_queries(const consumer &c, u32 tile) {
  release(c, c.base + AT_QUERY_EMPTY + 8 * query_stage(tile));
}

// The registers that a warpgroup carries from block to block.
struct fragments {
  float o[VALUE_COLUMNS / 2];
  u32 p[TILE_KEYS / 4]; // weights of the previous block
  row_state r;
};

DEVICE void clear_sums(float (&o)[VALUE_COLUMNS / 2]) {
#pragma unroll
  for (int i = 0; i < VALUE_COLUMNS / 2; i++) o[i] = 0;
}

DEVICE void release_keys(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_KEY_EMPTY + 8 * block.stage());
}
DEVICE void release_values(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_VALUE_EMPTY + 8 * block.stage());
}

// Handles a block in which this warpgroup has no rows, or only rows that see
// nothing. The warpgroup still takes part in the ping-pong and releases the
// stages. With DELAYED_RELEASE it releases the values of the previous block.
// The named barrier of the ping-pong also orders the warpgroup's reads of the message
// before the release. Without turns each warp releases for itself.
//
// No wgmma synchronises the four warps here. So only the thread that releases a
// stage waits for its mbarrier. Another thread might come too late: it would
// find the mbarrier in the next phase and wait forever.
DEVICE void idle(const consumer &c, int4 m, const ring<STAGES> &block) {
  ring<STAGES> values = block;
  if (DELAYED_RELEASE) values.back();
  if (m.x & BLOCK_NEW) {
    if (c.lead) wait_queries(c, tile_of(m));
    release_queries(c, tile_of(m));
  }
  pingpong_wait(c);
  pingpong_arrive(c);
  release_keys(c, block);
  if (c.lead) wait_values(c, values);
  release_values(c, values);
}

// With one query stage, the queries are released after their last product, so
// that the next ones are loaded while the tile ends.
DEVICE bool is_last(int4 m) { return QUERY_STAGES == 1 && m.x & BLOCK_LAST; }
DEVICE void release_early(const consumer &c, int4 m) {
  if (is_last(m)) release_queries(c, tile_of(m));
}

// Which pairs of a block a list holds.
#if LISTS
typedef dil_bits listed_pairs;
#else
struct listed_pairs {};
#endif

#if PAIRWISE || SCORED
#include "templates/hopper/hopper_score.cuh"
#endif
#if PAIRWISE
#include "templates/hopper/hopper_pair_score.cuh"
#else
// Without masks only windows hide pairs, and mask_block needs no preparation.
struct kept_pairs {};
template <class Listed>
DEVICE kept_pairs ask_pairs(const consumer &, int4, const ring<STAGES> &,
                            Listed) {
  return {};
}
DEVICE void hide_block(const consumer &c, int4 m, float (&s)[TILE_KEYS / 2],
                       const ring<STAGES> &block, kept_pairs) {
  if (masks(c, m)) mask_block(c, m.x, s, block);
}
#endif

#if !SCORE_SLOPES
struct score_line {};
DEVICE score_line find_line(const consumer &, int4, const ring<STAGES> &) {
  return {};
}
#endif

// Asks the list of a block that must be masked. It does so before the products,
// since registers are few while they run.
DEVICE listed_pairs ask_list(const consumer &c, int4 m,
                             const ring<STAGES> &block) {
#if LISTS
  if (masks(c, m)) return listed_bits(c, m, block);
#endif
  return {};
}

// What becomes known of a block while its products run.
struct block_scores {
  kept_pairs kept;
  score_line line;
};
DEVICE block_scores ask_block(const consumer &c, int4 m,
                              const ring<STAGES> &block,
                              const listed_pairs &listed) {
  return {ask_pairs(c, m, block, listed), find_line(c, m, block)};
}

// Turns products into scores, and hides pairs.
DEVICE void settle_scores(const consumer &c, int4 m,
                          float (&s)[TILE_KEYS / 2],
                          const ring<STAGES> &block,
                          const block_scores &known, row_state &r) {
#if SCORE_SLOPES
  add_distances(c, s, m, block, known.line, r);
#elif SCORE_FORM == SCORE_CAPPED
  cap_scores(c, s);
#elif SCORED && SCORE_FORM == SCORE_ANY
  int4 what = shared_load(message_of(c.base, block.slot()) + 16);
#if PAIRWISE
  run_chains<0>(c, s, m, what);
#else
  rewrite_scores<0>(c, s, m, what.w);
#endif
#endif
  hide_block(c, m, s, block, known.kept);
}

// Returns where the random words of this thread's pairs stand.
DEVICE drop_words own_words(const consumer &c, int4 m,
                            const ring<STAGES> &block) {
#if DROPS
  return words_of(c.base, tile_of(m), block.slot());
#else
  return {};
#endif
}

// A block without a pending product before it. `fresh`: the block begins a
// tile. Otherwise it continues sums that are complete.
template <bool fresh>
DEVICE void begin_block(const consumer &c, fragments &f, int4 m, u32 q,
                        const ring<STAGES> &block) {
  float s[TILE_KEYS / 2];
  if (fresh) wait_queries(c, tile_of(m));
  listed_pairs listed = ask_list(c, m, block);
  pingpong_wait(c);
  multiply_keys(s, q, key_descriptor(c, block.stage()));
  pingpong_arrive(c);
  block_scores known = ask_block(c, m, block, listed);
  mma_wait<0>();
  settle(s);
  release_keys(c, block);
  release_early(c, m);
  settle_scores(c, m, s, block, known, f.r);
  if (fresh) state_clear(f.r);
  find_peaks(s, f.r, scale_of(c.run), slack_of(c.run));
  weigh(s, f.p, f.r, scale_of(c.run), own_bias(c, m), c.run.zero,
        own_words(c, m, block));
  if (fresh) clear_sums(f.o);
  else if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
}

// Empty sums and weights, before the first block.
DEVICE void begin_sums(fragments &f) {
  clear_sums(f.o);
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 4; i++) f.p[i] = 0;
  state_clear(f.r);
}

// Whether the block begins a tile and the previous tile's last product is still
// pending.
DEVICE bool runs_on(int4 m) { return QUERY_STAGES > 1 && m.x & BLOCK_NEW; }

// Multiplies the queries with this block and, at the same time, the weights
// with the previous block's values (the overlap inside a warpgroup of
// FlashAttention-3). Row maxima are found during the second product; then the
// new weights overwrite the old ones. If the block begins a tile, `done`
// receives the row state of the tile that ends.
DEVICE void follow_block(const consumer &c, fragments &f, int4 m, u32 q,
                         const ring<STAGES> &block,
                         const ring<STAGES> &before, row_state &done) {
  u32 k = key_descriptor(c, block.stage());
  u32 v = value_descriptor(c, before.stage());
  float s[TILE_KEYS / 2];
  listed_pairs listed = ask_list(c, m, block);
  q = uniform(q); // in the loop the compiler no longer knows that it is uniform
  pingpong_wait(c);
  multiply_keys(s, q, k);
  wait_values(c, before);
  settle(f.o);
  multiply_values(f.o, f.p, v, [&] { pingpong_arrive(c); });
  block_scores known = ask_block(c, m, block, listed);
  mma_wait<1>();
  settle(s);
  release_keys(c, block);
  release_early(c, m);
  settle_scores(c, m, s, block, known, f.r);
  if (runs_on(m)) {
    save_state(c, done, f.r);
    state_clear(f.r);
  }
  find_peaks(s, f.r, scale_of(c.run), slack_of(c.run));
  settle(s);
  mma_wait<0>();
  settle(f.o);
  settle(f.p);
  release_values(c, before);
  weigh(s, f.p, f.r, scale_of(c.run), own_bias(c, m), c.run.zero,
        own_words(c, m, block));
}

// Whether values of a block are not finite, and some of its weights may be 0.
// `m`: the block's message.
DEVICE bool spoils(const consumer &c, int4 m, const ring<STAGES> &block) {
#if CHECKS
  if (!masks(c, m)) return false;
  barrier_wait(c.base + AT_CHECKED + 8 * block.stage(), block.phase());
  return shared_word(c.base + AT_BAD + 4 * block.stage());
#elif DROPS
  return shared_word(message_of(c.base, block.slot())) & BLOCK_BAD;
#else
  return false;
#endif
}

// Multiplies a block's values without overlap, one key at a time if they are
// `bad`: some are not finite, and some of their weights may be 0.
DEVICE void add_values(const consumer &c, fragments &f,
                       const ring<STAGES> &block, bool bad) {
  wait_values(c, block);
  if (bad) {
    add_values_singly(f.o, f.p, c.base + AT_VALUE + block.stage() * VALUE_BYTES);
    named_barrier_sync(8 + c.group, 128); // all warps have read the values
    return;
  }
  settle(f.o);
  multiply_values(f.o, f.p, value_descriptor(c, block.stage()));
  mma_wait<0>();
  settle(f.o);
}

// Multiplies the values of a block that no other block follows. With
// DELAYED_RELEASE the next block releases their stage.
DEVICE void last_values(const consumer &c, fragments &f,
                        const ring<STAGES> &before, bool bad) {
  add_values(c, f, before, bad);
  if (!DELAYED_RELEASE) release_values(c, before);
}

// Settles the sums of earlier blocks after follow_block. If a tile has ended,
// they are written and new sums begin; otherwise they are rescaled where a peak
// moved.
DEVICE void settle_sums(const consumer &c, fragments &f, int4 m,
                        const row_state &done) {
  if (runs_on(m)) {
    settle(f.p);
    settle(f.r.sum);
    finish_tile(c, f.o, done, tile_before(m));
    // without it ptxas moves the tile's end into the next products and
    // serialises them
    if (PAIRWISE) asm volatile("// the tile has ended" ::: "memory");
    clear_sums(f.o);
  } else if (f.r.moved) {
    scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
  }
}

// Handles a message that begins a tile, or that follows hidden keys or windows, or
// that excludes this warpgroup. It closes the stream before it: hidden values become
// 0, and the queries of a tile that ends are released. (With one query stage,
// release_early does that at a known last block.) Returns whether the warpgroup
// goes on with the block. Before the first block there is nothing to close.
DEVICE bool close_stream(const consumer &c, int4 m, const ring<STAGES> &before,
                         bool first) {
  bool fresh = m.x & BLOCK_NEW;
  if (first) return true;
  clear_hidden(c, hidden_before(m), before);
  if (fresh || !takes(c, m)) release_queries(c, tile_before(m));
  return takes(c, m) && (QUERY_STAGES > 1 || !fresh);
}

// Consumes blocks, across tiles, from one that this warpgroup takes part in. It
// returns at a block that the warpgroup does not take part in, or with one
// query stage at the end of the tile. `block` is then the next block.
//
// With DELAYED_RELEASE the first block is treated as if another tile ran into
// it. Weights of 0 multiply the values in the stage before it, and these sums
// are discarded. So the code of a block exists only once. With one query stage
// every tile would pay for that product, so it is left out.
//
// The code of a tile's end is long. It exists only once, for tiles that another
// one follows and for others, which shortens compilation by a quarter. It
// stands outside of the inner loop, which keeps more registers that way.
DEVICE void run_blocks(const consumer &c, int4 m, ring<STAGES> &block) {
  fragments f;
  ring<STAGES> before;
  row_state done;
  u32 q = query_descriptor(c, tile_of(m)), tile;
  bool first = DELAYED_RELEASE;
  if (first) {
    block.back();
    begin_sums(f);
  } else {
    begin_block<true>(c, f, m, q, block);
  }
#pragma unroll 1
  for (;;) {
    bool ends, bad;
#pragma unroll 1
    for (;;) {
      int4 last = m;
      ends = is_last(m);
      before = block;
      block.next();
      if (DELAYED_RELEASE) // saves an instruction in the loop, at D 64
        asm volatile("" : "+r"(block.number));
      tile = tile_of(m);
      if (ends) {
        u32 message = message_of(c.base, before.slot());
        clear_hidden(c, TILE_KEYS - shared_word(message + 24), before);
        bad = spoils(c, last, before);
        break;
      }
      wait_keys(c, block);
      m = shared_load(message_of(c.base, block.slot()));
      if ((m.x & (BLOCK_NEW | ~0u << BLOCK_HIDDEN)) || !takes(c, m) ||
          (CHECKS && masks(c, last))) {
        ends = !close_stream(c, m, before, first);
        bad = !first && spoils(c, last, before);
        ends |= bad && m.x & BLOCK_NEW;
        if (ends) break;
#if !PAIRWISE
        if (bad) {
          add_values(c, f, before, true);
          release_values(c, before);
          begin_block<false>(c, f, m, q, block);
          continue;
        }
#endif
        q = query_descriptor(c, tile_of(m));
        wait_queries(c, tile_of(m)); // already loaded, unless the tile is new
      }
      follow_block(c, f, m, q, block, before, done);
      if (runs_on(m)) break;
      if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
    }
    if (ends) {
      save_state(c, done, f.r);
      last_values(c, f, before, bad);
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
  if (c.group == 0) named_barrier_arrive(2, 256);
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
