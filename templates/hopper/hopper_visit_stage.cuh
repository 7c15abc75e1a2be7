// hopper_visit_stage.cuh - what kernels that visit blocks (hopper_visit.cuh) have in
// shared memory behind their tiles: mbarriers of 8 bytes, and what a warp found of the
// values. In: AT_BARRIERS, where it begins, stages of queries and of blocks, and who
// fills a stage of queries. Out: its offsets, SHARED_BYTES, barriers, checked values.
#pragma once

#ifndef READERS
#define READERS WARPGROUPS   // warpgroups that free a stage
#endif
#ifndef CHECKING_WARP
#define CHECKING_WARP 1      // a warp of the producers looks at values
#endif
#define AT_QUERY_FULL AT_BARRIERS
#define AT_QUERY_EMPTY (AT_QUERY_FULL + QUERY_STAGES * 8)
#define AT_KEY_FULL (AT_QUERY_EMPTY + QUERY_STAGES * 8)
#define AT_KEY_EMPTY (AT_KEY_FULL + STAGES * 8)
#define AT_VALUE_FULL (AT_KEY_EMPTY + STAGES * 8)
#define AT_VALUE_EMPTY (AT_VALUE_FULL + STAGES * 8)
#define AT_CHECKED (AT_VALUE_EMPTY + STAGES * 8) // values have been looked at
#define AT_BAD (AT_CHECKED + STAGES * 8)         // and some are not finite
#define SHARED_BYTES (AT_BAD + STAGES * 4)
static_assert(SHARED_BYTES <= 232448, "tiles do not fit shared memory");

#include "templates/hopper/hopper_ring.cuh"
#include "templates/hopper/hopper_single.cuh"

// `fillers`: threads that arrive when a stage of queries is full.
DEVICE void init_barriers(u32 base, int fillers) {
  for (int i = 0; i < QUERY_STAGES; i++) {
    barrier_init(base + AT_QUERY_FULL + 8 * i, fillers);
    barrier_init(base + AT_QUERY_EMPTY + 8 * i, READERS);
  }
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, 1);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, READERS);
    barrier_init(base + AT_VALUE_FULL + 8 * i, 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, READERS);
    barrier_init(base + AT_CHECKED + 8 * i, 1);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// A warp looks at a block of values when it has arrived, and says so.
DEVICE void check_block(u32 base, const ring<STAGES> &block) {
  u32 stage = block.stage(), lane = thread_index() % 32;
  barrier_wait(base + AT_VALUE_FULL + 8 * stage, block.phase());
  u32 values = base + AT_VALUE + stage * VALUE_BYTES;
  bool bad = __any_sync(~0u, add_nothings(values, TILE_KEYS, lane, 32) != 0);
  if (lane == 0) {
    shared_set(base + AT_BAD + 4 * stage, bad);
    barrier_arrive(base + AT_CHECKED + 8 * stage);
  }
  __syncwarp();
}
