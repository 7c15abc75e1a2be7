/* peak.h - the instruction sets of this processor and their speed. */
#ifndef DIL_RUNTIME_CPU_PEAK_H
#define DIL_RUNTIME_CPU_PEAK_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* "amx", "avx512bf16", "avx512" or "avx2", the quickest of this processor; NULL when it
 * lacks AVX2, FMA or F16C. */
const char *dil_host_isa(void);
/* Returns whether this processor has `isa` and DIL_CPU, where that is set,
 * names it or one that holds it: a limit for kernels of libraries. */
bool dil_isa_usable(const char *isa);
/* Returns whether a kernel made for `isa` is quick here: where pairs of bf16 take
 * longer than f32, code without them is to be preferred, unless DIL_CPU names it. */
bool dil_isa_is_quick(const char *isa);
/* DIL_USAGE: there is no such instruction set; DIL_ENVIRONMENT: this processor
 * has not got it, or (isa NULL) has none of them. */
dil_status dil_isa_check(const char *isa);
/* Returns whether it multiplies bf16 in pairs; false where there is no such
 * set. */
bool dil_isa_has_pairs(const char *isa);
/* Returns whether it multiplies them by tiles. */
bool dil_isa_has_tiles(const char *isa);
/* GFLOP/s of multiply-adds (two operations) that one core reaches from
 * registers, the best round within about `seconds`; with bf16 those of bf16 pairs or
 * of tiles, where the set has them, else of f32. 0: this host does not know `isa`. */
double dil_peak_flops(const char *isa, bool bf16, double seconds);

#pragma GCC visibility pop
#endif
