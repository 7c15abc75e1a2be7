/* cubin_cache.h - cubins by the source and NVRTC's options, so that plans with
 * one source share a cubin. */
#ifndef DIL_COMPILER_CODEGEN_CUBIN_CACHE_H
#define DIL_COMPILER_CODEGEN_CUBIN_CACHE_H

#include "gpu_backend.h"
#include <limits.h>

/* The cubin cache of a context, for one request. */
typedef struct cubin_cache {
  gpu_cubin_cache calls;
  dil_context *context;
  char origin[PATH_MAX]; /* path of the NVRTC that made the cubins; "": not yet
                            known, the first cubin found sets it */
} cubin_cache;

/* `only`: the caller compiles nothing that the cache lacks. `origin`: the path
 * of the NVRTC that compiles; NULL: there is none, or its path is unknown, and
 * nothing is stored until a find has set the origin. The struct points to
 * itself, so it must not be moved. */
void cubin_cache_open(cubin_cache *cache, dil_context *context, bool only,
                      const char *origin);

#endif
