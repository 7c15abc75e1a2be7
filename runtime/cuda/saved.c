/* saved.c - a run that leaves for its gradients what they would make again: where
 * each pass has a softmax or a delta of its own, its output and its lse.
 *
 * In: a checked call with memory for these states. Out: launches that make the states
 * of all passes apart, and o and lse of them. */
#include "general.h"
#include "kernel.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"

enum { SAVED_ALIGN = 256 };

static int64_t saved_rows(const dil_cuda_kernel *k, const dil_call *call) {
  return call->q.shape[0] * call->q.shape[1] * k->table->heads * k->table->pass_count;
}

static int64_t saved_o_bytes(const dil_cuda_kernel *k, const dil_call *call) {
  int64_t numbers = saved_rows(k, call) * k->table->value_dim;
  return round_up(numbers * (int64_t)sizeof(float), SAVED_ALIGN);
}

int64_t kernel_saved_bytes(const dil_cuda_kernel *k, const dil_call *call) {
  if (!backward_asks_states(k->table)) return 0;
  return saved_o_bytes(k, call) + saved_rows(k, call) * (int64_t)sizeof(float);
}

saved_states kernel_saved(const dil_cuda_kernel *k, const dil_call *call) {
  char *lse = (char *)call->saved + saved_o_bytes(k, call);
  return (saved_states){call->saved, (float *)(void *)lse};
}

/* Rows that no document of a packed call has. The end of states does not write them. */
static dil_status saved_clear_nobody(dil_cuda_kernel *k, const cuda_run *r) {
  const cuda_code *general;
  if (!r->call->packed.queries) return DIL_OK;
  dil_status status = codes_take_last(&k->codes, &general);
  return status ? status : general_clear(r, general);
}

dil_status kernel_run_saving(dil_cuda_kernel *k, cuda_run *r) {
  saved_states s = kernel_saved(k, r->call);
  float weight = r->weight;
  dil_shard whole = {.queries = {r->M - r->N, 1, r->N},
                     .keys = {0, 1, r->M},
                     .B = r->B,
                     .N = r->N,
                     .M = r->M,
                     .o = s.o,
                     .lse = s.lse,
                     .by_pass = true};
  r->shard = &whole;
  r->resumes = true;
  dil_status status = saved_clear_nobody(k, r);
  if (!status) status = kernel_begin_states(k, r);
  r->weight = 1; /* states are weighted when they are added */
  if (!status && r->M) status = kernel_run_on_stream(k, r);
  r->weight = weight;
  if (!status) status = kernel_end_states(k, r);
  r->shard = NULL;
  return status;
}
