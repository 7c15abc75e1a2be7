/* host.h - what tests of the public interface share: tensors of a kernel's
 * own shapes, filled with small numbers. */
#ifndef DIL_TESTS_SUPPORT_HOST_H
#define DIL_TESTS_SUPPORT_HOST_H

#include "compiler/dil.h"

enum { HOST_INPUTS = 3, HOST_TENSORS = DIL_TENSOR_INPUT + HOST_INPUTS };

typedef struct host_call {
  DLTensor tensor[HOST_TENSORS]; /* by DIL_TENSOR_... */
  int64_t shape[HOST_TENSORS][DIL_RANK_MAX];
  const DLTensor *inputs[HOST_INPUTS];
  dil_arguments arguments;
} host_call;

extern const dil_sizes host_sizes;
/* Two branches over one batch row, f32; lse may be asked for. */
extern const char *host_text;

/* Row-major tensors for a call of these sizes, o and lse full of NaN. */
void host_call_make(host_call *c, const dil_kernel *kernel,
                    const dil_sizes *sizes);
void host_call_free(host_call *c);
/* Loadable parts are looked for above the test program. */
void host_modules(void);
/* Ends the test with the text of the failure. */
void host_must(dil_status status);
/* The call failed like that, and the text of the failure has these words. */
void host_refused(dil_status status, dil_status want, const char *words);
/* The program of host_text and its kernel, on a context of the caller's. */
void host_open(dil_context *context, dil_program **program,
               dil_kernel **kernel);
/* The kernel of `text` on a new context of `options`. */
dil_kernel *host_kernel(const dil_context_options *options, const char *text);

#endif
