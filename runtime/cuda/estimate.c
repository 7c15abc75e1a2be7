/* estimate.c - the needs of a call on a GPU that may be absent.
 *
 * In: the facts of a GPU, the codes of a plan without their cubins, a call's
 * shapes. Out: for each pass the code that takes it, its tiles and the key
 * blocks that they visit; states and workspace. A run asks the same questions
 * (kernel.c) of a device that is there. */
#include "documents.h"
#include "kernel.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include "templates/shared/splits.h"
#include <math.h>
#include <stdlib.h>

cuda_run kernel_estimate_run(const dil_cuda_kernel *k, const dil_cuda *device,
                             const dil_call *call, const dil_shard *shard) {
  const dil_table *t = k->table;
  return (cuda_run){.device = device,
                    .table = t,
                    .call = call,
                    .shard = shard,
                    .opening = -1,
                    .state_stride = 1,
                    .B = call->q.shape[0],
                    .N = call->q.shape[1],
                    .M = dil_pages_keys(call),
                    .scale = (float)(t->runtime_scale ? call->scale : t->scale),
                    .weight = 1,
                    .drop = call->train && t->dropout > 0,
                    .chained = k->chained};
}

static int32_t estimate_code_index(const cuda_codes *codes,
                                   const cuda_code *code) {
  return code ? (int32_t)(code - codes->loaded) : -1;
}

/* The reason of the last code before the one that takes a pass. */
static const char *estimate_refusal(const cuda_codes *codes, const cuda_run *r,
                                    int32_t pass, int32_t taken) {
  const char *reason = NULL;
  for (int32_t i = 0; i < (taken < 0 ? codes->count : taken); i++) {
    const cuda_code *code = &codes->loaded[i];
    bool asked = !code->family->few || r->N < DIL_FEW_ROWS;
    asked &= !code_is_of_documents(code);
    if (asked && code->about.passes >> pass & 1)
      reason = code->family->refusal(r, pass, code);
  }
  return reason;
}

static dil_status estimate_passes(const dil_cuda_kernel *k, cuda_run *r,
                                  dil_cuda_estimate *out) {
  kernel_layout at;
  for (int32_t p = 0; p < k->table->pass_count; p++) {
    const cuda_code *code = codes_choose(&k->codes, r, p);
    dil_cuda_pass *pass = &out->pass[p];
    pass->code = estimate_code_index(&k->codes, code);
    pass->refusal = estimate_refusal(&k->codes, r, p, pass->code);
    if (code) code->family->estimate(r, p, code, pass);
    if (code) pass->workspace = code->family->workspace(r, p, code);
  }
  dil_status status = kernel_lay_out(k, r, &at);
  if (status) return status;
  out->documents = estimate_code_index(&k->codes, documents_code(&k->codes, r));
  out->state = at.bounds; /* before the bounds there are only states */
  out->workspace = at.end;
  return DIL_OK;
}

/* A shard brings its states. */
static void estimate_states(const dil_cuda_kernel *k, cuda_run *r,
                            dil_cuda_estimate *out) {
  const dil_table *t = k->table;
  if (k->stateful || r->shard) kernel_find_opening(k, r);
  out->stateful = k->stateful || r->shard;
  out->opening = r->opening;
  out->state_stride = r->state_stride;
  if (r->shard)
    out->state = run_states(t) * kernel_rows_of_state(r) *
                 (t->value_dim + 1) * (int64_t)sizeof(float);
}

dil_status kernel_estimate_open(dil_cuda_kernel *k, const dil_table *table,
                                const dil_cuda_code *code, int32_t count) {
  *k = (dil_cuda_kernel){.table = table};
  k->chained = calloc((size_t)table->heads, sizeof *k->chained);
  if (!k->chained)
    return dil_fail(DIL_MEMORY, "no memory for an estimate of '%s'",
                    table->name);
  kernel_count_passes(k);
  return codes_open(&k->codes, NULL, table, code, count, NULL, NULL);
}

void kernel_estimate_close(dil_cuda_kernel *k) {
  if (k->chained) codes_close(&k->codes);
  free(k->chained);
}

dil_status kernel_estimate(const dil_cuda_facts *facts, const dil_table *table,
                           const dil_cuda_code *code, int32_t count,
                           const dil_call *call, const dil_shard *shard,
                           dil_cuda_estimate *out) {
  const dil_cuda device = {.facts = *facts};
  dil_cuda_kernel k;
  *out = (dil_cuda_estimate){.opening = -1, .documents = -1};
  dil_status status = kernel_estimate_open(&k, table, code, count);
  cuda_run r = kernel_estimate_run(&k, &device, call, shard);
  if (!status) estimate_states(&k, &r, out);
  if (!status && !shard) status = estimate_passes(&k, &r, out);
  kernel_estimate_close(&k);
  return status;
}
