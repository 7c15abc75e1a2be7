/* ring_state.h - the running state of one rank's queries, and its checkpoint
 * file. */
#ifndef DIL_RUNTIME_RING_RING_STATE_H
#define DIL_RUNTIME_RING_RING_STATE_H

#include "ring.h"

typedef struct ring_state {
  int32_t step;                /* the last step that it includes; -1: none */
  float *o[PROGRESSIONS_MOST],
      *lse[PROGRESSIONS_MOST];             /* on the device; see dil_shard */
  int64_t state_stride[PROGRESSIONS_MOST]; /* see dil_shard; 0: every row has a
                                 state, which `begin` empties */
  int64_t rows[PROGRESSIONS_MOST];   /* floats of lse */
  bool by_pass;                /* see dil_shard */
} ring_state;

/* Allocates the state of the rank's queries. The caller has set `state_stride`.
 * On failure it keeps no memory. */
dil_status state_new(ring_state *state, const dil_ring *ring);
void state_free(ring_state *state, ring_device *device);

/* ring_digest.c: the tensors that a rank's run reads, in this order. Forward it
 * reads q, k, v and inputs. */
enum { DIGEST_Q, DIGEST_K, DIGEST_V, DIGEST_O, DIGEST_LSE, DIGEST_D_O,
       DIGEST_D_LSE, DIGEST_INPUTS, DIGEST_COUNT };
extern const char *const ring_digest_words[DIGEST_COUNT];

/* Which gradients a run makes (ring_gradient_set), and a sum of each tensor that it
 * reads: of the rank's own rows, wherever they lie in memory. */
typedef struct ring_digest {
  int64_t gradients;
  uint64_t sum[DIGEST_COUNT];
} ring_digest;
dil_status ring_digest_of(const dil_ring *ring, ring_digest *digest);

/* Writes the file PREFIX.NAME under another name and renames it. A rank that
 * dies while it writes leaves the file of an earlier step. */
dil_status state_write(const ring_state *state, const dil_ring *ring,
                       const ring_digest *digest);
/* Reads the file back. DIL_INPUT: the file is of another plan, shape, rank or
 * digest, or is damaged; the state in memory is then unchanged. DIL_UNSUPPORTED:
 * the file has a second state. */
dil_status state_read(ring_state *state, const dil_ring *ring,
                      const ring_digest *digest);

/* The same of a run backward, in a file of its own, PREFIX.NAME.back: the f32
 * sums of dQ, dK and dV and the float64 sums of inputs, which are the ring's, and
 * the step that they include; what came back in that step itself they do not. */
dil_status state_write_gradients(const dil_ring *ring,
                                 const ring_digest *digest, int32_t step);
/* *step -1: there is no file, and the sums begin at 0. DIL_INPUT: as for
 * state_read. */
dil_status state_read_gradients(const dil_ring *ring, const ring_digest *digest,
                                int32_t *step);
/* Removes the file: a run that begins anew must not go on from it. */
dil_status state_forget_gradients(const dil_ring *ring);

#endif
