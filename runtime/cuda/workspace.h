/* workspace.h - gives a run memory of its device until the run ends. */
#ifndef DIL_RUNTIME_CUDA_WORKSPACE_H
#define DIL_RUNTIME_CUDA_WORKSPACE_H

#include "runtime/cuda/launch/nvidia.h"
#include "runtime/pool/pool.h"

typedef struct workspace {
  char *memory;          /* NULL: the run needs none */
  pool_block *block;     /* NULL: the driver allocated the memory */
} workspace;

/* Makes a pool for the device. With DIL_POOL=off and no DIL_POOL_MAX the
 * driver's own allocator is used. DIL_USAGE: these variables have no valid
 * value. */
dil_status workspace_open(dil_cuda *device);
void workspace_close(dil_cuda *device);
/* Takes memory for work that is put on `stream` before workspace_give. The
 * device's context must be current on the calling thread. A captured stream
 * gets memory of its graph. */
dil_status workspace_take(const dil_cuda *device, void *stream, int64_t bytes,
                          workspace *w);
dil_status workspace_give(const dil_cuda *device, void *stream, workspace *w);

#endif
