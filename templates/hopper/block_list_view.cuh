// block_list_view.cuh - a list of kept blocks: a row of bits, and the numbers of the
// blocks of some words at once. In: LISTED_WORDS, how many words those are.
#pragma once

// The blocks of a list from number `first` to number `last`.
struct list_view {
  const unsigned *bits;
  int first, last; // last < first: there are none
};
DEVICE u32 word_of(const list_view &l, int word) {
  if (word > l.last / 32) return 0;
  u32 held = l.bits[word];
  if (word == l.first / 32) held &= ~0u << l.first % 32;
  if (word == l.last / 32) held &= ~0u >> (31 - l.last % 32);
  return held;
}

// Writes the blocks of LISTED_WORDS words to shared memory, in their order. Returns how
// many there are. The whole warp comes here.
DEVICE int write_blocks(const list_view &l, int first, u32 to) {
  int word = first + thread_index() % 32;
  u32 held = thread_index() % 32 < LISTED_WORDS ? word_of(l, word) : 0;
  int upto = __popc(held);
#pragma unroll 1
  for (int away = 1; away < LISTED_WORDS; away *= 2) {
    int more = __shfl_sync(~0u, upto, max((int)(thread_index() % 32) - away, 0));
    if (thread_index() % 32 >= away) upto += more;
  }
  int all = __shfl_sync(~0u, upto, LISTED_WORDS - 1);
  to += (upto - __popc(held)) * 4;
  __syncwarp(); // the blocks before these have been read
#pragma unroll 1
  for (; held; held &= held - 1, to += 4) shared_set(to, word * 32 + __ffs(held) - 1);
  __syncwarp();
  return all;
}
