// backward_load.cuh - the warp of the producers that brings facts and random words.
//
// In: messages of blocks. Out: in shared memory the facts of the rows of a block, and
// the words of dropout.
#pragma once

DEVICE void read_block_facts(const hopper_backward_launch &run, u32 message,
                             row_facts (&f)[OWN_FACTS]) {
  float bias = __int_as_float(shared_word(message + 4));
  int count = min(shared_word(message + 24), TILE_KEYS);
  int4 at = shared_load(message + 32); // {row, where, head, batch}
  int step = at.y >> WHERE_STRIDE, phase = at.y & ((1 << WHERE_MAP) - 1);
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int i = thread_index() % 32 + 32 * k;
    f[k] = {INFINITE_LSE, 0};
    if (i < count) f[k] = facts_of(run, at.w, at.z, (at.x + i) * step + phase);
  }
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) f[k].lse -= bias + WEIGHT_BITS;
#if SCORE_ROWS
  int position = shared_word(message + 8), apart = shared_word(message + 28);
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++) {
    int i = thread_index() % 32 + 32 * k;
    f[k].lse -= row_score(run.of, at.w, at.z, position + i * apart);
  }
#endif
}

#if SCORE_SLOPES
// The slope of the scores of a block's query head.
DEVICE void write_block_slope(const hopper_backward_launch &run, u32 message,
                              u32 to) {
  int head = shared_word(message + 40), batch = shared_word(message + 44);
  if (thread_index() % 32) return;
  dil_pair at = pair_at(run.of, batch, head, away_of(&run.of, batch));
  shared_set(to + 8 * TILE_KEYS + 8,
             __float_as_int(slope_of_products(run.of, at)));
}
#endif

#if DROPS
// Lane x holds the words of rows x, x + 32, ... of a block, and of a tile.
struct own_words {
  u32 streamed[OWN_FACTS], held[2 * WARPGROUPS];
  int head; // the query head of `held`
};

DEVICE void read_words(const hopper_backward_launch &run, u32 base, u32 message,
                       own_words &w) {
  int flags = shared_word(message), count = shared_word(message + 24);
  u32 tile = base + AT_TILE +
             (flags >> BLOCK_TILE & (TILE_SLOTS - 1)) * TILE_BYTES;
  int4 at = shared_load(message + 32); // {row, where, head, batch}
  int4 t = shared_load(tile), to = shared_load(tile + 16);
  int head = HOLDS_KEYS ? at.z : t.w, lane = thread_index() % 32;
  int step = at.y >> WHERE_STRIDE, phase = at.y & ((1 << WHERE_MAP) - 1);
  long long first = (long long)at.w * run.query_heads + head;
  const u32 *streamed = run.streamed_words + first * run.streamed_rows;
#pragma unroll
  for (int k = 0; k < OWN_FACTS; k++)
    w.streamed[k] = lane + 32 * k < min(count, TILE_KEYS)
                        ? streamed[(at.x + lane + 32 * k) * step + phase]
                        : 0;
  if (!(flags & BLOCK_NEW) && head == w.head) return;
  const u32 *held = run.held_words + first * run.held_rows;
  w.head = head;
#pragma unroll
  for (int k = 0; k < 2 * WARPGROUPS; k++)
    w.held[k] = lane + 32 * k < t.z
                    ? held[(to.x + lane + 32 * k) * t.y + to.y]
                    : 0;
}

DEVICE void write_words(const own_words &w, u32 to) {
  u32 lane = thread_index() % 32;
#pragma unroll
  for (u32 k = 0; k < OWN_FACTS; k++)
    if (TILE_KEYS % 32 == 0 || lane + 32 * k < TILE_KEYS)
      shared_set(to + key_word_at(lane + 32 * k), w.streamed[k]);
#pragma unroll
  for (u32 k = 0; k < 2 * WARPGROUPS; k++)
    shared_set(to + (TILE_KEYS + lane + 32 * k) * 4, w.held[k]);
}
#endif

// The last warp of the producer warpgroup runs this.
DEVICE void load_facts(const hopper_backward_launch &run, u32 base) {
  const float unit = power_of_2(unit_bits(run));
#if DROPS
  own_words w;
#endif
  for (ring<2 * STAGES> sent = {0};; sent.next()) {
    u32 slot = sent.stage(), stage = slot % STAGES, phase = slot / STAGES;
    u32 message = message_of(base, slot);
    barrier_wait(base + AT_MESSAGE_FULL + 8 * slot, sent.phase());
    if (shared_word(message) & BLOCK_END) break;
    row_facts f[OWN_FACTS];
    if (HOLDS_KEYS) read_block_facts(run, message, f);
#if DROPS
    read_words(run, base, message, w);
#endif
    barrier_wait(base + AT_KEY_EMPTY + 8 * stage, phase ^ 1);
    if (HOLDS_KEYS) write_block_facts(f, unit, facts_at(base, stage));
#if HOLDS_KEYS && SCORE_SLOPES
    write_block_slope(run, message, facts_at(base, stage));
#endif
#if DROPS
    write_words(w, words_at(base, stage));
#endif
    barrier_arrive(facts_barrier(base, stage)); // each lane for its own writes
  }
}
