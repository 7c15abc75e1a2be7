/* spans.h - measures the work on a GPU for the trace, which has a line for each
 * stream. */
#ifndef DIL_RUNTIME_CUDA_SPANS_H
#define DIL_RUNTIME_CUDA_SPANS_H

#include "runtime/cuda/launch/nvidia.h"
#include "runtime/observe/trace.h"

typedef struct cuda_spans cuda_spans;

/* Returns NULL when no trace is written or the driver gives no events: then the
 * trace has no spans of this device. The device's context must be current on
 * the calling thread, here and below. */
cuda_spans *spans_new(const dil_cuda *device);
/* Waits for the spans that are not yet written, and writes them. */
void spans_free(cuda_spans *s);

/* The caller calls spans_begin before it puts work on a stream and spans_end
 * after it, with the number that spans_begin returned; -1: the work gets no
 * span. With spans NULL both do nothing. */
int32_t spans_begin(cuda_spans *s, void *stream);
void spans_end(cuda_spans *s, int32_t number, void *stream, const char *name,
               const char *text, int64_t pass);

#endif
