/* counters.h - 64 bytes of device memory for each launch that deals out its
 * tiles by counting; see counters.c. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_COUNTERS_H
#define DIL_RUNTIME_CUDA_LAUNCH_COUNTERS_H

#include "nvidia.h"
#include "runtime/dilrt.h"

typedef struct cuda_counters cuda_counters;

enum { COUNTER_BYTES = 64 };

/* A counter lent to one launch. */
typedef struct cuda_counter {
  cu_pointer memory;
  int32_t slot;            /* -1: taken from the stream's own memory */
  bool captured;
} cuda_counter;

/* Both in the device's context. */
dil_status counters_new(const cuda_driver *driver, cuda_counters **counters);
void counters_free(cuda_counters *counters);

/* A counter that is zero when the next launch on `stream` begins, and that no
 * other launch shares while it runs. The launch leaves it zero. */
dil_status counters_take(cuda_counters *counters, void *stream,
                         cuda_counter *counter);
/* After the launch, with its status, which is returned if it tells of a
 * failure. */
dil_status counters_give(cuda_counters *counters, void *stream,
                         const cuda_counter *counter, dil_status status);

#endif
