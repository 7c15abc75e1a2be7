/* trial_stream.h - a trial whose call is streamed through memory in chunks. */
#ifndef DIL_TRIAL_STREAM_H
#define DIL_TRIAL_STREAM_H

#include "../runtime/crew_gpu.h"
#include "../runtime/stream.h"
#include "bind.h"
#include "report.h"

typedef struct trial_stream {
  dil_stream stream;
  cpu_kernel *kernel;
  dil_kernel_source from;
  dil_threads *threads;      /* that copy */
  bool on_gpu;
  dil_context *context;      /* the GPU's, for which the code is made */
  crew_gpu gpu;              /* one rank there is */
  resident rank;
  progress bar;
} trial_stream;

/* The machine code is made here. */
dil_status trial_stream_open(trial_stream *t, compilation *c, const binding *b);
void trial_stream_free(trial_stream *t);
dil_status trial_stream_run(trial_stream *t, double *seconds);
/* What was brought and waited for, into the report. */
void trial_stream_tell(const trial_stream *t, report *r);

/* trial_stream_gpu.c: the same on a GPU, but for what both share. */
dil_status trial_stream_gpu(trial_stream *t, compilation *c, const binding *b);
void trial_stream_gpu_free(trial_stream *t);

/* The chunks that a call of these sizes is cut into, by --stream; `memory` of
 * a device with its own, 0: the host's. */
dil_status trial_stream_plan(const binding *b, const dil_table *table,
                             int32_t threads, int64_t memory,
                             stream_shape *shape);

#endif
