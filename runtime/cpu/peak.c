/* peak.c - what this processor is and how fast it multiplies and adds.
 *
 * In: the name of an instruction set. Out: the best rate that one core reaches
 * in this process, to compare kernels with: clocks float, so a rate from
 * another time or machine would not do. */
#include "peak.h"
#include "isa.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- loops of multiply-adds ---------------------------------------------- */

/* 14 independent sums hide the latency (at most 6 cycles, two a cycle); two
 * registers hold the factors, which are neither zero nor subnormal. */
static const uint32_t factors[2] = {0x3f173ea7, 0x3ec93f48};

enum { SUMS = 14 };
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
  static void function(int64_t turns) {                  \
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

#define HAS(what) __builtin_cpu_supports(what)
#define ISA_FUNCTIONS(join, id, name, processor, features, needs, vector, ...) \
  static bool present_##id(void) { return needs; }                             \
  LOOP(multiply_##id, vector, FMA)                                             \
  LOOP(dot_pairs_##id, vector, DOT)
CPU_ISAS(ISA_FUNCTIONS)

/* ---- which instruction sets ---------------------------------------------- */

typedef struct isa_row {
  const char *name;
  bool (*present)(void);
  int32_t width; /* floats in a vector register */
  bool dot_bf16;
  void (*multiply)(int64_t turns);   /* multiply-adds of f32 */
  void (*dot_pairs)(int64_t turns);  /* of bf16 pairs; only with dot_bf16 */
} isa_row;

#define ISA_ROW(join, id, name, processor, features, needs, vector, width,     \
                registers, key_block, value_block, scales_by_power, dot_bf16)  \
  {name, present_##id, width, dot_bf16, multiply_##id, dot_pairs_##id},

/* By strength: each holds the ones before it. */
static const isa_row isa_rows[] = {CPU_ISAS(ISA_ROW)};
enum { ISA_COUNT = sizeof isa_rows / sizeof *isa_rows };

/* Indices of isa_rows, -1 where there is none. */
static int host_level(void) {
  int level = -1;
  while (level + 1 < ISA_COUNT && isa_rows[level + 1].present()) level++;
  return level;
}

static int level_of(const char *isa) {
  int level = ISA_COUNT - 1;
  while (level >= 0 && strcmp(isa_rows[level].name, isa)) level--;
  return level;
}

const char *dil_host_isa(void) {
  int level = host_level();
  return level >= 0 ? isa_rows[level].name : NULL;
}

bool dil_isa_has_pairs(const char *isa) {
  int level = level_of(isa);
  return level >= 0 && isa_rows[level].dot_bf16;
}

bool dil_isa_usable(const char *isa) {
  const char *limit = getenv("DIL_CPU");
  int wanted = level_of(isa);
  return wanted >= 0 && wanted <= host_level() &&
         (!limit || wanted <= level_of(limit));
}

dil_status dil_isa_check(const char *isa) {
  if (!isa)
    return dil_fail(DIL_ENVIRONMENT, "this processor lacks " CPU_ISA_LEAST);
  int wanted = level_of(isa);
  if (wanted < 0)
    return dil_fail(DIL_USAGE,
                    "unknown instruction set '%s'; there are " CPU_ISA_NAMES,
                    isa);
  if (wanted <= host_level()) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "this processor has no %s", isa);
}

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

double dil_peak_flops(const char *isa, bool bf16, double seconds) {
  int level = level_of(isa);
  if (level < 0 || level > host_level()) return 0;
  const isa_row *row = &isa_rows[level];
  bool pairs = bf16 && row->dot_bf16;
  double rate = best_rate(pairs ? row->dot_pairs : row->multiply, seconds);
  return rate * SUMS * 2 * row->width * (pairs ? 2 : 1) * 1e-9;
}
