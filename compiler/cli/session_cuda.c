/* session_cuda.c - copies a call's tensors to a GPU, and its outputs back. In:
 * a call on the host. Out: the same call in memory of the device. */
#include "session_cuda.h"
#include "compiler/driver.h"
#include "runtime/api/device_cuda.h"
#include <stdlib.h>

dil_status session_cuda_context(const options *o, dil_context **made) {
  dil_context_options gpu = DIL_CONTEXT_OPTIONS_INIT;
  char device[24];
  snprintf(device, sizeof device, "cuda:%d", (int)o->device.number);
  gpu.device = device;
  gpu.log = message_log;
  gpu.log_level = DIL_LOG_WARNING;
  return dil_context_new(&gpu, made);
}

dil_status session_cuda_codes(compilation *c, dil_context *context,
                              kernel_code *code, rank_group_gpu *gpu) {
  code_request request = driver_code_request(c, context);
  dil_status status = driver_code(c, &request, code);
  if (!status)
    status = code_cache_helper(&request, HELPER_ROWS, &gpu->rows);
  gpu->codes = code->source.codes;
  gpu->code_count = code->source.code_count;
  gpu->dimension = code->source.dimension;
  gpu->context = code->source.context;
  return status;
}

dil_status session_cuda_take(session_cuda *t, int64_t bytes, void **memory) {
  dil_status status = dil_memory_take(t->context, bytes, memory);
  if (!status) t->memory[t->memory_count++] = *memory;
  return status;
}

static dil_status copy_to_gpu(session_cuda *t, int64_t bytes, const void *from,
                              void **to) {
  *to = NULL;
  if (!from) return DIL_OK;
  dil_status status = session_cuda_take(t, bytes, to);
  return status ? status : dil_memory_write(t->context, *to, from, bytes);
}

static int64_t copy_bytes(const dil_tensor *tensor) {
  return dil_tensor_count(tensor) * (int64_t)dil_dtype_size(tensor->dtype);
}

dil_status session_cuda_copy(session_cuda *t, dil_tensor *tensor) {
  return copy_to_gpu(t, tensor->data ? copy_bytes(tensor) : 0, tensor->data,
                     &tensor->data);
}

dil_status session_cuda_copy_back(session_cuda *t, const dil_tensor *from,
                                  const dil_tensor *to) {
  if (!to->data || !from->data) return DIL_OK;
  return dil_memory_read(t->context, to->data, from->data, copy_bytes(to));
}

/* One array stays one. */
static dil_status copy_offsets(session_cuda *t, dil_packed *p) {
  int64_t bytes = (p->count + 1) * (int64_t)sizeof(int32_t);
  bool alike = p->keys == p->queries;
  void *queries = NULL, *keys = NULL;
  dil_status status = copy_to_gpu(t, bytes, p->queries, &queries);
  if (!status && !alike) status = copy_to_gpu(t, bytes, p->keys, &keys);
  p->queries = queries;
  p->keys = alike ? queries : keys;
  return status;
}

/* Inputs, and behind them the lists that choices make. Tables that lists stand
 * for stand among these as bits: a device makes its own. */
static dil_status copy_inputs(session_cuda *t, const pattern *p,
                              const dil_call *call) {
  int32_t own = call->input_count;
  dil_status status = DIL_OK;
  t->made_count = call->made ? pattern_reads(p) - own : 0;
  t->call.inputs = t->inputs;
  t->call.made = call->made ? t->inputs + own : NULL;
  for (int32_t i = 0; i < own + t->made_count && !status; i++) {
    t->inputs[i] = i < own ? call->inputs[i] : call->made[i - own];
    if (i >= own && dil_input_is_bits(&p->input[i])) t->inputs[i].data = NULL;
    status = session_cuda_copy(t, &t->inputs[i]);
  }
  return status;
}

dil_status session_cuda_open(session_cuda *t, const pattern *p,
                             const dil_call *call) {
  dil_tensor *const tensors[] = {&t->call.q, &t->call.k, &t->call.v,
                                 &t->call.o, &t->call.lse};
  dil_status status = DIL_OK;
  t->call = *call;
  for (int i = 0; i < 5 && !status; i++)
    status = session_cuda_copy(t, tensors[i]);
  if (!status) status = copy_inputs(t, p, call);
  void *lengths = NULL;
  if (!status)
    status = copy_to_gpu(t, call->q.shape[0] * (int64_t)sizeof(int32_t),
                         call->lengths, &lengths);
  t->call.lengths = lengths;
  void *pages = NULL;
  if (!status)
    status = copy_to_gpu(t, call->q.shape[0] * call->pages.stride *
                                (int64_t)sizeof(int32_t),
                         call->pages.number, &pages);
  t->call.pages.number = pages;
  return status ? status : copy_offsets(t, &t->call.packed);
}

void session_cuda_free(session_cuda *t) {
  while (t->memory_count > 0)
    dil_memory_give(t->context, t->memory[--t->memory_count]);
  free(t->peak.cubin);
  dil_context_free(t->context);
}

dil_status session_cuda_peak(session_cuda *t, const compilation *c,
                             double seconds, double *rate) {
  enum { SPLIT_PRODUCTS = 3 };
  const plan *p = c->plan;
  bool split = p->table.dtype == DIL_F32 && !p->pattern->fast;
  code_request request = driver_code_request(c, t->context);
  dil_status status = DIL_OK;
  if (!t->peak.cubin)
    status = code_cache_helper(&request, HELPER_PEAK, &t->peak);
  if (!status) status = dil_cuda_peak(t->context, &t->peak, seconds, rate);
  if (!status && split) *rate /= SPLIT_PRODUCTS;
  return status;
}

dil_status session_cuda_fetch(session_cuda *t, const dil_call *call) {
  dil_status status = session_cuda_copy_back(t, &t->call.o, &call->o);
  if (!status) status = session_cuda_copy_back(t, &t->call.lse, &call->lse);
  for (int32_t i = 0; i < t->made_count && !status; i++)
    status = session_cuda_copy_back(t, &t->call.made[i], &call->made[i]);
  return status;
}
