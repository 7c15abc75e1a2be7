// hopper_lists.cuh - lists of kept blocks: how a call makes them, and how the
// planner and the consumers read them.
//
// In: conditions on blocks (dil_listed), the launch's memory for lists. Out: a
// bit for each pair of a query block and a key block; what a list says of a box
// of pairs; which of a thread's pairs it keeps.
#pragma once

#include "templates/hopper/hopper_make_lists.cuh"

// ---- making ----------------------------------------------------------------

// Makes all lists of a launch, a row a warp.
DEVICE void make_lists(const hopper_launch &run) {
  int warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
  int warps = grid_size() * (THREADS / 32);
#pragma unroll 1
  for (int list = 0; list < LISTS; list++) {
    const hopper_block_list &to = run.lists[list];
    int rows = to.rows * to.heads * to.batches;
#pragma unroll 1
    for (int n = warp; n < rows; n += warps) {
      int batch = n / (to.rows * to.heads), head = n / to.rows % to.heads;
      dil_pair at = pair_at(run, batch, head, away_of(&run, batch));
      make_list_row(to, list, run.keys, at, batch, head, to.low + n % to.rows);
    }
  }
}

// ---- reading ---------------------------------------------------------------

DEVICE const unsigned *list_row(const hopper_launch &run, int list,
                                const dil_pair &at, int block) {
  const hopper_block_list &from = run.lists[list];
  return from.bits + (at.b - run.batch) * from.batch +
         (at.h - run.head) * from.head +
         (long long)(block - from.low) * from.words;
}

// Whether the list holds all pairs of a box of positions, some, or none.
DEVICE int cover_list(const hopper_launch &run, int list, dil_range rows,
                      dil_range keys, const dil_pair &at) {
  const dil_list_row &form = dil_lists[list];
  int first = keys.low / form.block, last = keys.high / form.block;
  u32 some = 0, missing = 0;
#pragma unroll 1
  for (int block = dil_div(rows.low, form.query_block);
       block <= dil_div(rows.high, form.query_block); block++) {
    const unsigned *row = list_row(run, list, at, block);
#pragma unroll 1
    for (int word = first / 32; word <= last / 32; word++) {
      u32 asked = ~0u;
      if (word == first / 32) asked &= ~0u << first % 32;
      if (word == last / 32) asked &= ~0u >> (31 - last % 32);
      u32 held = row[word];
      some |= held & asked;
      missing |= ~held & asked;
    }
  }
  return !some ? DIL_EMPTY : missing ? DIL_PARTIAL : DIL_FULL;
}

// Bit n: the list holds the pair of query block `block` and key block `key + n`.
DEVICE u32 list_word(const hopper_launch &run, int list, const dil_pair &at,
                     int block, int key) {
  const hopper_block_list &from = run.lists[list];
  const unsigned *row =
      list_row(run, list, at, min(block, from.low + from.rows - 1));
  int word = key / 32;
  u32 low = word < from.words ? row[word] : 0;
  u32 high = word + 1 < from.words ? row[word + 1] : 0;
  return (u32)(((u64)high << 32 | low) >> key % 32);
}

// Whether the list holds the pair of two blocks.
DEVICE u32 list_bit(const hopper_launch &run, int list, const dil_pair &at,
                    int block, int key) {
  int most = run.lists[list].low + run.lists[list].rows - 1;
  return list_row(run, list, at, min(block, most))[key / 32] >> key % 32 & 1;
}

// Which pairs of a block of keys the list keeps, for the thread's rows at x.i.
// `visible`: keys of the block that there are. Usually one bit tells. Otherwise
// the threads look at few bits, which their caches hold.
DEVICE dil_bits list_bits(const hopper_launch &run, int list,
                          const dil_block &x, int visible, const dil_pair &at) {
  const dil_list_row &form = dil_lists[list];
  int end = x.j + visible - 1, column = x.j + (thread_index() & 3) * 2;
  int block = dil_div(x.i[0], form.query_block), key = x.j / form.block;
  bool one = key == end / form.block &&
             block == dil_div(x.i[1], form.query_block);
  if (__all_sync(~0u, one))
    return bits_all(list_bit(run, list, at, block, key));
  dil_bits bits = {{0, 0}};
#pragma unroll 1
  for (int n = 0; n < TILE_KEYS / 4; n++) {
    int bit = 8 * (n >> 1 & 3) + 2 * (n >> 3) + (n & 1);
    key = min(column + 8 * (n >> 1) + (n & 1), end) / form.block;
    bits.row[0] |=
        list_bit(run, list, at, dil_div(x.i[0], form.query_block), key) << bit;
    bits.row[1] |=
        list_bit(run, list, at, dil_div(x.i[1], form.query_block), key) << bit;
  }
  return bits;
}
