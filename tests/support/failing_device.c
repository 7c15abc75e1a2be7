/* failing_device.c - see failing_device.h. In: a device. Out: the same, but for one
 * request. */
#include "failing_device.h"
#include "runtime/base/status.h"

static device_request failing;
static int32_t before; /* requests before the one that fails */
static const ring_device_calls *below;

void failing_device_set(device_request kind, int32_t left) {
  failing = kind;
  before = left;
}

bool failing_device_struck(void) { return before < 0; }

static dil_status strike(device_request kind) {
  bool now = kind == failing && before-- == 0;
  return now ? dil_fail(DIL_INTERNAL, "the device refuses") : DIL_OK;
}

static dil_status take(ring_device *d, int64_t bytes, ring_content content,
                       void **memory) {
  dil_status status = strike(DEVICE_TAKE);
  return status ? status : below->take(d, bytes, content, memory);
}
static dil_status read_down(ring_device *d, void *to, const void *from,
                            int64_t bytes) {
  dil_status status = strike(DEVICE_READ);
  return status ? status : below->read(d, to, from, bytes);
}
static dil_status write_up(ring_device *d, void *to, const void *from,
                           int64_t bytes) {
  dil_status status = strike(DEVICE_WRITE);
  return status ? status : below->write(d, to, from, bytes);
}

const ring_device_calls *failing_device_begin(ring_device *d,
                                              ring_device_calls *calls) {
  below = d->calls;
  *calls = *below;
  calls->take = take;
  calls->read = read_down;
  calls->write = write_up;
  d->calls = calls;
  return below;
}
