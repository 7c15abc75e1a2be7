/* launcher.h - what has started this process as one of several, and says so in
 * the environment: torchrun, mpirun, srun, or a person. */
#ifndef DIL_RUNTIME_BASE_LAUNCHER_H
#define DIL_RUNTIME_BASE_LAUNCHER_H

#include "runtime/dilrt.h"
#include <stdbool.h>

/* Numbers are -1, and names NULL, where nobody says them. */
typedef struct launch {
  int64_t rank, ranks, local;  /* local: the number among those of this host */
  const char *rank_by, *ranks_by, *local_by; /* the variables */
} launch;

/* DIL_USAGE: a variable holds no number. */
dil_status launch_read(launch *l);
/* The rank as it is written; NULL: none is. */
const char *launch_rank(void);
/* Writes the place where such processes meet: DIL_MEET, or HOST:PORT of
 * MASTER_ADDR and MASTER_PORT; the next port where torchrun itself listens at
 * that. False: it is not said. DIL_USAGE in *status: it is too long, or half of
 * it. */
bool launch_meeting(char *place, size_t size, dil_status *status);
/* This process is of a job that an MPI has started. */
bool launch_by_mpi(void);

#endif
