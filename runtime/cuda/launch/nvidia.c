/* nvidia.c - opens the CUDA driver at run time, once, and translates its
 * errors. In: libcuda.so.1. Out: a table of its functions, or the reason why
 * there is none, remembered. */
#include "nvidia.h"
#include "runtime/base/status.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static cuda_driver functions;
static char failure[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool driver_find(void *library, const char *symbol, void *address) {
  void *found = dlsym(library, symbol);
  memcpy(address, &found, sizeof found);
  if (!found)
    snprintf(failure, sizeof failure, "the CUDA driver has no %s: it is too "
             "old", symbol);
  return found != NULL;
}

static void driver_start(void) {
  const char *text = NULL;
  cu_result result = functions.init(0);
  if (!result) return;
  if (functions.error_text(result, &text)) text = NULL;
  snprintf(failure, sizeof failure, "the CUDA driver does not start: %s",
           text ? text : "unknown error");
}

static void driver_open(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(failure, sizeof failure, "no CUDA driver: %s", dlerror());
    return;
  }
  bool whole = true;
#define X(name, symbol, arguments)                                             \
  whole = whole && driver_find(library, #symbol, &functions.name);
  CUDA_FUNCTIONS(X)
#undef X
  if (whole) driver_start();
}

dil_status cuda_driver_open(const cuda_driver **driver) {
  pthread_once(&once, driver_open);
  *driver = &functions;
  return failure[0] ? dil_fail(DIL_ENVIRONMENT, "%s", failure) : DIL_OK;
}

/* ---- errors of the driver ------------------------------------------------ */

static _Thread_local const dil_cuda *entered; /* by this thread, and how deep */
static _Thread_local int32_t depth;

/* Faults of kernels and memory, after which a context answers nothing else. */
static bool driver_ends_context(cu_result result) {
  static const cu_result faults[] = {214, 700, 702, 709, 710, 714,
                                     715, 716, 717, 718, 719};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    if (faults[i] == result) return true;
  return false;
}

dil_status cuda_check(const cuda_driver *driver, cu_result result,
                      const char *doing) {
  enum { OUT_OF_MEMORY = 2 };
  const char *text = NULL;
  if (!result) return DIL_OK;
  if (driver->error_text(result, &text)) text = NULL;
  bool ends = entered && driver_ends_context(result);
  if (ends) atomic_store(&((dil_cuda *)(uintptr_t)entered)->lost, true);
  return dil_fail(result == OUT_OF_MEMORY ? DIL_MEMORY : DIL_ENVIRONMENT,
                  "the CUDA driver cannot %s: %s (%d)%s", doing,
                  text ? text : "unknown error", result,
                  ends ? "; the context of the device is lost" : "");
}

dil_status cuda_is_captured(const cuda_driver *driver, void *stream,
                            bool *captured) {
  enum { CAPTURING = 1 }; /* CU_STREAM_CAPTURE_STATUS_... */
  int capture = 0;
  cu_graph graph = NULL;
  cu_result result =
      driver->capture(stream, &capture, NULL, &graph, NULL, NULL);
  *captured = capture == CAPTURING;
  return cuda_check(driver, result, "ask whether a stream is captured");
}

dil_status cuda_enter(const dil_cuda *device) {
  if (atomic_load(&device->lost))
    return dil_fail(DIL_ENVIRONMENT, "the context of device cuda:%d is lost "
                    "since an earlier failure; only a new process gets "
                    "another", device->device);
  dil_status status =
      cuda_check(device->driver, device->driver->push(device->context),
                 "enter its context");
  if (status) return status;
  entered = device;
  depth++;
  return DIL_OK;
}

void cuda_leave(const dil_cuda *device) {
  cu_context former;
  device->driver->pop(&former);
  if (--depth == 0) entered = NULL;
}
