/* ring_device.h - the device that holds the rows of a rank and computes on
 * them. Each kind of device has one table of functions.
 *
 * A device may be asynchronous, like a CUDA stream: it may do a request later,
 * as long as each request sees the results of the requests before it. Keys,
 * messages and states lie in the device's memory. */
#ifndef DIL_RUNTIME_RING_RING_DEVICE_H
#define DIL_RUNTIME_RING_RING_DEVICE_H

#include "route.h"
#include "runtime/cpu/cpu.h"
#include "runtime/link/link.h"

typedef struct ring_device ring_device;

/* Keys and values of a shard, one view for each progression. */
typedef struct ring_keys {
  dil_tensor k[PROGRESSIONS_MOST], v[PROGRESSIONS_MOST];
} ring_keys;

/* Bytes and seconds of one rank's run. */
typedef struct ring_facts {
  int64_t sent, received;    /* bytes of rows */
  double waited, computed;   /* seconds */
  int64_t memory;            /* bytes on a GPU; 0: the device is the host */
} ring_facts;

/* The elements of a whole tensor [B, whole_rows, whole_heads, D] that a rank
 * holds. A random element depends on its index in the whole tensor, so that the
 * numbers are the same on any number of ranks. */
typedef struct dil_normal_place {
  uint32_t seed, tensor;
  dil_progression rows;
  int64_t whole_rows;
  int32_t batch, head, whole_heads; /* batch, head: the first ones held */
} dil_normal_place;

/* The content of memory that a run takes: anything; zeros; sums, of which `clear`
 * will clear the rows that count; zeros or rows of an earlier step. With the last,
 * rows that a run reads beside those that it wants are finite as a rule. */
typedef enum ring_content {
  RING_ANY,
  RING_ZEROS,
  RING_TO_CLEAR,
  RING_OLD_ROWS
} ring_content;

/* The messages of a rank: rows of its own; and sums that its passes make, which
 * leave while later passes run. */
typedef enum ring_lane { RING_ROWS, RING_SUMS, RING_LANES } ring_lane;

typedef struct ring_device_calls {
  const char *name;
  bool on_host;              /* its memory is the host's, and it does each
                                request at once */
  bool opens_sums;           /* a pass backward may begin sums (dil_shard) */
  int32_t (*states)(const ring_device *d); /* see cpu_kernel_states */
  dil_status (*start)(ring_device *d); /* a run begins */
  /* Memory in the order of requests, as of a stream-ordered allocator: earlier
   * requests may still use memory that is given back. */
  dil_status (*take)(ring_device *d, int64_t bytes, ring_content content,
                     void **memory);
  void (*give)(ring_device *d, void *memory);
  /* pack gathers the rows of a route from `keys` into a message; spread
   * scatters a message into `keys`. `keys` is the sender's shard. */
  dil_status (*pack)(ring_device *d, ring_lane lane, route *r,
                     const ring_keys *keys, void *message);
  dil_status (*spread)(ring_device *d, route *r, const void *message,
                       const ring_keys *keys);
  /* reduce adds the rows of a message, in f32, to the rank's own rows `sums`:
   * its dK and dV. The route goes back (route_reverse). The caller asks for the
   * messages in the order of ranks, so that the bits of a sum do not depend on
   * when a message arrives. */
  dil_status (*reduce)(ring_device *d, route *r, const void *message,
                       const ring_keys *sums);
  /* Clears the rows of a route among sums that begin as anything; it does nothing
   * on the host, where they begin as zeros. */
  dil_status (*clear)(ring_device *d, route *r, const ring_keys *sums);
  void (*forget)(ring_device *d, route *r); /* frees the route's device copy */
  /* See cpu_kernel_begin in cpu.h. */
  dil_status (*begin)(ring_device *d, const dil_call *call,
                      const dil_shard *shard);
  dil_status (*advance)(ring_device *d, const dil_call *call,
                        const dil_shard *shard);
  dil_status (*finish)(ring_device *d, const dil_call *call,
                       const dil_shard *shard);
  /* `open` is begin and the first advance in one pass, over keys of the rank's
   * own. It and each later advance write o and lse, so that no finish follows.
   * `opens` sets *state_stride to the value that shard->state_stride must have
   * for that; 0: the device cannot open this shard. NULL: it can open no shard.
   * */
  dil_status (*opens)(ring_device *d, const dil_call *call,
                      const dil_shard *shard, int64_t *state_stride);
  dil_status (*open)(ring_device *d, const dil_call *call,
                     const dil_shard *shard);
  /* Adds to the sums of the call and of shard->inputs what the shard's pairs
   * give: see cpu_kernel_backward_shard in cpu.h. `asks_states`: each pass of
   * the shard's rows needs a state of its own. */
  dil_status (*backward)(ring_device *d, const dil_backward_call *call,
                         const dil_shard *shard);
  /* See cpu_kernel_row_numbers in cpu.h. */
  dil_status (*number)(ring_device *d, const dil_backward_call *call,
                       const dil_shard *shard, float *numbers);
  bool (*asks_states)(const ring_device *d);
  /* A message of the device's memory: see link.h. Requests after the wait see
   * the received rows. */
  dil_status (*post)(ring_device *d, ring_lane lane, dil_link *link,
                     int32_t slot, const link_transfer *t);
  dil_status (*wait)(ring_device *d, dil_link *link, int32_t slot);
  /* The last request of a step. */
  dil_status (*mark)(ring_device *d, int32_t step);
  /* Waits until all requests are done or a rank fails. It adds to `facts` the
   * times and bytes that only the device knows. */
  dil_status (*settle)(ring_device *d, dil_link *link, ring_facts *facts);
  /* Waits for the requests of a failed run, whose link is revoked. */
  void (*drain)(ring_device *d);
  /* Synchronous copies between memory of the host and of the device. */
  dil_status (*write)(ring_device *d, void *to, const void *from,
                      int64_t bytes);
  dil_status (*read)(ring_device *d, void *to, const void *from,
                     int64_t bytes);
  void (*free)(ring_device *d);
} ring_device_calls;

/* The structure of every kind of device begins with this. */
struct ring_device {
  const ring_device_calls *calls;
};

static inline void ring_device_free(ring_device *d) {
  if (d) d->calls->free(d);
}

/* ring_cpu.c: the processor as a device, which does each request at once. The
 * device borrows the kernel. */
dil_status ring_cpu_new(cpu_kernel *kernel, int32_t threads,
                        ring_device **device);

#endif
