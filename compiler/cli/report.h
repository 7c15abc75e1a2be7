/* report.h - the result of a timed kernel, as one JSON object or as lines. */
#ifndef DIL_COMPILER_CLI_REPORT_H
#define DIL_COMPILER_CLI_REPORT_H

#include "accuracy.h"
#include "gradient_accuracy.h"
#include "compiler/plan/plan.h"
#include "runtime/stream/stream.h"

/* Unknown numbers are NaN, unknown texts NULL; both are null in JSON. */
typedef struct report {
  const char *kernel, *device, *variant;
  const char *isa;
  int32_t threads;
  unsigned force;
  knobs knobs;  /* the knobs that a schedule decided */
  bool recalled; /* a remembered one */
  bool planned; /* plan_hash holds */
  uint64_t plan_hash;
  double seconds, flops; /* median; of the definition */
  bool estimated;        /* flops, by samples: see cover_count */
  double share;          /* of the peak measured beside the runs */
  double workspace;
  double compile_seconds; /* until the code was there, less: */
  double open_seconds;    /* loading the compiler; 0: it was not */
  int32_t ranks;         /* of a topology; 0: one device */
  double rank_bytes;     /* on a rank's GPU; 0: ranks are on the processor */
  int32_t gathered;      /* branches whose rows come before the steps */
  double moved, waited;  /* bytes between ranks; seconds of the slowest */
  bool streamed;         /* in chunks, which moved and waited for this much */
  stream_chunks chunks;
  stream_facts stream;
  bool kept;             /* the code came out of the cache */
  const accuracy *accuracy; /* NULL: not checked */
  bool backward;            /* times and work are those of gradients */
  const char *gradient_kernels; /* that make them */
  const char *gradient_reason;  /* why the Hopper kernels do not; NULL: they do,
                                   or there is no GPU */
  const gradient_accuracy *gradients; /* NULL: not checked */
} report;

/* A streamed call's chunks and what they move; as lines that begin with
 * `label`. What only a run knows is left out of a count. */
struct json_t *report_stream_json(const stream_chunks *chunks,
                                  const stream_facts *facts, bool counted);
void report_stream_text(const stream_chunks *chunks, const stream_facts *facts,
                        bool counted, const char *label, FILE *out);

void report_json(const report *r, FILE *out);
void report_text(const report *r, FILE *out);
/* A table: report_heading, then a row each. */
void report_heading(FILE *out);
void report_row(const report *r, FILE *out);

#endif
