/* device_cpu.c - the processor as a kind of device: see context.h. */
#include "context.h"
#include "runtime/base/clock.h"
#include "runtime/base/processors.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include "runtime/observe/metrics.h"
#include "runtime/observe/trace.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dil_status device_cpu_open(dil_context *c,
                                  const dil_context_options *o) {
  int32_t count; /* a wrong one is the caller's mistake, and no lack of threads */
  dil_status status = processors_choose(o->threads, &count);
  if (status) return status;
  c->threads = o->parallel ? dil_threads_hosted(o->threads, o->parallel,
                                                o->parallel_user)
                           : dil_threads_new(o->threads);
  return c->threads ? DIL_OK : dil_fail_text(DIL_ENVIRONMENT, dil_last_error());
}

static void device_cpu_close(dil_context *c) { dil_threads_free(c->threads); }

static dil_status device_cpu_wait(dil_context *c, void *stream) {
  (void)c;
  (void)stream;
  return DIL_OK;
}

static dil_status device_cpu_take(dil_context *c, int64_t bytes,
                                  void **memory) {
  (void)c;
  if (!posix_memalign(memory, 256, bytes ? (size_t)bytes : 1)) return DIL_OK;
  return dil_fail(DIL_MEMORY, "no memory for %lld bytes", (long long)bytes);
}

static void device_cpu_give(dil_context *c, void *memory) {
  (void)c;
  free(memory);
}

static dil_status device_cpu_copy(dil_context *c, void *to, const void *from,
                                  int64_t bytes, bool upwards) {
  (void)c;
  (void)upwards;
  memcpy(to, from, (size_t)bytes);
  return DIL_OK;
}

static bool device_cpu_reaches(const dil_context *c, DLDevice device) {
  (void)c;
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost ||
         device.device_type == kDLCUDAManaged;
}

/* ---- kernels ------------------------------------------------------------- */

static dil_status device_cpu_kernel(dil_kernel *k) {
  if (k->source.ready)
    return cpu_kernel_take(k->source.table, k->source.ready, &k->cpu);
  if (!k->source.make)
    return dil_fail(DIL_USAGE, "kernel '%s' was not made for the processor",
                    k->source.table->name);
  return cpu_kernel_new(k->source.table, k->source.make, k->source.context,
                        &k->cpu);
}

static void device_cpu_kernel_free(dil_kernel *k) { cpu_kernel_free(k->cpu); }

static dil_status device_cpu_check_stream(const void *stream) {
  if (!stream) return DIL_OK;
  return dil_fail(DIL_USAGE, "the processor has no streams, and the call names "
                             "one");
}

static dil_status device_cpu_run(dil_kernel *k, const dil_call *call,
                                 void *stream) {
  dil_status wrong = device_cpu_check_stream(stream);
  if (wrong) return wrong;
  int64_t begin = tracing() || metering() ? dil_trace_now() : 0;
  dil_status status =
      cpu_kernel_run(k->cpu, k->context->threads, k->context->pool, call);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cpu, 1);
  if (!begin) return status;
  dil_metrics_observe(HISTOGRAM_RUN_CPU, dil_trace_now() - begin);
  trace_end(begin, "run", "kernel", k->source.table->name, -1);
  return status;
}

static dil_status device_cpu_workspace(dil_kernel *k, const dil_call *call,
                                       int64_t *bytes) {
  return cpu_kernel_workspace(k->cpu, k->context->threads, call, bytes);
}

/* A block that is taken and given back is there for the first run. */
static dil_status device_cpu_prepare_memory(dil_kernel *k, int64_t bytes) {
  if (bytes == 0) return DIL_OK;
  void *memory = pool_take(k->context->pool, bytes);
  pool_give(k->context->pool, memory);
  return memory ? DIL_OK : DIL_MEMORY;
}

static dil_status device_cpu_prepare(dil_kernel *k, const dil_call *call) {
  int64_t bytes;
  dil_status status = device_cpu_workspace(k, call, &bytes);
  return status ? status : device_cpu_prepare_memory(k, bytes);
}

static dil_status device_cpu_variant(dil_kernel *k, const dil_call *call,
                                     char *text, size_t room) {
  snprintf(text, room, "%s", cpu_kernel_variant(k->cpu, call));
  return DIL_OK;
}

static dil_status device_cpu_time_run(dil_kernel *k, const dil_call *call,
                                      double *seconds) {
  double start = clock_seconds();
  dil_status status = device_cpu_run(k, call, NULL);
  *seconds = clock_seconds() - start;
  return status;
}

/* ---- gradients ----------------------------------------------------------- */

static dil_status device_cpu_backward(dil_kernel *k,
                                      const dil_backward_call *call,
                                      void *stream) {
  dil_status status = device_cpu_check_stream(stream);
  if (status) return status;
  int64_t begin = trace_begin();
  status =
      cpu_kernel_backward(k->cpu, k->context->threads, k->context->pool, call);
  metric_add(status ? METRIC_run_failures : METRIC_runs_cpu, 1);
  trace_end(begin, "run", "gradients", k->source.table->name, -1);
  return status;
}

static dil_status device_cpu_backward_workspace(dil_kernel *k,
                                                const dil_backward_call *call,
                                                int64_t *bytes) {
  return cpu_kernel_backward_workspace(k->cpu, k->context->threads, call,
                                       bytes);
}

static dil_status device_cpu_backward_prepare(dil_kernel *k,
                                              const dil_backward_call *call) {
  int64_t bytes;
  dil_status status = device_cpu_backward_workspace(k, call, &bytes);
  return status ? status : device_cpu_prepare_memory(k, bytes);
}

static dil_status device_cpu_backward_time(dil_kernel *k,
                                           const dil_backward_call *call,
                                           double *seconds) {
  double start = clock_seconds();
  dil_status status = device_cpu_backward(k, call, NULL);
  *seconds = clock_seconds() - start;
  return status;
}

static dil_status device_cpu_backward_describe(dil_kernel *k,
                                               const dil_backward_call *call,
                                               dil_backward_facts *facts) {
  snprintf(facts->variant, sizeof facts->variant, "%s",
           dil_variant_name(DIL_TILES)); /* the only way there is */
  return device_cpu_backward_workspace(k, call, &facts->workspace);
}

const device_kind device_cpu = {
    .name = "cpu",
    .open = device_cpu_open,
    .close = device_cpu_close,
    .wait = device_cpu_wait,
    .take = device_cpu_take,
    .give = device_cpu_give,
    .copy = device_cpu_copy,
    .reaches = device_cpu_reaches,
    .kernel = device_cpu_kernel,
    .kernel_free = device_cpu_kernel_free,
    .run = device_cpu_run,
    .prepare = device_cpu_prepare,
    .workspace = device_cpu_workspace,
    .variant = device_cpu_variant,
    .time = device_cpu_time_run,
    .backward = device_cpu_backward,
    .backward_prepare = device_cpu_backward_prepare,
    .backward_workspace = device_cpu_backward_workspace,
    .backward_time = device_cpu_backward_time,
    .backward_describe = device_cpu_backward_describe};
