/* random.h - random numbers by their index. */
#ifndef DIL_RUNTIME_BASE_RANDOM_H
#define DIL_RUNTIME_BASE_RANDOM_H

#include "runtime/call.h"

#pragma GCC visibility push(default)

/* Philox 4x32-10 (Salmon et al., SC 2011). */
void dil_philox(const uint32_t counter[4], const uint32_t key[2],
                uint32_t out[4]);
/* Element e of tensor n: a standard normal by Box-Muller of Philox with
 * counter (e low, e high, 0, 0) and key (seed, n), rounded to f32: that is what
 * GPUs make, and narrower types are rounded from it everywhere. */
double dil_normal(uint32_t seed, uint32_t tensor, uint64_t element);
/* `count` elements from `start` on of a call's q, k or v that has no data, as
 * the tensor would store them. */
void dil_normal_row(const dil_call *call, const dil_tensor *tensor,
                    int64_t start, int64_t count, double *to);

#pragma GCC visibility pop
#endif
