/* kernel.h - what a kernel is made of, and its context. */
#ifndef DIL_RUNTIME_API_KERNEL_H
#define DIL_RUNTIME_API_KERNEL_H

#include "runtime/call.h"
#include "runtime/code.h"
#include "runtime/pool/threads.h"

#pragma GCC visibility push(default)

/* The parts of a kernel, however it was compiled. Table, codes' texts and
 * context are borrowed until `release`. */
typedef struct dil_kernel_source {
  const dil_table *table;
  uint64_t plan_hash;
  dil_direction direction;
  const char *target;          /* "avx512", "sm_90" */
  const char *schedule;        /* its knobs; NULL: none were given */
  bool remembered;             /* by wisdom */
  dil_make make;               /* on the processor; else NULL */
  const dil_code *const *ready; /* [DIL_VARIANT_COUNT], code that is there
                                  already, in place of make; or NULL */
  const struct dil_cuda_code *codes; /* on a GPU, see cuda/cuda.h */
  int32_t code_count;
  dil_more more;               /* NULL: each of them has its cubin */
  /* On a GPU, the code of templates/rows.cu for its chip; the cubin is the
   * caller's. NULL: the kernel takes no parts of sequences, so no ranks. */
  dil_status (*rows)(const void *context, struct dil_cuda_code *code);
  dil_dimension dimension;     /* NULL: the plan has no inputs */
  void *context;               /* of make, more and dimension */
  void (*release)(void *context); /* after the last use; NULL: nothing to do.
                                  Not called when dil_kernel_make fails. */
} dil_kernel_source;
dil_status dil_kernel_make(dil_context *context,
                           const dil_kernel_source *source,
                           dil_kernel **kernel);
/* Seconds that one run takes: the device's own time. */
dil_status dil_kernel_time(dil_kernel *kernel, const dil_call *call,
                           double *seconds);
/* The variant that a call takes; sizes alone know nothing of documents and pages.
 */
dil_status dil_kernel_call_variant(dil_kernel *kernel, const dil_call *call,
                                   char *text, size_t room);

/* The same for its gradients, of a call that is checked by those who make it.
 */
dil_status dil_kernel_backward_time(dil_kernel *kernel,
                                    const dil_backward_call *call,
                                    double *seconds);
/* How that call runs, with its code there. */
dil_status dil_kernel_backward_describe(dil_kernel *kernel,
                                        const dil_backward_call *call,
                                        dil_backward_facts *facts);

/* ---- context.c ----------------------------------------------------------- */

/* The context of a kernel or program: one use more, one less. */
dil_context *dil_context_keep(dil_context *context);
void dil_context_drop(dil_context *context);
/* DIL_USAGE in a child forked after the context was made. */
dil_status dil_context_check(const dil_context *context);
/* Counts machine code that was made in `seconds`, after `opening` in which its
 * compiler was loaded. */
void dil_context_compiled(dil_context *context, double opening,
                          double seconds);
/* Why its device was chosen, in the host's place; before anything uses it. */
void dil_context_because(dil_context *context, const char *reason);
/* 0: the processor; else the chip of the GPU: 80, 90, ... */
int32_t dil_context_arch(const dil_context *context);
/* The facts of the context's GPU; NULL: the context is the processor. */
const struct dil_cuda_facts *dil_context_facts(const dil_context *context);
/* Threads of a processor's context, for work beside its kernels. */
dil_threads *dil_context_workers(const dil_context *context);

#pragma GCC visibility pop
#endif
