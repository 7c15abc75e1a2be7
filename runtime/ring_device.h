/* ring_device.h - where the rows of a rank lie and what computes on them: one
 * small table a kind of device.
 *
 * The ring tells a device what to do in order; a device may do it later, as
 * long as each thing sees what was asked for before it. Memory of keys, of
 * messages and of state is the device's. */
#ifndef DIL_RING_DEVICE_H
#define DIL_RING_DEVICE_H

#include "cpu.h"
#include "link.h"
#include "route.h"

typedef struct ring_device ring_device;

/* Keys of a shard, a view for each comb. */
typedef struct ring_keys {
  dil_tensor k[SHARD_COMBS], v[SHARD_COMBS];
} ring_keys;

/* Bytes and seconds of one rank's run. */
typedef struct ring_facts {
  int64_t sent, received;    /* bytes of rows */
  double waited, computed;   /* seconds */
  int64_t memory;            /* bytes on a GPU; 0: it is the host's */
} ring_facts;

/* Which elements of a tensor [B, whole_rows, whole_heads, D] a part of it
 * holds, for random numbers that are made by the number of the element. */
typedef struct dil_normal_place {
  uint32_t seed, tensor;
  dil_comb rows;
  int64_t whole_rows;
  int32_t batch, head, whole_heads; /* the first ones held */
} dil_normal_place;

typedef struct ring_device_calls {
  const char *name;
  bool on_host;              /* its memory is the host's */
  int32_t (*states)(const ring_device *d); /* see cpu_kernel_states */
  dil_status (*start)(ring_device *d); /* a run begins */
  /* Memory in the order of what is asked: what is given back may still be in
   * use by what was asked before. With `zero` it is all 0. */
  dil_status (*take)(ring_device *d, int64_t bytes, bool zero, void **memory);
  void (*give)(ring_device *d, void *memory);
  /* Rows of a route from their places into a message, or back: `keys` are
   * those of the sender's shard. */
  dil_status (*pack)(ring_device *d, route *r, const ring_keys *keys,
                     void *message);
  dil_status (*spread)(ring_device *d, route *r, const void *message,
                       const ring_keys *keys);
  void (*forget)(ring_device *d, route *r); /* frees its copy */
  /* See cpu.h. */
  dil_status (*begin)(ring_device *d, const dil_call *call,
                      const dil_part *part);
  dil_status (*advance)(ring_device *d, const dil_call *call,
                        const dil_part *part);
  dil_status (*finish)(ring_device *d, const dil_call *call,
                       const dil_part *part);
  /* Begin and first advance in one, over keys that hold the queries' own: o and
   * lse are written by it and by each advance that follows, and no finish is
   * due. `opens`: what part->apart must be for that; 0: it cannot be. NULL: it
   * never can. */
  dil_status (*opens)(ring_device *d, const dil_call *call,
                      const dil_part *part, int64_t *apart);
  dil_status (*open)(ring_device *d, const dil_call *call,
                     const dil_part *part);
  /* A message of the device's memory: see link.h. Once the wait returns, what
   * is asked next sees what has come. */
  dil_status (*post)(ring_device *d, dil_link *link, int32_t slot,
                     const link_transfer *t);
  dil_status (*wait)(ring_device *d, dil_link *link, int32_t slot);
  /* A step ends here. */
  dil_status (*mark)(ring_device *d, int32_t step);
  /* Waits until all is done that was asked, or a rank fails; adds to facts
   * what only the device knows. */
  dil_status (*settle)(ring_device *d, dil_link *link, ring_facts *facts);
  /* Waits for what was asked of a run that has failed, whose link is revoked. */
  void (*drain)(ring_device *d);
  /* Between memory of the host and of the device, at once. */
  dil_status (*write)(ring_device *d, void *to, const void *from,
                      int64_t bytes);
  dil_status (*read)(ring_device *d, void *to, const void *from,
                     int64_t bytes);
  void (*free)(ring_device *d);
} ring_device_calls;

/* Every device begins with this. */
struct ring_device {
  const ring_device_calls *calls;
};

static inline void ring_device_free(ring_device *d) {
  if (d) d->calls->free(d);
}

/* ring_cpu.c: the processor does everything at once. It borrows the kernel. */
dil_status ring_cpu_new(cpu_kernel *kernel, int32_t threads,
                        ring_device **device);

#endif
