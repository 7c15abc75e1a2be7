/* job.c - this process as a rank of an MPI job; see job.h. In: the job that
 * mpirun has started. Out: links between processes of one color. */
#include "link_mpi.h"
#include "interface.h"
#include "runtime/base/status.h"
#include <time.h>

static dil_status job_open(int32_t *rank, int32_t *ranks) {
  int begun = 0, level = 0, number = 0, count = 1;
  MPI_Initialized(&begun);
  int code = begun ? MPI_Query_thread(&level)
                   : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (code != MPI_SUCCESS)
    return dil_fail(DIL_ENVIRONMENT, "MPI cannot begin (error %d)", code);
  if (level < MPI_THREAD_SERIALIZED)
    return dil_fail(DIL_ENVIRONMENT, "this MPI does not let threads take turns "
                    "(thread level %d, wanted %d)", level,
                    MPI_THREAD_SERIALIZED);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  *rank = number;
  *ranks = count;
  return DIL_OK;
}

static dil_status job_link(int32_t color, double timeout, dil_link **link) {
  MPI_Comm comm;
  pthread_mutex_lock(&mpi_lock);
  int code = MPI_Comm_split(MPI_COMM_WORLD, color, 0, &comm);
  pthread_mutex_unlock(&mpi_lock);
  if (code != MPI_SUCCESS)
    return dil_fail(DIL_ENVIRONMENT, "MPI cannot split its ranks");
  return mpi_link_new(comm, timeout, link);
}

static void *job_end_thread(void *unused) {
  (void)unused;
  MPI_Finalize();
  return NULL;
}

/* MPI_Finalize waits for every rank without a deadline. A thread calls it, so
 * that this function can give up. */
static dil_status job_close(double timeout) {
  enum { LEAST = 5 }; /* seconds: a busy machine needs some of them */
  double seconds = timeout > LEAST ? timeout : LEAST;
  struct timespec until;
  pthread_t thread;
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended) return DIL_OK;
  if (pthread_create(&thread, NULL, job_end_thread, NULL))
    return dil_fail(DIL_ENVIRONMENT, "no thread for the end of MPI");
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)seconds;
  if (!pthread_timedjoin_np(thread, NULL, &until)) return DIL_OK;
  pthread_detach(thread);
  return dil_fail(DIL_PEER, "the MPI job does not end: some rank has been "
                  "silent for %g s", seconds);
}

DIL_API const dil_mpi_module *dil_mpi_module_init(void);
const dil_mpi_module *dil_mpi_module_init(void) {
  static const dil_mpi_module module = {DIL_INTERFACE, job_open, job_link,
                                        job_close};
  return &module;
}
