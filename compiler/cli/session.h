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

typedef struct session {
  compilation compilation;
  driver_request request;
  call_setup setup;
  dil_kernel *kernel; /* NULL: a library, ranks, chunks or the oracle run */
  bool on_library;
  session_library library;
  char variant[160];
  bool on_cuda;
  session_cuda cuda;  /* the call's copy on the GPU */
  bool on_crew;       /* the ranks of a topology run, and not `kernel` */
  session_ranks crew;
  bool on_stream;     /* chunks of the call run, and not `kernel` */
  session_stream stream;
  bool bound;         /* call_setup_open was called; call_setup_free is due */
  double pairs;       /* of one call, by cover */
  int32_t runs;
  double *seconds, *share; /* [runs]; share: 1 / (seconds * measured peak) */
  report report;
  accuracy accuracy;
} session;

/* Compiles file `index` and makes its call; seq: as in call_setup_sizes. This
 * function makes the machine code and reports the time that it takes. A failure
 * is in the diag or at dil_last_error(); session_free is due in any case. */
dil_status session_open(arena *a, const options *o, int32_t index,
                        unsigned force, int64_t seq, session *t);
/* The same for a kernel of --library. */
dil_status session_open_library(arena *a, const options *o, session *t);
void session_free(session *t);
/* After the last run, before session_finish: gathers the results of ranks and
 * leaves their job; see session_ranks_leave. */
dil_status session_leave(session *t, double budget);
/* False in a process that is not rank 0 of a topology: rank 0 alone reports. */
bool session_is_reporter(const session *t);
/* Of an open session: the sizes, the device's context, the call on the
 * device. */
dil_sizes session_sizes(const session *t);
dil_context *session_context(const session *t);
const dil_call *session_call(const session *t);
/* Sets the watch that counts progress while a kernel runs; NULL: none. */
void session_watch(session *t, dil_watch *watch);
/* Makes a kernel of a source, with all its code for the session's call, and
 * frees the source. */
dil_status session_load(const session *t, dil_kernel_source *from,
                        dil_kernel **made);
/* One run, of at most `limit` in all. with_peak: measures the device's peak
 * just before. */
dil_status session_run(session *t, int32_t limit, bool with_peak);
/* Fills the report with medians. Checks o and lse against the oracle when
 * `budget` is positive: seconds of one thread. */
dil_status session_finish(session *t, double budget);

#endif
