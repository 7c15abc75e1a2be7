/* job.h - what dilrt-mpi.so offers: ranks that are processes of one MPI job.
 * The module is the only user of MPI, and is opened when a topology says
 * `link mpi`. */
#ifndef DIL_MPI_JOB_H
#define DIL_MPI_JOB_H

#include "../link.h"

typedef struct dil_mpi_module {
  int32_t version;     /* DIL_INTERFACE, of interface.h */
  /* Begins MPI, once; this process's number and how many there are. */
  dil_status (*open)(int32_t *rank, int32_t *ranks);
  /* Collective: processes of the same `color` get a link of their own, ranked
   * by their numbers. */
  dil_status (*link)(int32_t color, double timeout, dil_link **link);
  /* Ends MPI; only when every rank does, and every link is freed. A process
   * that has failed leaves without. DIL_PEER: some rank does not end. */
  dil_status (*close)(double timeout);
} dil_mpi_module;

typedef const dil_mpi_module *(*dil_mpi_init)(void);
#define DIL_MPI_SYMBOL "dil_mpi_module_init"

#endif
