// hopper_pair_load.cuh - the loader where masks decide over pairs.
//
// In: a plan of hopper_pair_plan.cuh. Out: the same stream of blocks as from
// hopper_produce.cuh. A message is {flags, bias, first position, 1 / stride},
// {predicates, chain, visible keys, stride}. Then follow {row, where, key head,
// batch row} for the loader of values, and each warpgroup's dil_known {0, 1, 2,
// -}.
#pragma once

// Sends the message of block `n` of a run. `last`: it is the tile's last block.
DEVICE void send_pair_block(loader &l, u32 run, int n, bool last) {
  u32 message = message_of(l);
  int where = shared_word(run + 12), stride = where >> WHERE_STRIDE;
  int count = min(shared_word(run + 4) - n * TILE_KEYS, int(TILE_KEYS));
  int flags = (l.what & PLAN_TILE ? BLOCK_NEW : 0) | (last ? BLOCK_LAST : 0) |
              tile_number(l) % TILE_SLOTS << BLOCK_TILE |
              l.hidden << BLOCK_HIDDEN;
#pragma unroll
  for (int w = 0; w < WARPGROUPS; w++) {
#if KNOWN_PARTS
    shared_set(message + 48 + 4 * w,
               shared_word(run + 64 + 128 * w + 4 * n));
#endif
    flags |= (shared_word(run + 32 + 4 * w) >> n & 1) << (BLOCK_TAKES + w) |
             (shared_word(run + 48 + 4 * w) >> n & 1) << (BLOCK_MASKS + w);
  }
  shared_store(message, flags, shared_word(run + 24),
               shared_word(run) + n * TILE_KEYS * stride,
               shared_word(run + 28));
  shared_store(message + 16, shared_word(run + 16), shared_word(run + 20),
               count, stride);
  shared_store(message + 32, shared_word(run + 8) + n * TILE_KEYS, where,
               shared_word(l.plan + 8), shared_word(l.plan + 44));
  message_arrive(l.base, slot_of(l));
  l.hidden = TILE_KEYS - count;
}

// Sends the blocks of a run, in their order. `ends`: it is the tile's last run.
DEVICE void load_run(loader &l, u32 run, bool ends) {
#pragma unroll 1
  for (u32 rest = shared_word(run + 44); rest; rest &= rest - 1) {
    send_pair_block(l, run, __ffs(rest) - 1, ends && !(rest & (rest - 1)));
    l.what &= ~PLAN_TILE;
    load_keys(l, shared_load(message_of(l) + 32));
    l.blocks++;
  }
}

// Sends all blocks of a plan. Only the first lane works.
DEVICE void load_runs(loader &l) {
  if (thread_index() % 32) return;
  int runs = shared_word(l.plan + 4);
  for (int i = 0; i < runs; i++)
    load_run(l, l.plan + 48 + i * RUN_BYTES,
             BACKWARD && l.what & PLAN_LAST && i == runs - 1);
}
