/* shards.h - a call computed in shards, for suites. */
#ifndef DIL_TESTS_SUPPORT_SHARDS_H
#define DIL_TESTS_SUPPORT_SHARDS_H

#include "numeric.h"
#include "runtime/ring/partition.h"

/* Computes the call by each rank of the ring in turn: its queries over the keys
 * of all, the state carried in between. Returns what is wrong, "" if nothing.
 */
const char *shards_problem(data *d, const kernel_made *k,
                           const ring_shape *ring, dil_threads *threads,
                           pool *scratch);

/* Room for the state of a shard's rows, full of NaN. */
float *shards_state_new(int64_t count);
void shards_state_free(float *state);

#endif
