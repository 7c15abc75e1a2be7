/* failing_device.h - a rank's device of which one request fails. */
#ifndef DIL_TESTS_SUPPORT_FAILING_DEVICE_H
#define DIL_TESTS_SUPPORT_FAILING_DEVICE_H

#include "runtime/ring/ring_device.h"

/* The requests of a rank to its device before and after its steps: memory for sums,
 * the sums of inputs, and on a GPU the place of their gradients. */
typedef enum device_request {
  DEVICE_TAKE, DEVICE_READ, DEVICE_WRITE, DEVICE_REQUESTS
} device_request;

/* Of the requests of this kind that follow, number `left` (from 0) fails by
 * DIL_INTERNAL: "the device refuses". */
void failing_device_set(device_request kind, int32_t left);
bool failing_device_struck(void);
/* Gives the device calls that may fail, which are made in *calls and live as long as
 * these do; returns those that it had. One device at a time. */
const ring_device_calls *failing_device_begin(ring_device *d,
                                              ring_device_calls *calls);

#endif
