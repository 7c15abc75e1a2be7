/* nvidia.c - opens the CUDA driver at run time, once, and translates what it
 * says. In: libcuda.so.1. Out: a table of its functions, or the reason why
 * there is none, remembered. */
#include "nvidia.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static cuda_driver functions;
static char failure[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library, const char *symbol, void *address) {
  void *found = dlsym(library, symbol);
  memcpy(address, &found, sizeof found);
  if (!found)
    snprintf(failure, sizeof failure, "the CUDA driver has no %s: it is too "
             "old", symbol);
  return found != NULL;
}

static void start(void) {
  const char *text = NULL;
  cu_result result = functions.init(0);
  if (!result) return;
  if (functions.error_text(result, &text)) text = NULL;
  snprintf(failure, sizeof failure, "the CUDA driver does not start: %s",
           text ? text : "unknown error");
}

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(failure, sizeof failure, "no CUDA driver: %s", dlerror());
    return;
  }
  bool whole = true;
#define X(name, symbol, arguments)                                             \
  whole = whole && find(library, #symbol, &functions.name);
  CUDA_FUNCTIONS(X)
#undef X
  if (whole) start();
}

dil_status cuda_driver_open(const cuda_driver **driver) {
  pthread_once(&once, open_driver);
  *driver = &functions;
  return failure[0] ? dil_fail(DIL_ENVIRONMENT, "%s", failure) : DIL_OK;
}

dil_status cuda_check(const cuda_driver *driver, cu_result result,
                      const char *doing) {
  enum { OUT_OF_MEMORY = 2 };
  const char *text = NULL;
  if (!result) return DIL_OK;
  if (driver->error_text(result, &text)) text = NULL;
  return dil_fail(result == OUT_OF_MEMORY ? DIL_MEMORY : DIL_ENVIRONMENT,
                  "the CUDA driver cannot %s: %s (%d)", doing,
                  text ? text : "unknown error", result);
}

dil_status cuda_enter(const dil_cuda *device) {
  return cuda_check(device->driver, device->driver->push(device->context),
                    "enter its context");
}

void cuda_leave(const dil_cuda *device) {
  cu_context former;
  device->driver->pop(&former);
}
