/* chip.h - what emulated kernels are compiled with, in C++ on the host: the
 * words of CUDA C, the functions that a kernel calls, and one function for each
 * PTX instruction, by its whole name. What threads do together, and what
 * happens later, is done by the emulator (warp.c, async.c, group.c). */
#pragma once

/* ---- the words ------------------------------------------------------------ */

#define __device__
#define __host__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static const
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __restrict__
#define __CUDACC_RTC__ 1

typedef __SIZE_TYPE__ size_t;
struct chip_index { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z,
                               unsigned w) {
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

/* ---- the emulator ----------------------------------------------------------- */

#define CHIP_TYPES
extern "C" {
#include "chip_calls.h"
}
#define threadIdx (chip_now->thread)
#define blockIdx (chip_now->block)
#define blockDim (chip_now->threads)
#define gridDim (chip_now->grid)

static inline size_t __cvta_generic_to_shared(const void *p) {
  return chip_shared_address(p);
}

/* ---- bits and numbers --------------------------------------------------------- */

static inline float __uint_as_float(unsigned x) {
  return __builtin_bit_cast(float, x);
}
static inline float __int_as_float(int x) {
  return __builtin_bit_cast(float, x);
}
static inline unsigned __float_as_uint(float x) {
  return __builtin_bit_cast(unsigned, x);
}
static inline int __float_as_int(float x) {
  return __builtin_bit_cast(int, x);
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline int __float2int_rd(float x) {
  x = __builtin_floorf(x);
  return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1
                                                               : (int)x;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
#define CHIP_MATH(name) \
  extern "C" double name(double); \
  extern "C" float name##f(float);
CHIP_MATH(floor) CHIP_MATH(ceil) CHIP_MATH(fabs) CHIP_MATH(sqrt)
CHIP_MATH(exp) CHIP_MATH(exp2) CHIP_MATH(expm1) CHIP_MATH(log)
CHIP_MATH(log2) CHIP_MATH(log1p) CHIP_MATH(sin) CHIP_MATH(cos)
CHIP_MATH(tanh) CHIP_MATH(erf) CHIP_MATH(rint) CHIP_MATH(trunc)
#define CHIP_MATH2(name)                   \
  extern "C" double name(double, double); \
  extern "C" float name##f(float, float);
CHIP_MATH2(pow) CHIP_MATH2(fmod) CHIP_MATH2(fmax) CHIP_MATH2(fmin)
CHIP_MATH2(copysign)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
extern "C" int abs(int);
/* Threads of a block never run at once, nor do blocks. Atomics of two threads need
 * no order: check.c hears nothing of them. */
#define CHIP_ATOMIC __attribute__((noinline, no_sanitize("thread")))
template <class T> CHIP_ATOMIC static T atomicAdd(T *to, T more) {
  T was = *to;
  *to = was + more;
  return was;
}
template <class T> CHIP_ATOMIC static T atomicOr(T *to, T more) {
  T was = *to;
  *to = was | more;
  return was;
}
template <class T> CHIP_ATOMIC static T atomicMax(T *to, T other) {
  T was = *to;
  *to = was > other ? was : other;
  return was;
}
template <class A, class B> static inline auto min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B> static inline auto max(A a, B b) {
  return a > b ? a : b;
}
/* What is less than a normal number is 0. */
static inline float chip_flush(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
}

/* ---- together --------------------------------------------------------------- */

static inline void __syncthreads() { chip_barrier(0, chip_now->threads.x, 0); }
static inline int __syncthreads_or(int x) {
  return chip_barrier(0, chip_now->threads.x, x != 0);
}
static inline void __threadfence() {}
static inline void ptx_fence_acq_rel_gpu() {}
static inline void __syncwarp(unsigned mask = ~0u) {
  chip_ballot(CHIP_SYNC, mask, 0);
}
template <class T>
static inline T __shfl_sync(unsigned mask, T x, int lane) {
  constexpr int words = sizeof(T) / 4;
  static_assert(sizeof(T) == 4 * words, "whole words a lane");
  struct { unsigned x[words]; } bits = __builtin_bit_cast(decltype(bits), x);
  for (int i = 0; i < words; i++)
    bits.x[i] = chip_shuffle(mask, bits.x[i], lane);
  return __builtin_bit_cast(T, bits);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int away) {
  return __shfl_sync(mask, x, (int)(chip_now->thread.x % 32) ^ away);
}
static inline unsigned __ballot_sync(unsigned mask, int x) {
  return chip_ballot(CHIP_BALLOT, mask, x != 0);
}
static inline int __any_sync(unsigned mask, int x) {
  return chip_ballot(CHIP_BALLOT, mask, x != 0) != 0;
}
static inline int __all_sync(unsigned mask, int x) {
  return chip_ballot(CHIP_BALLOT, mask, x == 0) == 0;
}
static inline unsigned __match_any_sync(unsigned mask, long long x) {
  return chip_ballot(CHIP_MATCH, mask, (unsigned)x) &
         chip_ballot(CHIP_MATCH, mask, (unsigned)(x >> 32));
}
static inline int __reduce_min_sync(unsigned mask, int x) {
  return (int)chip_ballot(CHIP_MIN, mask, (unsigned)x);
}
static inline int __reduce_max_sync(unsigned mask, int x) {
  return ~__reduce_min_sync(mask, ~x);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return (unsigned)__reduce_max_sync(mask, (int)(x ^ 1u << 31)) ^ 1u << 31;
}
static inline int __reduce_add_sync(unsigned mask, int x) {
  int sum = 0;
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) sum += (int)chip_shuffle(mask, (unsigned)x, lane);
  return sum;
}

/* ---- what PTX is made of ------------------------------------------------------ */

static inline unsigned ptx_in_r(unsigned x) { return x; }
static inline int ptx_in_n(int x) { return x; }
static inline unsigned short ptx_in_h(unsigned short x) { return x; }
static inline float ptx_in_f(float x) { return x; }
static inline unsigned long long ptx_in_l(const void *x) {
  return (unsigned long long)x;
}
static inline unsigned long long ptx_in_l(unsigned long long x) { return x; }
struct ptx_nothing { };
static const ptx_nothing ptx_none;
static inline unsigned ptx_special_tid_x() { return chip_now->thread.x; }
static inline unsigned ptx_special_nctaid_x() { return chip_now->grid.x; }

template <class T, int N> struct ptx_group { T *at[N]; };
template <class T, class... R>
static inline auto ptx_list(T &first, R &...rest) {
  return ptx_group<T, 1 + sizeof...(rest)>{{&first, &rest...}};
}

#define PTX template <class D> static inline void
#define PTX2(name, type)                                                     \
  template <class D>                                                         \
  static inline void name(D &d, type a, type b)

/* ---- numbers ------------------------------------------------------------------ */

static inline void ptx_mul_f32(float &d, float a, float b) { d = a * b; }
PTX ptx_ex2_approx_ftz_f32(D &d, float x) {
  d = chip_flush(__builtin_exp2f(chip_flush(x)));
}
PTX ptx_rcp_approx_ftz_f32(D &d, float x) {
  d = chip_flush(1 / chip_flush(x));
}
PTX ptx_lg2_approx_ftz_f32(D &d, float x) {
  d = __builtin_log2f(chip_flush(x));
}
PTX ptx_cvt_f32_f16(D &d, unsigned short x) {
  d = (float)__builtin_bit_cast(_Float16, x);
}
static inline unsigned chip_bf16(float x) {
  unsigned u = __float_as_uint(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline unsigned chip_f16(float x) {
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}
static inline float chip_from_bf16(unsigned x) {
  return __uint_as_float(x << 16);
}
static inline float chip_from_f16(unsigned x) {
  return (float)__builtin_bit_cast(_Float16, (unsigned short)x);
}
PTX ptx_cvt_rn_bf16x2_f32(D &d, float high, float low) {
  d = chip_bf16(low) | chip_bf16(high) << 16;
}
PTX ptx_cvt_rn_f16x2_f32(D &d, float high, float low) {
  d = chip_f16(low) | chip_f16(high) << 16;
}
PTX ptx_cvt_rna_tf32_f32(D &d, unsigned x) {
  d = (x & 0x7f800000) == 0x7f800000 ? x : (x + 0x1000) & 0xffffe000;
}
PTX ptx_fma_rn_bf16x2(D &d, unsigned a, unsigned b, unsigned c) {
  unsigned low = chip_bf16(chip_from_bf16(a) * chip_from_bf16(b) +
                           chip_from_bf16(c));
  d = low | chip_bf16(chip_from_bf16(a >> 16) * chip_from_bf16(b >> 16) +
                      chip_from_bf16(c >> 16)) << 16;
}
PTX ptx_fma_rn_f16x2(D &d, unsigned a, unsigned b, unsigned c) {
  unsigned low = chip_f16(chip_from_f16(a) * chip_from_f16(b) +
                          chip_from_f16(c));
  d = low | chip_f16(chip_from_f16(a >> 16) * chip_from_f16(b >> 16) +
                     chip_from_f16(c >> 16)) << 16;
}
/* A NaN on either side stays NaN. */
static inline float chip_min(float a, float b) {
  return a != a || b != b ? a + b : a < b ? a : b;
}
static inline float chip_max(float a, float b) { return -chip_min(-a, -b); }
PTX ptx_min_NaN_f32(D &d, float a, float b) { d = chip_min(a, b); }
PTX ptx_max_NaN_f32(D &d, float a, float b) { d = chip_max(a, b); }
#define PTX_EXTREME(name, of)                                                  \
  PTX ptx_##name##_NaN_##of##x2(D &d, unsigned a, unsigned b) {                \
    d = chip_##of(chip_##name(chip_from_##of(a), chip_from_##of(b))) |         \
        chip_##of(chip_##name(chip_from_##of(a >> 16),                         \
                              chip_from_##of(b >> 16)))                        \
            << 16;                                                             \
  }
PTX_EXTREME(min, bf16) PTX_EXTREME(max, bf16)
PTX_EXTREME(min, f16) PTX_EXTREME(max, f16)
PTX ptx_mov_u32(D &d, unsigned x) { d = x; }
PTX ptx_mov_b32(D &d, unsigned x) { d = x; }
PTX ptx_add_s32(D &d, int a, int b) { d = a + b; }
PTX ptx_shr_b32(D &d, unsigned x, unsigned by) {
  d = (D)(by < 32 ? x >> by : 0);
}
PTX ptx_mov_b64(D &d, ptx_group<unsigned, 2> x) {
  d = *x.at[0] | (unsigned long long)*x.at[1] << 32;
}
static inline void ptx_setp_ne_b32(bool &d, unsigned a, unsigned b) {
  d = a != b;
}
static inline void ptx_setp_lt_u32(bool &d, unsigned a, unsigned b) {
  d = a < b;
}
static inline void ptx_setp_ne_u32(bool &d, unsigned a, unsigned b) {
  d = a != b;
}
PTX ptx_selp_u32(D &d, unsigned a, unsigned b, bool p) { d = p ? a : b; }

/* ---- memory ------------------------------------------------------------------- */

static inline void ptx_cp_async_cg_shared_global(unsigned to,
                                                 unsigned long long from,
                                                 int size, unsigned given) {
  chip_copy(to, (const void *)from, size, (int)given);
}
static inline void ptx_cp_async_commit_group() { chip_copy_commit(); }
static inline void ptx_cp_async_wait_group(int left) { chip_copy_wait(left); }

template <class D>
static inline void ptx_ld_shared_v4_b32(ptx_group<D, 4> d, unsigned from) {
  unsigned x[4];
  chip_shared_read(from, x, 16);
  for (int i = 0; i < 4; i++) *d.at[i] = (D)x[i];
}
static inline void ptx_ld_shared_v2_f32(ptx_group<float, 2> d, unsigned from) {
  float x[2];
  chip_shared_read(from, x, 8);
  for (int i = 0; i < 2; i++) *d.at[i] = x[i];
}
static inline void ptx_ld_global_cg_v4_f32(ptx_group<float, 4> d,
                                           unsigned long long from) {
  float x[4];
  chip_fresh_read((const void *)from, x, 16);
  for (int i = 0; i < 4; i++) *d.at[i] = x[i];
}
PTX ptx_ld_shared_b32(D &d, unsigned from) {
  unsigned x;
  chip_shared_read(from, &x, 4);
  d = (D)x;
}
static inline void ptx_st_shared_b32(unsigned to, unsigned x) {
  chip_shared_write(to, &x, 4);
}
static inline void ptx_st_shared_v4_b32(unsigned to, ptx_group<unsigned, 4> x) {
  unsigned all[4] = {*x.at[0], *x.at[1], *x.at[2], *x.at[3]};
  chip_shared_write(to, all, 16);
}
static inline void ptx_st_global_v2_b32(unsigned long long to,
                                        ptx_group<unsigned, 2> x) {
  unsigned *at = (unsigned *)to;
  at[0] = *x.at[0];
  at[1] = *x.at[1];
}
static inline void ptx_red_global_add_v2_f32(unsigned long long to,
                                             ptx_group<float, 2> x) {
  if (to % 8) __builtin_trap();
  for (int i = 0; i < 2; i++) ((float *)to)[i] += *x.at[i];
}
static inline void ptx_red_global_add_v4_f32(unsigned long long to,
                                             ptx_group<float, 4> x) {
  if (to % 16) __builtin_trap();
  for (int i = 0; i < 4; i++) ((float *)to)[i] += *x.at[i];
}
static inline void ptx_red_shared_add_u32(unsigned at, unsigned x) {
  chip_shared_add(at, x);
}
PTX ptx_ld_volatile_shared_u32(D &d, unsigned from) {
  unsigned x;
  chip_shared_read(from, &x, 4);
  d = (D)x;
}
static inline void ptx_nanosleep_u32(unsigned) { chip_pause(); }
PTX ptx_atom_global_add_u32(D &d, unsigned long long at, unsigned x) {
  d = chip_global_add((void *)at, x);
}
#define PTX_LDMATRIX(suffix, turned)                                          \
  template <class D>                                                          \
  static inline void ptx_ldmatrix_sync_aligned_m8n8_x4_##suffix##shared_b16(  \
      ptx_group<D, 4> d, unsigned from) {                                     \
    unsigned x[4];                                                            \
    chip_load_matrices(from, turned, x);                                      \
    for (int i = 0; i < 4; i++) *d.at[i] = x[i];                              \
  }
PTX_LDMATRIX(, 0)
PTX_LDMATRIX(trans_, 1)
static inline void ptx_stmatrix_sync_aligned_m8n8_x4_shared_b16(
    unsigned to, ptx_group<unsigned, 4> x) {
  unsigned all[4] = {*x.at[0], *x.at[1], *x.at[2], *x.at[3]};
  chip_store_matrices(to, all);
}

/* ---- products ------------------------------------------------------------------ */

#define PTX_MMA(name, depth, type)                                            \
  template <class D, class C>                                                 \
  static inline void ptx_mma_sync_aligned_##name(                             \
      ptx_group<D, 4> d, ptx_group<unsigned, 4> a, ptx_group<unsigned, 2> b,  \
      ptx_group<C, 4> c) {                                                    \
    float sum[4] = {*c.at[0], *c.at[1], *c.at[2], *c.at[3]};                  \
    unsigned x[6] = {*a.at[0], *a.at[1], *a.at[2],                            \
                     *a.at[3], *b.at[0], *b.at[1]};                           \
    chip_multiply(type, sum, x);                                              \
    for (int i = 0; i < 4; i++) *d.at[i] = sum[i];                            \
  }
PTX_MMA(m16n8k16_row_col_f32_bf16_bf16_f32, 16, CHIP_BF16)
PTX_MMA(m16n8k16_row_col_f32_f16_f16_f32, 16, CHIP_F16)
PTX_MMA(m16n8k8_row_col_f32_tf32_tf32_f32, 8, CHIP_TF32)

#include "chip_hopper.h"
