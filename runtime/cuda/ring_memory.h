/* ring_memory.h - memory of a rank that two streams use: what is given back may
 * still be in use, and whoever takes it next comes after that. */
#ifndef DIL_CUDA_RING_MEMORY_H
#define DIL_CUDA_RING_MEMORY_H

#include "nvidia.h"

enum { RING_BLOCKS = 64 };

typedef struct ring_block {
  cu_pointer memory;
  int64_t bytes;
  bool used;
  cu_event at[2];          /* where the streams were when it was given */
} ring_block;

/* All 0 at first but driver and streams. The device's context is this
 * thread's, here and below. */
typedef struct ring_memory {
  const cuda_driver *driver;
  cu_stream stream[2];     /* the first one clears */
  int32_t count;
  ring_block block[RING_BLOCKS];
} ring_memory;

/* bytes > 0. A new block waits for the device. */
dil_status memory_take(ring_memory *m, int64_t bytes, bool zero,
                       void **memory);
void memory_give(ring_memory *m, void *memory);
int64_t memory_bytes(const ring_memory *m);
void memory_close(ring_memory *m);

#endif
