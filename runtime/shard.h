/* shard.h - a call that holds a part of a longer sequence. */
#ifndef DIL_RUNTIME_SHARD_H
#define DIL_RUNTIME_SHARD_H

#include "dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* Positions first, first + step, ...: the rows that a rank owns, or some of
 * them. */
typedef struct dil_comb {
  int64_t first, step, count; /* step >= 1 */
} dil_comb;

/* What a call holds of a longer sequence: its query rows stand at these
 * positions, its key rows at those; they need not overlap. */
typedef struct dil_part {
  dil_comb queries, keys;
  int64_t B, N, M;       /* of the whole */
  int32_t batch, head;   /* numbers in the whole of the call's first */
  /* The running state of the call's query rows, [states][B, N, H, Dv] and
   * [states][B, N, H]; see cpu_kernel_states. */
  float *o, *lse;
  int64_t apart;           /* > 0: o and lse of the call are kept up to date,
                              and only rows that others reach have a state, row
                              n at n / apart: N / apart of them, rounded up */
  int64_t longest;         /* M of the inputs' sizes, where a batch row is
                              shorter than the call has it; 0: M */
} dil_part;
static inline int64_t part_longest(const dil_part *p) {
  return p->longest ? p->longest : p->M;
}

#pragma GCC visibility pop
#endif
