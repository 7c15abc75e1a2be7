/* ring_gpu.h - a GPU as the device of a rank, as ring_cuda.c, which puts requests on
 * its streams, and ring_settle.c, which waits for them, share it. */
#ifndef DIL_RUNTIME_CUDA_RING_RING_GPU_H
#define DIL_RUNTIME_CUDA_RING_RING_GPU_H

#include "ring_events.h"
#include "ring_memory.h"
#include "rows.h"
#include "runtime/base/status.h"

enum { PEERS_MOST = 64 };

/* The messages of a lane, in the order of its stream. */
typedef struct lane_order {
  struct ring_cuda *of;
  cu_stream stream;
  link_order order;        /* its user is this */
} lane_order;

_Static_assert(RING_STREAMS == 1 + RING_LANES, "streams of a rank");

typedef struct ring_cuda {
  ring_device device;
  dil_cuda *gpu;
  dil_cuda_kernel *kernel;
  cuda_code rows;
  cu_stream passes;        /* `memory` uses this and those of the lanes */
  lane_order lane[RING_LANES];
  cu_event end, made;      /* made: what passes have made so far */
  ring_notes notes;
  int32_t begun, settled;        /* steps marked; steps known to be over */
  ring_memory memory;
  int32_t peer_count;
  cu_context peer[PEERS_MOST];   /* contexts whose memory this one may read */
} ring_cuda;

static inline ring_cuda *ring_cuda_of(ring_device *d) {
  return (ring_cuda *)d;
}

static inline const cuda_driver *ring_cuda_driver(const ring_cuda *c) {
  return c->gpu->driver;
}

static inline dil_status ring_cuda_check(const ring_cuda *c, cu_result result,
                                  const char *doing) {
  return cuda_check(ring_cuda_driver(c), result, doing);
}

/* ring_settle.c: see ring_device.h. */
dil_status ring_cuda_settle(ring_device *d, dil_link *link, ring_facts *facts);
void ring_cuda_drain(ring_device *d);

#endif
