/* ring_crew.h - all ranks of a ring as threads of a test, on the rows of one
 * numeric call. */
#ifndef DIL_TESTS_RING_CREW_H
#define DIL_TESTS_RING_CREW_H

#include "../runtime/ring.h"
#include "numeric.h"

enum { CREW_MOST = 64 };

typedef struct crew_plan {
  int32_t ring, heads, batch;      /* ranks = ring * heads * batch */
  dil_layout layout;
  dil_exchange exchange;
  double timeout;                  /* seconds; 0: 30 */
  ring_checkpoint checkpoint;
  /* Rewrites a rank's ring before it runs; NULL: as it is. */
  void (*spoil)(dil_ring *ring, int32_t rank);
} crew_plan;

typedef struct crew_result {
  dil_status status[CREW_MOST];
  char text[CREW_MOST][256];       /* of the failures */
  ring_facts facts[CREW_MOST];
  double seconds;
} crew_result;

/* Runs the call of `d` on all ranks; its o and lse are written. */
void crew_run(data *d, kernel_made *k, const crew_plan *mesh,
              crew_result *result);

#endif
