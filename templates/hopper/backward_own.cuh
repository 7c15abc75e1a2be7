// backward_own.cuh - the roles of a thread block in which each consumer warpgroup has
// tiles for itself, and a producing warp.
//
// In: what a producing warp does for a warpgroup. Out: its stages and barriers.
#pragma once

DEVICE void init_barriers(u32 base) {
  const int readers = 4; // a warp each
  barrier_init(base + AT_QUERY_FULL, 1);
  barrier_init(base + AT_QUERY_EMPTY, readers);
  for (int i = 0; i < STAGES; i++) {
    barrier_init(base + AT_KEY_FULL + 8 * i, 1);
    barrier_init(base + AT_KEY_EMPTY + 8 * i, readers);
    barrier_init(base + AT_VALUE_FULL + 8 * i, 1);
    barrier_init(base + AT_VALUE_EMPTY + 8 * i, readers);
    barrier_init(base + AT_FACTS_FULL + 8 * i, 32);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Tells the consumers that no unit follows.
DEVICE void end_stream(u32 base, const ring<STAGES> &block) {
  u32 stage = block.stage();
  barrier_wait(base + AT_KEY_EMPTY + 8 * stage, block.phase() ^ 1);
  if (thread_index() % 32) return;
  shared_store(message_of(base, block.slot()), BLOCK_END | BLOCK_NEW, 0, 0, 0);
  barrier_arrive(base + AT_KEY_FULL + 8 * stage);
}

// `produce` is called with the address of a warpgroup's part of shared memory.
template <class producer>
DEVICE void run_own_tiles(const hopper_backward_launch &run, u32 base,
                          const producer &produce) {
  if (threadIdx.x < CONSUMERS) init_barriers(base + threadIdx.x * GROUP_BYTES);
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
        PRODUCER_REGISTERS));
    u32 warp = threadIdx.x / 32;
    if (warp < CONSUMERS) produce(base + warp * GROUP_BYTES);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
        CONSUMER_REGISTERS));
    consume(run, base + (threadIdx.x / 128 - 1) * GROUP_BYTES);
  }
}
