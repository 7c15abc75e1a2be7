/* session_backward.c - gradients of a session's call, on whatever runs it
 * forward. In: an open session. Out: gradients in the session's call for them.
 * See session_backward.h. */
#include "session_backward.h"
#include "gradient_estimate.h"
#include "gradient_setup.h"
#include "session.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/status.h"
#include <stdlib.h>

static const session_way *forward_of(const session *s) {
  return &session_ways[s->way->forward];
}

/* ---- on a GPU -------------------------------------------------------------
 */

static dil_status copy_gradient(void *context, const char *name,
                                dil_tensor *gradient) {
  (void)name;
  return session_cuda_copy(context, gradient);
}

/* Gives the run forward memory for what its gradients would make again. */
static dil_status keep_states(session *s) {
  dil_sizes sizes = session_sizes(s);
  dil_call *call = &s->cuda.call;
  int64_t bytes = 0;
  if (!s->kernel || call->packed.queries) return DIL_OK;
  dil_status status = dil_kernel_saved(s->kernel, &sizes, &bytes);
  if (status || !bytes) return status;
  return session_cuda_take(&s->cuda, bytes, &call->saved);
}

static dil_status open_on_cuda(session *s) {
  session_cuda *t = &s->cuda;
  t->backward = s->backward;
  t->backward.forward = t->call;
  t->backward.forward.chosen = t->call.made;
  dil_status status = session_cuda_copy(t, &t->backward.output);
  if (!status) status = session_cuda_copy(t, &t->backward.lse);
  if (status) return status;
  return gradient_setup_each(s->setup.pattern, &t->backward, copy_gradient, t);
}

typedef struct fetch {
  session_cuda *cuda;
  const dil_backward_call *host;
} fetch;

/* The tensor of the host's call that stands where `of` does on the device. */
static const dil_tensor *host_tensor(const fetch *f, const dil_tensor *of) {
  size_t place = (size_t)((const char *)of - (const char *)&f->cuda->backward);
  return (const dil_tensor *)(const void *)((const char *)f->host + place);
}

static dil_status fetch_gradient(void *context, const char *name,
                                 dil_tensor *gradient) {
  (void)name;
  fetch *f = context;
  return session_cuda_copy_back(f->cuda, gradient, host_tensor(f, gradient));
}

/* ---- the way --------------------------------------------------------------
 */

/* Tells the report by which kernels the gradients are made. A kernel of a
 * library does not say. */
static dil_status describe_kernels(session *s) {
  report *r = &s->report;
  dil_backward_facts *facts = &s->gradient_facts;
  const dil_cuda_facts *gpu = dil_context_facts(session_context(s));
  if (!s->kernel) return DIL_OK;
  dil_status status =
      dil_kernel_backward_describe(s->kernel, session_backward_call(s), facts);
  if (status) return status;
  r->workspace = (double)facts->workspace;
  r->gradient_kernels = facts->variant;
  if (gpu)
    r->gradient_reason = gradient_estimate_reason(
        &s->compilation, s->compilation.plan, gpu->arch, facts->refusal);
  return DIL_OK;
}

dil_status session_backward_open(session *s, const options *o, int64_t seq) {
  double seconds;
  const session_way *forward = forward_of(s);
  dil_status status = gradient_setup_make(&s->setup, &s->backward);
  if (!status) status = forward->open(s, o, seq);
  if (!status && s->way->on_cuda) status = keep_states(s);
  if (!status) status = forward->run(s, &seconds);
  s->backward.forward = s->setup.call;
  s->backward.forward.chosen = s->setup.call.made;
  if (!status && s->way->on_cuda) status = open_on_cuda(s);
  return status ? status : describe_kernels(s);
}

dil_status session_backward_open_ranks(session *s, const options *o,
                                       int64_t seq) {
  dil_status status = forward_of(s)->open(s, o, seq);
  if (status) return status;
  status = gradient_setup_make(&s->setup, &s->backward);
  s->backward.forward = s->setup.call;
  if (!status) return session_ranks_turn(&s->ranks, &s->backward);
  session_job_fail(&s->ranks);
  return status;
}

const dil_backward_call *session_backward_call(const session *s) {
  return s->way->on_cuda ? &s->cuda.backward : &s->backward;
}

dil_status session_backward_run(session *s, double *seconds) {
  return dil_kernel_backward_time(s->kernel, session_backward_call(s), seconds);
}

dil_status session_backward_collect(session *s) {
  double workspace = s->report.workspace;
  const session_way *forward = forward_of(s);
  dil_status status = forward->collect ? forward->collect(s) : DIL_OK;
  s->report.workspace = workspace; /* not that of the run forward */
  if (status || !s->way->on_cuda) return status;
  return gradient_setup_each(s->setup.pattern, &s->cuda.backward,
                             fetch_gradient,
                             &(fetch){&s->cuda, &s->backward});
}

void session_backward_free(session *s) {
  if (forward_of(s)->free) forward_of(s)->free(s);
}

/* ---- a kernel of a library ------------------------------------------------
 */

dil_status session_backward_open_library(session *s, const options *o,
                                         int64_t seq) {
  DLDevice device = {kDLCPU, 0};
  if (s->way->on_cuda) device = (DLDevice){kDLCUDA, (int32_t)o->device.number};
  dil_status status = session_backward_open(s, o, seq);
  return status ? status
                : session_library_set_gradients(
                      &s->library, session_backward_call(s), device);
}

dil_status session_backward_library(session *s, double *seconds) {
  double start = message_clock();
  dil_status status = session_library_run_gradients(&s->library);
  if (!status && s->way->on_cuda)
    status = dil_context_wait(s->cuda.context, NULL);
  *seconds = message_clock() - start;
  return status;
}

/* ---- the oracle -----------------------------------------------------------
 */

/* Float64 sums of all gradients, in their order. */
typedef struct exact_gradients {
  double **sums[3 + DIL_INPUT_MAX];
  int32_t count;
} exact_gradients;

static dil_status take_sums(void *context, const char *name,
                            dil_tensor *gradient) {
  (void)name;
  exact_gradients *e = context;
  size_t count = (size_t)dil_tensor_count(gradient) + 1;
  double **to = e->sums[e->count++];
  *to = calloc(count, sizeof **to);
  return *to ? DIL_OK : dil_fail(DIL_MEMORY, "no memory for gradients");
}

static dil_status store_sums(void *context, const char *name,
                             dil_tensor *gradient) {
  (void)name;
  exact_gradients *e = context;
  const double *from = *e->sums[e->count++];
  for (int64_t i = 0; i < dil_tensor_count(gradient); i++)
    dil_element_write(gradient->data, gradient->dtype, i, from[i]);
  return DIL_OK;
}

dil_status session_backward_oracle(session *s, double *seconds) {
  const pattern *p = s->setup.pattern;
  oracle_gradients sums = {0};
  exact_gradients e = {.sums = {&sums.dq, &sums.dk, &sums.dv}};
  int32_t count = 3;
  for (int32_t i = 0; i < p->input_count; i++)
    if (p->input[i].gradient) e.sums[count++] = &sums.inputs[i];
  double start = message_clock();
  dil_status status = gradient_setup_each(p, &s->backward, take_sums, &e);
  if (!status)
    status = oracle_gradient_run(p, &s->backward, ORACLE_SAVED, &sums);
  e.count = 0;
  if (!status) status = gradient_setup_each(p, &s->backward, store_sums, &e);
  for (int32_t i = 0; i < count; i++) free(*e.sums[i]);
  *seconds = message_clock() - start;
  return status;
}
