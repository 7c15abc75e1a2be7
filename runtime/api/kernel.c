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

static dil_status kernel_check(const dil_kernel *kernel) {
  dil_status status = dil_usage_given("kernel", kernel, NULL);
  return status ? status : dil_context_check(kernel->context);
}

static dil_status kernel_run_counted(dil_kernel *kernel, const dil_call *call,
                                     void *stream) {
  dil_status status = kernel->context->kind->run(kernel, call, stream);
  if (!status) atomic_fetch_add(&kernel->context->calls, 1);
  return status;
}

dil_status dil_kernel_run(dil_kernel *kernel, const dil_arguments *given) {
  arguments a;
  dil_call_begin();
  dil_status status = kernel_check(kernel);
  if (!status) status = arguments_read(kernel, given, &a);
  if (!status) status = kernel_run_counted(kernel, &a.call, a.stream);
  return dil_call_end(status);
}

dil_status dil_kernel_time(dil_kernel *kernel, const dil_call *call,
                           double *seconds) {
  dil_status status = kernel_check(kernel);
  if (status) return status;
  return kernel->context->kind->time(kernel, call, seconds);
}

dil_status dil_kernel_call_variant(dil_kernel *kernel, const dil_call *call,
                                   char *text, size_t room) {
  dil_status status = kernel_check(kernel);
  if (status) return status;
  return kernel->context->kind->variant(kernel, call, text, room);
}

static dil_status kernel_prepare_backward(dil_kernel *kernel,
                                          const dil_sizes *sizes) {
  gradients g;
  const device_kind *kind = kernel->context->kind;
  if (kernel->source.direction != DIL_BACKWARD || !kind->backward)
    return DIL_OK;
  dil_status status = gradients_of_sizes(kernel, sizes, &g);
  return status ? status : kind->backward_prepare(kernel, &g.call);
}

dil_status dil_kernel_prepare(dil_kernel *kernel, const dil_sizes *sizes) {
  arguments a;
  dil_call_begin();
  dil_status status = kernel_check(kernel);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status) status = kernel->context->kind->prepare(kernel, &a.call);
  if (!status) status = kernel_prepare_backward(kernel, sizes);
  return dil_call_end(status);
}

dil_status dil_kernel_workspace(dil_kernel *kernel, const dil_sizes *sizes,
                                int64_t *bytes) {
  arguments a;
  if (bytes) *bytes = 0;
  dil_call_begin();
  dil_status status = kernel_check(kernel);
  if (!status) status = dil_usage_given("place for the bytes", bytes, NULL);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status) status = kernel->context->kind->workspace(kernel, &a.call, bytes);
  return dil_call_end(status);
}

/* ---- gradients ----------------------------------------------------------- */

static dil_status kernel_check_backward(const dil_kernel *k) {
  dil_status status = kernel_check(k);
  if (status) return status;
  const char *name = k->source.table->name;
  if (k->source.direction != DIL_BACKWARD)
    return dil_fail(DIL_USAGE,
                    "kernel '%s' was made without gradients: set "
                    "`backward` in its options, write `kernel NAME = PATTERN "
                    "backward;`, or say `dil build --backward`",
                    name);
  if (k->context->kind->backward) return DIL_OK;
  return dil_fail(DIL_UNSUPPORTED,
                  "kernel '%s' is on %s, where this build "
                  "computes no gradients",
                  name, k->context->device);
}

/* A host that brings a workspace asked before how large it must be. */
static dil_status kernel_check_workspace(dil_kernel *k,
                                         const dil_backward_call *call) {
  int64_t bytes = 0;
  if (!call->workspace) return DIL_OK;
  dil_status status = k->context->kind->backward_workspace(k, call, &bytes);
  if (status || bytes <= call->workspace_bytes) return status;
  return dil_fail(DIL_USAGE,
                  "workspace has %lld bytes, the gradients of this "
                  "call take %lld: dil_kernel_backward_workspace says how many "
                  "are enough",
                  (long long)call->workspace_bytes, (long long)bytes);
}

dil_status dil_kernel_backward(dil_kernel *kernel, const dil_gradients *given) {
  gradients g;
  dil_call_begin();
  dil_status status = kernel_check_backward(kernel);
  if (!status) status = gradients_read(kernel, given, &g);
  if (!status) status = kernel_check_workspace(kernel, &g.call);
  if (!status)
    status = kernel->context->kind->backward(kernel, &g.call, g.forward.stream);
  return dil_call_end(status);
}

dil_status dil_kernel_backward_time(dil_kernel *kernel,
                                    const dil_backward_call *call,
                                    double *seconds) {
  dil_status status = kernel_check_backward(kernel);
  if (status) return status;
  return kernel->context->kind->backward_time(kernel, call, seconds);
}

dil_status dil_kernel_backward_describe(dil_kernel *kernel,
                                        const dil_backward_call *call,
                                        dil_backward_facts *facts) {
  *facts = (dil_backward_facts){0};
  dil_status status = kernel_check_backward(kernel);
  if (status) return status;
  return kernel->context->kind->backward_describe(kernel, call, facts);
}

