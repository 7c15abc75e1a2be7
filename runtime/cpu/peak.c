/* peak.c - what this processor is and how fast it multiplies and adds.
 *
 * In: the name of an instruction set. Out: the best rate that one core reaches
 * in this process, to compare kernels with: clocks float, so a rate from
 * another time or machine would not do. */
#include "peak.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which instruction sets ---------------------------------------------- */

/* Each holds the ones before it. */
typedef enum level { LEVEL_NONE, LEVEL_AVX2, LEVEL_AVX512, LEVEL_BF16 } level;

static const char *const level_names[] = {
    [LEVEL_NONE] = NULL,
    [LEVEL_AVX2] = "avx2",
    [LEVEL_AVX512] = "avx512",
    [LEVEL_BF16] = "avx512bf16",
};

static level host_level(void) {
  if (!__builtin_cpu_supports("x86-64-v3")) return LEVEL_NONE;
  if (!__builtin_cpu_supports("x86-64-v4")) return LEVEL_AVX2;
  return __builtin_cpu_supports("avx512bf16") ? LEVEL_BF16 : LEVEL_AVX512;
}

const char *dil_host_isa(void) {
  return level_names[host_level()];
}

/* LEVEL_NONE: there is none of this name. */
static level level_of(const char *isa) {
  level l = LEVEL_BF16;
  while (l > LEVEL_NONE && strcmp(level_names[l], isa)) l--;
  return l;
}

bool dil_isa_usable(const char *isa) {
  const char *limit = getenv("DIL_CPU");
  level wanted = level_of(isa);
  return wanted != LEVEL_NONE && wanted <= host_level() &&
         (!limit || wanted <= level_of(limit));
}

dil_status dil_isa_check(const char *isa) {
  if (!isa)
    return dil_fail(DIL_ENVIRONMENT,
                    "this processor lacks AVX2, FMA or F16C");
  level wanted = level_of(isa);
  if (wanted == LEVEL_NONE)
    return dil_fail(DIL_USAGE, "unknown instruction set '%s'; there are avx2, "
                    "avx512 and avx512bf16", isa);
  if (wanted <= host_level()) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "this processor has no %s", isa);
}

/* ---- loops of multiply-adds ---------------------------------------------- */

/* 14 independent sums hide the latency (at most 6 cycles, two a cycle); two
 * registers hold the factors, which are neither zero nor subnormal. */
static const uint32_t factors[2] = {0x3f173ea7, 0x3ec93f48};

enum { SUMS = 14 };
#define EACH_SUM(X) \
  X("0") X("1") X("2") X("3") X("4") X("5") X("6") X("7") X("8") X("9") \
  X("10") X("11") X("12") X("13")
#define CLOBBERED \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
  "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc"

#define CLEAR(n) "vxorps %%xmm" n ", %%xmm" n ", %%xmm" n "\n\t"
#define FMA_YMM(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" n "\n\t"
#define FMA_ZMM(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" n "\n\t"
#define DOT_ZMM(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" n "\n\t"

#define LOOP(name, width, step)                          \
  static void name(int64_t turns) {                      \
    __asm__ volatile(                                    \
        "vbroadcastss %1, %%" width "14\n\t"             \
        "vbroadcastss %2, %%" width "15\n\t"             \
        EACH_SUM(CLEAR)                                  \
        ".p2align 5\n"                                   \
        "1:\n\t"                                         \
        EACH_SUM(step)                                   \
        "dec %0\n\t"                                     \
        "jnz 1b\n\t"                                     \
        "vzeroupper\n\t"                                 \
        : "+r"(turns)                                    \
        : "m"(factors[0]), "m"(factors[1])               \
        : CLOBBERED);                                    \
  }

LOOP(loop_ymm, "ymm", FMA_YMM)
LOOP(loop_zmm, "zmm", FMA_ZMM)
LOOP(loop_dot, "zmm", DOT_ZMM)

/* ---- measuring ----------------------------------------------------------- */

/* Turns a second, the best of rounds of about a millisecond each. */
static double best_rate(void (*loop)(int64_t), double seconds) {
  int64_t turns = 20000;
  double best = 0, start = clock_seconds(), before = start, end;
  do {
    loop(turns);
    end = clock_seconds();
    if (end > before) best = fmax(best, (double)turns / (end - before));
    if (end - before < 5e-4) turns *= 2;
    before = end;
  } while (end - start < seconds);
  return best;
}

typedef struct peak_row {
  level level;
  bool dot;     /* pairs of bf16 */
  void (*loop)(int64_t turns);
  double flops; /* a turn */
} peak_row;

static const peak_row peak_rows[] = {
    {LEVEL_AVX2, false, loop_ymm, SUMS * 2 * 8},
    {LEVEL_AVX512, false, loop_zmm, SUMS * 2 * 16},
    {LEVEL_BF16, false, loop_zmm, SUMS * 2 * 16},
    {LEVEL_BF16, true, loop_dot, SUMS * 4 * 16},
};

double dil_peak_flops(const char *isa, bool bf16, double seconds) {
  level host = host_level();
  bool dot = bf16 && !strcmp(isa, level_names[LEVEL_BF16]);
  for (size_t i = 0; i < sizeof peak_rows / sizeof *peak_rows; i++) {
    const peak_row *row = &peak_rows[i];
    if (row->level <= host && row->dot == dot &&
        !strcmp(level_names[row->level], isa))
      return best_rate(row->loop, seconds) * row->flops * 1e-9;
  }
  return 0;
}
