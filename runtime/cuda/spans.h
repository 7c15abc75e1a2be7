/* spans.h - times of the work on a GPU, for the trace: a line a stream. */
#ifndef DIL_RUNTIME_CUDA_SPANS_H
#define DIL_RUNTIME_CUDA_SPANS_H

#include "runtime/cuda/launch/nvidia.h"
#include "runtime/observe/trace.h"

typedef struct cuda_spans cuda_spans;

/* NULL when nothing is traced, or events cannot be had: then nothing is seen
 * of this device. The device's context is this thread's, here and below. */
cuda_spans *spans_new(const dil_cuda *device);
/* Waits for the spans that are left, and writes them. */
void spans_free(cuda_spans *s);

/* Around work that is put on a stream. spans NULL: nothing. The number goes
 * from the one to the other; -1: this work is not seen. */
int32_t spans_begin(cuda_spans *s, void *stream);
void spans_end(cuda_spans *s, int32_t number, void *stream, const char *name,
               const char *text, int64_t pass);

#endif
