// hopper_mma.cuh - warpgroup matrix products (wgmma): S = Q K^T and O += P V.
//
// In: tiles in swizzled shared memory, weights in registers. Out: f32
// fragments. Element 4 g + e of a thread stands in row 16 warp + lane / 4 + 8
// (e / 2), column 8 g + 2 (lane % 4) + e % 2. Only the shapes that the kernel
// needs are instantiated.
#pragma once

#if ELEMENT == 1
#define MMA_TYPE "bf16.bf16"
#define PACK_TYPE "bf16x2"
#else
#define MMA_TYPE "f16.f16"
#define PACK_TYPE "f16x2"
#endif

// Columns of heads that products take: a multiple of 16, where rows in memory are as wide
// as a multiple of 32.
#ifndef HEAD_COLUMNS
#define HEAD_COLUMNS HEAD_WIDTH
#define VALUE_COLUMNS VALUE_WIDTH
#endif

// The registers of a fragment, eight for each line: their names and operands.
#define NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_1 NAMES_0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_2 NAMES_1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_3 NAMES_2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_4 NAMES_3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_5 NAMES_4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_6 NAMES_5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define NAMES_7 NAMES_6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_8 NAMES_7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define NAMES_9 NAMES_8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES_10 NAMES_9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define NAMES_11 NAMES_10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_12 NAMES_11 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define NAMES_13 NAMES_12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define NAMES_14 NAMES_13 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define NAMES_15 NAMES_14 ",%120,%121,%122,%123,%124,%125,%126,%127"

#define EIGHT(i)                                                        \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]),               \
      "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), "+f"(d[8 * i + 5]),       \
      "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define TIED_0 EIGHT(0)
#define TIED_1 TIED_0, EIGHT(1)
#define TIED_2 TIED_1, EIGHT(2)
#define TIED_3 TIED_2, EIGHT(3)
#define TIED_4 TIED_3, EIGHT(4)
#define TIED_5 TIED_4, EIGHT(5)
#define TIED_6 TIED_5, EIGHT(6)
#define TIED_7 TIED_6, EIGHT(7)
#define TIED_8 TIED_7, EIGHT(8)
#define TIED_9 TIED_8, EIGHT(9)
#define TIED_10 TIED_9, EIGHT(10)
#define TIED_11 TIED_10, EIGHT(11)
#define TIED_12 TIED_11, EIGHT(12)
#define TIED_13 TIED_12, EIGHT(13)
#define TIED_14 TIED_13, EIGHT(14)
#define TIED_15 TIED_14, EIGHT(15)

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
#define SIZE_16(use) use(16, 0, "%8", "%9", "%10", "%11", "%12")
#define SIZE_32(use) use(32, 1, "%16", "%17", "%18", "%19", "%20")
#define SIZE_48(use) use(48, 2, "%24", "%25", "%26", "%27", "%28")
#define SIZE_64(use) use(64, 3, "%32", "%33", "%34", "%35", "%36")
#define SIZE_80(use) use(80, 4, "%40", "%41", "%42", "%43", "%44")
#define SIZE_96(use) use(96, 5, "%48", "%49", "%50", "%51", "%52")
#define SIZE_112(use) use(112, 6, "%56", "%57", "%58", "%59", "%60")
#define SIZE_128(use) use(128, 7, "%64", "%65", "%66", "%67", "%68")
#define SIZE_144(use) use(144, 8, "%72", "%73", "%74", "%75", "%76")
#define SIZE_160(use) use(160, 9, "%80", "%81", "%82", "%83", "%84")
#define SIZE_176(use) use(176, 10, "%88", "%89", "%90", "%91", "%92")
#define SIZE_192(use) use(192, 11, "%96", "%97", "%98", "%99", "%100")
#define SIZE_208(use) use(208, 12, "%104", "%105", "%106", "%107", "%108")
#define SIZE_224(use) use(224, 13, "%112", "%113", "%114", "%115", "%116")
#define SIZE_240(use) use(240, 14, "%120", "%121", "%122", "%123", "%124")
#define SIZE_256(use) use(256, 15, "%128", "%129", "%130", "%131", "%132")
#define INSTANTIATE(N, use) SIZE_##N(use)
#define INSTANTIATE_WIDTH(N, use) INSTANTIATE(N, use)

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

// A shuffle makes the descriptor uniform over the warp once, so that additions
// of constants stay in uniform registers. Descriptors built for each product
// cost a fifth of all instructions.
DEVICE u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }
DEVICE u32 descriptor_low(u32 address, u32 chunk_bytes) {
  return uniform(address >> 4 | chunk_bytes >> 4 << 16);
}
DEVICE u64 descriptor(u32 low, u32 high) {
  u64 both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}

DEVICE void mma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending> DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Stops the compiler from moving uses of a fragment across this point, and from
// using its registers for other values before it.
template <int count> DEVICE void settle(float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int count> DEVICE void settle(u32 (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+r"(x[i])::"memory");
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
