/* chip_hopper.h - the instructions of sm_90a: mbarriers, tensor copies, products
 * of warpgroups. */
#pragma once

static inline void ptx_mbarrier_init_shared__cta_b64(unsigned at,
                                                     unsigned count) {
  chip_mbarrier_init(at, count);
}
static inline void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(
    ptx_nothing, unsigned at, unsigned bytes) {
  chip_mbarrier_arrive(at, bytes);
}
static inline void ptx_mbarrier_arrive_shared__cta_b64(ptx_nothing,
                                                       unsigned at) {
  chip_mbarrier_arrive(at, 0);
}
static inline void ptx_mbarrier_try_wait_parity_shared__cta_b64(
    bool &done, unsigned at, unsigned parity) {
  done = chip_mbarrier_wait(at, parity);
}
static inline void ptx_bar_sync(unsigned number, unsigned threads) {
  chip_barrier(number, threads, 0);
}
static inline void ptx_bar_arrive(unsigned number, unsigned threads) {
  chip_barrier_arrive(number, threads);
}
static inline void ptx_bar_red_or_pred(bool &some, unsigned number,
                                       unsigned threads, bool mine) {
  some = chip_barrier(number, threads, mine);
}

/* Names of several levels become one with __ between them. */
#define PTX_BOX_LOAD                                                       \
  ptx_cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint
static inline void PTX_BOX_LOAD(unsigned to, unsigned long long map,
                                ptx_group<unsigned, 5> x, unsigned mbarrier,
                                unsigned long long) {
  int at[5];
  for (int i = 0; i < 5; i++) at[i] = (int)*x.at[i];
  chip_box_load(to, (const void *)map, at, mbarrier);
}
static inline void
ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(
    unsigned to, unsigned long long from, unsigned bytes, unsigned mbarrier) {
  chip_bulk_load(to, (const void *)from, bytes, mbarrier);
}
static inline void ptx_cp_async_bulk_tensor_5d_global_shared__cta_bulk_group(
    unsigned long long map, ptx_group<unsigned, 5> x, unsigned from) {
  int at[5];
  for (int i = 0; i < 5; i++) at[i] = (int)*x.at[i];
  chip_box_store((const void *)map, at, from);
}
static inline void ptx_cp_async_bulk_commit_group() { chip_box_commit(); }
static inline void ptx_cp_async_bulk_wait_group(int left) {
  chip_box_wait(left, 0);
}
static inline void ptx_cp_async_bulk_wait_group_read(int left) {
  chip_box_wait(left, 1);
}
static inline void ptx_fence_proxy_async_shared__cta() { chip_fence_proxy(); }
static inline void ptx_fence_proxy_async() { chip_fence_proxy(); }
static inline void ptx_fence_mbarrier_init_release_cluster() {}
static inline void ptx_setmaxnreg_dec_sync_aligned_u32(int count) {
  chip_registers(count, 0);
}
static inline void ptx_setmaxnreg_inc_sync_aligned_u32(int count) {
  chip_registers(count, 1);
}

/* ---- products of warpgroups --------------------------------------------------- */

/* The fragment must be an array: the sums are written when they are ready. */
template <int N>
static inline float *chip_fragment(const ptx_group<float, N> &d) {
  for (int i = 1; i < N; i++)
    if (d.at[i] != d.at[0] + i) __builtin_trap();
  return d.at[0];
}
/* What follows the operands: p, scale-a, scale-b, and where both operands are
 * in shared memory transpose-a, transpose-b; else transpose-b alone. */
template <int N>
static inline void chip_wgmma(int type, ptx_group<float, N> d,
                              unsigned long long a, unsigned long long b,
                              int add, int, int, int a_turned, int turned) {
  chip_group_multiply(type, 2 * N, chip_fragment(d), nullptr, a, b, add,
                      turned | a_turned << 1);
}
template <int N>
static inline void chip_wgmma(int type, ptx_group<float, N> d,
                              ptx_group<unsigned, 4> a, unsigned long long b,
                              int add, int, int, int turned) {
  unsigned x[4] = {*a.at[0], *a.at[1], *a.at[2], *a.at[3]};
  chip_group_multiply(type, 2 * N, chip_fragment(d), x, 0, b, add, turned);
}
#define PTX_WGMMA(N)                                                        \
  template <class... X>                                                     \
  static inline void                                                        \
      ptx_wgmma_mma_async_sync_aligned_m64n##N##k16_f32_bf16_bf16(X... x) { \
    chip_wgmma<N / 2>(CHIP_BF16, x...);                                     \
  }                                                                         \
  template <class... X>                                                     \
  static inline void                                                        \
      ptx_wgmma_mma_async_sync_aligned_m64n##N##k16_f32_f16_f16(X... x) {   \
    chip_wgmma<N / 2>(CHIP_F16, x...);                                      \
  }
PTX_WGMMA(16) PTX_WGMMA(32) PTX_WGMMA(48) PTX_WGMMA(64) PTX_WGMMA(80)
PTX_WGMMA(96) PTX_WGMMA(112) PTX_WGMMA(128) PTX_WGMMA(144) PTX_WGMMA(160)
PTX_WGMMA(176) PTX_WGMMA(192) PTX_WGMMA(208) PTX_WGMMA(224) PTX_WGMMA(240)
PTX_WGMMA(256)
static inline void ptx_wgmma_fence_sync_aligned() { chip_group_fence(); }
static inline void ptx_wgmma_commit_group_sync_aligned() {
  chip_group_commit();
}
static inline void ptx_wgmma_wait_group_sync_aligned(int left) {
  chip_group_wait(left);
}
