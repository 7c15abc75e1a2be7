// barrier.cuh - what kernels of sm_90 share: mbarriers (arrive, expect bytes, wait
// for a phase), named barriers, copies by the tensor copy engine.
#ifndef DIL_TEMPLATES_SHARED_BARRIER_H
#define DIL_TEMPLATES_SHARED_BARRIER_H

typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

DEVICE void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(count));
}
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   barrier),
               "r"(bytes)
               : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 phase) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra.uni done;\nbra.uni again;\ndone:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// Named barriers. named_barrier_sync arrives and waits until `threads` threads
// have arrived; named_barrier_arrive does not wait.
DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// TMA copies a box of rows of one (phase, head, batch row) into shared memory
// and completes the transaction on `barrier`. `keep` is the L2 eviction policy.
#define KEEP_LAST 0x14F0000000000000ull  // keys and values: read many times
#define KEEP_FIRST 0x12F0000000000000ull // queries: read once
DEVICE void load_box(u32 to, const void *map, u32 barrier, int column,
                     int row, int phase, int head, int batch, u64 keep) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::"
      "bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(
          to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(phase), "r"(head),
      "r"(batch), "l"(keep)
      : "memory");
}
// The same of `bytes` that lie side by side, a multiple of 16.
DEVICE void load_bytes(u32 to, const void *from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Makes earlier plain writes to shared memory visible to TMA and wgmma. Plain reads of
// what TMA copied end here, too: without it an arrival behind them may overtake them.
DEVICE void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders the memory operations of a thread, and those that it has met before, with
// those of other thread blocks. __threadfence() orders all threads alike, for longer.
DEVICE void device_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds to a counter, and returns what it was.
DEVICE u32 count_up(unsigned *counter, unsigned by = 1) {
  u32 before;
  asm volatile("atom.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(by)
               : "memory");
  return before;
}

// Four floats that another block may have written, past the first cache.
DEVICE float4 load_fresh(const float *from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

#endif
