/* stream_bound.h - what memory a streamed call may take if nobody says. */
#ifndef DIL_RUNTIME_STREAM_STREAM_BOUND_H
#define DIL_RUNTIME_STREAM_STREAM_BOUND_H

#include "runtime/dilrt.h"

/* DIL_POOL_MAX, or half of a device's memory, or with `memory` 0 half of what
 * this process can still have of the host's: by the machine, its control group
 * and its own limits. */
dil_status stream_bound(int64_t memory, int64_t *bytes);

#endif
