// hopper_visit.cuh - the blocks of keys that a consumer warpgroup visits one after the
// other, where a warp of the producers looks for values that are not finite
// (AT_CHECKED, AT_BAD).
//
// In: a tile of queries, stages of keys and values, and what hides the pairs of a block
// that do not count. Out: the sums of the tile's rows, and their state. VISIT_LAUNCH is
// the type of the kernel's parameter, which has `scale` and `slack`.
#pragma once

struct consumer {
  const VISIT_LAUNCH &run;
  u32 base;
  int group; // the warpgroup, 0 .. WARPGROUPS - 1
  bool lead; // this thread releases stages for its warpgroup
};
DEVICE void release(const consumer &c, u32 barrier) {
  if (c.lead) barrier_arrive(barrier);
}
#include "templates/hopper/hopper_operands.cuh"

// The registers that a warpgroup carries from block to block.
struct fragments {
  float o[VALUE_COLUMNS / 2];
  u32 p[TILE_KEYS / 4]; // weights of the previous block
  row_state r;
};

DEVICE void fragments_clear(fragments &f) {
#pragma unroll
  for (int i = 0; i < VALUE_COLUMNS / 2; i++) f.o[i] = 0;
  state_clear(f.r);
}

DEVICE void release_keys(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_KEY_EMPTY + 8 * block.stage());
}
DEVICE void release_values(const consumer &c, const ring<STAGES> &block) {
  release(c, c.base + AT_VALUE_EMPTY + 8 * block.stage());
}
DEVICE void wait_checked(const consumer &c, const ring<STAGES> &block) {
  barrier_wait(c.base + AT_CHECKED + 8 * block.stage(), block.phase());
}

// Whether values of a block are not finite: a warp of the producers has looked, or the
// warpgroup looks itself.
DEVICE bool spoils(const consumer &c, const ring<STAGES> &block) {
  if (!CHECKING_WARP) {
    wait_values(c, block);
    return has_bad_values(c.base + AT_VALUE + block.stage() * VALUE_BYTES, TILE_KEYS,
                          c.group);
  }
  wait_checked(c, block);
  return shared_word(c.base + AT_BAD + 4 * block.stage());
}

// Turns the products of block number `index` into weights, while no other product
// runs. `hide(index, s)` hides pairs.
template <class function>
DEVICE void begin_block(const consumer &c, fragments &f, u32 q,
                        const ring<STAGES> &block, int index, function hide) {
  float s[TILE_KEYS / 2];
  wait_keys(c, block);
  multiply_keys(s, q, key_descriptor(c, block.stage()));
  mma_wait<0>();
  settle(s);
  release_keys(c, block);
  hide(index, s);
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  weigh(s, f.p, f.r, c.run.scale, 0, 0, {});
  if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
}

// Multiplies the queries with this block and, at the same time, the weights with the
// values of the block before.
template <class function>
DEVICE void follow_block(const consumer &c, fragments &f, u32 q,
                         const ring<STAGES> &block, const ring<STAGES> &before,
                         int index, function hide) {
  float s[TILE_KEYS / 2];
  u32 k = key_descriptor(c, block.stage());
  u32 v = value_descriptor(c, before.stage());
  wait_keys(c, block);
  q = uniform(q);
  multiply_keys(s, q, k);
  wait_values(c, before);
  settle(f.o);
  multiply_values(f.o, f.p, v);
  mma_wait<1>();
  settle(s);
  release_keys(c, block);
  hide(index, s);
  find_peaks(s, f.r, c.run.scale, c.run.slack);
  settle(s);
  mma_wait<0>();
  settle(f.o);
  settle(f.p);
  release_values(c, before);
  weigh(s, f.p, f.r, c.run.scale, 0, 0, {});
  if (f.r.moved) scale_rows(f.o, f.r.factor[0], f.r.factor[1]);
}

// Multiplies the weights of a block with its values while no other product runs, one
// key at a time if they are `bad`: some are not finite, and some weights are 0.
DEVICE void add_values(const consumer &c, fragments &f, const ring<STAGES> &block,
                       bool bad) {
  wait_values(c, block);
  if (bad) {
    add_values_singly(f.o, f.p, c.base + AT_VALUE + block.stage() * VALUE_BYTES);
    named_barrier_sync(8 + c.group, 128); // all warps have read the values
  } else {
    settle(f.o);
    multiply_values(f.o, f.p, value_descriptor(c, block.stage()));
    mma_wait<0>();
    settle(f.o);
  }
  release_values(c, block);
}

// Adds up blocks from..to-1 of a tile, of which there is one at least, and releases
// the tile's queries. `block`: the stage of the first, then the one behind the last.
template <class function>
DEVICE void visit_blocks(const consumer &c, fragments &f, u32 tile, u32 q, int from,
                         int to, ring<STAGES> &block, function hide) {
  ring<STAGES> before = block;
  bool alone = true, bad = false;
#pragma unroll 1
  for (int index = from; index < to; index++) {
    if (index > from) {
      alone = bad = spoils(c, before);
      if (bad) add_values(c, f, before, true);
    }
    if (alone) begin_block(c, f, q, block, index, hide);
    else follow_block(c, f, q, block, before, index, hide);
    before = block;
    block.next();
  }
  release(c, c.base + AT_QUERY_EMPTY + 8 * query_stage(tile));
  bad = spoils(c, before);
  add_values(c, f, before, bad);
}
