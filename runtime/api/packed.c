/* packed.c - from a host's offsets to the documents of a call.
 *
 * In: the offsets and longest documents of dil_arguments. Out: a dil_packed, or
 * an error that names what is wrong. Offsets are read later, by whoever runs the
 * call. */
#include "context.h"
#include "usage.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"

static dil_status check_offsets(const char *name, const dil_tensor *t) {
  char got[DIL_TENSOR_TEXT];
  if (t->dtype != DIL_I32 || t->rank != 1 || t->shape[0] < 1)
    return dil_fail(DIL_USAGE, "%s must be i32 [B + 1], got %s", name,
                    dil_tensor_text(t, got));
  if (t->shape[0] > 1 && t->stride[0] != 1)
    return dil_fail(DIL_USAGE, "%s must be contiguous, the stride is %lld",
                    name, (long long)t->stride[0]);
  if (t->data) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s has no memory", name);
}

static dil_status read_offsets(const dil_kernel *k, const char *name,
                               const DLTensor *from, dil_tensor *to) {
  dil_status status =
      arguments_read_tensor(k->context, name, DIL_I32, from, to);
  return status ? status : check_offsets(name, to);
}

/* What says nothing without offsets of queries. */
static dil_status check_alone(const dil_arguments *g) {
  const char *name = g->offsets_k   ? "offsets_k"
                     : g->longest_q ? "longest_q"
                     : g->longest_k ? "longest_k"
                                    : NULL;
  if (!name) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s is given, and offsets_q is not", name);
}

/* Nobody looks at offsets on a GPU: without the longest document all rows would be
 * left out. */
static dil_status check_said(const char *name, const DLTensor *offsets,
                             int64_t longest, const dil_tensor *rows) {
  if (longest || !rows->shape[1] || offsets->device.device_type == kDLCPU)
    return DIL_OK;
  return dil_fail(DIL_USAGE, "%s must be the rows of the longest document: it "
                  "is 0, and the host does not look at offsets on a GPU", name);
}

static dil_status read_keys(const dil_kernel *k, const dil_arguments *g,
                            const dil_call *call, dil_packed *p) {
  dil_tensor keys;
  dil_status status = read_offsets(k, "offsets_k", g->offsets_k, &keys);
  if (!status)
    status = check_said("longest_k", g->offsets_k, g->longest_k, &call->k);
  if (status) return status;
  if (keys.shape[0] != p->count + 1)
    return dil_fail(DIL_USAGE, "offsets_k has %lld elements, and offsets_q "
                    "%lld", (long long)keys.shape[0], (long long)p->count + 1);
  p->keys = keys.data;
  p->longest_keys = g->longest_k;
  return DIL_OK;
}

dil_status packed_read(const dil_kernel *k, const dil_arguments *g,
                       dil_call *call) {
  dil_tensor queries;
  if (!g->offsets_q) return check_alone(g);
  if (g->lengths)
    return dil_fail(DIL_USAGE, "lengths cannot be used with offsets_q: each "
                    "document has the keys that its offsets say");
  dil_status status = read_offsets(k, "offsets_q", g->offsets_q, &queries);
  if (!status)
    status = check_said("longest_q", g->offsets_q, g->longest_q, &call->q);
  if (status) return status;
  dil_packed *p = &call->packed;
  *p = (dil_packed){.queries = queries.data,
                    .keys = queries.data,
                    .count = queries.shape[0] - 1,
                    .longest_queries = g->longest_q,
                    .longest_keys = g->longest_q};
  if (g->offsets_k) return read_keys(k, g, call, p);
  if (g->longest_k == 0 || g->longest_k == g->longest_q) return DIL_OK;
  return dil_fail(DIL_USAGE, "longest_k is %lld and longest_q %lld: offsets_q "
                  "serves both without offsets_k", (long long)g->longest_k,
                  (long long)g->longest_q);
}

dil_tensor arguments_offsets(const dil_call *call, bool keys) {
  const dil_packed *p = &call->packed;
  const int32_t *at = keys ? p->keys : p->queries;
  int64_t count = at ? p->count + 1 : 0;
  return dil_tensor_make((void *)(uintptr_t)at, DIL_I32, 1, &count);
}
