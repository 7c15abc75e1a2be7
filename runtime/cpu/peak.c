/* peak.c - what this processor is and how fast it multiplies and adds.
 *
 * In: the name of an instruction set. Out: the best rate that one core reaches
 * in this process, to compare kernels with: clocks float, so a rate from
 * another time or machine would not do. */
#include "peak.h"
#include "isa.h"
#include "runtime/arch.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which instruction sets ---------------------------------------------- */

/* Indices of dil_host_arch.isas, -1 where there is none. */
static int isa_host_level(void) {
  int level = -1;
  while (level + 1 < dil_host_arch.isa_count &&
         dil_host_arch.isas[level + 1].present())
    level++;
  return level;
}

static int isa_level(const char *isa) {
  int level = dil_host_arch.isa_count - 1;
  while (level >= 0 && strcmp(dil_host_arch.isas[level].name, isa)) level--;
  return level;
}

static bool isa_is_slow(int level) {
  const arch_isa *row = &dil_host_arch.isas[level];
  return row->slow && row->slow();
}

const char *dil_host_isa(void) {
  int level = isa_host_level();
  while (level > 0 && isa_is_slow(level)) level--;
  return level >= 0 ? dil_host_arch.isas[level].name : NULL;
}

bool dil_isa_has_pairs(const char *isa) {
  int level = isa_level(isa);
  return level >= 0 && dil_host_arch.isas[level].dot_bf16;
}

bool dil_isa_has_tiles(const char *isa) {
  int level = isa_level(isa);
  return level >= 0 && dil_host_arch.isas[level].tiles;
}

bool dil_isa_usable(const char *isa) {
  const char *limit = getenv("DIL_CPU");
  int wanted = isa_level(isa);
  return wanted >= 0 && wanted <= isa_host_level() &&
         (!limit || wanted <= isa_level(limit));
}

bool dil_isa_is_quick(const char *isa) {
  const char *limit = getenv("DIL_CPU");
  int level = isa_level(isa);
  if (limit && !strcmp(limit, isa)) return true;
  return level >= 0 && !isa_is_slow(level);
}

dil_status dil_isa_check(const char *isa) {
  if (!isa)
    return dil_fail(DIL_ENVIRONMENT, "this processor lacks " CPU_ISA_LEAST);
  int wanted = isa_level(isa);
  if (wanted < 0)
    return dil_fail(DIL_USAGE,
                    "unknown instruction set '%s'; there are " CPU_ISA_NAMES,
                    isa);
  if (wanted <= isa_host_level()) return DIL_OK;
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
  int level = isa_level(isa);
  if (level < 0 || level > isa_host_level()) return 0;
  const arch_isa *row = &dil_host_arch.isas[level];
  bool pairs = bf16 && row->dot_bf16;
  double rate = best_rate(pairs ? row->dot_pairs : row->multiply, seconds);
  int32_t operations =
      pairs ? row->pair_operations : dil_host_arch.peak_sums * 2 * row->width;
  return rate * operations * 1e-9;
}
