/* rank_gpu.c - a rank whose kernel is on a GPU: rows travel by NCCL, and the link
 * of the host brings the ranks together. In: a rank with its kernel. Out: its
 * device and communicator; runs in the device's context. */
#include "rank.h"
#include "runtime/base/status.h"
#include "runtime/ring/input_sums.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- the device ---------------------------------------------------------- */

dil_status rank_gpu_open(dil_rank *r) {
  const dil_kernel *k = r->kernel;
  const dil_kernel_source *s = &k->source;
  if (!s->rows)
    return dil_fail(DIL_USAGE, "kernel '%s' on %s is for whole sequences: set "
                    "`ranks` in its options", s->table->name,
                    k->context->device);
  dil_status status = s->rows(s->context, &r->rows);
  return status ? status
                : k->context->cuda->ring(k->context->gpu, k->gpu, &r->rows,
                                         &r->device);
}

dil_status rank_gpu_join(dil_rank *r) {
  const dil_context *c = r->kernel->context;
  dil_status status = rows_module_open(&r->nccl);
  if (!status) status = c->cuda->enter(c->gpu);
  if (status) return rank_give_up(r, status);
  status = r->nccl->join(r->link, &r->comm);
  c->cuda->leave(c->gpu);
  return status ? rank_give_up(r, status) : DIL_OK;
}

void rank_gpu_close(dil_rank *r) {
  const dil_context *c = r->kernel->context;
  if (r->comm && !c->cuda->enter(c->gpu)) {
    r->nccl->leave(r->comm);
    c->cuda->leave(c->gpu);
  }
  free(r->rows.cubin);
}

/* ---- a run --------------------------------------------------------------- */

static dil_status run_entered(dil_rank *r, dil_ring *ring) {
  dil_link *rows = NULL;
  if (!r->comm) return ring_run(ring);
  dil_status status = r->nccl->link(r->comm, r->link, false, &rows);
  if (status) return rank_give_up(r, status);
  ring->link = rows;
  status = ring_run(ring);
  ring->link = r->link;
  link_free(rows);
  return status;
}

dil_status rank_gpu_run(dil_rank *r, dil_ring *ring) {
  const dil_context *c = r->kernel->context;
  dil_status status = c->cuda->enter(c->gpu);
  if (status) return rank_give_up(r, status);
  status = run_entered(r, ring);
  c->cuda->leave(c->gpu);
  return status;
}

/* ---- gradients ----------------------------------------------------------- */

static dil_status check_one(const char *name, const dil_tensor *t) {
  if (!t->data || dil_tensor_is_row_major(t)) return DIL_OK;
  return dil_fail(DIL_UNSUPPORTED, "%s is not row-major, as gradients of a rank "
                  "on a GPU are", name);
}

dil_status rank_gpu_check(const dil_backward_call *call) {
  static const char *const names[] = {"dq", "dk", "dv"};
  const dil_tensor *rows[] = {&call->dq, &call->dk, &call->dv};
  dil_status status = DIL_OK;
  for (int i = 0; i < 3 && !status; i++) {
    status = check_one(names[i], rows[i]);
    if (!status && rows[i]->data && rows[i]->dtype != DIL_F32)
      status = dil_fail(DIL_UNSUPPORTED, "%s is %s: gradients of a rank on a GPU "
                        "are f32", names[i], dil_dtype_name(rows[i]->dtype));
  }
  for (int32_t x = 0; x < call->forward.input_count && !status; x++) {
    char name[40];
    snprintf(name, sizeof name, "the gradient of input %d", x + 1);
    status = check_one(name, &call->inputs[x]);
  }
  return status;
}

static int64_t bytes_of(const dil_tensor *t) {
  return dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype);
}

dil_status rank_gpu_store_inputs(const dil_rank *r,
                                 const dil_backward_call *call,
                                 const double *sums) {
  dil_backward_call here = *call;
  int32_t count = call->forward.input_count;
  dil_status status = DIL_OK;
  for (int32_t x = 0; x < count; x++) {
    dil_tensor *t = &here.inputs[x];
    if (!t->data) continue;
    t->data = malloc((size_t)bytes_of(t) + 1);
    if (!t->data) status = dil_fail(DIL_MEMORY, "no memory for gradients of inputs");
  }
  if (!status) input_sums_store(&here, sums);
  for (int32_t x = 0; x < count; x++) {
    const dil_tensor *t = &here.inputs[x];
    if (!call->inputs[x].data) continue;
    if (!status)
      status = r->device->calls->write(r->device, call->inputs[x].data, t->data,
                                       bytes_of(t));
    free(t->data);
  }
  return status;
}
