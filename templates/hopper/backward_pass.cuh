// backward_pass.cuh - the loop of a tile of gradients where masks decide over pairs.
//
// In: blocks of a tile, of which a warpgroup passes over those in which none of its
// pairs is kept. Out: the gradients of the tile's rows, which are 0 where no block
// is left.
#pragma once

// Releases a block in which no pair of this warpgroup is kept. Where no warpgroup
// takes part, nobody else waits for its copies and its facts: the warps that bring
// them must not find the stage released before they have filled it.
DEVICE void pass_block(const consumer &c, int4 m, const ring<STAGES> &block) {
  const int all = ((1 << WARPGROUPS) - 1) << BLOCK_TAKES;
  if (!(m.x & all)) {
    wait_values(c, block);
    if (FACT_BYTES)
      barrier_wait(facts_barrier(c.base, block.stage()), block.phase());
  }
  release_values(c, block);
  release_keys(c, block);
}

// Goes on to the next block; returns its message.
DEVICE int4 next_message(const consumer &c, ring<STAGES> &block) {
  block.next();
  wait_keys(c, block);
  return shared_load(message_of(c.base, block.slot()));
}

// Passes over blocks until one in which this warpgroup takes part, or the tile's
// last. Returns its message.
DEVICE int4 find_block(const consumer &c, int4 m, ring<STAGES> &block) {
#pragma unroll 1
  while (!takes(c, m) && !(m.x & BLOCK_LAST)) {
    pass_block(c, m, block);
    m = next_message(c, block);
  }
  return m;
}

// Consumes blocks in which the warpgroup takes part, up to the first in which it does
// not, or the tile's last. Returns the message of the block at which it ends: that of
// the tile's last block, which has been consumed, or of one that has not.
DEVICE int4 consume_blocks(const hopper_backward_launch &run,
                           const consumer &c, fragments &f, int4 m, u32 q,
                           u32 o, ring<STAGES> &block) {
  make_scores(c, f, q, block);
  take_scores(run, c, f, m, o, false, block);
  ring<STAGES> before = block;
#pragma unroll 1
  for (;;) {
    before = block;
    add_block(c, f, before);
    if (m.x & BLOCK_LAST) break;
    m = next_message(c, block);
    if (!takes(c, m)) break;
    q = uniform(q);
    o = uniform(o);
    make_scores(c, f, q, block);
    mma_wait<1>();
    settle_block(c, f, before);
    take_scores(run, c, f, m, o, false, block);
  }
  mma_wait<0>();
  settle_block(c, f, before);
  return m;
}

// Consumes the blocks of a tile; `block` becomes its last, of which the message is
// returned.
DEVICE int4 consume_tile(const hopper_backward_launch &run, const consumer &c,
                         fragments &f, int4 m, u32 q, u32 o,
                         ring<STAGES> &block) {
  bool last;
  do {
    m = find_block(c, m, block);
    last = m.x & BLOCK_LAST;
    if (!takes(c, m)) {
      pass_block(c, m, block);
      break;
    }
    m = consume_blocks(run, c, f, m, q, o, block);
    last = takes(c, m) && m.x & BLOCK_LAST;
  } while (!last);
  return m;
}
// Nothing is left to do: the last block has been consumed, or passed over.
DEVICE void consume_last(const consumer &, fragments &, const ring<STAGES> &) {}
