/* general.h - the launches of templates/general/general.cu beside its passes,
 * for kernel.c, backward.c and gradient.c. */
#ifndef DIL_RUNTIME_CUDA_GENERAL_H
#define DIL_RUNTIME_CUDA_GENERAL_H

#include "runtime/cuda/launch/family.h"

extern const cuda_family cuda_general;

/* Its functions. */
enum {
  GENERAL_PASS,
  GENERAL_MERGE,
  GENERAL_BEGIN,
  GENERAL_END,
  GENERAL_BOUNDS,
  GENERAL_LISTS,
  GENERAL_CLEAR,
  GENERAL_INTERVALS,
  GENERAL_CHOOSE_MEANS,
  GENERAL_CHOOSE_COARSE,
  GENERAL_CHOOSE,
  GENERAL_CHOOSE_JOIN,
  GENERAL_TURN
};

/* All but the tile space of a pass. */
dil_params general_parameters(const cuda_run *r);

/* Fills the parameters of a call with few rows, for tiles of so many rows that
 * heads of a K/V head share. `items`: the tiles of a batch row. */
void general_fill_few(const cuda_run *r, int32_t pass, int32_t tile_rows,
                      dil_params *p);
/* The most keys that the rows of a batch row of M keys see together: few_reach of
 * templates/shared/few.cuh. */
int64_t general_reach(const cuda_run *r, int32_t pass);
/* Makes the lists of choices, the tables of lists, and the bounds of inputs
 * (cuda_bounds_bytes). It runs before the first pass. */
dil_status general_bounds(const cuda_run *r, const cuda_code *code);
/* The same in two steps: the lists; and what the general kernels read besides, where
 * the word on the device is set. NULL: always. */
dil_status general_choose(const cuda_run *r, const cuda_code *code);
dil_status general_tables(const cuda_run *r, const unsigned *only_if,
                          const cuda_code *code);
/* general_begin runs before the first pass and sets an empty state for chained
 * heads. general_end runs after the last pass: it converts their state to o and
 * lse and writes 0 for heads that no pass computes. In a shard of a sequence,
 * general_end does so for all heads and merges their states. */
dil_status general_begin(const cuda_run *r, const cuda_code *code);
/* Clears the rows of o and lse that no document of a packed call has. */
dil_status general_clear(const cuda_run *r, const cuda_code *code);
dil_status general_end(const cuda_run *r, const cuda_code *code);
/* In a shard of a sequence, the state of a pass alone: it begins with the sinks
 * of its branches, and the pattern's are not in it. */
dil_status general_begin_alone(const cuda_run *r, int32_t pass,
                               const cuda_code *code);
/* The parameters of a pass, with the space of tiles that hold query rows, or
 * keys. */
dil_status general_fill(const cuda_run *r, int32_t pass, bool keys,
                        const cuda_code *code, dil_params *p);

/* choose.c: makes the lists of all choices in the memory that cuda_bounds_bytes
 * counts, by the parameters of the call. */
dil_status cuda_choose_run(const cuda_run *r, const dil_params *of,
                      const cuda_code *code);
/* A call without rows chooses nothing: the lists that it wants become empty. */
dil_status cuda_choose_nothing(const cuda_run *r);

#endif
