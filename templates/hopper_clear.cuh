// hopper_clear.cuh - rows that no branch selects: O is 0, lse -infinity.
//
// In: the launch. Most of them form classes of their own, which a warp of the
// producing warpgroup clears while the others compute; hopper_clear is a kernel
// for those that are in no class. State that other passes left stands as it is.
#pragma once

DEVICE void clear_tile(const hopper_launch &run, const tile &x, int stride) {
  int lane = threadIdx.x % 32;
  const int units = VALUE_DIM / 8, together = 32 / units; // of 16 bytes; rows
  int n = x.position - run.first;
  int head = run.members[x.member].head;
  char *to = (char *)run.o_data +
             2 * (x.batch * run.o_batch + head * run.o_head +
                  (n + lane / units * stride) * run.o_row + lane % units * 8);
  long long step = 2 * together * stride * run.o_row;
  int rows = lane < together * units ? x.rows - lane / units : 0;
#pragma unroll 4
  for (; rows > 0; rows -= together, to += step)
    *(int4 *)to = make_int4(0, 0, 0, 0);
  if (!run.lse) return;
  float *lse = run.lse + x.batch * run.lse_batch + head * run.lse_head;
  for (int row = lane; row < x.rows; row += 32)
    lse[(n + row * stride) * run.lse_row] = MINUS_INFINITY;
}

// By the last warp of the producing warpgroup, dealt out in turn.
DEVICE void clear_rows(const hopper_launch &run) {
  for (int t = blockIdx.x; t < run.bare_tiles; t += gridDim.x) {
    tile x;
    if (!tile_find(&run, t, run.class_count - run.bare_count, run.bare_count,
                   0, &x) ||
        run.members[x.member].finish)
      continue;
    clear_tile(run, x, run.classes[x.klass].stride);
  }
}

// The other rows without keys: those before position 0, where nothing has
// segments, and all but one residue modulo `but`. A warp a row.
extern "C" __global__ void __launch_bounds__(256)
    hopper_clear(const __grid_constant__ hopper_launch run) {
  long long rows = (long long)run.batches * run.queries * run.member_count;
  long long at = blockIdx.x * 8 + threadIdx.x / 32;
  for (; at < rows; at += gridDim.x * 8) {
    tile x;
    x.member = at % run.member_count;
    long long row = at / run.member_count;
    x.batch = (int)(row / run.queries);
    x.position = (int)(row % run.queries) + run.first;
    x.rows = 1;
    const hopper_member &m = run.members[x.member];
    int base = base_of(&run, x.position);
    bool bare = x.position < 0 && run.early;
    if (run.but && !bare)
      bare = first_from(x.position, base + m.shift, run.but) != x.position;
    if (bare && !m.home && !m.finish) clear_tile(run, x, 1);
  }
}
