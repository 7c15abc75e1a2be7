/* older.h - an older chip on a newer one: libraries that stand in front of
 * libcuda.so.1 and libnvrtc.so.13. In: OLDER_CHIP (80), OLDER_CUDA and
 * OLDER_NVRTC, the paths of the real ones. Out: devices that say they are of
 * that chip, with its shared memory, and for its cubins the PTX that they were
 * assembled from, which the driver assembles for the chip that is there. So the
 * very kernels that an A100 would get, past the gate of its own ptxas, compute
 * on a Hopper. What this cannot show is what the older assembler makes of them. */
#ifndef DIL_TESTS_OLDER_OLDER_H
#define DIL_TESTS_OLDER_OLDER_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define SHOWN __attribute__((visibility("default")))

static inline void *open_real(const char *variable) {
  const char *path = getenv(variable);
  void *real = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (real) return real;
  fprintf(stderr, "%s: %s\n", variable, path ? dlerror() : "not set");
  abort();
}

static inline void *must_find(void *real, const char *name) {
  void *found = dlsym(real, name);
  if (found) return found;
  fprintf(stderr, "%s: not there\n", name);
  abort();
}

#endif
