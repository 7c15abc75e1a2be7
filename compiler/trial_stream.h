/* trial_stream.h - a trial whose call is streamed through memory in chunks. */
#ifndef DIL_TRIAL_STREAM_H
#define DIL_TRIAL_STREAM_H

#include "../runtime/stream.h"
#include "bind.h"
#include "report.h"

typedef struct trial_stream {
  dil_stream stream;
  cpu_kernel *kernel;
  dil_kernel_source from;
  dil_threads *threads;      /* that copy */
  progress bar;
} trial_stream;

/* The machine code is made here. */
dil_status trial_stream_open(trial_stream *t, compilation *c, const binding *b);
void trial_stream_free(trial_stream *t);
dil_status trial_stream_run(trial_stream *t, double *seconds);
/* What was brought and waited for, into the report. */
void trial_stream_tell(const trial_stream *t, report *r);

/* The chunks that a call of these sizes is cut into, by --stream. */
dil_status trial_stream_plan(const binding *b, const dil_table *table,
                             stream_shape *shape);

#endif
