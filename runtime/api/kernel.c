/* kernel.c - kernels as a host sees them, on whatever device.
 *
 * In: a plan as data with its machine code or a maker of it, and calls. Out:
 * what the context's kind of device makes of them. */
#include "context.h"
#include "usage.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

dil_status dil_kernel_make(dil_context *context,
                           const dil_kernel_source *source,
                           dil_kernel **kernel) {
  *kernel = NULL;
  dil_status status = dil_context_check(context);
  if (status) return status;
  dil_kernel *k = calloc(1, sizeof *k);
  if (!k) return dil_fail(DIL_MEMORY, "no memory for a kernel");
  k->source = *source;
  k->context = context;
  status = context->kind->kernel(k);
  if (status) {
    free(k);
    return status;
  }
  dil_context_keep(context);
  atomic_fetch_add(&context->kernels, 1);
  *kernel = k;
  return DIL_OK;
}

void dil_kernel_free(dil_kernel *kernel) {
  if (!kernel) return;
  dil_call_begin();
  dil_context *context = kernel->context;
  if (!dil_context_check(context)) context->kind->kernel_free(kernel);
  atomic_fetch_sub(&context->kernels, 1);
  if (kernel->source.release) kernel->source.release(kernel->source.context);
  free(kernel);
  dil_context_drop(context);
  dil_call_end(DIL_OK);
}

/* ---- running ------------------------------------------------------------- */

static dil_status check(const dil_kernel *kernel) {
  dil_status status = dil_usage_given("kernel", kernel, NULL);
  return status ? status : dil_context_check(kernel->context);
}

static dil_status run(dil_kernel *kernel, const dil_call *call, void *stream) {
  dil_status status = kernel->context->kind->run(kernel, call, stream);
  if (!status) atomic_fetch_add(&kernel->context->calls, 1);
  return status;
}

dil_status dil_kernel_run(dil_kernel *kernel, const dil_arguments *given) {
  arguments a;
  dil_call_begin();
  dil_status status = check(kernel);
  if (!status) status = arguments_read(kernel, given, &a);
  if (!status) status = run(kernel, &a.call, a.stream);
  return dil_call_end(status);
}

dil_status dil_kernel_time(dil_kernel *kernel, const dil_call *call,
                           double *seconds) {
  dil_status status = check(kernel);
  if (status) return status;
  return kernel->context->kind->time(kernel, call, seconds);
}

dil_status dil_kernel_prepare(dil_kernel *kernel, const dil_sizes *sizes) {
  arguments a;
  dil_call_begin();
  dil_status status = check(kernel);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status) status = kernel->context->kind->prepare(kernel, &a.call);
  return dil_call_end(status);
}

dil_status dil_kernel_workspace(dil_kernel *kernel, const dil_sizes *sizes,
                                int64_t *bytes) {
  arguments a;
  if (bytes) *bytes = 0;
  dil_call_begin();
  dil_status status = check(kernel);
  if (!status) status = dil_usage_given("place for the bytes", bytes, NULL);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status) status = kernel->context->kind->workspace(kernel, &a.call, bytes);
  return dil_call_end(status);
}

/* ---- what it is ---------------------------------------------------------- */

dil_status dil_kernel_variant(dil_kernel *kernel, const dil_sizes *sizes,
                              char *text, size_t room) {
  arguments a;
  if (room && text) *text = 0;
  if (room > INT32_MAX) room = INT32_MAX; /* snprintf counts in int */
  dil_call_begin();
  dil_status status = check(kernel);
  if (!status && room)
    status = dil_usage_given("place for the text", text, NULL);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status && room)
    status = kernel->context->kind->variant(kernel, &a.call, text, room);
  return dil_call_end(status);
}

dil_status dil_kernel_describe(const dil_kernel *kernel,
                               dil_kernel_info *info) {
  dil_kernel_info now;
  dil_status status = check(kernel);
  if (!status)
    status = dil_struct_read(&now, sizeof now, info, "dil_kernel_info");
  if (status) return status;
  const dil_kernel_source *s = &kernel->source;
  const dil_table *t = s->table;
  now = (dil_kernel_info){.name = t->name,
                          .device = kernel->context->device,
                          .target = s->target,
                          .plan_hash = s->plan_hash,
                          .dtype = arguments_type(t->dtype),
                          .heads = t->heads,
                          .kv_heads = t->kv_heads,
                          .head_dim = t->head_dim,
                          .value_dim = t->value_dim,
                          .input_count = t->input_count,
                          .has_lse = t->lse_allowed,
                          .takes_scale = t->runtime_scale,
                          .has_dropout = t->dropout > 0,
                          .schedule = s->schedule ? s->schedule : "",
                          .remembered = s->remembered,
                          .device_reason = kernel->context->reason};
  dil_struct_write(info, &now, sizeof now);
  return DIL_OK;
}

static bool has_tensor(const dil_table *table, int32_t index) {
  if (index < DIL_TENSOR_INPUT) return index >= 0 && index <= DIL_TENSOR_LSE;
  return index - DIL_TENSOR_INPUT < table->input_count;
}

dil_status dil_kernel_tensor(const dil_kernel *kernel, int32_t index,
                             const dil_sizes *sizes, dil_tensor_info *info) {
  static const char *const names[] = {"q", "k", "v", "o", "lse"};
  dil_tensor_info now;
  dil_status status = check(kernel);
  if (!status) status = dil_usage_sizes(sizes);
  if (!status)
    status = dil_struct_read(&now, sizeof now, info, "dil_tensor_info");
  if (status) return status;
  const dil_table *table = kernel->source.table;
  if (!has_tensor(table, index))
    return dil_fail(DIL_USAGE, "kernel '%s' has no tensor of number %d: it has "
                    "q, k, v, o, lse (0 to %d) and %d inputs from %d on",
                    table->name, (int)index, DIL_TENSOR_LSE,
                    table->input_count, DIL_TENSOR_INPUT);
  dil_tensor t = arguments_tensor(kernel, index, sizes);
  now = (dil_tensor_info){.dtype = arguments_type(t.dtype), .rank = t.rank};
  now.name = index < DIL_TENSOR_INPUT
                 ? names[index]
                 : table->inputs[index - DIL_TENSOR_INPUT].name;
  memcpy(now.shape, t.shape, sizeof now.shape);
  dil_struct_write(info, &now, sizeof now);
  return DIL_OK;
}
