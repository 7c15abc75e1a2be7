/* trial.h - one kernel made ready and timed: what `run` and `bench` share. */
#ifndef DIL_TRIAL_H
#define DIL_TRIAL_H

#include "bind.h"
#include "report.h"
#include "trial_crew.h"
#include "trial_cuda.h"
#include "trial_library.h"
#include "trial_stream.h"
#include "wisdom.h"

typedef struct trial {
  compilation compilation;
  driver_request request;
  binding binding;
  dil_kernel *kernel; /* NULL: a library or the oracle runs it */
  bool on_library;
  trial_library library;
  char variant[160];
  bool on_cuda;
  trial_cuda cuda;    /* the call there */
  bool on_crew;       /* the ranks of a topology run it, and no kernel */
  trial_crew crew;
  bool on_stream;     /* chunks of the call, one by one, and no kernel */
  trial_stream stream;
  bool bound;         /* the binding is open */
  double pairs;       /* of one call, by cover */
  int32_t runs;
  double *seconds, *share; /* [runs made]; share: of the peak beside it */
  report report;
  verdict verdict;
} trial;

/* Compiles file `index` and makes its call; seq: as binding_sizes has it. The
 * machine code is made here, and the time that takes is in the report. On
 * failure the diagnostics tell, and trial_free is still due. */
dil_status trial_open(arena *a, const options *o, int32_t index, unsigned force,
                      int64_t seq, trial *t);
/* The same for a kernel of --library. */
dil_status trial_open_library(arena *a, const options *o, trial *t);
void trial_free(trial *t);
/* After the last run, before trial_finish: see trial_crew_part. */
dil_status trial_part(trial *t, double budget);
/* False in a process that is a later rank of a topology: the first tells. */
bool trial_speaks(const trial *t);
/* The sizes, the context, and the call on the device of an open trial. */
dil_sizes trial_sizes(const trial *t);
dil_context *trial_context(const trial *t);
const dil_call *trial_call(const trial *t);
/* Who looks on while a kernel runs; NULL: nobody. */
void trial_watch(trial *t, dil_watch *watch);
/* A kernel of a source, with all its code for the trial's call; the source is
 * given back. */
dil_status trial_load(const trial *t, dil_kernel_source *from,
                      dil_kernel **made);
/* One run of at most `limit` in all, with the peak measured beside it when
 * `with_peak`. */
dil_status trial_run(trial *t, int32_t limit, bool with_peak);
/* Fills the report with medians, and the verdict when `budget` is positive. */
dil_status trial_finish(trial *t, double budget);

#endif
