// hopper_drop.cuh - dropout: random words of rows and keys.
//
// A first launch draws the words of all keys into memory, since each serves
// many tiles, and looks at their values. In: messages of tiles and blocks. Out:
// the words of a tile's rows and of a block's keys in shared memory, and
// messages that tell of values that are not finite. The warp that loads values
// brings them there for all warpgroups; a consumer reads those of its own rows
// and columns.
#pragma once

// ---- the first launch ------------------------------------------------------

// Returns whether a key's value holds NaN or an infinity.
DEVICE bool is_bad_value(const unsigned short *value) {
  u32 sum = 0;
#pragma unroll 8
  for (int i = 0; i < VALUE_DIM; i += 8)
    add_nothing(sum, *(const int4 *)(value + i));
  return sum & 0x7fff7fff;
}

// Draws the words of all keys, and looks at their values. A thread block takes
// a piece of one head after the other.
DEVICE void draw_words(const hopper_launch &run) {
  int keys = run.key_high - run.key_low;
  int pieces = (keys + THREADS - 1) / THREADS;
  long long all = (long long)run.batches * run.heads * pieces;
  dil_seed seed = seed_of(run);
#pragma unroll 1
  for (long long n = blockIdx.x; n < all; n += grid_size()) {
    long long row = n / pieces;
    int key = int(n - row * pieces) * THREADS + int(thread_index());
    int b = int(row / run.heads), h = int(row - (long long)b * run.heads);
    if (key >= keys) continue;
    u32 word = dil_drop_word(DIL_DROP_KEY, b + run.batch, h + run.head,
                             run.key_low + key, seed.low, seed.high);
    bool bad = is_bad_value(run.v_data + b * run.v_batch +
                            h / run.group * run.v_head + key * run.v_row);
    *(uint2 *)(run.words + (row * keys + key) * 2) = {word, bad};
  }
}

// ---- the producer ----------------------------------------------------------

DEVICE u32 key_words_of(u32 base, u32 slot) {
  return base + AT_KEY_WORDS + slot * (TILE_KEYS * 4);
}
DEVICE u32 row_words_of(u32 base, u32 tile) {
  return base + AT_ROW_WORDS + tile * (64 * WARPGROUPS * 4);
}

// Draws the words of the rows of a tile, of which each warpgroup may have its
// own message.
DEVICE void draw_rows(const hopper_launch &run, u32 base, u32 tile) {
  u32 lane = thread_index() % 32, words = row_words_of(base, tile);
  u32 message = base + AT_TILE + tile * TILE_BYTES;
  int b = shared_word(message + 28) + run.batch;
  int h = shared_word(message + 12) + run.head;
  dil_seed seed = seed_of(run);
#pragma unroll 1
  for (u32 row = lane; row < 64 * WARPGROUPS; row += 64) {
    u32 own = message + (TILE_PACKING ? row / 64 * 32 : 0);
    int step = shared_word(own + 4);
    int position = shared_word(own) + (int)row * step;
    u32 word[2] = {(u32)position, (u32)(position + 32 * step)};
    dil_drop_words(DIL_DROP_ROW, b, h, seed.low, seed.high, word);
    shared_set(words + row * 4, word[0]);
    shared_set(words + row * 4 + 128, word[1]);
  }
}

// Copies the words of a block's keys. Returns whether a value of these keys is
// not finite. The words behind the last key may be any.
DEVICE bool copy_keys(const hopper_launch &run, u32 base, u32 slot, u32 tile) {
  const u32 count = (TILE_KEYS + 31) / 32;
  u32 lane = thread_index() % 32, words = key_words_of(base, slot);
  u32 message = message_of(base, slot);
  int keys = run.key_high - run.key_low, step = shared_word(message + 28);
  int first = shared_word(message + 8) - run.key_low;
  u32 visible = shared_word(message + 24);
  message = base + AT_TILE + tile * TILE_BYTES;
  long long row = (long long)shared_word(message + 28) * run.heads +
                  shared_word(message + 12);
  const uint2 *from = (const uint2 *)run.words + row * keys;
  uint2 word[count];
  bool bad = false;
#pragma unroll
  for (u32 i = 0; i < count; i++)
    word[i] = from[min(first + int(lane + 32 * i) * step, keys - 1)];
#pragma unroll
  for (u32 i = 0; i < count; i++) {
    bad |= lane + 32 * i < visible && word[i].y;
    if (TILE_KEYS % 32 == 0 || lane + 32 * i < TILE_KEYS)
      shared_set(words + key_word_at(lane + 32 * i), word[i].x);
  }
  return __any_sync(~0u, bad);
}

// Brings all words of a block before its keys count as loaded: the mbarriers of
// queries and keys wait for them. `bad` is whether a value of the previous
// block is not finite, and becomes that of this one; the message says both.
DEVICE void load_words(const hopper_launch &run, u32 base, u32 slot, u32 phase,
                       bool &bad) {
  u32 stage = slot % STAGES;
  int flags = shared_word(message_of(base, slot));
  u32 tile = flags >> BLOCK_TILE & (TILE_SLOTS - 1);
  bool lead = thread_index() % 32 == 0;
  if (flags & BLOCK_NEW) {
    draw_rows(run, base, tile);
    __syncwarp();
    if (lead) barrier_arrive(base + AT_QUERY_FULL + 8 * query_stage(tile));
  }
  if (bad) flags |= BLOCK_BAD_BEFORE;
  bad = copy_keys(run, base, slot, tile);
  if (bad) flags |= BLOCK_BAD;
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, phase);
  __syncwarp();
  if (!lead) return;
  if (!PAIRWISE) shared_set(message_of(base, slot), flags);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
}

// ---- the consumers ---------------------------------------------------------

// Returns where the words of a thread's rows and columns stand.
DEVICE drop_words words_of(u32 base, u32 tile, u32 slot) {
  u32 thread = thread_index();
  u32 row = (thread / 32 - 4) * 16 + thread % 32 / 4;
  return {row_words_of(base, tile) + row * 4,
          key_words_of(base, slot) + thread % 4 * 16};
}
