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

static dil_status open(dil_context *c, const dil_context_options *o) {
  if (o->parallel || o->threads)
    return dil_fail(DIL_USAGE, "device '%s' has no threads of the processor "
                    "to choose", c->device);
  if (o->allocate)
    return dil_fail(DIL_USAGE, "device '%s' takes scratch memory of its own, "
                    "not of the host", c->device);
  dil_status status = dil_cuda_module_open(&c->cuda);
  return status ? status : c->cuda->open(c->index, &c->gpu);
}

static void close(dil_context *c) {
  if (c->gpu) c->cuda->close(c->gpu);
}

static dil_status wait(dil_context *c, void *stream) {
  return c->cuda->wait(c->gpu, stream);
}

static dil_status take(dil_context *c, int64_t bytes, void **memory) {
  return c->cuda->take(c->gpu, bytes, memory);
}

static void give(dil_context *c, void *memory) {
  c->cuda->give(c->gpu, memory);
}

static dil_status copy(dil_context *c, void *to, const void *from,
                       int64_t bytes, bool upwards) {
  return (upwards ? c->cuda->upload : c->cuda->download)(c->gpu, to, from,
                                                         bytes);
}

static bool reaches(const dil_context *c, DLDevice device) {
  return device.device_type == kDLCUDAManaged ||
         (device.device_type == kDLCUDA && device.device_id == c->index);
}

/* ---- kernels ------------------------------------------------------------- */

static dil_status kernel(dil_kernel *k) {
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

static void kernel_free(dil_kernel *k) {
  k->context->cuda->kernel_free(k->gpu);
}

static dil_status run(dil_kernel *k, const dil_call *call, void *stream) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->run(k->gpu, call, stream);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cuda, 1);
  trace_end(begin, "run", "launch", k->source.table->name, -1);
  return status;
}

/* Waits for the codes that such a call takes; a run takes its workspace by
 * itself. */
static dil_status prepare(dil_kernel *k, const dil_call *call) {
  char text[8];
  return k->context->cuda->variants(k->gpu, call, NULL, text, sizeof text);
}

static dil_status workspace(dil_kernel *k, const dil_call *call,
                            int64_t *bytes) {
  (void)call;
  *bytes = k->context->cuda->workspace(k->gpu);
  return DIL_OK;
}

static dil_status variant(dil_kernel *k, const dil_call *call, char *text,
                          size_t room) {
  return k->context->cuda->variants(k->gpu, call, NULL, text, room);
}

static dil_status time_run(dil_kernel *k, const dil_call *call,
                           double *seconds) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->time(k->gpu, call, seconds);
  if (!status) metric_add(METRIC_runs_cuda, 1);
  trace_end(begin, "run", "timed launch", k->source.table->name, 1);
  return status;
}

/* ---- gradients ----------------------------------------------------------- */

static dil_status backward(dil_kernel *k, const dil_backward_call *call,
                           void *stream) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->backward(k->gpu, call, stream);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cuda, 1);
  trace_end(begin, "run", "launch of gradients", k->source.table->name, -1);
  return status;
}

static dil_status backward_prepare(dil_kernel *k,
                                   const dil_backward_call *call) {
  int64_t bytes;
  return k->context->cuda->backward_workspace(k->gpu, call, &bytes);
}

static dil_status backward_workspace(dil_kernel *k,
                                     const dil_backward_call *call,
                                     int64_t *bytes) {
  return k->context->cuda->backward_workspace(k->gpu, call, bytes);
}

static dil_status backward_time(dil_kernel *k, const dil_backward_call *call,
                                double *seconds) {
  int64_t begin = trace_begin();
  dil_status status = k->context->cuda->backward_time(k->gpu, call, seconds);
  if (!status) metric_add(METRIC_runs_cuda, 1);
  trace_end(begin, "run", "timed launch of gradients", k->source.table->name,
            1);
  return status;
}

dil_status dil_cuda_peak(dil_context *context, const dil_cuda_code *code,
                         double seconds, double *rate) {
  dil_status status = dil_context_check(context);
  return status ? status
                : context->cuda->peak(context->gpu, code, seconds, rate);
}

const device_kind device_cuda = {.name = "cuda",
                                 .open = open,
                                 .close = close,
                                 .wait = wait,
                                 .take = take,
                                 .give = give,
                                 .copy = copy,
                                 .reaches = reaches,
                                 .kernel = kernel,
                                 .kernel_free = kernel_free,
                                 .run = run,
                                 .prepare = prepare,
                                 .workspace = workspace,
                                 .variant = variant,
                                 .time = time_run,
                                 .backward = backward,
                                 .backward_prepare = backward_prepare,
                                 .backward_workspace = backward_workspace,
                                 .backward_time = backward_time};
