/* session_stream.h - a session whose call runs in chunks, since it is larger
 * than memory. */
#ifndef DIL_COMPILER_CLI_SESSION_STREAM_H
#define DIL_COMPILER_CLI_SESSION_STREAM_H

#include "call_setup.h"
#include "report.h"
#include "runtime/api/kernel.h"
#include "runtime/ring/ranks_gpu.h"
#include "runtime/stream/stream.h"

typedef struct session_stream {
  dil_stream stream;
  cpu_kernel *kernel;
  kernel_code code;
  dil_threads *threads;      /* copy chunks beside the passes */
  bool on_gpu;
  dil_context *context;      /* of the GPU for which the code is made */
  rank_group_gpu gpu;        /* of the one rank */
  resident rank;             /* its kernel on the GPU */
  progress bar;
} session_stream;

/* Makes the machine code and chooses the chunks. session_stream_free is due in
 * any case. */
dil_status session_stream_open(session_stream *t, compilation *c,
                               const call_setup *b);
void session_stream_free(session_stream *t);
dil_status session_stream_run(session_stream *t, double *seconds);
/* Puts the chunks, and what their copies moved and waited, into the report. */
void session_stream_tell(const session_stream *t, report *r);

/* session_stream_gpu.c: the GPU's share of opening and freeing. */
dil_status session_stream_gpu(session_stream *t, compilation *c,
                              const call_setup *b);
void session_stream_gpu_free(session_stream *t);

/* Chooses the chunks of a call, so that they fit --stream bytes. Without that
 * number the bound follows from `memory`, bytes of the device; 0: the chunks
 * lie in the host's memory. A resumed run keeps its former chunks. */
dil_status session_stream_plan(const call_setup *b, const dil_table *table,
                               int32_t threads, int64_t memory,
                               stream_shape *shape);

#endif
