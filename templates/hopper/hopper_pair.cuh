// hopper_pair.cuh - the consumers' loop where masks decide over pairs. Here a
// warpgroup may skip blocks in the middle of a tile, and weights of 0 must not
// multiply values that are not finite.
//
// In: blocks whose messages say which warpgroups take part and which of these
// must evaluate pairs. Out: O and lse, as hopper_consume.cuh writes them.
#pragma once

// ---- values that are not finite --------------------------------------------

// Whether some value of a block's first `keys` keys is NaN or infinite. A
// weight of 0 times this value is NaN, and a sum keeps a NaN. The whole
// warpgroup calls this.
DEVICE bool has_bad_values(u32 values, int keys, int group) {
#if ELEMENT == 1
#define TIMES_ZERO "fma.rn.bf16x2 %0, %1, %2, %0;"
#else
#define TIMES_ZERO "fma.rn.f16x2 %0, %1, %2, %0;"
#endif
  u32 sum = 0, bad;
#pragma unroll 1
  for (u32 end = values + VALUE_BYTES; values < end;
       values += TILE_KEYS * VALUE_CHUNK * 2)
#pragma unroll 4
    for (int i = thread_index() % 128 * 16; i < keys * VALUE_CHUNK * 2;
         i += 128 * 16) {
      int4 x = shared_load(values + i);
      asm(TIMES_ZERO : "+r"(sum) : "r"(x.x), "r"(0));
      asm(TIMES_ZERO : "+r"(sum) : "r"(x.y), "r"(0));
      asm(TIMES_ZERO : "+r"(sum) : "r"(x.z), "r"(0));
      asm(TIMES_ZERO : "+r"(sum) : "r"(x.w), "r"(0));
    }
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0;\n"
               "bar.red.or.pred q, %2, 128, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(bad)
               : "r"(sum & 0x7fff7fff), "r"(8 + group)
               : "memory");
  return bad;
}

DEVICE float low_half(u32 both) {
  return ELEMENT == 1 ? __uint_as_float(both << 16) : dil_from_f16(both);
}
DEVICE float high_half(u32 both) {
  return ELEMENT == 1 ? __uint_as_float(both & 0xffff0000)
                      : dil_from_f16(both >> 16);
}

// O += P V one key at a time, without the products of weight 0.
DEVICE void add_values_singly(fragments &f, u32 values) {
  const int width = VALUE_CHUNK * 2;
  u32 lane = thread_index() % 32, c = lane % 4;
#pragma unroll 1
  for (u32 key = 0; key < TILE_KEYS; key++) {
    u32 mine0 = 0, mine1 = 0; // the key's weights, if this lane holds them
#pragma unroll
    for (int g = 0; g < TILE_KEYS / 8; g++) {
      u32 here = key / 8 == g ? ~0u : 0;
      mine0 |= here & f.p[2 * g];
      mine1 |= here & f.p[2 * g + 1];
    }
    u32 owner = (lane & ~3) | (key / 2 & 3);
    mine0 = __shfl_sync(~0u, mine0, owner);
    mine1 = __shfl_sync(~0u, mine1, owner);
    float w0 = key & 1 ? high_half(mine0) : low_half(mine0);
    float w1 = key & 1 ? high_half(mine1) : low_half(mine1);
    u32 row = values + key * width + c * 4;
    u32 swizzle = width == 128 ? key & 7 : key >> 1 & 3;
#pragma unroll
    for (int g = 0; g < VALUE_WIDTH / 8; g++) {
      u32 unit = g % (VALUE_CHUNK / 8) ^ swizzle;
      u32 v = shared_word(row + g / (VALUE_CHUNK / 8) * (TILE_KEYS * width) +
                          unit * 16);
      if (w0 != 0) {
        f.o[4 * g] += w0 * low_half(v);
        f.o[4 * g + 1] += w0 * high_half(v);
      }
      if (w1 != 0) {
        f.o[4 * g + 2] += w1 * low_half(v);
        f.o[4 * g + 3] += w1 * high_half(v);
      }
    }
  }
}

// ---- the loop --------------------------------------------------------------

// Multiplies the pending weights with their values, without overlap. `bad`:
// these values are not finite.
DEVICE void drain(const consumer &c, fragments &f, const ring<STAGES> &before,
                  bool bad) {
  wait_values(c, before);
  if (bad) {
    add_values_singly(f, c.base + AT_VALUE + before.stage() * VALUE_BYTES);
    named_barrier_sync(8 + c.group, 128); // all warps have read the values
  } else {
    settle(f.o);
    multiply_values(f.o, f.p, value_descriptor(c, before.stage()));
    mma_wait<0>();
    settle(f.o);
  }
  release_values(c, before);
}

// The state of a warpgroup in the stream.
struct pair_state {
  bool open;    // a tile has begun
  bool pending; // the last block's weights are not multiplied yet
  bool asked;   // masks or scores may have hidden pairs in that block
};

// Closes the stream before a block: settles hidden keys and values that are not
// finite. If the block begins a tile, the previous tile ends here, unless its
// last product is pending.
DEVICE void close_tile(const consumer &c, fragments &f, pair_state &p, int4 m,
                       const ring<STAGES> &before) {
  bool bad = false;
  if (p.pending) {
    clear_hidden(c, m.x >> BLOCK_HIDDEN, before);
    if (p.asked) {
      wait_values(c, before);
      bad = has_bad_values(c.base + AT_VALUE + before.stage() * VALUE_BYTES,
                           TILE_KEYS - (m.x >> BLOCK_HIDDEN), c.group);
    }
    if (bad || !takes(c, m)) {
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
  pair_state p = {false, false, false};
  if (c.group == 0) named_barrier_arrive(2, 256);
#pragma unroll 1
  for (;; before = block, block.next()) {
    wait_keys(c, block);
    int4 m = shared_load(message_of(c.base, block.slot()));
    close_tile(c, f, p, m, before);
    if (m.x & BLOCK_END) break;
    if (m.x & BLOCK_NEW) wait_queries(c, tile_of(m));
    if (!p.open) {
      state_clear(f.r);
      clear_sums(f.o);
      p.open = true;
    }
    if (!takes(c, m)) {
      m.x &= ~BLOCK_NEW; // the tile's queries are already loaded
      idle(c, m, block);
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
  }
  store_wait();
}
