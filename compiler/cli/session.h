/* session.h - a session: one kernel that `run` or `bench` makes, runs, times
 * and checks. In: options. Out: a report. */
#ifndef DIL_COMPILER_CLI_SESSION_H
#define DIL_COMPILER_CLI_SESSION_H

#include "call_setup.h"
#include "report.h"
#include "session_cuda.h"
#include "session_library.h"
#include "session_ranks.h"
#include "session_stream.h"
#include "compiler/schedule/wisdom.h"
#include "runtime/api/kernel.h"

typedef struct trial {
  compilation compilation;
  driver_request request;
  binding binding;
  dil_kernel *kernel; /* NULL: a library, ranks, chunks or the oracle run */
  bool on_library;
  trial_library library;
  char variant[160];
  bool on_cuda;
  trial_cuda cuda;    /* the call's copy on the GPU */
  bool on_crew;       /* the ranks of a topology run, and not `kernel` */
  trial_crew crew;
  bool on_stream;     /* chunks of the call run, and not `kernel` */
  trial_stream stream;
  bool bound;         /* binding_open was called; binding_free is due */
  double pairs;       /* of one call, by cover */
  int32_t runs;
  double *seconds, *share; /* [runs]; share: 1 / (seconds * measured peak) */
  report report;
  verdict verdict;
} trial;

/* Compiles file `index` and makes its call; seq: as in binding_sizes. This
 * function makes the machine code and reports the time that it takes. A failure
 * is in the diag or at dil_last_error(); trial_free is due in any case. */
dil_status trial_open(arena *a, const options *o, int32_t index, unsigned force,
                      int64_t seq, trial *t);
/* The same for a kernel of --library. */
dil_status trial_open_library(arena *a, const options *o, trial *t);
void trial_free(trial *t);
/* After the last run, before trial_finish: gathers the results of ranks and
 * leaves their job; see trial_crew_part. */
dil_status trial_part(trial *t, double budget);
/* False in a process that is not rank 0 of a topology: rank 0 alone reports. */
bool trial_speaks(const trial *t);
/* Of an open trial: the sizes, the device's context, the call on the device. */
dil_sizes trial_sizes(const trial *t);
dil_context *trial_context(const trial *t);
const dil_call *trial_call(const trial *t);
/* Sets the watch that counts progress while a kernel runs; NULL: none. */
void trial_watch(trial *t, dil_watch *watch);
/* Makes a kernel of a source, with all its code for the trial's call, and frees
 * the source. */
dil_status trial_load(const trial *t, dil_kernel_source *from,
                      dil_kernel **made);
/* One run, of at most `limit` in all. with_peak: measures the device's peak
 * just before. */
dil_status trial_run(trial *t, int32_t limit, bool with_peak);
/* Fills the report with medians. Checks o and lse against the oracle when
 * `budget` is positive: seconds of one thread. */
dil_status trial_finish(trial *t, double budget);

#endif
