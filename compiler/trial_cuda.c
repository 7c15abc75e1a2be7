/* trial_cuda.c - a call of a plan on a GPU. In: a plan and a call on the host.
 * Out: its outputs, and how long the device took. */
#include "trial_cuda.h"
#include <stdlib.h>
#include <time.h>

dil_status gpu_compiler_open(const gpu_backend **backend) {
  void *symbol;
  dil_status status =
      dil_module_open("dil-gpu.so", GPU_BACKEND_SYMBOL, &symbol);
  if (status) return status;
  *backend = ((gpu_backend_init)symbol)();
  if ((*backend)->version == GPU_BACKEND_VERSION) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "dil-gpu.so is of another version of dil");
}

dil_status gpu_module_open(const dil_cuda_module **module) {
  void *symbol;
  dil_status status =
      dil_module_open("dilrt-cuda.so", DIL_CUDA_SYMBOL, &symbol);
  if (status) return status;
  *module = ((dil_cuda_init)symbol)();
  if ((*module)->version == DIL_CUDA_VERSION) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT,
                  "dilrt-cuda.so is of another version of dil");
}

/* ---- the kernel ---------------------------------------------------------- */

static int64_t dimension(const void *context, int32_t index, int32_t axis,
                         int32_t B, int32_t N, int32_t M) {
  const pattern *p = context;
  expr_point point = {.B = B, .N = N, .M = M};
  return expr_eval(p->dimension[index][axis], &point, false).integer;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dil_status make_kernel(trial_cuda *t, const plan *p) {
  gpu_codes codes = {0};
  gpu_request request = {.plan = p,
                         .arch = t->module->facts(t->device)->arch,
                         .only = p->force & FORCE_GENERAL ? "general" : NULL};
  double start = now();
  dil_status status = gpu_compiler_open(&t->compiler);
  if (!status) status = t->compiler->compile(&request, &codes);
  if (!status)
    status = t->module->kernel(t->device, &p->table, codes.code, codes.count,
                               dimension, p->pattern, &t->kernel);
  while (codes.count > 0) free(codes.code[--codes.count].cubin);
  t->compile_seconds = now() - start;
  snprintf(t->arch, sizeof t->arch, "sm_%d", request.arch);
  return status;
}

/* ---- the call ------------------------------------------------------------ */

static dil_status copy_up(trial_cuda *t, int64_t bytes, const void *from,
                          void **to) {
  *to = NULL;
  if (!from) return DIL_OK;
  dil_status status = t->module->take(t->device, bytes, to);
  if (status) return status;
  t->memory[t->memory_count++] = *to;
  return t->module->upload(t->device, *to, from, bytes);
}

static int64_t bytes_of(const dil_tensor *tensor) {
  return dil_tensor_count(tensor) * (int64_t)dil_dtype_size(tensor->dtype);
}

static dil_status copy_call(trial_cuda *t, const dil_call *call) {
  dil_tensor *const tensors[] = {&t->call.q, &t->call.k, &t->call.v,
                                 &t->call.o, &t->call.lse};
  dil_status status = DIL_OK;
  t->call = *call;
  t->call.inputs = t->inputs;
  for (int i = 0; i < 5 && !status; i++)
    status = copy_up(t, tensors[i]->data ? bytes_of(tensors[i]) : 0,
                     tensors[i]->data, &tensors[i]->data);
  for (int32_t i = 0; i < call->input_count && !status; i++) {
    t->inputs[i] = call->inputs[i];
    status = copy_up(t, bytes_of(&call->inputs[i]), call->inputs[i].data,
                     &t->inputs[i].data);
  }
  void *lengths = NULL;
  if (!status)
    status = copy_up(t, call->q.shape[0] * (int64_t)sizeof(int32_t),
                     call->lengths, &lengths);
  t->call.lengths = lengths;
  return status;
}

dil_status trial_cuda_open(trial_cuda *t, int32_t index, const plan *p,
                           const dil_call *call) {
  *t = (trial_cuda){.plan = p};
  dil_status status = gpu_module_open(&t->module);
  if (!status) status = t->module->open(index, &t->device);
  if (!status) status = make_kernel(t, p);
  if (!status) status = copy_call(t, call);
  if (!status)
    status = t->module->variants(t->kernel, &t->call, t->variant,
                                 sizeof t->variant);
  return status;
}

void trial_cuda_free(trial_cuda *t) {
  if (!t->device) return;
  if (t->kernel) t->module->kernel_free(t->kernel);
  while (t->memory_count > 0)
    t->module->give(t->device, t->memory[--t->memory_count]);
  free(t->peak.cubin);
  t->module->close(t->device);
}

dil_status trial_cuda_run(trial_cuda *t, double *seconds) {
  return t->module->time(t->kernel, &t->call, 1, seconds);
}

dil_status trial_cuda_peak(trial_cuda *t, double seconds, double *rate) {
  enum { SPLIT_PRODUCTS = 3 };
  bool split = t->plan->table.dtype == DIL_F32 && !t->plan->pattern->fast;
  int32_t arch = t->module->facts(t->device)->arch;
  dil_status status = DIL_OK;
  if (!t->peak.cubin) status = t->compiler->peak(t->plan, arch, &t->peak);
  if (!status) status = t->module->peak(t->device, &t->peak, seconds, rate);
  if (split) *rate /= SPLIT_PRODUCTS;
  return status;
}

dil_status trial_cuda_fetch(trial_cuda *t, const dil_call *call) {
  dil_status status = t->module->download(t->device, call->o.data,
                                          t->call.o.data, bytes_of(&call->o));
  if (!status && call->lse.data)
    status = t->module->download(t->device, call->lse.data, t->call.lse.data,
                                 bytes_of(&call->lse));
  return status;
}
