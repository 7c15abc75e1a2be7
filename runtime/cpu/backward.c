/* backward.c - the gradients of a call on a processor.
 *
 * In: a kernel, a call that ran forward with its o and lse, and dO. Out: dQ, dK,
 * dV and the gradients of inputs. */
#include "cpu.h"
#include "runtime/base/status.h"

dil_status cpu_kernel_backward(cpu_kernel *kernel, dil_threads *threads,
                               pool *scratch, const dil_backward_call *call) {
  (void)kernel;
  (void)threads;
  (void)scratch;
  (void)call;
  return dil_fail(DIL_UNSUPPORTED, "this build has no gradients yet");
}

dil_status cpu_kernel_backward_workspace(cpu_kernel *kernel,
                                         dil_threads *threads,
                                         const dil_backward_call *call,
                                         int64_t *bytes) {
  (void)threads;
  *bytes = 0;
  return cpu_kernel_backward(kernel, threads, NULL, call);
}
