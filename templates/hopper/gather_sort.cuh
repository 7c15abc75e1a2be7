// gather_sort.cuh - the entries of lists of chosen blocks, sorted by blocks of keys.
//
// In: sorted lists of the blocks that rows chose, in the form CSR. Out: the items of
// each block, where they begin, and tiles of them. Three kernels count the entries of
// each block in some rows, place them, and write them. The order follows from the
// lists alone.
#pragma once

// The keys of a batch row, and the position of its first query.
DEVICE int batch_keys(const gather_call &run, int batch) {
  int keys = run.of.M;
  return run.of.lengths ? max(0, min(run.of.lengths[batch], keys)) : keys;
}
DEVICE int first_query(const gather_call &run, int batch) {
  return batch_keys(run, batch) - run.of.N;
}

// The list of one line: positions, of which the last N are queries.
struct gather_list {
  const int *start, *entry;
  long long start_step, entry_step;
  int first; // the position of the first query; negative: it has no keys
};

DEVICE gather_list list_of(const gather_call &run, int line) {
  const dil_device_input &rows = run.of.input[run.lists];
  const dil_device_input &cols = run.of.input[run.lists + 1];
  int batch = line / HEADS, head = line % HEADS;
  return {(const int *)rows.data + batch * rows.stride[0] + head * rows.stride[1],
          (const int *)cols.data + batch * cols.stride[0] + head * cols.stride[1],
          rows.stride[2], cols.stride[2], first_query(run, batch)};
}

// The entries of a query row: first..end-1.
struct entry_range {
  int first, end;
};
DEVICE entry_range entries_of(const gather_list &list, int row) {
  long long place = row + list.first;
  if (place < 0) return {0, 0};
  return {list.start[place * list.start_step],
          list.start[(place + 1) * list.start_step]};
}

// ---- counting --------------------------------------------------------------

// A warp's own rows of a line.
struct list_chunk {
  int line, number, first, end; // rows first..end-1
};
DEVICE bool find_chunk(const gather_call &run, list_chunk &c) {
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  c.line = run.first_line + warp / GATHER_CHUNKS;
  c.number = warp % GATHER_CHUNKS;
  c.first = c.number * run.chunk_rows;
  c.end = min(c.first + run.chunk_rows, run.of.N);
  return warp < run.lines * GATHER_CHUNKS;
}
DEVICE int *places_of(const gather_call &run, int line, int chunk) {
  return run.places + ((long long)line * GATHER_CHUNKS + chunk) * run.blocks;
}

// Calls use(block, item) for the entries of a chunk. All lanes call it together, with
// block -1 where they have none.
template <class function>
DEVICE void each_entry(const gather_call &run, const list_chunk &c, function use) {
  gather_list list = list_of(run, c.line);
#pragma unroll 1
  for (int first = c.first; first < c.end; first += GATHER_STEP) {
    int row = first + threadIdx.x % 32;
    entry_range of = {0, 0};
    if (row < c.end) of = entries_of(list, row);
#pragma unroll 1
    for (int e = of.first; __any_sync(~0u, e < of.end); e++)
      use(e < of.end ? list.entry[e * list.entry_step] : -1, gather_item{row, e});
  }
}

// A warp for each chunk: the entries of each block.
extern "C" __global__ void
gather_count(const __grid_constant__ gather_call run) {
  list_chunk c;
  if (!find_chunk(run, c)) return;
  int *count = places_of(run, c.line, c.number);
  for (int k = threadIdx.x % 32; k < run.blocks; k += 32) count[k] = 0;
  __syncwarp();
  each_entry(run, c, [&](int block, gather_item) {
    if (block >= 0) atomicAdd(&count[block], 1);
  });
}

// ---- placing ---------------------------------------------------------------

