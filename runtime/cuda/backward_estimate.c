/* backward_estimate.c - says how a call's gradients are made on a GPU: by which
 * kernels, and with how much workspace.
 *
 * In: a call, on a kernel's device or on one that may be absent. Out: the codes
 * that the call takes, the reason why the fast ones are not among them, and
 * bytes. A run asks the same questions (backward.c). */
#include "backward.h"
#include "runtime/base/status.h"
#include <stdio.h>
#include <stdlib.h>

static void estimate_add_code(const backward_run *b, const cuda_code *code,
                              dil_backward_facts *out) {
  const cuda_codes *codes = &b->kernel->codes;
  for (int32_t i = 0; code && i < codes->count; i++)
    if (atomic_load(&codes->now[i]) == code) out->code[out->count++] = i;
}

/* Lists the codes in the order in which a pass takes them; of documents that a mask keeps
 * apart, those that run where its input is sorted. */
static void estimate_add_codes(const backward_run *b, dil_backward_facts *out) {
  const backward_codes *of = &b->codes;
  out->refusal = backward_fast_refusal(b);
  if (backward_has_documents(b)) {
    estimate_add_code(b, of->documents_k, out);
    if (of->documents_v != of->documents_k) estimate_add_code(b, of->documents_v, out);
    estimate_add_code(b, of->documents_q, out);
    return;
  }
  if (!out->refusal) {
    estimate_add_code(b, of->fast_k, out);
    if (of->fast_v != of->fast_k) estimate_add_code(b, of->fast_v, out);
    if (of->fast_q != of->fast_k) estimate_add_code(b, of->fast_q, out);
    return;
  }
  estimate_add_code(b, of->k, out);
  if (of->v != of->k) estimate_add_code(b, of->v, out);
  estimate_add_code(b, of->q, out);
  estimate_add_code(b, of->inputs, out);
}

static void estimate_name(const backward_run *b, dil_backward_facts *out) {
  const cuda_codes *codes = &b->kernel->codes;
  size_t length = 0, room = sizeof out->variant;
  for (int32_t i = 0; i < out->count; i++) {
    const cuda_code *code = atomic_load(&codes->now[out->code[i]]);
    int added = snprintf(out->variant + length, room - length, "%s%s",
                         i ? "+" : "", code->about.variant);
    if (added < 0 || (size_t)added >= room - length) return;
    length += (size_t)added;
  }
}

/* Tells of a prepared call. */
static void estimate_fill(const backward_run *b, dil_backward_facts *out) {
  estimate_add_codes(b, out);
  estimate_name(b, out);
  out->workspace = b->at.end;
}

dil_status kernel_backward_describe(dil_cuda_kernel *kernel,
                                    const dil_backward_call *call,
                                    dil_backward_facts *out) {
  backward_run b;
  *out = (dil_backward_facts){0};
  dil_status status = backward_check(kernel, call, &b);
  if (!status) status = cuda_enter(kernel->device);
  if (status) return status;
  status = backward_prepare(&b);
  cuda_leave(kernel->device);
  if (!status) estimate_fill(&b, out);
  return status;
}

dil_status kernel_backward_estimate(const dil_cuda_facts *facts,
                                    const dil_table *table,
                                    const dil_cuda_code *code, int32_t count,
                                    const dil_backward_call *call,
                                    dil_backward_facts *out) {
  const dil_cuda device = {.facts = *facts};
  dil_cuda_kernel k;
  *out = (dil_backward_facts){0};
  dil_status status = kernel_estimate_open(&k, table, code, count);
  backward_run b = {.kernel = &k, .call = call, .seen = call->forward};
  b.run = kernel_estimate_run(&k, &device, &call->forward, NULL);
  backward_see_calls(&b);
  if (!status) status = backward_prepare(&b);
  if (!status) estimate_fill(&b, out);
  kernel_estimate_close(&k);
  return status;
}
