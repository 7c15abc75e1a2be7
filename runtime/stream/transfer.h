/* transfer.h - between memory of the host and of a device, beside its
 * passes: one small table a kind of device.
 *
 * A lift has two lanes, up and down, each with its pieces of pinned memory. The
 * copies of a lane are done in order, later. Slots are buffers of the device
 * that passes and a lane take turns with. One thread a lane; another may run
 * the passes. */
#ifndef DIL_RUNTIME_STREAM_TRANSFER_H
#define DIL_RUNTIME_STREAM_TRANSFER_H

#include "runtime/ring/route.h"

struct ring_keys;

typedef enum lift_lane { LIFT_UP, LIFT_DOWN, LIFT_LANES } lift_lane;

enum {
  LIFT_PIECES = 4,        /* of a lane */
  LIFT_PIECE = 16 << 20,  /* bytes */
  LIFT_SLOTS = 6
};

typedef struct stream_lift stream_lift;

typedef struct stream_lift_calls {
  /* The memory of a piece, once what was copied with it last is done. */
  dil_status (*settle)(stream_lift *l, lift_lane lane, int32_t piece,
                       void **memory);
  /* The piece's first bytes to the device, or from it. */
  dil_status (*copy)(stream_lift *l, lift_lane lane, int32_t piece,
                     void *device, int64_t bytes);
  /* Up: a message that was copied, to its places; the list of its rows goes
   * through a piece, which is settled. */
  dil_status (*spread)(stream_lift *l, int32_t piece, route *r,
                       const void *message, const struct ring_keys *keys);
  /* What the lane copies from now on comes after the slot's release. */
  dil_status (*follow)(stream_lift *l, lift_lane lane, int32_t slot);
  /* Up: all that goes to the slot is on its way. */
  dil_status (*came)(stream_lift *l, int32_t slot);
  /* Passes that are asked from now on come after that; with `timed` their
   * seconds until the slot's release are counted. */
  dil_status (*use)(stream_lift *l, int32_t slot, bool timed);
  /* Passes that were asked so far are the last to touch the slot. */
  dil_status (*release)(stream_lift *l, int32_t slot);
  /* Waits for all that was asked; the seconds counted since the last time. */
  dil_status (*finish)(stream_lift *l, double *seconds);
  void (*free)(stream_lift *l);
} stream_lift_calls;

/* Every lift begins with this. */
struct stream_lift {
  const stream_lift_calls *calls;
};

static inline void stream_lift_free(stream_lift *l) {
  if (l) l->calls->free(l);
}

#endif