dil_status dil_kernel_backward_workspace(dil_kernel *kernel,
                                         const dil_sizes *sizes,
                                         int64_t *bytes) {
  gradients g;
  if (bytes) *bytes = 0;
  dil_call_begin();
  dil_status status = kernel_check(kernel);
  if (!status) status = dil_usage_given("place for the bytes", bytes, NULL);
  if (!status) status = kernel_check_backward(kernel);
  if (!status) status = gradients_of_sizes(kernel, sizes, &g);
  if (!status)
    status = kernel->context->kind->backward_workspace(kernel, &g.call, bytes);
  return dil_call_end(status);
}

dil_status dil_kernel_saved(dil_kernel *kernel, const dil_sizes *sizes,
                            int64_t *bytes) {
  arguments a;
  if (bytes) *bytes = 0;
  dil_call_begin();
  dil_status status = kernel_check(kernel);
  if (!status) status = dil_usage_given("place for the bytes", bytes, NULL);
  if (!status) status = kernel_check_backward(kernel);
  if (!status) status = arguments_of_sizes(kernel, sizes, &a);
  if (!status) *bytes = arguments_saved_bytes(kernel, &a.call);
  return dil_call_end(status);
}

/* ---- what it is ---------------------------------------------------------- */

dil_status dil_kernel_variant(dil_kernel *kernel, const dil_sizes *sizes,
                              char *text, size_t room) {
  arguments a;
  if (room && text) *text = 0;
  if (room > INT32_MAX) room = INT32_MAX; /* snprintf counts in int */
  dil_call_begin();
  dil_status status = kernel_check(kernel);
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
  dil_status status = kernel_check(kernel);
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
                          .device_reason = kernel->context->reason,
                          .has_backward = s->direction == DIL_BACKWARD,
                          .selection_count = 2 * t->choice_count};
  dil_struct_write(info, &now, sizeof now);
  return DIL_OK;
}

/* Names of tensors by number; NULL: there is no such tensor. */
static const char *const forward_tensors[] = {"q", "k", "v", "o", "lse"};
static const char *const backward_tensors[] = {[DIL_TENSOR_DO] = "do",
                                               [DIL_TENSOR_DQ] = "dq",
                                               [DIL_TENSOR_DK] = "dk",
                                               [DIL_TENSOR_DV] = "dv",
                                               [DIL_TENSOR_DLSE] = "dlse"};

#define NAMED(list, i)                                                         \
  ((size_t)(i) < sizeof list / sizeof *list ? list[i] : NULL)

/* The name of tensor `index`, or of the input that it is the gradient of; NULL:
 * the kernel has no such tensor. */
static const char *tensor_name(const dil_kernel_source *s, int32_t index) {
  const dil_table *t = s->table;
  bool backward = s->direction == DIL_BACKWARD;
  if (index < 0) return NULL;
  if (index < DIL_TENSOR_INPUT) {
    const char *name = NAMED(forward_tensors, index);
    return name || !backward ? name : NAMED(backward_tensors, index);
  }
  if (index >= DIL_TENSOR_SELECTION) {
    int32_t list = index - DIL_TENSOR_SELECTION;
    return list < 2 * t->choice_count
               ? t->inputs[t->choices[list / 2].rows + list % 2].name
               : NULL;
  }
  bool gradient = index >= DIL_TENSOR_INPUT_GRADIENT;
  int32_t input =
      index - (gradient ? DIL_TENSOR_INPUT_GRADIENT : DIL_TENSOR_INPUT);
  if (input >= t->input_count) return NULL;
  if (gradient && !(backward && t->inputs[input].gradient)) return NULL;
  return t->inputs[input].name;
}

dil_status dil_kernel_tensor(const dil_kernel *kernel, int32_t index,
                             const dil_sizes *sizes, dil_tensor_info *info) {
  dil_tensor_info now;
  dil_status status = kernel_check(kernel);
  if (!status) status = dil_usage_sizes(sizes);
  if (!status)
    status = dil_struct_read(&now, sizeof now, info, "dil_tensor_info");
  if (status) return status;
  const dil_table *table = kernel->source.table;
  const char *name = tensor_name(&kernel->source, index);
  if (!name)
    return dil_fail(
        DIL_USAGE,
        "kernel '%s' has no tensor of number %d: it has "
        "q, k, v, o, lse (0 to %d)%s and %d inputs from %d on",
        table->name, (int)index, DIL_TENSOR_LSE,
        kernel->source.direction == DIL_BACKWARD ? ", their gradients" : "",
        table->input_count, DIL_TENSOR_INPUT);
  dil_tensor t = arguments_tensor(kernel, index, sizes);
  now = (dil_tensor_info){
      .name = name, .dtype = arguments_type(t.dtype), .rank = t.rank};
  memcpy(now.shape, t.shape, sizeof now.shape);
  int32_t input = index - DIL_TENSOR_INPUT, last = t.rank - 1;
  if (input >= 0 && input < table->input_count &&
      kernel->source.dimension(kernel->source.context, input, last, 1, 1, 1) ==
          DIL_ANY_SIZE)
    now.shape[last] = DIL_ANY_SIZE;
  dil_struct_write(info, &now, sizeof now);
  return DIL_OK;
}
