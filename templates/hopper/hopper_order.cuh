// hopper_order.cuh - tiles in the order of their lists, longest first.
//
// In: the lists of a launch, which an earlier launch has made. Out: for each
// section its tiles, sorted by level. A level stands for lengths that differ by an
// eighth at most; tiles of one level keep their order. A counting sort by one warp
// of each section makes it, so that the order is always the same.
#pragma once

#include "templates/hopper/hopper_levels.cuh"

// The keys of the blocks that a list keeps for some row of a tile, among the blocks
// of a run of keys. The whole warp calls this.
DEVICE int listed_keys(const hopper_launch &run, int list, const tile &x,
                       const key_run &keys, const dil_pair &at) {
  const dil_list_row &form = dil_lists[list];
  int first = keys.position / form.block;
  int last = (keys.position + keys.count - 1) / form.block;
  int top = dil_div(x.position, form.query_block);
  int bottom = dil_div(x.position + x.rows - 1, form.query_block), blocks = 0;
#pragma unroll 1
  for (int word = first / 32 + thread_index() % 32; word <= last / 32;
       word += 32) {
    u32 held = 0, asked = ~0u;
    if (word == first / 32) asked &= ~0u << first % 32;
    if (word == last / 32) asked &= ~0u >> (31 - last % 32);
#pragma unroll 1
    for (int block = top; block <= bottom; block++)
      held |= list_row(run, list, at, block)[word];
    blocks += __popc(held & asked);
  }
#pragma unroll
  for (int away = 16; away; away /= 2)
    blocks += __shfl_xor_sync(~0u, blocks, away);
  return blocks * form.block;
}

// The keys that a tile reads, as far as lists tell.
DEVICE int keys_of_tile(const hopper_launch &run, const tile &x) {
  const hopper_class &k = run.classes[x.klass];
  int all = 0;
#pragma unroll 1
  for (int i = 0; i < k.ranges; i++) {
    const hopper_key_range &range = run.ranges[k.range + i];
    key_run keys = keys_of(&run, &x, &range);
    int list = range.predicates ? dil_list_of[__ffs(range.predicates) - 1] : -1;
    if (!keys.count) continue;
    bool alone = !(range.predicates & (range.predicates - 1));
    dil_pair at =
        pair_at(run, x.batch, run.instances[x.instance].head, x.away);
    all += list >= 0 && alone ? listed_keys(run, list, x, keys, at) : keys.count;
  }
  return all;
}

// Makes the levels of all tiles, a tile a warp.
DEVICE void make_levels(const hopper_launch &run) {
  int warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
#pragma unroll 1
  for (int t = warp; t < run.tiles; t += grid_size() * (THREADS / 32)) {
    tile x;
    bool some = tile_find(&run, t % run.section_tiles, 0, run.class_count,
                          t / run.section_tiles, &x);
    int level = some ? level_of(keys_of_tile(run, x)) : 0;
    if (thread_index() % 32 == 0)
      run.levels[t] = (unsigned char)(HOPPER_LEVELS - 1 - level);
  }
}

// Counts the tiles of a section by level, or with `places` puts them there.
DEVICE void sort_section(const hopper_launch &run, const unsigned char *levels,
                         int from, int tiles, bool places, int *count) {
  int lane = thread_index() % 32;
#pragma unroll 1
  for (int first = 0; first < tiles; first += 32) {
    bool there = first + lane < tiles;
    int level = there ? levels[first + lane] : -1;
    u32 same = __match_any_sync(~0u, level);
    int rank = __popc(same & ((1u << lane) - 1));
    int place = there ? count[level] + rank : 0;
    __syncwarp();
    if (there && rank == 0) count[level] += __popc(same);
    if (there && places) run.order[from + place] = first + lane;
    __syncwarp();
  }
}

// The levels of a section, in shared memory where there is room: one warp reads them
// twice, and memory would answer it late. The whole thread block calls this.
DEVICE const unsigned char *near_levels(const hopper_launch &run, int from,
                                        int tiles, unsigned char *room) {
  if (tiles > SHARED_BYTES - HOPPER_LEVELS * (int)sizeof(int))
    return run.levels + from;
  for (int n = threadIdx.x; n < tiles; n += THREADS)
    room[n] = run.levels[from + n];
  return room;
}

// Sorts the tiles of all sections, a section a thread block.
DEVICE void make_order(const hopper_launch &run, int *count) {
#pragma unroll 1
  for (int from = blockIdx.x * run.section_tiles; from < run.tiles;
       from += grid_size() * run.section_tiles) {
    int tiles = min(run.section_tiles, run.tiles - from);
    const unsigned char *levels = near_levels(
        run, from, tiles, (unsigned char *)(count + HOPPER_LEVELS));
    for (int n = threadIdx.x; n < HOPPER_LEVELS; n += THREADS) count[n] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
      sort_section(run, levels, from, tiles, false, count);
      begin_levels(count);
      sort_section(run, levels, from, tiles, true, count);
    }
    __syncthreads();
  }
}
