// hopper_single.cuh - values that are not finite, which weights of 0 must not
// multiply.
//
// In: a block's weights in registers, its values in shared memory. Out: the
// sums without the products of weight 0.
#pragma once

#include "templates/shared/ptx.cuh"

// Adds eight numbers times 0: halves of `sum` become NaN if some are not
// finite.
DEVICE void add_nothing(u32 &sum, int4 x) {
#if ELEMENT == 1
#define TIMES_ZERO "fma.rn.bf16x2 %0, %1, %2, %0;"
#else
#define TIMES_ZERO "fma.rn.f16x2 %0, %1, %2, %0;"
#endif
  asm(TIMES_ZERO : "+r"(sum) : "r"(x.x), "r"(0));
  asm(TIMES_ZERO : "+r"(sum) : "r"(x.y), "r"(0));
  asm(TIMES_ZERO : "+r"(sum) : "r"(x.z), "r"(0));
  asm(TIMES_ZERO : "+r"(sum) : "r"(x.w), "r"(0));
}

// Adds 0 times the values of a block's first `keys` keys: halves of the sum
// become NaN if some are not finite. Thread `from` of `threads` takes its share.
DEVICE u32 add_nothings(u32 values, int keys, int from, int threads) {
  u32 sum = 0;
#pragma unroll 1
  for (u32 end = values + VALUE_BYTES; values < end;
       values += TILE_KEYS * VALUE_CHUNK * 2)
#pragma unroll 4
    for (int i = from * 16; i < keys * VALUE_CHUNK * 2; i += threads * 16)
      add_nothing(sum, shared_load(values + i));
  return sum & 0x7fff7fff;
}

// Whether some value of a block's first `keys` keys is NaN or infinite. A
// weight of 0 times this value is NaN, and a sum keeps a NaN. The whole
// warpgroup calls this.
DEVICE bool has_bad_values(u32 values, int keys, int group) {
  u32 sum = add_nothings(values, keys, thread_index() % 128, 128), bad;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0;\n"
               "bar.red.or.pred q, %2, 128, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(bad)
               : "r"(sum), "r"(8 + group)
               : "memory");
  return bad;
}

DEVICE float low_half(u32 both) {
  return ELEMENT == 1 ? __uint_as_float(both << 16) : dil_from_f16(both);
}
DEVICE float high_half(u32 both) {
  return ELEMENT == 1 ? __uint_as_float(both & 0xffff0000)
                      : dil_from_f16(both >> 16);
}

// O += P V one key at a time, without the products of weight 0.
DEVICE void add_values_singly(float (&o)[VALUE_COLUMNS / 2],
                              const u32 (&p)[TILE_KEYS / 4], u32 values) {
  const int width = VALUE_CHUNK * 2;
  u32 lane = thread_index() % 32, c = lane % 4;
#pragma unroll 1
  for (u32 key = 0; key < TILE_KEYS; key++) {
    u32 mine0 = 0, mine1 = 0; // the key's weights, if this lane holds them
#pragma unroll
    for (int g = 0; g < TILE_KEYS / 8; g++) {
      u32 here = key / 8 == g ? ~0u : 0;
      mine0 |= here & p[2 * g];
      mine1 |= here & p[2 * g + 1];
    }
    u32 owner = (lane & ~3) | (key / 2 & 3);
    mine0 = __shfl_sync(~0u, mine0, owner);
    mine1 = __shfl_sync(~0u, mine1, owner);
    float w0 = key & 1 ? high_half(mine0) : low_half(mine0);
    float w1 = key & 1 ? high_half(mine1) : low_half(mine1);
    u32 row = values + key * width + c * 4;
    u32 swizzle = width == 128 ? key & 7 : key >> 1 & 3;
#pragma unroll
    for (int g = 0; g < VALUE_COLUMNS / 8; g++) {
      u32 unit = g % (VALUE_CHUNK / 8) ^ swizzle;
      u32 v = shared_word(row + g / (VALUE_CHUNK / 8) * (TILE_KEYS * width) +
                          unit * 16);
      if (w0 != 0) {
        o[4 * g] += w0 * low_half(v);
        o[4 * g + 1] += w0 * high_half(v);
      }
      if (w1 != 0) {
        o[4 * g + 2] += w1 * low_half(v);
        o[4 * g + 3] += w1 * high_half(v);
      }
    }
  }
}
