/* job.h - the interface of dilrt-mpi.so, for ranks that are processes of one
 * MPI job. Only this module uses MPI. The run time opens it when a topology
 * says `link mpi`. */
#ifndef DIL_RUNTIME_LINK_MPI_JOB_H
#define DIL_RUNTIME_LINK_MPI_JOB_H

#include "runtime/link/link.h"

typedef struct dil_mpi_module {
  int32_t version;     /* DIL_INTERFACE, of interface.h */
  /* Initialises MPI if the process has not yet done so. Out: this process's
   * rank in MPI_COMM_WORLD and the number of ranks. */
  dil_status (*open)(int32_t *rank, int32_t *ranks);
  /* Processes of the same `color` get a link of their own, in the order of
   * their ranks (MPI_Comm_split). Collective over all processes. */
  dil_status (*link)(int32_t color, double timeout, dil_link **link);
  /* Finalises MPI. Every rank calls it after it has freed every link; a process
   * that has failed ends without it. DIL_PEER: some rank does not call it. */
  dil_status (*close)(double timeout);
} dil_mpi_module;

typedef const dil_mpi_module *(*dil_mpi_init)(void);
#define DIL_MPI_SYMBOL "dil_mpi_module_init"

#endif
