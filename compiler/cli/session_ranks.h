/* session_ranks.h - a session on the ranks of a topology: threads of this
 * process, or processes of a job, of which this process is one. */
#ifndef DIL_COMPILER_CLI_SESSION_RANKS_H
#define DIL_COMPILER_CLI_SESSION_RANKS_H

#include "call_setup.h"
#include "report.h"
#include "compiler/exchange/exchange.h"
#include "runtime/api/kernel.h"
#include "runtime/base/launcher.h"
#include "runtime/base/module.h"
#include "runtime/link/mpi/job.h"

typedef struct session_ranks {
  const compilation *of;
  call_setup *setup;
  rank_group *group;
  rank_group_task task;
  kernel_code code;
  progress bar;              /* steps of the ranks in this process */
  mask_bounds bounds;        /* bounds the plan's masks for `mask` */
  partition_mask mask;
  bool on_gpu;
  rank_group_gpu gpu;        /* shared by ranks on GPUs */
  dil_context *context;      /* of the first GPU; NULL: ranks are on the host */
  const dil_mpi_module *mpi; /* NULL: this is no MPI job */
  bool job;                  /* ranks are processes, and this is one of them */
  launch launched;           /* rank and ranks, as the launcher set them */
  char meet[DIL_PATH_MAX];   /* rendezvous: file or HOST:PORT; empty: by MPI */
  dil_link *world;           /* joins all processes, until they leave the job */
  const dil_call *call;
  dil_backward_call *backward; /* the runs are of its gradients; NULL: they
                                        are of the call */
  bool stale;                /* o and lse are no longer those of the ranks */
  int64_t goal, done;        /* runs that are wanted, and runs completed */
  double seconds;            /* of the last run, completed or not */
  bool whole;                /* nothing is left to run or to collect */
  bool failed;               /* this process does not finalize the job */
} session_ranks;

/* Makes the ranks, each with a kernel for its own heads, the machine code, and
 * the call setup's call. In a job this process is one rank; the call of rank 1
 * and on has shapes alone. */
dil_status session_ranks_open(session_ranks *t, compilation *c, call_setup *b,
                              int64_t seq);
void session_ranks_free(session_ranks *t);
/* After the last run: every rank finishes its runs and leaves its job. Before
 * that, rank 0 gets the rows of o and lse that options want, or that a check
 * within `budget` seconds needs. Only rank 0 goes on to report. */
dil_status session_ranks_leave(session_ranks *t, double budget);
dil_status session_ranks_run(session_ranks *t, double *seconds);
/* Runs the call forward once; from now on, session_ranks_run makes gradients. */
dil_status session_ranks_turn(session_ranks *t, dil_backward_call *call);
/* Copies o and lse of ranks on GPUs to the call's tensors, after the last run.
 * Of an absent call setup, `bring` fetches each row when a check asks for
 * it. */
dil_status session_ranks_fetch(session_ranks *t, call_setup *b);
/* Returns whether this process reports: of the ranks of a job only rank 0
 * does. */
bool session_ranks_is_reporter(const session_ranks *t);
/* Puts the bytes moved and the seconds waited of all ranks into the report. */
void session_ranks_tell(const session_ranks *t, report *r);

/* ---- session_job.c ------------------------------------------------------- */

/* Joins this process to its job: handshake, links to all ranks and to its ring,
 * and the call, whose sizes rank 0 sends to the others. */
dil_status session_job_join(session_ranks *t, const topology *on, call_setup *b,
                            int64_t seq);
/* Barrier after which all ranks have their code; then each rank takes its rows
 * of the call. */
dil_status session_job_begin(session_ranks *t, const topology *on,
                             const call_setup *b);
/* After the last run: sends the wanted rows of o and lse, and the reports, to
 * rank 0. */
dil_status session_job_collect(session_ranks *t, double budget);
/* Tells the other ranks that this process cannot go on, with the last error. */
void session_job_fail(session_ranks *t);

/* ---- session_shrink.c ---------------------------------------------------- */

/* After a run or a collection that failed with `failure` and dil_last_error():
 * the ranks left become one ring, with their rows of the call. They agree on
 * t->done, from which they run again, or set t->whole: rank 0 has all that is
 * wanted. Returns `failure` where no rank was lost, or where this rank was. */
dil_status session_ranks_shrink(session_ranks *t, dil_status failure);
/* Between steps of a run: fails this rank's ring where another ring of the mesh
 * has failed. */
void session_ranks_hear(session_ranks *t);

/* ---- session_join.c ------------------------------------------------------ */

/* Sets t->job, whether the ranks are processes, and t->meet, their rendezvous:
 * by the topology's link, and with NCCL by the environment. */
dil_status session_ranks_way(session_ranks *t, const topology *on);
/* The rendezvous is a file, so all ranks are on one host. */
bool session_ranks_in_file(const session_ranks *t);
/* session_ranks_world finds this process's rank and links it to all ranks, with
 * `timeout` seconds for a wait. session_ranks_ring links it to the ranks of its
 * ring. */
dil_status session_ranks_world(session_ranks *t, const topology *on,
                               double timeout);
dil_status session_ranks_ring(session_ranks *t);
/* Opens NCCL for the rows of ranks on GPUs, when the topology says so. */
dil_status session_ranks_nccl(session_ranks *t, const topology *on);

/* ---- session_ranks_gpu.c: devices and code of ranks on GPUs -------------- */

dil_status session_ranks_gpu(session_ranks *t, compilation *c,
                             const options *o);
void session_ranks_gpu_free(session_ranks *t);

#endif
