/* gpu_backend.h - the back end for GPUs, dil-gpu.so: requests, cubins and their
 * cache, kernels that come later, schedules to try. */
#ifndef DIL_COMPILER_CODEGEN_GPU_BACKEND_H
#define DIL_COMPILER_CODEGEN_GPU_BACKEND_H

#include "backend.h"
#include "compiler/front/program.h"
#include "compiler/schedule/schedule.h"
#include "runtime/cuda.h"
#include <stdatomic.h>

enum { GPU_CODES_MAX = 16 };

typedef struct source_text {
  char *text;              /* malloced, NUL-terminated */
  size_t length, room;
  bool lost;               /* memory ran out; the error is reported at the
                              end */
} source_text;

/* The environment variable with further options for NVRTC, separated by
 * spaces. */
#define NVRTC_WISHES "DIL_NVRTC_OPTIONS"

/* The result of NVRTC for a source. The gate has not checked it yet. */
typedef struct gpu_made {
  char *log;               /* the report of ptxas; malloced */
  void *cubin;             /* malloced */
  size_t size;
} gpu_made;

/* A cubin cache. Its key is a text of compiler options and source, without the
 * version of NVRTC. Plans with equal source thus share a cubin. Several threads
 * may call `put`, and `find` too unless `only` is set. */
typedef struct gpu_cubin_cache {
  void *context;
  bool only;               /* a cache miss is an error; NVRTC stays closed */
  bool empty;              /* the cache is empty: `find` is not called */
  bool (*find)(void *context, const source_text *of, gpu_made *made);
  void (*put)(void *context, const source_text *of, const char *label,
              const gpu_made *made, double seconds);
} gpu_cubin_cache;

typedef struct gpu_request {
  backend_request common;
  int32_t arch;            /* 80, 86, 89, 90 (compiled as sm_90a) */
  const char *only;        /* a strategy's name; NULL: every strategy */
  const knobs *knobs;      /* for the strategy that they select; NULL: none */
  bool any_order;          /* gradients may be added in any order; follows from
                              the knobs */
  bool source_only;        /* preferred configurations go to `cuda`; no
                              compilation */
  FILE *cuda, *ptxas;      /* not NULL: receive the source and ptxas' report */
  bool full_sequences_only; /* no call is a shard of a longer sequence (no
                               dil_shard) */
  bool gradients_of_shards; /* gradients may be those of a dil_shard */
  bool deferred;           /* deferred variants (see gpu_backend.deferred) get
                              no cubin */
  const atomic_bool *stop; /* not NULL: setting it cancels the compilation */
  const gpu_cubin_cache *cubins; /* NULL: no cache, everything is compiled */
} gpu_request;

typedef struct gpu_codes {
  int32_t count;           /* most specific first; the general one is last */
  int32_t variant[GPU_CODES_MAX]; /* the variant of each code, for
                                    gpu_backend.variant */
  dil_cuda_code code[GPU_CODES_MAX];
} gpu_codes;

/* A schedule that the tuner may try: its knobs, and its code without a
 * cubin. */
typedef struct gpu_candidate {
  knobs knobs;
  dil_cuda_code code;
} gpu_candidate;
enum { GPU_CANDIDATES_MAX = 192 };

typedef struct gpu_backend {
  /* common.compile makes every variant of every strategy. A strategy that the
   * knobs select has one variant, the one that the knobs describe. Errors:
   * DIL_ENVIRONMENT (NVRTC is missing or does not know the chip),
   * DIL_UNSUPPORTED (the gate refused every configuration of the general
   * strategy), DIL_INPUT (no kernel can have these knobs). */
  backend common;
  /* The deferred variants, one bit each: their compilation may end after the
   * kernel is in use. Few calls take them, or only calls with many rows do.
   * *urgent becomes true if calls take them as often as the others; their
   * compilation is then equally urgent. */
  uint32_t (*deferred)(const gpu_request *request, bool *urgent);
  /* Compiles one variant. DIL_UNSUPPORTED: the gate refused every
   * configuration. It fails when request->stop is set. */
  dil_status (*variant)(const gpu_request *request, int32_t variant,
                        dil_cuda_code *code);
  /* The codes that `compile` makes if the gate accepts every preferred
   * configuration, without cubins. NVRTC stays closed. */
  dil_status (*estimate)(const gpu_request *request, gpu_codes *out);
  /* Returns whether the general strategy takes a pass in every call; `reason`
   * says why. Of a backward plan: whether the general kernels make the
   * gradients of the pass. */
  bool (*refuses)(const gpu_request *request, int32_t pass, char *reason,
                  size_t size);
  /* The schedules that the tuner may try, at most `room`, in no order. The gate
   * has not checked them. Returns their number. */
  int32_t (*candidates)(const gpu_request *request, gpu_candidate *list,
                        int32_t room);
  /* A kernel that only multiplies matrices, of the type that the plan's kernels
   * multiply (tf32 for f32). Its speed is the peak for the chip. */
  dil_status (*peak)(const plan *p, int32_t arch, const gpu_cubin_cache *cubins,
                     dil_cuda_code *code);
  /* The kernels that ranks of a ring use besides attention:
   * templates/rows.cu. */
  dil_status (*rows)(int32_t arch, const gpu_cubin_cache *cubins,
                     dil_cuda_code *code);
} gpu_backend;

/* Opens dil-gpu.so, once; NVRTC stays closed. */
dil_status gpu_backend_open(const gpu_backend **opened);

#endif
