/* multiply.c - loops of multiply-adds on x86-64, for the peak of a core: one of
 * f32 and one of bf16 pairs for each instruction set. */
#include "x86.h"

/* 14 independent sums hide the latency (at most 6 cycles, two a cycle); two
 * registers hold the factors, which are neither zero nor subnormal. */
static const uint32_t factors[2] = {0x3f173ea7, 0x3ec93f48};

#define EACH_SUM(X, vector) \
  X("0", vector) X("1", vector) X("2", vector) X("3", vector) X("4", vector) \
  X("5", vector) X("6", vector) X("7", vector) X("8", vector) X("9", vector) \
  X("10", vector) X("11", vector) X("12", vector) X("13", vector)
#define CLOBBERED \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
  "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc"

#define CLEAR(n, vector) "vxorps %%xmm" n ", %%xmm" n ", %%xmm" n "\n\t"
#define FMA(n, vector) \
  "vfmadd231ps %%" vector "14, %%" vector "15, %%" vector n "\n\t"
#define DOT(n, vector) \
  "vdpbf16ps %%" vector "14, %%" vector "15, %%" vector n "\n\t"

#define LOOP(function, vector, step)                     \
  void function(int64_t turns) {                         \
    __asm__ volatile(                                    \
        "vbroadcastss %1, %%" vector "14\n\t"            \
        "vbroadcastss %2, %%" vector "15\n\t"            \
        EACH_SUM(CLEAR, vector)                          \
        ".p2align 5\n"                                   \
        "1:\n\t"                                         \
        EACH_SUM(step, vector)                           \
        "dec %0\n\t"                                     \
        "jnz 1b\n\t"                                     \
        "vzeroupper\n\t"                                 \
        : "+r"(turns)                                    \
        : "m"(factors[0]), "m"(factors[1])               \
        : CLOBBERED);                                    \
  }

#define ISA_FUNCTIONS(join, id, name, processor, features, needs, vector, ...) \
  LOOP(x86_multiply_##id, vector, FMA)                                         \
  LOOP(x86_dot_pairs_##id, vector, DOT)
CPU_ISAS(ISA_FUNCTIONS)

void x86_multiply_tiles(int64_t turns) {
  static const uint8_t config[64] __attribute__((aligned(64))) = {
      [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
      [26] = 64, [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16};
  __asm__ volatile(
      "ldtilecfg %1\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
      "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t"
      ".p2align 5\n"
      "1:\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\n\t"
      "tdpbf16ps %%tmm5, %%tmm4, %%tmm3\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "tilerelease\n\t"
      : "+r"(turns)
      : "m"(config)
      : "memory", "cc");
}
