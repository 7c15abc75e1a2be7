/* transfer.h - copies between memory of the host and of a device while its
 * passes run: one small table for each kind of device.
 *
 * A transfer has two lanes, up and down, each with its pieces of pinned memory.
 * The copies of a lane are done in order, later. Slots are buffers of the
 * device that passes and a lane take turns with. One thread a lane; another may
 * run the passes. */
#ifndef DIL_RUNTIME_RING_TRANSFER_H
#define DIL_RUNTIME_RING_TRANSFER_H

#include "route.h"

struct ring_keys;

typedef enum transfer_lane {
  TRANSFER_UP, TRANSFER_DOWN, TRANSFER_LANES
} transfer_lane;

enum {
  TRANSFER_PIECES = 4,        /* of a lane */
  TRANSFER_PIECE = 16 << 20,  /* bytes */
  TRANSFER_SLOTS = 6
};

typedef struct device_transfer device_transfer;

typedef struct device_transfer_calls {
  /* The memory of a piece, once what was copied with it last is done. */
  dil_status (*settle)(device_transfer *l, transfer_lane lane, int32_t piece,
                       void **memory);
  /* The piece's first bytes to the device, or from it. */
  dil_status (*copy)(device_transfer *l, transfer_lane lane, int32_t piece,
                     void *device, int64_t bytes);
  /* Up: a message that was copied, to its places; the list of its rows goes
   * through a piece, which is settled. */
  dil_status (*spread)(device_transfer *l, int32_t piece, route *r,
                       const void *message, const struct ring_keys *keys);
  /* Copies of the lane from now on come after the slot's release. */
  dil_status (*follow)(device_transfer *l, transfer_lane lane, int32_t slot);
  /* Up: all that goes to the slot is on its way. */
  dil_status (*came)(device_transfer *l, int32_t slot);
  /* Passes that are asked from now on come after that; with `timed` their
   * seconds until the slot's release are counted. */
  dil_status (*use)(device_transfer *l, int32_t slot, bool timed);
  /* Passes that were asked so far are the last to touch the slot. */
  dil_status (*release)(device_transfer *l, int32_t slot);
  /* Waits for all that was asked; the seconds counted since the last time. */
  dil_status (*finish)(device_transfer *l, double *seconds);
  void (*free)(device_transfer *l);
} device_transfer_calls;

/* Every transfer begins with this. */
struct device_transfer {
  const device_transfer_calls *calls;
};

static inline void device_transfer_free(device_transfer *l) {
  if (l) l->calls->free(l);
}

#endif
