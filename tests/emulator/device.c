/* device.c - devices and their contexts, and what went wrong. In: FAKE_CHIP,
 * FAKE_DEVICES, FAKE_PROCESSORS, FAKE_MEMORY. Out: facts; a context is its
 * device. */
#include "driver.h"
#include "memory.h"
#include "runtime/cuda/chips.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cu_context {
  int device;
};
static struct cu_context contexts[DEVICES_MOST];
static bool peers[DEVICES_MOST][DEVICES_MOST];

/* Contexts that a thread has entered. */
enum { ENTERED_MOST = 64 };
static _Thread_local int entered[ENTERED_MOST];
static _Thread_local int depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char broken[4096];
static _Thread_local char reason[512];

void driver_lock(void) { pthread_mutex_lock(&lock); }
void driver_unlock(void) { pthread_mutex_unlock(&lock); }

long long wish(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

/* ---- what went wrong --------------------------------------------------------- */

cu_result driver_refuse(cu_result result, const char *why) {
  snprintf(reason, sizeof reason, "%s", why);
  return result;
}

void driver_break(const char *why) {
  if (!broken[0]) snprintf(broken, sizeof broken, "%s", why);
}

cu_result driver_broken(void) { return broken[0] ? LAUNCH_FAILED : 0; }

CUDA(cuGetErrorString, cu_result result, const char **text) {
  static const struct { int code; const char *text; } texts[] = {
      {0, "no error"},
      {OUT_OF_MEMORY, "out of memory"},
      {INVALID_CONTEXT, "no context is entered"},
      {NOT_READY, "not ready"},
      {NOT_SUPPORTED, "the emulator does not have this function"}};
  *text = reason[0] ? reason : "a fault of the driver";
  if (result == LAUNCH_FAILED) *text = broken;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].code == result) *text = texts[i].text;
  return 0;
}

/* ---- facts ---------------------------------------------------------------------- */

int device_count(void) {
  long long count = wish("FAKE_DEVICES", 1);
  return count < 0 ? 0 : count > DEVICES_MOST ? DEVICES_MOST : (int)count;
}

CUDA(cuInit, unsigned flags) {
  (void)flags;
  for (int i = 0; i < DEVICES_MOST; i++) contexts[i].device = i;
  return device_count() ? 0 : driver_refuse(NO_DEVICE, "there is no device");
}

CUDA(cuDriverGetVersion, int *version) { return *version = 13000, 0; }
CUDA(cuDeviceGetCount, int *count) { return *count = device_count(), 0; }

CUDA(cuDeviceGet, cu_device *device, int index) {
  *device = index;
  return index >= 0 && index < device_count()
             ? 0
             : driver_refuse(INVALID_DEVICE, "there is no such device");
}

CUDA(cuDeviceGetName, char *name, int room, cu_device device) {
  snprintf(name, (size_t)room, "emulated device %d", device);
  return 0;
}

CUDA(cuDeviceTotalMem_v2, size_t *bytes, cu_device device) {
  (void)device;
  return *bytes = (size_t)wish("FAKE_MEMORY", 1ll << 34), 0;
}

/* Of a block, by the chip. */
static int shared_bytes(long long chip) {
  const cuda_chip *like = cuda_chip_like((int32_t)chip);
  return like ? (int)like->shared : 0;
}

CUDA(cuDeviceGetAttribute, int *value, int number, cu_device device) {
  const long long chip = wish("FAKE_CHIP", 90);
  (void)device;
  switch (number) { /* CUdevice_attribute */
    case 16: *value = (int)wish("FAKE_PROCESSORS", 4); break;
    case 38: *value = 50 << 20; break;
    case 40: case 41: case 115: *value = 1; break; /* overlap, addresses, pools */
    case 75: *value = (int)(chip / 10); break;
    case 76: *value = (int)(chip % 10); break;
    case 97: *value = shared_bytes(chip); break;
    default: *value = 0;
  }
  return 0;
}

/* ---- contexts ----------------------------------------------------------------------- */

int device_of(cu_context context) {
  for (int i = 0; i < device_count(); i++)
    if (context == &contexts[i]) return i;
  return -1;
}

int device_now(void) { return depth ? entered[depth - 1] : -1; }

CUDA(cuDevicePrimaryCtxRetain, cu_context *context, cu_device device) {
  if (device < 0 || device >= device_count())
    return driver_refuse(INVALID_DEVICE, "there is no such device");
  return *context = &contexts[device], 0;
}
CUDA(cuDevicePrimaryCtxRelease_v2, cu_device device) {
  (void)device;
  return 0;
}

CUDA(cuCtxPushCurrent_v2, cu_context context) {
  int device = device_of(context);
  if (device < 0 || depth == ENTERED_MOST)
    return driver_refuse(INVALID_VALUE, "that is no context");
  return entered[depth++] = device, 0;
}
CUDA(cuCtxPopCurrent_v2, cu_context *context) {
  if (!depth) return INVALID_CONTEXT;
  int device = entered[--depth];
  if (context) *context = device < 0 ? NULL : &contexts[device];
  return 0;
}
CUDA(cuCtxSetCurrent, cu_context context) {
  int device = device_of(context);
  if (context && device < 0)
    return driver_refuse(INVALID_VALUE, "that is no context");
  if (!depth) depth = 1;
  return entered[depth - 1] = device, 0;
}
CUDA(cuCtxGetCurrent, cu_context *context) {
  int device = device_now();
  return *context = device < 0 ? NULL : &contexts[device], 0;
}
CUDA(cuCtxGetDevice, cu_device *device) {
  *device = device_now();
  return *device < 0 ? INVALID_CONTEXT : 0;
}

/* ---- peers ----------------------------------------------------------------------------- */

bool device_reaches(int from, int to) { return from == to || peers[from][to]; }

CUDA(cuDeviceCanAccessPeer, int *can, cu_device from, cu_device to) {
  return *can = from != to && wish("FAKE_PEERS", 1), 0;
}

CUDA(cuCtxEnablePeerAccess, cu_context context, unsigned flags) {
  int from = device_now(), to = device_of(context);
  (void)flags;
  if (from < 0) return INVALID_CONTEXT;
  if (to < 0 || to == from || !wish("FAKE_PEERS", 1))
    return driver_refuse(NO_PEER_ACCESS, "these devices are no peers");
  if (peers[from][to])
    return driver_refuse(PEER_ALREADY, "peer access is on already");
  return peers[from][to] = true, 0;
}

CUDA(cuCtxDisablePeerAccess, cu_context context) {
  int from = device_now(), to = device_of(context);
  if (from < 0) return INVALID_CONTEXT;
  if (to < 0 || !peers[from][to])
    return driver_refuse(NO_PEER_ACCESS, "peer access is not on");
  return peers[from][to] = false, 0;
}
