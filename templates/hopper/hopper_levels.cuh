// hopper_levels.cuh - counting sorts of tiles by the number of their keys.
//
// In: a number of keys. Out: its level, of HOPPER_LEVELS. And in: how many tiles each
// level has. Out: how many tiles the levels before it have.
#pragma once

// Three bits behind the first one of the number, and the place of that one.
DEVICE int level_of(int keys) {
  int top = 31 - __clz(keys | 1);
  return keys < 8 ? keys : (top - 2) * 8 + (keys >> (top - 3) & 7);
}

// The sum of a number over the lanes of a warp, up to the caller's.
DEVICE int sum_of_lanes(int sum) {
  int lane = thread_index() % 32;
#pragma unroll
  for (int away = 1; away < 32; away *= 2) {
    int other = __shfl_sync(~0u, sum, max(lane - away, 0));
    if (lane >= away) sum += other;
  }
  return sum;
}

// One warp calls this.
DEVICE void begin_levels(int *count) {
  int lane = thread_index() % 32, sum = 0;
#pragma unroll 1
  for (int n = 0; n < HOPPER_LEVELS / 32; n++) sum += count[lane * 8 + n];
  int before = sum_of_lanes(sum) - sum;
#pragma unroll 1
  for (int n = 0; n < HOPPER_LEVELS / 32; n++) {
    int own = count[lane * 8 + n];
    count[lane * 8 + n] = before;
    before += own;
  }
  __syncwarp();
}
