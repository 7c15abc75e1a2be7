/* workspace.h - memory of a device for the length of one run. */
#ifndef DIL_RUNTIME_CUDA_WORKSPACE_H
#define DIL_RUNTIME_CUDA_WORKSPACE_H

#include "runtime/cuda/launch/nvidia.h"
#include "runtime/pool/pool.h"

typedef struct workspace {
  char *memory;          /* NULL: none was asked for */
  pool_block *block;     /* NULL: it is the driver's */
} workspace;

/* A pool for the device, unless DIL_POOL=off without a DIL_POOL_MAX leaves it to
 * the driver's own allocator. DIL_USAGE when they cannot be followed. */
dil_status workspace_open(dil_cuda *device);
void workspace_close(dil_cuda *device);
/* For work that is put on `stream` before workspace_give; the device's context
 * is this thread's. A stream that is captured gets memory of its graph. */
dil_status workspace_take(const dil_cuda *device, void *stream, int64_t bytes,
                          workspace *w);
dil_status workspace_give(const dil_cuda *device, void *stream, workspace *w);

#endif
