/* tune.h - the search for the best schedule of one call on one device. */
#ifndef DIL_COMPILER_CLI_TUNE_H
#define DIL_COMPILER_CLI_TUNE_H

#include "session.h"

/* A schedule in the race. The first is the compiler's own choice. */
typedef struct tune_candidate {
  knobs knobs;
  double predicted;      /* seconds by the cost model */
  int32_t order;         /* as the back end lists them, for equal ones */
  compilation made;      /* the session's, with these knobs */
  kernel_code code;
  dil_kernel *kernel;    /* NULL: not made, refused or dropped */
  char variant[160];
  int32_t runs;
  double *seconds;       /* [runs] */
  double median;         /* NaN: never run */
  dil_status status;     /* of making it */
  char reason[160];      /* why it could not be made */
} tune_candidate;

typedef struct tune_search {
  session *session;
  int32_t count, made, refused;
  tune_candidate *candidate; /* the first one, then by prediction */
  const tune_candidate *best;
} tune_search;

/* Makes, in the order that the cost model gives, on all threads, as many
 * candidates as the seconds allow, and runs them in turn; a candidate that
 * falls behind is dropped. The winner is checked against the oracle. `session`
 * is open; tune_free is due in any case. DIL_MISMATCH: the winner's result is
 * wrong, see session->accuracy. */
dil_status tune_run(session *t, double seconds, tune_search *s);
void tune_free(tune_search *s);

#endif
