/* trial_crew.h - a trial on the ranks of a topology. */
#ifndef DIL_TRIAL_CREW_H
#define DIL_TRIAL_CREW_H

#include "bind.h"
#include "place.h"
#include "report.h"

typedef struct trial_crew {
  crew *crew;
  crew_task task;
  dil_kernel_source from;
} trial_crew;

/* Ranks on threads of this process, each with a kernel for its own heads; the
 * machine code is made here. */
dil_status trial_crew_open(trial_crew *t, compilation *c, const binding *b);
void trial_crew_free(trial_crew *t);
dil_status trial_crew_run(trial_crew *t, const dil_call *call,
                          double *seconds);
/* What the ranks moved and waited, into the report. */
void trial_crew_tell(const trial_crew *t, report *r);

#endif
