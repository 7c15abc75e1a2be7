/* deferred.h - codes of a kernel that a thread compiles after the kernel is
 * made. */
#ifndef DIL_COMPILER_CODEGEN_DEFERRED_H
#define DIL_COMPILER_CODEGEN_DEFERRED_H

#include "codegen.h"

/* The codes of a plan for a kernel that is made now. Codes that few calls need
 * may still lack their cubin: a thread compiles them. *out is NULL when no code
 * is deferred; else it borrows the plan and the context of `of` until
 * deferred_end. The codes made at once are cached on their own, so that their
 * work outlives a process that ends before the thread does. */
dil_status deferred_begin(const code_request *of, const gpu_request *request,
                          gpu_codes *codes, deferred **out);
/* Takes code number `index`; its cubin is malloced and the caller's. Where it is
 * still being compiled, the call waits for it, or leaves the cubin NULL unless it
 * `waits`. Each call reports the compiler's failure anew. */
dil_status deferred_take(deferred *d, int32_t index, bool waits,
                         dil_cuda_code *code);
/* Waits until the thread has compiled all codes, and kept them; NULL: nothing. A
 * code that failed is told by deferred_take. */
void deferred_wait(deferred *d);
/* Stops and joins the thread, and frees what it made; NULL: nothing. A
 * compilation that cannot be interrupted is waited for. */
void deferred_end(deferred *d);

#endif
