/* kernel_source.c - from a compilation to the source of a kernel, of which the
 * run time makes the kernel.
 *
 * In: a compilation that reached stage plan (for a GPU) or schedule (for the
 * processor). Out: a dil_kernel_source. This file makes GPU code at once; the
 * run time asks for the processor's code when a call first needs it. */
#include "code_cache.h"
#include "interface.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include <stdlib.h>

dil_status gpu_compiler_open(const gpu_backend **gpu) {
  void *symbol;
  dil_status status =
      dil_module_open("dil-gpu.so", GPU_BACKEND_SYMBOL, &symbol);
  if (status) return status;
  *gpu = ((gpu_backend_init)symbol)();
  if ((*gpu)->version == DIL_INTERFACE) return DIL_OK;
  return dil_fail(DIL_ENVIRONMENT, "dil-gpu.so is of another version of dil");
}

static dil_status make_variant(void *context, dil_variant variant, void **bytes,
                               size_t *size, dil_code *out) {
  backend_code code;
  dil_status status = keep_object(context, variant, &code);
  if (status) return status;
  *bytes = code.bytes;
  *size = code.size;
  *out = code.code;
  return DIL_OK;
}

static int64_t dimension(const void *context, int32_t index, int32_t axis,
                         int32_t B, int32_t N, int32_t M) {
  const pattern *p = ((const compilation *)context)->pattern;
  expr_point point = {.B = B, .N = N, .M = M};
  return expr_eval(p->dimension[index][axis], &point, false).integer;
}

static dil_status more(const void *context, int32_t index,
                       dil_cuda_code *code) {
  return late_wait(((const compilation *)context)->late, index, code);
}

static dil_status have_codes(compilation *c, const gpu_request *request,
                             gpu_codes *codes) {
  driver_drop(c);
  return c->early ? late_begin(c, request, codes, &c->late)
                  : keep_codes(c, request, codes);
}

static dil_status make_codes(compilation *c, dil_kernel_source *s) {
  gpu_codes *codes = calloc(1, sizeof *codes);
  gpu_request request = {.plan = c->plan,
                         .arch = dil_context_arch(c->context),
                         .knobs = &c->knobs,
                         .whole = c->whole,
                         .only =
                             c->plan->force & FORCE_GENERAL ? "general" : NULL};
  if (!codes) return dil_fail(DIL_MEMORY, "no memory for the code of a kernel");
  dil_status status = driver_refused(c, have_codes(c, &request, codes));
  if (status) {
    free(codes);
    return status;
  }
  s->codes = codes->code;
  s->code_count = codes->count;
  s->more = c->late ? more : NULL;
  snprintf(c->chip, sizeof c->chip, "sm_%d", request.arch);
  s->target = c->chip;
  return DIL_OK;
}

dil_status driver_source(compilation *c, dil_context *context,
                         dil_kernel_source *s) {
  *s = (dil_kernel_source){.table = &c->plan->table,
                           .plan_hash = plan_hash(c->plan),
                           .target = c->isa,
                           .dimension = dimension,
                           .context = c};
  c->context = context;
  if (dil_context_arch(context)) return make_codes(c, s);
  s->make = make_variant;
  return DIL_OK;
}

void driver_drop(compilation *c) {
  late_end(c->late);
  c->late = NULL;
}

/* s->codes points into a malloced gpu_codes: free the block that holds it. */
void driver_source_free(dil_kernel_source *s) {
  if (!s->codes) return;
  gpu_codes *codes =
      (gpu_codes *)((char *)(uintptr_t)s->codes - offsetof(gpu_codes, code));
  for (int32_t i = 0; i < codes->count; i++) free(codes->code[i].cubin);
  free(codes);
  s->codes = NULL;
}
