/* device_cuda.c - a GPU as a kind of device: see context.h. The work is done
 * by dilrt-cuda.so, which is opened when the first context asks for it. */
#include "device_cuda.h"
#include "context.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"

/* Only a library that carries the run time has this part in itself. */
const dil_cuda_module *dil_cuda_module_init(void) __attribute__((weak));

dil_status dil_cuda_module_open(const dil_cuda_module **module) {
  void *symbol;
  if (dil_cuda_module_init) {
    *module = dil_cuda_module_init();
    return DIL_OK;
  }
  dil_status status =
      dil_module_open("dilrt-cuda.so", DIL_CUDA_SYMBOL, &symbol);
  if (status) return status;
  *module = ((dil_cuda_init)symbol)();
  if ((*module)->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT,
                  "dilrt-cuda.so is of another version of dil");
}

static dil_status device_cuda_open(dil_context *c,
                                   const dil_context_options *o) {
  if (o->parallel || o->threads)
    return dil_fail(DIL_USAGE, "device '%s' has no threads of the processor "
                    "to choose", c->device);
  if (o->allocate)
    return dil_fail(DIL_USAGE, "device '%s' takes scratch memory of its own, "
                    "not of the host", c->device);
  dil_status status = dil_cuda_module_open(&c->cuda);
  return status ? status : c->cuda->open(c->index, &c->gpu);
}

static void device_cuda_close(dil_context *c) {
  if (c->gpu) c->cuda->close(c->gpu);
}

static dil_status device_cuda_wait(dil_context *c, void *stream) {
  return c->cuda->wait(c->gpu, stream);
}

static dil_status device_cuda_take(dil_context *c, int64_t bytes,
                                   void **memory) {
  return c->cuda->take(c->gpu, bytes, memory);
}

static void device_cuda_give(dil_context *c, void *memory) {
  c->cuda->give(c->gpu, memory);
}

static dil_status device_cuda_copy(dil_context *c, void *to, const void *from,
                                   int64_t bytes, bool upwards) {
  return (upwards ? c->cuda->upload : c->cuda->download)(c->gpu, to, from,
                                                         bytes);
}

static bool device_cuda_reaches(const dil_context *c, DLDevice device) {
  return device.device_type == kDLCUDAManaged ||
         (device.device_type == kDLCUDA && device.device_id == c->index);
}

/* ---- kernels ------------------------------------------------------------- */

static dil_status device_cuda_kernel(dil_kernel *k) {
  const dil_kernel_source *s = &k->source;
  if (s->code_count == 0)
    return dil_fail(DIL_USAGE, "kernel '%s' was not made for a GPU",
                    s->table->name);
  dil_status status =
      k->context->cuda->kernel(k->context->gpu, s->table, s->codes,
                               s->code_count, s->more, s->dimension,
                               s->context, &k->gpu);
  k->source.codes = NULL; /* the device has its own copy */
  return status;
}

static void device_cuda_kernel_free(dil_kernel *k) {
  k->context->cuda->kernel_free(k->gpu);
}

static dil_status device_cuda_run(dil_kernel *k, const dil_call *call,
                                  void *stream) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->run(k->gpu, call, stream);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cuda, 1);
  trace_end(begin, "run", "launch", k->source.table->name, -1);
  return status;
}

/* Waits for the codes that such a call takes; a run takes its workspace by
 * itself. */
static dil_status device_cuda_prepare(dil_kernel *k, const dil_call *call) {
  char text[8];
  return k->context->cuda->variants(k->gpu, call, NULL, text, sizeof text);
}

static dil_status device_cuda_workspace(dil_kernel *k, const dil_call *call,
                                        int64_t *bytes) {
  (void)call;
  *bytes = k->context->cuda->workspace(k->gpu);
  return DIL_OK;
}

static dil_status device_cuda_variant(dil_kernel *k, const dil_call *call,
                                      char *text, size_t room) {
  return k->context->cuda->variants(k->gpu, call, NULL, text, room);
}

static dil_status device_cuda_time_run(dil_kernel *k, const dil_call *call,
                                       double *seconds) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->time(k->gpu, call, seconds);
  if (!status) metric_add(METRIC_runs_cuda, 1);
  trace_end(begin, "run", "timed launch", k->source.table->name, 1);
  return status;
}

/* ---- gradients ----------------------------------------------------------- */

static dil_status device_cuda_backward(dil_kernel *k,
                                       const dil_backward_call *call,
                                       void *stream) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->backward(k->gpu, call, stream);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cuda, 1);
  trace_end(begin, "run", "launch of gradients", k->source.table->name, -1);
  return status;
}

static dil_status device_cuda_backward_prepare(dil_kernel *k,
                                               const dil_backward_call *call) {
  int64_t bytes;
  return k->context->cuda->backward_workspace(k->gpu, call, &bytes);
}

static dil_status device_cuda_backward_workspace(dil_kernel *k,
                                                 const dil_backward_call *call,
                                                 int64_t *bytes) {
  return k->context->cuda->backward_workspace(k->gpu, call, bytes);
}

static int64_t device_cuda_saved(const dil_kernel *k, const dil_call *call) {
  return k->context->cuda->saved(k->gpu, call);
}

static dil_status device_cuda_backward_time(dil_kernel *k,
                                            const dil_backward_call *call,
                                            double *seconds) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->backward_time(k->gpu, call, seconds);
  if (!status) metric_add(METRIC_runs_cuda, 1);
  trace_end(begin, "run", "timed launch of gradients", k->source.table->name,
            1);
  return status;
}

static dil_status device_cuda_backward_describe(dil_kernel *k,
                                                const dil_backward_call *call,
                                                dil_backward_facts *facts) {
  return k->context->cuda->backward_describe(k->gpu, call, facts);
}

dil_status dil_cuda_peak(dil_context *context, const dil_cuda_code *code,
                         double seconds, double *rate) {
  dil_status status = dil_context_check(context);
  return status ? status
                : context->cuda->peak(context->gpu, code, seconds, rate);
}

const device_kind device_cuda = {
    .name = "cuda",
    .open = device_cuda_open,
    .close = device_cuda_close,
    .wait = device_cuda_wait,
    .take = device_cuda_take,
    .give = device_cuda_give,
    .copy = device_cuda_copy,
    .reaches = device_cuda_reaches,
    .kernel = device_cuda_kernel,
    .kernel_free = device_cuda_kernel_free,
    .run = device_cuda_run,
    .prepare = device_cuda_prepare,
    .workspace = device_cuda_workspace,
    .variant = device_cuda_variant,
    .time = device_cuda_time_run,
    .backward = device_cuda_backward,
    .backward_prepare = device_cuda_backward_prepare,
    .backward_workspace = device_cuda_backward_workspace,
    .saved = device_cuda_saved,
    .backward_time = device_cuda_backward_time,
    .backward_describe = device_cuda_backward_describe};
