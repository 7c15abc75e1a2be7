/* nccl_open.c - opens NCCL at run time, once. In: libnccl.so.2. Out: a table of
 * its functions, or the reason why there is none; later calls get the same. */
#include "nccl.h"
#include "runtime/base/status.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { VERSION_LEAST = 21400 }; /* first with non-blocking communicators */

static nccl_functions functions;
static char failure[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library, const char *symbol, void *address) {
  void *found = dlsym(library, symbol);
  memcpy(address, &found, sizeof found);
  if (!found)
    snprintf(failure, sizeof failure, "NCCL has no %s: it is too old", symbol);
  return found != NULL;
}

static void open_library(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  int version = 0;
  if (!library) {
    snprintf(failure, sizeof failure, "no NCCL: %s", dlerror());
    return;
  }
  bool whole = find(library, "ncclGetErrorString", &functions.text) &&
               find(library, "ncclGetLastError", &functions.last);
#define X(name, symbol, arguments)                                           \
  whole = whole && find(library, #symbol, &functions.name);
  NCCL_FUNCTIONS(X)
#undef X
  if (whole && functions.version(&version)) version = 0;
  void *found = dlsym(library, "ncclCommShrink");
  if (version >= NCCL_SHRINKS_SINCE)
    memcpy(&functions.shrink, &found, sizeof found);
  if (whole && version < VERSION_LEAST)
    snprintf(failure, sizeof failure, "NCCL %d.%d is too old, 2.14 is wanted",
             version / 10000, version / 100 % 100);
}

dil_status nccl_open(const nccl_functions **found) {
  pthread_once(&once, open_library);
  *found = &functions;
  return failure[0] ? dil_fail(DIL_ENVIRONMENT, "%s", failure) : DIL_OK;
}
