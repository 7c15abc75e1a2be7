/* timing.c - how long work takes on a device, between two events of the default
 * stream. In: work. Out: seconds. */
#include "device.h"

typedef struct timed_work {
  const dil_cuda *device;
  dil_status (*work)(void *);
  void *context;
  cu_event from, to;
} timed_work;

static dil_status timing_between(const timed_work *t, cuda_clock clock,
                                 double *seconds) {
  const cuda_driver *driver = t->device->driver;
  float milliseconds = 0;
  dil_status status = clock == CLOCK_BEHIND ? t->work(t->context) : DIL_OK;
  if (!status)
    status = cuda_check(driver, driver->event_record(t->from, NULL),
                        "record an event");
  if (!status) status = t->work(t->context);
  cu_result result = driver->event_record(t->to, NULL);
  if (!result) result = driver->event_wait(t->to);
  if (!result && !status)
    result = driver->event_time(&milliseconds, t->from, t->to);
  *seconds = milliseconds / 1e3;
  return status ? status : cuda_check(driver, result, "time a kernel");
}

dil_status cuda_time(const dil_cuda *device, cuda_clock clock,
                     dil_status (*work)(void *), void *context,
                     double *seconds) {
  const cuda_driver *driver = device->driver;
  timed_work t = {device, work, context, NULL, NULL};
  cu_result result = driver->event_new(&t.from, 0);
  if (!result) result = driver->event_new(&t.to, 0);
  dil_status status = cuda_check(driver, result, "make an event");
  if (!status) status = timing_between(&t, clock, seconds);
  if (t.to) driver->event_free(t.to);
  if (t.from) driver->event_free(t.from);
  return status;
}
