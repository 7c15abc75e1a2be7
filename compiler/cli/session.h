/* session.h - a session: one kernel that `run` or `bench` makes, runs, times
 * and checks. In: options. Out: a report. */
#ifndef DIL_COMPILER_CLI_SESSION_H
#define DIL_COMPILER_CLI_SESSION_H

#include "call_setup.h"
#include "report.h"
#include "session_backward.h"
#include "session_cuda.h"
#include "session_library.h"
#include "session_ranks.h"
#include "session_stream.h"
#include "compiler/schedule/wisdom.h"
#include "runtime/api/kernel.h"

typedef struct session session;

typedef enum session_way_id {
  SESSION_CPU,
  SESSION_CUDA,
  SESSION_RANKS,        /* of a topology */
  SESSION_STREAM,       /* chunks of the call */
  SESSION_LIBRARY,      /* a kernel of --library */
  SESSION_CUDA_LIBRARY, /* the same on a GPU */
  SESSION_ORACLE,
  SESSION_CPU_BACKWARD, /* gradients of a call that ran forward */
  SESSION_CUDA_BACKWARD,
  SESSION_ORACLE_BACKWARD,
  SESSION_LIBRARY_BACKWARD,
  SESSION_CUDA_LIBRARY_BACKWARD,
  SESSION_RANKS_BACKWARD,
  SESSION_WAY_COUNT
} session_way_id;

/* One way to run a call. A function that is NULL has nothing to do. */
typedef struct session_way {
  bool on_cuda;    /* a copy of the call runs on a GPU: session.cuda */
  bool fills_call; /* `open` makes the call's tensors too */
  bool on_ranks;   /* of a topology: session.ranks */
  /* Makes what runs; `free` is due in any case. */
  dil_status (*open)(session *s, const options *o, int64_t seq);
  dil_status (*run)(session *s, double *seconds);
  /* Operations a second that the device reaches at most. */
  dil_status (*peak)(session *s, double seconds, double *rate);
  /* After the last run: brings o and lse to the call, and facts to the
   * report. */
  dil_status (*collect)(session *s);
  void (*free)(session *s);
  bool backward; /* gradients of what `forward` runs */
  session_way_id forward;
} session_way;

extern const session_way session_ways[SESSION_WAY_COUNT]; /* session_ways.c */

struct session {
  compilation compilation;
  driver_request request;
  call_setup setup;
  bool has_setup;         /* call_setup_free is due */
  const session_way *way; /* NULL: `open` was not called */
  kernel_code code;       /* of `kernel` */
  dil_kernel *kernel;     /* of SESSION_CPU and SESSION_CUDA */
  char variant[160];      /* of the kernel */
  dil_backward_call backward; /* on the host; with way->backward alone */
  dil_backward_facts gradient_facts; /* of `kernel`, the same */
  session_library library;
  session_cuda cuda;
  session_ranks ranks;
  session_stream stream;
  int32_t runs;
  double *seconds, *share; /* [runs]; share: 1 / (seconds * measured peak) */
  report report;
  accuracy accuracy;
  gradient_accuracy gradients;
};

/* Compiles file `index` and makes its call; seq: as in call_setup_sizes. This
 * function makes the machine code and reports the time that it takes. A failure
 * is in the diag or at dil_last_error(); session_free is due in any case. */
dil_status session_open(arena *a, const options *o, int32_t index,
                        unsigned force, int64_t seq, session *s);
/* The same for a kernel of --library. */
dil_status session_open_library(arena *a, const options *o, session *s);
void session_free(session *s);
/* After the last run, before session_finish: gathers the results of ranks and
 * leaves their job; see session_ranks_leave. */
dil_status session_leave(session *s, double budget);
/* False in a process that is not rank 0 of a topology: rank 0 alone reports. */
bool session_is_reporter(const session *s);
/* Of an open session: the sizes, the device's context, the call on the
 * device. */
dil_sizes session_sizes(const session *s);
dil_context *session_context(const session *s);
const dil_call *session_call(const session *s);
/* Sets the watch that counts progress while a kernel runs; NULL: none. */
void session_watch(session *s, dil_watch *watch);
/* Makes a kernel of a source, with all its code for the session's call, and
 * frees the source. */
dil_status session_load(const session *s, kernel_code *code,
                        dil_kernel **made);
/* Waits until compilers have made all code of the kernel: before that, calls of
 * gradients take longer, and compilers take the processors. */
void session_settle(const session *s);
/* Times one run of any kernel on the session's call, in the session's
 * direction. */
dil_status session_time(const session *s, dil_kernel *timed, double *seconds);
/* One run, of at most `limit` in all. with_peak: measures the device's peak
 * just before. */
dil_status session_run(session *s, int32_t limit, bool with_peak);
/* Fills the report with medians. Checks o and lse, and gradients where they are
 * computed, against the oracle when `budget` is positive: seconds of one
 * thread. */
dil_status session_finish(session *s, double budget);
/* The first returns whether all that was checked is good; the second prints
 * lines about it for people. */
bool session_is_good(const session *s);
void session_print_accuracy(const session *s, FILE *out);

#endif
