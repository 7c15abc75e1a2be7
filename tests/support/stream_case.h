/* stream_case.h - a kernel, a call with the oracle's answer, and a device on
 * the processor to stream it over, for the suites of streamed runs. */
#ifndef DIL_TESTS_SUPPORT_STREAM_CASE_H
#define DIL_TESTS_SUPPORT_STREAM_CASE_H

#include "numeric.h"
#include "runtime/stream/stream.h"
#include <stdatomic.h>

typedef struct stream_case {
  tested_pattern *s;
  kernel_made *k; /* refused: the rest is not there */
  data *d;
  ring_device *device;
  dil_threads *threads;
  _Atomic int64_t pairs; /* that the last stream reported */
} stream_case;

/* A call of that shape, training, over two batch rows if it does not say; the
 * seeds are the case's own. `force` is plan_force bits. Ends the test where
 * the text is wrong. */
stream_case *stream_case_open(const char *text, call_shape of, unsigned force);
void stream_case_close(stream_case *c);
/* A run over the call in chunks of that size, which counts its pairs from
 * zero. */
dil_stream stream_case_stream(stream_case *c, stream_chunks cut);

#endif
