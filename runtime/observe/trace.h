/* trace.h - spans of time for Chrome's trace viewer and Perfetto.
 *
 * DIL_TRACE=FILE.json turns it on; off, a span costs one branch. The spans of
 * one thread nest, as the viewers want: each is ended before the one around
 * it. The file is a whole JSON text after every flush. */
#ifndef DIL_RUNTIME_OBSERVE_TRACE_H
#define DIL_RUNTIME_OBSERVE_TRACE_H

#include "runtime/dilrt.h"
#include <stdatomic.h>

#pragma GCC visibility push(default) /* the parts of dil share it */

/* Starts what DIL_TRACE asks for, once a process. DIL_USAGE or DIL_ENVIRONMENT
 * with the reason when it cannot be followed, again at each call. */
dil_status trace_open(void);
/* Writes what has been gathered; nothing when tracing is off. */
dil_status trace_flush(void);

extern atomic_bool dil_trace_on;
#define tracing() \
  __builtin_expect(atomic_load_explicit(&dil_trace_on, memory_order_relaxed), 0)

int64_t dil_trace_now(void); /* nanoseconds of a steady clock */
/* A span of this thread from `begin` until now. `category` and `name` live as
 * long as the process; `text`, which may be NULL, is copied (31 bytes of it);
 * `number` below 0 is not shown. */
void dil_trace_add(int64_t begin, const char *category, const char *name,
                   const char *text, int64_t number);
/* A span on a line of its own, such as a stream of a GPU: "cuda:0 stream 2".
 * Times as dil_trace_now has them. */
void dil_trace_add_line(const char *line, int64_t begin, int64_t end,
                        const char *category, const char *name,
                        const char *text, int64_t number);
/* The name of this thread's line in the viewer; copied. */
void dil_trace_name_thread(const char *name);

static inline int64_t trace_begin(void) {
  return tracing() ? dil_trace_now() : 0;
}

/* begin 0: tracing was off. */
static inline void trace_end(int64_t begin, const char *category,
                             const char *name, const char *text,
                             int64_t number) {
  if (__builtin_expect(begin != 0, 0))
    dil_trace_add(begin, category, name, text, number);
}

#pragma GCC visibility pop

#endif
