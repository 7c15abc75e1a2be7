/* ring_memory.h - a stream-ordered allocator for the streams of a rank. A stream
 * may still use a block that is given back; all streams wait for that use before
 * they use the block again. */
#ifndef DIL_RUNTIME_CUDA_RING_RING_MEMORY_H
#define DIL_RUNTIME_CUDA_RING_RING_MEMORY_H

#include "runtime/cuda/launch/nvidia.h"
#include "runtime/ring/ring_device.h"

enum { RING_BLOCKS = 128, RING_STREAMS = 3 };

typedef struct ring_block {
  cu_pointer memory;
  int64_t bytes;
  bool used, rows;         /* rows: it had nothing but zeros and rows */
  cu_event at[RING_STREAMS]; /* recorded on each stream when it was given back */
} ring_block;

/* The caller sets `driver` and `stream`; all else is 0 at first. Every call
 * below needs the device's context current on the calling thread. */
typedef struct ring_memory {
  const cuda_driver *driver;
  cu_stream stream[RING_STREAMS]; /* the first one clears memory */
  int32_t count;
  ring_block block[RING_BLOCKS];
} ring_memory;

/* bytes > 0. An allocation of a new block may synchronise with the device. */
dil_status memory_take(ring_memory *m, int64_t bytes, ring_content content,
                       void **memory);
void memory_give(ring_memory *m, void *memory);
int64_t memory_bytes(const ring_memory *m);
void memory_close(ring_memory *m);

#endif
