// wgmma.cuh - what products of warpgroups need beside their own instructions: names of
// element types in PTX, the registers of a fragment, descriptors, fences.
#ifndef DIL_TEMPLATES_SHARED_WGMMA_H
#define DIL_TEMPLATES_SHARED_WGMMA_H
#include "templates/shared/barrier.cuh"

#if ELEMENT == 1
#define MMA_TYPE "bf16.bf16"
#define PACK_TYPE "bf16x2"
#else
#define MMA_TYPE "f16.f16"
#define PACK_TYPE "f16x2"
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

// use(columns, last line of registers, the names of the operands behind them).
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

// A shuffle makes the descriptor uniform over the warp once, so that additions
// of constants stay in uniform registers. Descriptors built for each product
// cost a fifth of all instructions.
DEVICE u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }
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

#endif
