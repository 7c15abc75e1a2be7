// peak.cu - measures how fast this device multiplies at most. The kernel does
// nothing but products of the element that an attention kernel uses, out of
// shared memory or registers.
//
// A multiprocessor holds two blocks: of 128 threads on Hopper (wgmma), of 256
// before it (mma.sync). The operands are random and finite: on zeros the chip
// runs faster than on anything that people multiply.

#ifndef ELEMENT
#define ELEMENT 1        // 0 tf32, 1 bf16, 2 f16
#endif
#ifndef HOPPER
#define HOPPER 1
#endif

struct peak_launch {
  float *never;          // NULL; keeps the sums alive
  int rounds;
};
static_assert(sizeof(peak_launch) == 16, "as runtime/cuda/peak.c has it");

extern __shared__ __align__(1024) unsigned shared_words[];

// Random bits with exponents about 1: -2 .. -1 and 1 .. 2.
__device__ __forceinline__ unsigned random_words(unsigned x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
#if ELEMENT == 0
  return (x & 0x807FE000u) | 0x3F800000u;
#elif ELEMENT == 1
  return (x & 0x807F807Fu) | 0x3F803F80u;
#else
  return (x & 0x83FF83FFu) | 0x3C003C00u;
#endif
}

#if HOPPER
#define TILE_KEYS 256
#define HEAD_WIDTH 64
#define VALUE_WIDTH 256
#define CHUNK 64
#define VALUE_CHUNK 64
#include "templates/hopper/hopper_launch.h"
#include "templates/hopper/hopper_async.cuh"
#include "templates/hopper/hopper_mma.cuh"

#define PEAK_THREADS 128
#define WORDS ((64 + 256) * 128 / 4) // rows of 128 bytes of both operands

#if ELEMENT == 0
DEVICE void products(float (&d)[128], u32 a, u32 b) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32"
                 " {" NAMES_15 "}, %128, %129, 1, 1, 1;\n"
                 : TIED_15
                 : "l"(descriptor(a + 2 * i, DESCRIPTOR_HIGH(128))),
                   "l"(descriptor(b + 2 * i, DESCRIPTOR_HIGH(128))));
}
#else
DEVICE void products(float (&d)[128], u32 a, u32 b) { mma_keys(d, a, b); }
#endif

DEVICE float multiply(int rounds) {
  u32 base = shared_address(shared_words);
  u32 a = descriptor_low(base, 0), b = descriptor_low(base + 64 * 128, 0);
  float d[128] = {0};
#pragma unroll 1
  for (int i = 0; i < rounds; i++) {
    mma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) products(d, a, b);
    mma_commit();
    mma_wait<0>();
  }
  float sum = 0;
  for (int i = 0; i < 128; i++) sum += d[i];
  return sum;
}
#else
#define PEAK_THREADS 256
#define WORDS 1

#if ELEMENT == 0
#define PRODUCT "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif ELEMENT == 1
#define PRODUCT "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define PRODUCT "m16n8k16.row.col.f32.f16.f16.f32"
#endif

__device__ __forceinline__ float multiply(int rounds) {
  unsigned x[6];
  float d[8][4] = {};
  for (int i = 0; i < 6; i++) x[i] = random_words(threadIdx.x * 6 + i);
#pragma unroll 1
  for (int i = 0; i < rounds; i++)
#pragma unroll
    for (int k = 0; k < 16; k++) {
      float *s = d[k % 8];
      asm volatile("mma.sync.aligned." PRODUCT
                   " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                   : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]),
                     "r"(x[5]));
    }
  float sum = 0;
  for (int i = 0; i < 32; i++) sum += d[i / 4][i % 4];
  return sum;
}
#endif

extern "C" __global__ void __launch_bounds__(PEAK_THREADS, 2)
    dil_peak(const __grid_constant__ peak_launch p) {
#if HOPPER
  for (int i = threadIdx.x; i < WORDS; i += PEAK_THREADS)
    shared_words[i] = random_words(i);
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
  __syncthreads();
  float sum = multiply(p.rounds);
  if (p.never) p.never[threadIdx.x] = sum;
}
