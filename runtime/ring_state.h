/* ring_state.h - the running state of one rank's queries, and its file. */
#ifndef DIL_RING_STATE_H
#define DIL_RING_STATE_H

#include "ring.h"

typedef struct ring_state {
  int32_t step;                /* the last one in it; -1: empty */
  float *o[SHARD_COMBS], *lse[SHARD_COMBS]; /* the device's; see dil_part */
  int64_t apart[SHARD_COMBS];  /* see dil_part; 0: of all rows, begun */
  int64_t rows[SHARD_COMBS];   /* floats of lse */
} ring_state;

/* Memory for the queries of the ring's rank, those that `apart` says, which is
 * set; on failure nothing is left. */
dil_status state_new(ring_state *state, const dil_ring *ring);
void state_free(ring_state *state, ring_device *device);

/* Writes PREFIX.NAME aside and moves it into place, so that a rank that dies
 * leaves the file of an earlier step. */
dil_status state_write(const ring_state *state, const dil_ring *ring);
/* Reads it back. DIL_INPUT: it is not of this plan, shape or rank, or it is
 * damaged; nothing is half read. */
dil_status state_read(ring_state *state, const dil_ring *ring);

#endif
