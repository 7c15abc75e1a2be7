/* backend.h - the ABI of a loadable back end (dil-cpu.so, later dil-gpu.so).
 *
 * A module exports one symbol, dil_backend_init, that returns its table. It is
 * opened once; a failure is remembered with its reason. */
#ifndef DIL_BACKEND_H
#define DIL_BACKEND_H

#include "all.h"

enum { DIL_BACKEND_VERSION = 1 };

typedef struct backend_request {
  const plan *plan;
  const char *isa;       /* "avx2", "avx512", "avx512bf16"; NULL: the host's */
  dil_variant variant;
  bool debug;            /* line tables for gdb */
  FILE *ir, *assembly;   /* not NULL: the text goes there as well */
} backend_request;

typedef struct backend_code {
  void *bytes;           /* malloced object file; the caller's */
  size_t size;
  dil_code code;         /* lanes, pack, key_block, tile_keys filled */
} backend_code;

typedef struct backend {
  int32_t version;       /* DIL_BACKEND_VERSION */
  const char *name;
  /* The instruction set this host would get; NULL with the reason in
   * dil_last_error when the module cannot serve it. */
  const char *(*host)(void);
  /* DIL_OK, or DIL_ENVIRONMENT when `isa` is unknown or not of this host. */
  dil_status (*can)(const char *isa);
  dil_status (*compile)(const backend_request *request, backend_code *out);
  /* The compiler library and its version, for cache keys and `--version`. */
  const char *(*versions)(void);
} backend;

typedef const backend *(*backend_init)(void);
#define DIL_BACKEND_SYMBOL "dil_backend_init"

#endif
