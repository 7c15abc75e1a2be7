/* device.c - one GPU: its facts and its memory. In: its number. Out: a handle
 * on its primary context, shared with all other users of the process. */
#include "device.h"
#include "chips.h"
#include "spans.h"
#include "workspace.h"
#include "runtime/base/status.h"
#include "runtime/cuda/launch/counters.h"
#include <stdlib.h>

dil_status device_count(int32_t *count) {
  const cuda_driver *driver;
  dil_status status = cuda_driver_open(&driver);
  int n = 0;
  if (!status)
    status = cuda_check(driver, driver->device_count(&n), "count devices");
  *count = n;
  return status;
}

/* Numbers of CUdevice_attribute. */
enum {
  ATTRIBUTE_PROCESSORS = 16,
  ATTRIBUTE_MAJOR = 75,
  ATTRIBUTE_MINOR = 76,
  ATTRIBUTE_SHARED = 97
};

static int device_attribute(const dil_cuda *d, int number, cu_result *result) {
  int value = 0;
  if (!*result) *result = d->driver->attribute(&value, number, d->device);
  return value;
}

static dil_status device_read_facts(dil_cuda *d) {
  dil_cuda_facts *facts = &d->facts;
  size_t memory = 0;
  int version = 0;
  cu_result result =
      d->driver->device_name(facts->name, sizeof facts->name, d->device);
  facts->processors = device_attribute(d, ATTRIBUTE_PROCESSORS, &result);
  facts->arch = 10 * device_attribute(d, ATTRIBUTE_MAJOR, &result);
  facts->arch += device_attribute(d, ATTRIBUTE_MINOR, &result);
  facts->shared_block = device_attribute(d, ATTRIBUTE_SHARED, &result);
  if (!result) result = d->driver->device_memory(&memory, d->device);
  if (!result) result = d->driver->version(&version);
  facts->memory = (int64_t)memory;
  facts->driver = version;
  return cuda_check(d->driver, result, "describe the device");
}

/* Opens the parts that a device has besides its context. */
static dil_status device_open_parts(dil_cuda *d) {
  dil_status status = cuda_enter(d);
  if (status) return status;
  status = workspace_open(d);
  if (!status && cuda_chip_fast(d->facts.arch))
    status = counters_new(d->driver, &d->counters);
  if (!status) d->spans = spans_new(d);
  cuda_leave(d);
  return status;
}

static void device_close_parts(dil_cuda *d) {
  if (!cuda_enter(d)) {
    spans_free(d->spans);
    if (d->counters) counters_free(d->counters);
    cuda_leave(d);
  }
  workspace_close(d);
}

static dil_status device_open_context(dil_cuda *d) {
  dil_status status =
      cuda_check(d->driver, d->driver->retain(&d->context, d->device),
                 "open the device");
  if (status) return status;
  status = device_open_parts(d);
  if (!status) return DIL_OK;
  device_close_parts(d);
  d->driver->release(d->device);
  return status;
}

dil_status device_open(int32_t index, dil_cuda **device) {
  dil_cuda *d = calloc(1, sizeof *d);
  if (!d) return dil_fail(DIL_MEMORY, "no memory for a device");
  dil_status status = cuda_driver_open(&d->driver);
  if (!status)
    status = cuda_check(d->driver, d->driver->device(&d->device, index),
                        "find the device");
  if (!status) status = device_read_facts(d);
  if (!status) status = device_open_context(d);
  if (status) free(d);
  else *device = d;
  return status;
}

void device_close(dil_cuda *device) {
  if (!device) return;
  device_close_parts(device);
  device->driver->release(device->device);
  free(device);
}

struct pool *device_pool(const dil_cuda *device) { return device->pool; }

const dil_cuda_facts *device_facts(const dil_cuda *device) {
  return &device->facts;
}

/* ---- memory -------------------------------------------------------------- */

dil_status device_take(dil_cuda *device, int64_t bytes, void **memory) {
  cu_pointer pointer = 0;
  dil_status status = cuda_enter(device);
  if (status) return status;
  status = cuda_check(device->driver,
                      device->driver->take(&pointer, bytes ? bytes : 1),
                      "take device memory");
  cuda_leave(device);
  *memory = (void *)(uintptr_t)pointer;
  return status;
}

void device_give(dil_cuda *device, void *memory) {
  if (!memory || cuda_enter(device)) return;
  device->driver->give((cu_pointer)(uintptr_t)memory);
  cuda_leave(device);
}

dil_status device_upload(dil_cuda *device, void *to, const void *from,
                         int64_t bytes) {
  const cuda_driver *driver = device->driver;
  dil_status status = cuda_enter(device);
  if (status) return status;
  cu_result result =
      driver->upload((cu_pointer)(uintptr_t)to, from, (size_t)bytes);
  if (!result) result = driver->wait(NULL); /* it may have been staged only */
  status = cuda_check(driver, result, "copy to the device");
  cuda_leave(device);
  return status;
}

dil_status device_download(dil_cuda *device, void *to, const void *from,
                           int64_t bytes) {
  dil_status status = cuda_enter(device);
  if (status) return status;
  status = cuda_check(device->driver,
                      device->driver->download(
                          to, (cu_pointer)(uintptr_t)from, (size_t)bytes),
                      "copy from the device");
  cuda_leave(device);
  return status;
}

/* The driver's own returns before it is done, and streams that do not wait for
 * the default one would not wait for it. */
dil_status device_fill(dil_cuda *device, void *to, uint8_t byte,
                       int64_t bytes) {
  const cuda_driver *driver = device->driver;
  dil_status status = cuda_enter(device);
  if (status) return status;
  cu_result result =
      driver->fill((cu_pointer)(uintptr_t)to, byte, (size_t)bytes);
  if (!result) result = driver->wait(NULL);
  status = cuda_check(driver, result, "fill device memory");
  cuda_leave(device);
  return status;
}

dil_status device_wait(dil_cuda *device, void *stream) {
  dil_status status = cuda_enter(device);
  if (status) return status;
  status = cuda_check(device->driver, device->driver->wait(stream),
                      "finish the work of a stream");
  cuda_leave(device);
  return status;
}
