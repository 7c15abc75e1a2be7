/* kernel_code.c - the code of a kernel as the run time takes it: a
 * dil_kernel_source and its hooks, see codegen.h. */
#include "code_cache.h"
#include "deferred.h"
#include "runtime/base/status.h"
#include <stdlib.h>

/* ---- hooks of the run time ----------------------------------------------- */

static dil_status kernel_code_variant(void *context, dil_variant variant,
                                      void **bytes, size_t *size,
                                      dil_code *out) {
  const kernel_code *k = context;
  cpu_code code;
  dil_status status = code_cache_object(&k->request, variant, &code);
  if (status) return status;
  *bytes = code.bytes;
  *size = code.size;
  *out = code.code;
  return DIL_OK;
}

static int64_t kernel_code_dimension(const void *context, int32_t index,
                                     int32_t axis, int32_t B, int32_t N,
                                     int32_t M) {
  const pattern *p = ((const kernel_code *)context)->request.plan->pattern;
  expr_point point = {.B = B, .N = N, .M = M};
  return expr_eval(p->dimension[index][axis], &point, false).integer;
}

static dil_status kernel_code_more(const void *context, int32_t index,
                                   bool waits, dil_cuda_code *code) {
  deferred *of = ((const kernel_code *)context)->deferred;
  return deferred_take(of, index, waits, code);
}

static dil_status kernel_code_rows(const void *context, dil_cuda_code *code) {
  return code_cache_helper(&((const kernel_code *)context)->request,
                           HELPER_ROWS, code);
}

/* ---- making and freeing -------------------------------------------------- */

static dil_status kernel_code_cubins(kernel_code *k) {
  const code_request *of = &k->request;
  gpu_codes *codes = calloc(1, sizeof *codes);
  gpu_request request = {
      .common = {of->plan},
      .arch = dil_context_arch(of->context),
      .knobs = &of->knobs,
      .full_sequences_only = of->full_sequences_only,
      .only = of->plan->force & FORCE_GENERAL ? "general" : NULL};
  if (!codes) return dil_fail(DIL_MEMORY, "no memory for the code of a kernel");
  dil_status status =
      of->lazy ? deferred_begin(of, &request, codes, &k->deferred)
               : code_cache_codes(of, &request, codes);
  if (status) {
    free(codes);
    return status;
  }
  k->codes = codes;
  k->source.codes = codes->code;
  k->source.code_count = codes->count;
  k->source.more = k->deferred ? kernel_code_more : NULL;
  k->source.rows = of->full_sequences_only ? NULL : kernel_code_rows;
  snprintf(k->chip, sizeof k->chip, "sm_%d", request.arch);
  k->source.target = k->chip;
  return DIL_OK;
}

dil_status kernel_code_make(const code_request *request, kernel_code *code) {
  kernel_code_free(code);
  code->request = *request;
  code->source = (dil_kernel_source){.table = &request->plan->table,
                                     .plan_hash = plan_hash(request->plan),
                                     .direction = request->plan->direction,
                                     .target = request->isa,
                                     .dimension = kernel_code_dimension,
                                     .context = code};
  if (dil_context_arch(request->context)) return kernel_code_cubins(code);
  code->source.make = kernel_code_variant;
  return DIL_OK;
}

void kernel_code_wait(const kernel_code *k) {
  deferred_wait(k->deferred);
}

void kernel_code_free_cubins(kernel_code *k) {
  if (!k->codes) return;
  for (int32_t i = 0; i < k->codes->count; i++) free(k->codes->code[i].cubin);
  free(k->codes);
  k->codes = NULL;
  k->source.codes = NULL;
}

void kernel_code_free(kernel_code *k) {
  kernel_code_free_cubins(k);
  deferred_end(k->deferred);
  *k = (kernel_code){0};
}
