// hopper_pair.cuh - the consumers' loop where masks decide over pairs. Here a
// warpgroup may skip blocks in the middle of a tile, and weights of 0 must not
// multiply values that are not finite.
//
// In: blocks whose messages say which warpgroups take part and which of these
// must evaluate pairs. Out: O and lse, as hopper_consume.cuh writes them.
#pragma once

// ---- the loop --------------------------------------------------------------

// Multiplies the pending weights with their values, without overlap. `bad`:
// these values are not finite.
DEVICE void drain(const consumer &c, fragments &f, const ring<STAGES> &before,
                  bool bad) {
  add_values(c, f, before, bad);
  release_values(c, before);
}

// The state of a warpgroup in the stream.
struct pair_state {
  bool open;    // a tile has begun
  bool pending; // the last block's weights are not multiplied yet
  bool asked;   // masks or scores may have hidden pairs in that block
  int idle;     // blocks since then that the warpgroup took no part in
};

// Whether the pending product may wait until after a block that the warpgroup
// takes no part in. Its stage of values is needed for the block that comes
// STAGES later.
DEVICE bool may_wait(const pair_state &p, int4 m) {
  return !TURNS && !(m.x & BLOCK_NEW) && p.idle < STAGES - 2;
}

// Whether the warpgroup only passes over a block: its tile goes on, and nothing has
// to be closed before the block.
DEVICE bool passes(const consumer &c, const pair_state &p, int4 m) {
  bool goes_on = !(m.x & (BLOCK_NEW | BLOCK_END)) && !takes(c, m);
  bool closed = p.idle > 0 || (!p.asked && hidden_before(m) <= 0);
  return !TURNS && p.open && goes_on &&
         (!p.pending || (closed && may_wait(p, m)));
}

// Closes the stream before a block: settles hidden keys and values that are not
// finite. If the block begins a tile, the previous tile ends here, unless its
// last product is pending. `before`: the block of the pending product. The block
// behind it says how many of its keys are hidden.
DEVICE void close_tile(const consumer &c, fragments &f, pair_state &p, int4 m,
                       const ring<STAGES> &before) {
  bool bad = false;
  if (p.pending) {
    if (p.idle == 0) {
      clear_hidden(c, hidden_before(m), before);
      if (p.asked) {
        wait_values(c, before);
        bad = has_bad_values(c.base + AT_VALUE + before.stage() * VALUE_BYTES,
                             TILE_KEYS - (hidden_before(m)), c.group);
      }
    }
    if (bad || !(takes(c, m) || may_wait(p, m))) {
      drain(c, f, before, bad);
      p.pending = false;
    }
  }
  if (!(m.x & BLOCK_NEW)) return;
  if (p.open) release_queries(c, tile_before(m));
  if (p.open && !p.pending) {
    row_state done;
    save_state(c, done, f.r);
    finish_tile(c, f.o, done, tile_before(m));
  }
  p.open = p.pending;
}

DEVICE void consume_pairs(const consumer &c) {
  fragments f;
  ring<STAGES> block = {0}, before = {0};
  pair_state p = {false, false, false, 0};
  if (TURNS && c.group == 0) named_barrier_arrive(2, 256);
#pragma unroll 1
  for (;; block.next()) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.slot()));
#pragma unroll 1
    for (; passes(c, p, m); p.idle++) {
      idle(c, m, block);
      block.next();
      wait_keys(c, block);
      m = shared_load(message_of(c.base, block.slot()));
    }
    close_tile(c, f, p, m, before);
    if (m.x & BLOCK_END) break;
    if (m.x & BLOCK_NEW) wait_queries(c, tile_of(m));
    if (!p.open) {
      asm volatile("// a tile begins" ::: "memory"); // else each block would choose
      state_clear(f.r);
      clear_sums(f.o);
      p.open = true;
    }
    if (!takes(c, m)) {
      m.x &= ~BLOCK_NEW; // the tile's queries are already loaded
      idle(c, m, block);
      p.idle++;
      continue;
    }
    u32 q = query_descriptor(c, tile_of(m));
    row_state done;
    if (p.pending) {
      follow_block(c, f, m, q, block, before, done);
      settle_sums(c, f, m, done);
    } else {
      begin_block<false>(c, f, m, q, block);
    }
    p.pending = true;
    p.asked = HIDING || DROPS || masks(c, m);
    p.idle = 0;
    before = block;
  }
  store_wait();
}
