// hopper_mma.cuh - warpgroup matrix products (wgmma): S = Q K^T and O += P V.
//
// In: tiles in swizzled shared memory, weights in registers. Out: f32
// fragments. Element 4 g + e of a thread stands in row 16 warp + lane / 4 + 8
// (e / 2), column 8 g + 2 (lane % 4) + e % 2. Only the shapes that the kernel
// needs are instantiated.
#pragma once
#include "templates/shared/wgmma.cuh"

// Columns of heads that products take: a multiple of 16, where rows in memory are as wide
// as a multiple of 32.
#ifndef HEAD_COLUMNS
#define HEAD_COLUMNS HEAD_WIDTH
#define VALUE_COLUMNS VALUE_WIDTH
#endif

// A tile is stored in chunks of CHUNK columns: 64, or 32 if 64 does not divide
// the width. A chunk is [rows][CHUNK], swizzled over its 128 or 64 bytes. The
// high word of a matrix descriptor encodes this layout. The low word holds the
// address and the distance between chunks, in units of 16 bytes.
#define DESCRIPTOR_HIGH(bytes) ((bytes) == 128 ? 0x40000040u : 0x80000020u)

// S = Q K^T is one asm statement, because compilers spend many instructions on
// the operands of separate ones. One wgmma multiplies 16 columns. The `next`
// columns lie 32 bytes further on, or in the next chunk (`jump`).
#define KEY_PRODUCT(N, line, high, add)                                    \
  "mov.b64 a, {q, " high "};\nmov.b64 b, {k, " high "};\n"                 \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." MMA_TYPE               \
  " {" NAMES_##line "}, a, b, " add ", 1, 1, 0, 0;\n"
#define KEY_STEP(q, k) "add.s32 q, q, " q ";\nadd.s32 k, k, " k ";\n"
#define KEYS_16(first, next, jump) first
#define KEYS_32(first, next, jump) first next
#define KEYS_48(first, next, jump) first next next
#define KEYS_64(first, next, jump) first next next next
#define KEYS_80(first, next, jump) first next jump next jump
#define KEYS_96(first, next, jump) first next jump next jump next
#define KEYS_112(first, next, jump) KEYS_64(first, next, jump) jump next next
#define KEYS_128(first, next, jump) \
  KEYS_64(first, next, jump) jump next next next
#define KEYS_144(first, next, jump) KEYS_96(first, next, jump) jump next jump
#define KEYS_160(first, next, jump) \
  KEYS_96(first, next, jump) jump next jump next
#define KEYS_176(first, next, jump) KEYS_128(first, next, jump) jump next next
#define KEYS_192(first, next, jump) \
  KEYS_128(first, next, jump) jump next next next
#define KEYS_208(first, next, jump) KEYS_160(first, next, jump) jump next jump
#define KEYS_224(first, next, jump) \
  KEYS_160(first, next, jump) jump next jump next
#define KEYS_240(first, next, jump) KEYS_192(first, next, jump) jump next next
#define KEYS_256(first, next, jump) \
  KEYS_192(first, next, jump) jump next next next
#define KEYS_OF(width, first, next, jump) KEYS_##width(first, next, jump)
#define KEYS(width, first, next, jump) KEYS_OF(width, first, next, jump)

// S = Q K^T over `width` columns in chunks of `chunk`, for one width N of S: the
// last line of its registers, and the names of the operands after them.
#define KEY_FUNCTION(name, width, chunk, N, line, x0, x1, x2, x3, x4)      \
  DEVICE void name(float(&d)[N / 2], u32 q, u32 k) {                       \
    asm volatile(                                                          \
        "{.reg .b32 q, k;\n.reg .b64 a, b;\n"                              \
        "mov.b32 q, " x0 ";\nmov.b32 k, " x1 ";\n"                         \
        KEYS(width, KEY_PRODUCT(N, line, x2, "0"),                         \
             KEY_STEP("2", "2") KEY_PRODUCT(N, line, x2, "1"),             \
             KEY_STEP(x3, x4) KEY_PRODUCT(N, line, x2, "1"))               \
        "}"                                                                \
        : TIED_##line                                                      \
        : "r"(q), "r"(k), "r"(DESCRIPTOR_HIGH(chunk * 2)),                 \
          "n"(chunk * 8 - (chunk / 16 - 1) * 2),                           \
          "n"(chunk / 8 * N - (chunk / 16 - 1) * 2));                      \
  }
// Both kinds of product for one width N. Gradients also have dP = dO V^T.
#define PRODUCTS(N, line, x0, x1, x2, x3, x4)                              \
  KEY_FUNCTION(mma_keys, HEAD_COLUMNS, CHUNK, N, line, x0, x1, x2, x3, x4)   \
  DEVICE void mma_weights(float(&d)[N / 2], const u32 *a, u64 b) {         \
    asm volatile(                                                          \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." MMA_TYPE         \
        " {" NAMES_##line "}, {" x0 "," x1 "," x2 "," x3 "}, " x4          \
        ", 1, 1, 1, 1;\n"                                                  \
        : TIED_##line                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));             \
  }
#define VALUE_PRODUCT(N, line, x0, x1, x2, x3, x4) \
  KEY_FUNCTION(mma_values, VALUE_COLUMNS, VALUE_CHUNK, N, line, x0, x1, x2, x3, x4)
INSTANTIATE_WIDTH(TILE_KEYS, PRODUCTS)
#if VALUE_COLUMNS != TILE_KEYS
INSTANTIATE_WIDTH(VALUE_COLUMNS, PRODUCTS)
#endif
#if BACKWARD
INSTANTIATE_WIDTH(TILE_KEYS, VALUE_PRODUCT)
#if HEAD_COLUMNS != VALUE_COLUMNS && HEAD_COLUMNS != TILE_KEYS
INSTANTIATE_WIDTH(HEAD_COLUMNS, PRODUCTS)
#endif
#endif

DEVICE u32 descriptor_low(u32 address, u32 chunk_bytes) {
  return uniform(address >> 4 | chunk_bytes >> 4 << 16);
}
DEVICE u32 pack(float low, float high) {
  u32 both;
  asm("cvt.rn." PACK_TYPE ".f32 %0, %1, %2;"
      : "=r"(both)
      : "f"(high), "f"(low));
  return both;
}

// S = Q K^T over one warpgroup's 64 queries.
DEVICE void multiply_keys(float (&s)[TILE_KEYS / 2], u32 q, u32 k) {
  mma_fence();
  mma_keys(s, q, k);
  mma_commit();
}

// O += P V. Calls `before_last` before it issues the last two products.
template <class function>
DEVICE void multiply_values(float (&o)[VALUE_COLUMNS / 2],
                            u32 (&p)[TILE_KEYS / 4], u32 v,
                            function before_last) {
  const u32 high = DESCRIPTOR_HIGH(VALUE_CHUNK * 2);
  mma_fence();
#pragma unroll
  for (int i = 0; i < TILE_KEYS / 16; i++) {
    if (i + 2 == TILE_KEYS / 16) before_last();
    mma_weights(o, p + 4 * i, descriptor(v + i * VALUE_CHUNK * 2, high));
  }
  mma_commit();
}
DEVICE void multiply_values(float (&o)[VALUE_COLUMNS / 2],
                            u32 (&p)[TILE_KEYS / 4], u32 v) {
  multiply_values(o, p, v, [] {});
}
