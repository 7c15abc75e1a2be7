/* shard.h - a shard: a call that holds some rows of a longer sequence. */
#ifndef DIL_RUNTIME_SHARD_H
#define DIL_RUNTIME_SHARD_H

#include "dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* Positions first, first + step, ...: the rows that a rank owns, or some of
 * them. */
typedef struct dil_progression {
  int64_t first, step, count; /* step >= 1 */
} dil_progression;

/* The query rows and the key rows of a call stand at these positions of a
 * longer sequence; the two need not overlap. */
typedef struct dil_shard {
  dil_progression queries, keys;
  int64_t B, N, M;       /* sizes of the whole sequence */
  int32_t batch, head;   /* the call's first one, counted in the whole */
  /* The running state of the call's query rows, [states][B, N, H, Dv] and
   * [states][B, N, H]; see cpu_kernel_states. */
  float *o, *lse;
  int64_t state_stride;    /* > 0: o and lse of the call are kept up to date,
                              and only rows that other keys reach have a state:
                              row n has state n / state_stride, of
                              N / state_stride states, rounded up */
  /* Backward: o and lse are states as cpu_kernel_begin and _advance leave them,
   * where a branch has a softmax or a delta of its own; else NULL. `inputs` has
   * sums of the gradients of the inputs, one wanted input after the other, which
   * are added to; NULL: none. `sinks`: the gradients of the rows' sinks are
   * added too, in one call of those for these queries. */
  double *inputs;
  bool sinks;
  bool opens;              /* backward, on a GPU: the sums of dQ, dK and dV, each
                              contiguous, hold nothing yet, and the call writes
                              them all; else it adds */
  /* Backward: of each row the numbers that cpu_kernel_row_numbers writes, in
   * place of o, lse and the states; NULL: these say them. */
  const float *numbers;
  uint64_t left_out;       /* backward: branches whose pairs are not visited, as
                              bits */
  bool by_pass;            /* every pass has a state of its own, whatever the
                              combine; see run_states */
  int64_t longest;         /* M of the inputs' sizes, where a batch row is
                              shorter than the call has it; 0: M */
} dil_shard;
static inline int64_t shard_longest(const dil_shard *p) {
  return p->longest ? p->longest : p->M;
}

#pragma GCC visibility pop
#endif
