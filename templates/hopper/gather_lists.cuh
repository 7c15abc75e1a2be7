// gather_lists.cuh - what stands before and behind gather_forward: entries sorted by
// blocks of keys, with their tiles; and the sums of each row's entries.
//
// In: sorted lists of the blocks that rows chose, in the form CSR. Out: tiles and
// items; O and lse of every row.
#pragma once

// The keys of a batch row, and the position of its first query.
DEVICE int batch_keys(const gather_launch &run, int batch) {
  int keys = run.of.M;
  return run.of.lengths ? max(0, min(run.of.lengths[batch], keys)) : keys;
}
DEVICE int first_query(const gather_launch &run, int batch) {
  return batch_keys(run, batch) - run.of.N;
}

// The list of one line: positions, of which the last N are queries.
struct gather_list {
  const int *start, *entry;
  long long start_step, entry_step;
  int first; // the position of the first query; negative: it has no keys
};

DEVICE gather_list list_of(const gather_launch &run, int line) {
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

// ---- sorting ---------------------------------------------------------------

// The shared memory of gather_lists.
struct list_memory {
  int2 warp[GATHER_LIST_THREADS / 32];
  int count[1]; // entries of each block; then where the next one is placed
};

// Entries and tiles: those of the threads before this one, and of all.
struct scan_sums {
  int2 before, all;
};
DEVICE scan_sums scan(list_memory &memory, int2 own) {
  int lane = threadIdx.x % 32;
  int2 upto = own;
#pragma unroll
  for (int away = 1; away < 32; away *= 2) {
    int x = __shfl_sync(~0u, upto.x, lane - away);
    int y = __shfl_sync(~0u, upto.y, lane - away);
    if (lane >= away) upto.x += x, upto.y += y;
  }
  __syncthreads(); // the sums of the last scan have been read
  if (lane == 31) memory.warp[threadIdx.x / 32] = upto;
  __syncthreads();
  scan_sums sums = {{upto.x - own.x, upto.y - own.y}, {0, 0}};
#pragma unroll 1
  for (int w = 0; w < GATHER_LIST_THREADS / 32; w++) {
    int2 sum = memory.warp[w];
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
  for (int n = 0; n * TILE_ROWS < count; n++)
    to[n] = {block, first + n * TILE_ROWS, min(TILE_ROWS, count - n * TILE_ROWS), 0};
}

// Places where each block's entries begin, and makes its tiles.
DEVICE void place_blocks(const gather_launch &run, list_memory &memory,
                         gather_tile *tiles, int line) {
  int2 before = {0, 0};
#pragma unroll 1
  for (int from = 0; from < run.blocks; from += GATHER_LIST_THREADS) {
    int block = from + threadIdx.x;
    int own = block < run.blocks ? memory.count[block] : 0;
    scan_sums sums = scan(memory, {own, (own + TILE_ROWS - 1) / TILE_ROWS});
    if (block < run.blocks) {
      memory.count[block] = before.x + sums.before.x;
      write_tiles(tiles + before.y + sums.before.y, block, memory.count[block], own);
    }
    before.x += sums.all.x;
    before.y += sums.all.y;
  }
  if (threadIdx.x == 0) run.counts[line] = before.y;
}

// Counts the entries of a line by blocks of keys. `use(place, item)` is told the count
// of an entry's block before it.
template <class function>
DEVICE void count_entries(const gather_launch &run, list_memory &own,
                          const gather_list &list, function use) {
#pragma unroll 1
  for (int row = threadIdx.x; row < run.of.N; row += GATHER_LIST_THREADS) {
    entry_range of = entries_of(list, row);
#pragma unroll 1
    for (int e = of.first; e < of.end; e++)
      use(atomicAdd(&own.count[list.entry[e * list.entry_step]], 1), {row, e});
  }
}

// A line for each thread block: entries of each block of keys are counted, then placed.
extern "C" __global__ void __launch_bounds__(GATHER_LIST_THREADS)
    gather_lists(const __grid_constant__ gather_launch run) {
  extern __shared__ __align__(1024) unsigned char memory[];
  list_memory &own = *(list_memory *)memory;
  int line = blockIdx.x;
  gather_list list = list_of(run, line);
  gather_item *items = run.items + (long long)line * run.entry_room;
  for (int k = threadIdx.x; k < run.blocks; k += GATHER_LIST_THREADS)
    own.count[k] = 0;
  __syncthreads();
  count_entries(run, own, list, [](int, gather_item) {});
  __syncthreads();
  place_blocks(run, own, run.tiles + (long long)line * run.tile_room, line);
  __syncthreads();
  count_entries(run, own, list, [&](int place, gather_item x) { items[place] = x; });
}

// ---- adding up -------------------------------------------------------------

// Four neighbouring values of a row are a lane's own.
struct merge_sums {
  float peak, sum; // of the row
  float4 o;
};

DEVICE merge_sums add_entries(const gather_launch &run, const gather_end *ends,
                              const float *partial, entry_range own) {
  int column = threadIdx.x % 32 * 4;
  merge_sums m = {LOWEST, 0, make_float4(0, 0, 0, 0)};
#pragma unroll 1
  for (int e = own.first; e < own.end; e++) m.peak = fmaxf(m.peak, ends[e].peak);
#pragma unroll 2
  for (int e = own.first; e < own.end; e++) {
    gather_end end = ends[e];
    float weight = exp2_fast((end.peak - m.peak) * run.scale) * end.sum;
    if (weight == 0) continue; // the values of rows without keys are 0
    m.sum += weight;
    if (column >= VALUE_DIM) continue;
    float4 x = *(const float4 *)(partial + (long long)e * VALUE_DIM + column);
    m.o.x = fmaf(weight, x.x, m.o.x);
    m.o.y = fmaf(weight, x.y, m.o.y);
    m.o.z = fmaf(weight, x.z, m.o.z);
    m.o.w = fmaf(weight, x.w, m.o.w);
  }
  return m;
}

// A warp for each row of this launch's lines.
extern "C" __global__ void
gather_merge(const __grid_constant__ gather_launch run) {
  const float ln_2 = 0.69314718055994530942f;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (warp >= (long long)run.lines * run.of.N) return;
  int number = (int)(warp / run.of.N), row = (int)(warp % run.of.N);
  int line = run.first_line + number, batch = line / HEADS, head = line % HEADS;
  long long first = (long long)number * run.entry_room;
  int column = threadIdx.x % 32 * 4;
  merge_sums m = add_entries(run, run.ends + first, run.partial + first * VALUE_DIM,
                             entries_of(list_of(run, line), row));
  const long long *o = run.of.o_stride, *lse = run.of.lse_stride;
  float factor = m.sum == 0 ? 0 : __fdividef(run.of.weight, m.sum);
  if (run.of.lse && column == 0)
    run.of.lse[batch * lse[0] + row * lse[1] + head * lse[2]] =
        (m.peak * run.scale + log2_fast(m.sum)) * ln_2;
  if (column >= VALUE_DIM) return;
  unsigned short *to = (unsigned short *)run.of.o + batch * o[0] + row * o[1] +
                       head * o[2] + column;
  store_if(true, to, pack(m.o.x * factor, m.o.y * factor),
           pack(m.o.z * factor, m.o.w * factor));
}
