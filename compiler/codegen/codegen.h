/* codegen.h - from a plan to the code of a kernel, for all other folders.
 *
 * In: a request. Out: a dil_kernel_source, of which the run time makes a
 * kernel. GPU code is made at once; the run time asks for a processor's code
 * when a call first needs it. Machine code comes from the code cache, or else
 * from a back end that is loaded only then. */
#ifndef DIL_COMPILER_CODEGEN_CODEGEN_H
#define DIL_COMPILER_CODEGEN_CODEGEN_H

#include "cpu_backend.h"
#include "gpu_backend.h"

/* The part of a compilation that code generation knows. */
typedef struct code_request {
  const plan *plan;
  knobs knobs;
  dil_context *context;     /* the device, the code cache, and the counts of
                               compilations */
  const char *isa;          /* instruction set of the processor's code */
  bool full_sequences_only; /* no call holds a shard of a longer sequence */
  bool lazy;                /* a kernel may be made before all its GPU code */
} code_request;

/* Codes of a kernel that a thread still compiles; see deferred.h. */
typedef struct deferred deferred;

/* The code of a kernel. It must neither move nor end before the kernel. */
typedef struct kernel_code {
  code_request request;     /* borrows the plan, the context and the isa */
  dil_kernel_source source; /* for dil_kernel_make; its hooks get this struct */
  gpu_codes *codes;         /* of source.codes; NULL: none, or freed */
  char chip[16];            /* "sm_90", of GPU code */
  deferred *deferred;       /* NULL: nothing is deferred */
} kernel_code;

/* Fills `code`, which is zeroed or was made before and then is freed first. On
 * failure nothing is left to free. */
dil_status kernel_code_make(const code_request *request, kernel_code *code);
/* Waits until no code is still being compiled. */
void kernel_code_wait(const kernel_code *code);
/* Frees the cubins, once the kernel is made or cannot be made. */
void kernel_code_free_cubins(kernel_code *code);
/* Frees all, and stops what is deferred, once the kernel is freed. */
void kernel_code_free(kernel_code *code);

/* Kernels of a GPU that stand beside those of a plan: templates/peak.cu for the
 * plan's dtype, and templates/rows.cu. */
typedef enum helper_kernel { HELPER_PEAK, HELPER_ROWS } helper_kernel;
/* The helper for the context's chip; its cubin is malloced and the caller's. */
dil_status code_cache_helper(const code_request *request, helper_kernel which,
                             dil_cuda_code *code);

#endif
