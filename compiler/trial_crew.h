/* trial_crew.h - a trial on the ranks of a topology. */
#ifndef DIL_TRIAL_CREW_H
#define DIL_TRIAL_CREW_H

#include "../runtime/launcher.h"
#include "../runtime/mpi/job.h"
#include "bind.h"
#include "place.h"
#include "report.h"

typedef struct trial_crew {
  const compilation *of;
  binding *binding;
  crew *crew;
  crew_task task;
  dil_kernel_source from;
  progress bar;              /* steps of the ranks here */
  place_judge judge;         /* of the plan's masks */
  place_mask mask;
  bool on_gpu;
  crew_gpu gpu;              /* of ranks on GPUs */
  dil_context *context;      /* the first of them; NULL: the processor's */
  const dil_mpi_module *mpi; /* NULL: processes of no job */
  bool job;                  /* ranks are processes, and this is one, */
  launch launched;           /* as its launcher says */
  char meet[DIL_PATH_MAX];   /* where they do; empty: in an MPI job */
  dil_link *world;           /* joins them, until they part */
  const dil_call *call;
  int64_t goal, done;        /* runs that are wanted, and that there were, */
  double seconds;            /* the last of which took so long */
  bool whole;                /* nothing is left to be run or collected */
  bool failed;               /* this process leaves MPI as it is */
} trial_crew;

/* Ranks on threads of this process, each with a kernel for its own heads, or
 * this process as one of them. The machine code is made here, and the binding's
 * call: of a later process of a job it has shapes alone. */
dil_status trial_crew_open(trial_crew *t, compilation *c, binding *b,
                           int64_t seq);
void trial_crew_free(trial_crew *t);
/* After the last run: all ranks are done, what of processes' rows is wanted, or
 * checked within `budget`, comes to the first, and they leave their job; what
 * is left is for the one that speaks. */
dil_status trial_crew_part(trial_crew *t, double budget);
dil_status trial_crew_run(trial_crew *t, double *seconds);
/* o and lse of ranks on GPUs to the call's tensors, after the last run; where
 * those are absent, each when it is asked for. */
dil_status trial_crew_fetch(trial_crew *t, binding *b);
/* Whether this process tells what came of it: ranks but the first do not. */
bool trial_crew_speaks(const trial_crew *t);
/* What the ranks moved and waited, into the report. */
void trial_crew_tell(const trial_crew *t, report *r);

/* ---- trial_job.c --------------------------------------------------------- */

/* This process as a rank of a job: links to its ring and to all, and the call,
 * bound by rank 0 and followed by the others. */
dil_status trial_job_join(trial_crew *t, const topology *on, binding *b,
                          int64_t seq);
/* All have made their code: each takes its rows. */
dil_status trial_job_begin(trial_crew *t, const topology *on,
                           const binding *b);
/* After the last run: o, lse and reports to rank 0. */
dil_status trial_job_collect(trial_crew *t, double budget);
/* Tells the others that this process cannot go on, with the last error. */
void trial_job_fail(trial_crew *t);

/* ---- trial_shrink.c ------------------------------------------------------ */

/* After a run or a collection that failed, with its words as the last error: the
 * ranks that are left become one ring, with their rows of the call, and agree on
 * what is to be done again (t->done); nothing is (t->whole), where the first has
 * all that is wanted. Fails as what was done did where it has lost nobody, or
 * this process. */
dil_status trial_crew_shrink(trial_crew *t, dil_status failure);
/* Between steps of a run: whether other rings of the mesh can go on. */
void trial_crew_hear(trial_crew *t);

/* ---- trial_crew_join.c --------------------------------------------------- */

/* Whether the ranks are processes (t->job), and where they meet: by the link of
 * the topology, and with NCCL by the environment. */
dil_status trial_crew_way(trial_crew *t, const topology *on);
bool trial_crew_in_file(const trial_crew *t); /* on one host */
/* This process's number and a link to all, within so many seconds; a link to
 * its ring, as the mesh has it. */
dil_status trial_crew_world(trial_crew *t, const topology *on, double timeout);
dil_status trial_crew_ring(trial_crew *t);
/* Rows of GPUs travel by NCCL, when the topology says so. */
dil_status trial_crew_nccl(trial_crew *t, const topology *on);

/* ---- trial_crew_gpu.c ---------------------------------------------------- */

dil_status trial_crew_gpu(trial_crew *t, compilation *c, const options *o);
void trial_crew_gpu_free(trial_crew *t);

#endif
