/* counters.h - each launch whose blocks take tiles by counting (a dynamic tile
 * scheduler) gets COUNTER_BYTES of device memory; see counters.c. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_COUNTERS_H
#define DIL_RUNTIME_CUDA_LAUNCH_COUNTERS_H

#include "nvidia.h"
#include "runtime/dilrt.h"

typedef struct cuda_counters cuda_counters;

enum { COUNTER_BYTES = 256 };

/* A counter lent to one launch. */
typedef struct cuda_counter {
  cu_pointer memory;
  int32_t slot;            /* -1: taken from the stream's own memory */
  bool captured;
} cuda_counter;

/* The device's context must be current on the calling thread. */
dil_status counters_new(const cuda_driver *driver, cuda_counters **counters);
void counters_free(cuda_counters *counters);

/* Lends a counter that is zero when the next launch on `stream` begins. No
 * other launch uses the counter meanwhile, and the launch leaves it zero. */
dil_status counters_take(cuda_counters *counters, void *stream,
                         cuda_counter *counter);
/* Ends the loan after the launch, whose status is `status`. Returns that status
 * if the launch failed. */
dil_status counters_give(cuda_counters *counters, void *stream,
                         const cuda_counter *counter, dil_status status);

#endif
