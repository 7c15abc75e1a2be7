/* backend.h - the interface of every back end: dil-cpu.so and dil-gpu.so.
 *
 * A module exports one symbol, dil_backend_init, that returns its table. The
 * table begins with a `backend`; cpu_backend.h and gpu_backend.h add what only
 * one kind has. A module is opened once; a failure is remembered with its
 * reason. */
#ifndef DIL_COMPILER_CODEGEN_BACKEND_H
#define DIL_COMPILER_CODEGEN_BACKEND_H

#include "compiler/plan/plan.h"

/* The request to every back end; the plan has the direction. It is the first
 * member of a cpu_request and of a gpu_request, which add the target. */
typedef struct backend_request {
  const plan *plan;
} backend_request;

typedef struct backend {
  int32_t version;       /* DIL_INTERFACE, of interface.h */
  const char *name;      /* "cpu" or "gpu" */
  const char *compiler;  /* of machine code: "llvm" or "nvrtc" */
  /* DIL_OK, or the status with which `compile` would refuse the request before
   * the compiler runs; the reason is in dil_last_error. */
  dil_status (*can)(const backend_request *request);
  /* `request` and `codes` are of the back end's kind: cpu_request and cpu_code,
   * or gpu_request and gpu_codes. On failure nothing is left to free. */
  dil_status (*compile)(const backend_request *request, void *codes);
  /* The compiler and its version, for cache keys and `--version`: "LLVM 19.1",
   * "NVRTC 13.0". NULL with the reason in dil_last_error. */
  const char *(*versions)(void);
  /* The path of the compiler's library file; NULL: unknown. */
  const char *(*origin)(void);
} backend;

typedef const backend *(*backend_init)(void);
#define BACKEND_SYMBOL "dil_backend_init"

#endif
