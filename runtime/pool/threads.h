/* threads.h - a pool of worker threads. */
#ifndef DIL_RUNTIME_POOL_THREADS_H
#define DIL_RUNTIME_POOL_THREADS_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* A pool of worker threads; the calling thread is one of them. Runs of one
 * pool are serialised. count 0 takes DIL_THREADS, or else the processors that
 * this process may use. NULL when memory or threads are lacking or DIL_THREADS
 * is not a number; the reason is at dil_last_error(). */
typedef struct dil_threads dil_threads;
dil_threads *dil_threads_new(int32_t count);
/* The same on the host's threads: `parallel` is asked to run `count` tasks. */
dil_threads *dil_threads_hosted(int32_t count, dil_parallel_hook parallel,
                                void *user);
void dil_threads_free(dil_threads *threads);

/* Of NULL, 1: the calling thread. */
int32_t dil_threads_count(const dil_threads *threads);

/* Calls work(context, index, worker) for each index of 0..count-1, handed out
 * in rising order, each once; worker is 0..threads-1 and held by one thread at
 * a time. Returns when all are done. A work item may wait for lower indices.
 * DIL_USAGE, nothing done: in a child forked after the pool was made, or from
 * a work item of the same pool. threads NULL: the calling thread does all, and
 * may be doing a work item. */
dil_status dil_threads_run(dil_threads *threads, int64_t count,
                           void (*work)(void *context, int64_t index,
                                        int32_t worker),
                           void *context);

#pragma GCC visibility pop
#endif