// Entries and tiles: those of the threads before this one, and of all.
struct scan_sums {
  int2 before, all;
};
DEVICE scan_sums scan(int2 *warps, int2 own) {
  int lane = threadIdx.x % 32;
  int2 upto = own;
#pragma unroll
  for (int away = 1; away < 32; away *= 2) {
    int x = __shfl_sync(~0u, upto.x, lane - away);
    int y = __shfl_sync(~0u, upto.y, lane - away);
    if (lane >= away) upto.x += x, upto.y += y;
  }
  __syncthreads(); // the sums of the last scan have been read
  if (lane == 31) warps[threadIdx.x / 32] = upto;
  __syncthreads();
  scan_sums sums = {{upto.x - own.x, upto.y - own.y}, {0, 0}};
#pragma unroll 1
  for (int w = 0; w < GATHER_PLACE_THREADS / 32; w++) {
    int2 sum = warps[w];
    bool before = w < threadIdx.x / 32;
    sums.before.x += before ? sum.x : 0;
    sums.before.y += before ? sum.y : 0;
    sums.all.x += sum.x;
    sums.all.y += sum.y;
  }
  return sums;
}

// The tiles of the `count` entries of a block, which begin at `first`.
DEVICE void write_tiles(gather_tile *to, int block, int first, int count) {
#pragma unroll 1
  for (int n = 0; n * GATHER_TILE_ROWS < count; n++)
    to[n] = {block, first + n * GATHER_TILE_ROWS,
             min(GATHER_TILE_ROWS, count - n * GATHER_TILE_ROWS), 0};
}

// The entries of a block in all chunks.
DEVICE int count_block(const gather_call &run, int line, int block) {
  int sum = 0;
#pragma unroll 8
  for (int c = 0; c < GATHER_CHUNKS; c++) sum += places_of(run, line, c)[block];
  return sum;
}

// The entries of a block begin at `place`, chunk after chunk.
DEVICE void place_block(const gather_call &run, int line, int block, int place) {
  run.starts[(long long)line * (run.blocks + 1) + block] = place;
#pragma unroll 8
  for (int c = 0; c < GATHER_CHUNKS; c++) {
    int *own = places_of(run, line, c) + block, count = *own;
    *own = place;
    place += count;
  }
}

// A line for each thread block.
extern "C" __global__ void __launch_bounds__(GATHER_PLACE_THREADS)
    gather_place(const __grid_constant__ gather_call run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int line = run.first_line + blockIdx.x;
  gather_tile *tiles = run.tiles + (long long)line * run.tile_room;
  int2 before = {0, 0};
#pragma unroll 1
  for (int from = 0; from < run.blocks; from += GATHER_PLACE_THREADS) {
    int block = from + threadIdx.x;
    int own = block < run.blocks ? count_block(run, line, block) : 0;
    int more = (own + GATHER_TILE_ROWS - 1) / GATHER_TILE_ROWS;
    scan_sums sums = scan((int2 *)memory, {own, more});
    int place = before.x + sums.before.x;
    if (block < run.blocks) {
      place_block(run, line, block, place);
      write_tiles(tiles + before.y + sums.before.y, block, place, own);
    }
    before.x += sums.all.x;
    before.y += sums.all.y;
  }
  if (threadIdx.x) return;
  run.starts[(long long)line * (run.blocks + 1) + run.blocks] = before.x;
  run.counts[line] = before.y;
}

// ---- writing ---------------------------------------------------------------

// The place of a lane's entry, among those of the warp that are of the same block.
DEVICE int take_place(int *places, int block) {
  u32 lane = threadIdx.x % 32, same = __match_any_sync(~0u, block);
  int rank = __popc(same & ((1u << lane) - 1));
  int place = block >= 0 ? places[block] + rank : -1;
  __syncwarp();
  if (block >= 0 && rank == 0) places[block] = place + __popc(same);
  __syncwarp();
  return place;
}

// A warp for each chunk.
extern "C" __global__ void
gather_items(const __grid_constant__ gather_call run) {
  list_chunk c;
  if (!find_chunk(run, c)) return;
  int *places = places_of(run, c.line, c.number);
  gather_item *items = run.items + (long long)c.line * run.entry_room;
  each_entry(run, c, [&](int block, gather_item x) {
    int place = take_place(places, block);
    if (place >= 0) items[place] = x;
  });
}
