/* oracle_check.c - whether a call brings what its pattern asks for.
 *
 * In: a pattern and a call. Out: DIL_OK, or a status whose text names the
 * tensor and the two sizes that disagree. */
#include "oracle.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"

const char *oracle_refusal(const pattern *p) {
  if (p->head_dim > DIL_HEAD_DIM_MAX || p->value_dim > DIL_HEAD_DIM_MAX)
    return "head_dim above 256 is not supported by this build";
  return NULL;
}

/* The shape that a tensor should have; an axis of -1 is free. */
typedef struct wanted {
  const char *name;
  const dil_tensor *tensor;
  dil_dtype dtype;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX];
} wanted;

static bool is_empty_tensor(const dil_tensor *x) {
  for (int32_t axis = 0; axis < x->rank; axis++)
    if (x->shape[axis] == 0) return true;
  return false;
}

static dil_status check_wanted_tensor(const wanted *w) {
  const dil_tensor *x = w->tensor;
  if (x->rank != w->rank)
    return dil_fail(DIL_USAGE, "%s has %d dimensions, not %d", w->name,
                    x->rank, w->rank);
  if (x->dtype != w->dtype)
    return dil_fail(DIL_USAGE, "%s is %s, not %s", w->name,
                    x->dtype < DIL_DTYPE_COUNT ? dil_dtype_name(x->dtype)
                                               : "of no dtype",
                    dil_dtype_name(w->dtype));
  for (int32_t axis = 0; axis < w->rank; axis++)
    if (x->shape[axis] != w->shape[axis])
      return dil_fail(DIL_USAGE, "%s has size %lld in dimension %d, not %lld",
                      w->name, (long long)x->shape[axis], axis,
                      (long long)w->shape[axis]);
  if (x->data == NULL && !is_empty_tensor(x))
    return dil_fail(DIL_USAGE, "%s has no data", w->name);
  return DIL_OK;
}

static dil_status check_wanted_rows(const wanted *w) {
  dil_status status = check_wanted_tensor(w);
  const dil_tensor *x = w->tensor;
  if (status == DIL_OK && x->shape[3] > 1 && x->stride[3] != 1)
    return dil_fail(DIL_USAGE, "%s has stride %lld in its last dimension, "
                    "not 1", w->name, (long long)x->stride[3]);
  return status;
}

static dil_status check_lse(const pattern *p, const wanted *lse) {
  if (!pattern_has_lse(p))
    return dil_fail(DIL_USAGE, "pattern '%s' has no lse: some head is served "
                    "by several branches, or by none", p->name);
  return check_wanted_tensor(lse);
}

static dil_status check_attention(const pattern *p, const dil_call *call) {
  int64_t B = call->q.shape[0], N = call->q.shape[1], M = dil_pages_keys(call);
  const int64_t batch = pages_given(call) ? call->k.shape[0] : B;
  const int64_t keys = pages_given(call) ? call->k.shape[1] : M;
  const wanted rows[] = {
      {"q", &call->q, p->dtype, 4, {B, N, p->heads, p->head_dim}},
      {"k", &call->k, p->dtype, 4, {batch, keys, p->kv_heads, p->head_dim}},
      {"v", &call->v, p->dtype, 4, {batch, keys, p->kv_heads, p->value_dim}},
      {"o", &call->o, p->dtype, 4, {B, N, p->heads, p->value_dim}},
  };
  dil_status status = DIL_OK;
  for (size_t k = 0; k < sizeof rows / sizeof *rows && status == DIL_OK; k++)
    status = check_wanted_rows(&rows[k]);
  if (status != DIL_OK) return status;
  if (B < 0 || N < 0 || M < 0 || B > INT32_MAX || N > INT32_MAX ||
      M > INT32_MAX)
    return dil_fail(DIL_USAGE, "B %lld, N %lld or M %lld is not below 2^31",
                    (long long)B, (long long)N, (long long)M);
  if (call->lse.data == NULL) return DIL_OK;
  const wanted lse = {"lse", &call->lse, DIL_F32, 3, {B, p->heads, N, 0}};
  return check_lse(p, &lse);
}

static dil_status check_inputs(const pattern *p, const dil_call *call) {
  if (call->input_count != p->input_count)
    return dil_fail(DIL_USAGE, "the call brings %d inputs, not %d",
                    call->input_count, p->input_count);
  const dil_packed *d = &call->packed;
  expr_point sizes = {.B = (int32_t)call->q.shape[0],
                      .N = (int32_t)call->q.shape[1],
                      .M = (int32_t)dil_pages_keys(call)};
  if (d->queries) {
    sizes.B = (int32_t)d->count;
    sizes.N = (int32_t)d->longest_queries;
    sizes.M = (int32_t)d->longest_keys;
  }
  for (int32_t k = 0; k < p->input_count; k++) {
    wanted w = {p->input[k].name, &call->inputs[k], p->input[k].dtype,
                p->input[k].rank, {0}};
    for (int32_t axis = 0; axis < w.rank; axis++)
      w.shape[axis] = expr_eval(p->dimension[k][axis], &sizes, false).integer;
    if (w.shape[w.rank - 1] == DIL_ANY_SIZE)
      w.shape[w.rank - 1] = call->inputs[k].shape[w.rank - 1];
    dil_status status = check_wanted_tensor(&w);
    if (status != DIL_OK) return status;
  }
  return DIL_OK;
}

static dil_status check_lengths(const dil_call *call) {
  if (call->lengths == NULL) return DIL_OK;
  for (int64_t b = 0; b < call->q.shape[0]; b++)
    if (call->lengths[b] < 0 || call->lengths[b] > dil_pages_keys(call))
      return dil_fail(DIL_USAGE, "length %d of batch row %lld is not within "
                      "0..%lld", call->lengths[b], (long long)b,
                      (long long)dil_pages_keys(call));
  return DIL_OK;
}

/* Offsets begin at 0 and rise, to the rows that there are at most; documents are
 * no longer than the longest. */
static dil_status check_offsets(const char *name, const int32_t *offsets,
                                int64_t count, int64_t rows, int64_t longest) {
  for (int64_t d = 0; d <= count; d++) {
    int64_t before = d ? offsets[d - 1] : 0, at = offsets[d];
    if ((d == 0 && at != 0) || at < before || at > rows ||
        at - before > longest)
      return dil_fail(DIL_USAGE, "offset %lld of %s is %lld: the one before is "
                      "%lld, there are %lld rows, and documents have %lld at "
                      "most", (long long)d, name, (long long)at,
                      (long long)before, (long long)rows, (long long)longest);
  }
  return DIL_OK;
}

static dil_status check_documents(const dil_call *call) {
  const dil_packed *d = &call->packed;
  if (!d->queries) return DIL_OK;
  if (call->lengths || call->q.shape[0] != 1)
    return dil_fail(DIL_USAGE, "documents want a batch of 1 and no lengths");
  dil_status status = check_offsets("the queries", d->queries, d->count,
                                    call->q.shape[1], d->longest_queries);
  return status ? status
                : check_offsets("the keys", d->keys, d->count,
                                call->k.shape[1], d->longest_keys);
}

dil_status oracle_check(const pattern *p, const dil_call *call) {
  const char *refusal = oracle_refusal(p);
  if (refusal) return dil_fail(DIL_UNSUPPORTED, "%s", refusal);
  if (call->size != sizeof *call)
    return dil_fail(DIL_USAGE, "the call has size %zu, not %zu: another "
                    "version of dilrt.h?", call->size, sizeof *call);
  dil_status status = check_attention(p, call);
  if (status == DIL_OK) status = check_documents(call);
  if (status == DIL_OK) status = check_inputs(p, call);
  if (status == DIL_OK) status = check_lengths(call);
  if (status == DIL_OK) status = dil_pages_check(call);
  return status == DIL_OK ? dil_pages_check_numbers(call) : status;
}

dil_status oracle_check_backward(const pattern *p,
                                 const dil_backward_call *call) {
  dil_status status = oracle_check(p, &call->forward);
  if (status == DIL_OK) status = dil_pages_refuse(&call->forward, "gradients");
  if (status != DIL_OK) return status;
  int64_t B = call->forward.q.shape[0], N = call->forward.q.shape[1];
  const wanted output = {"the gradient of o", &call->output, p->dtype, 4,
                         {B, N, p->heads, p->value_dim}};
  status = check_wanted_rows(&output);
  if (status != DIL_OK || call->lse.data == NULL) return status;
  const wanted lse = {"the gradient of lse", &call->lse, DIL_F32, 3,
                      {B, p->heads, N, 0}};
  return check_lse(p, &lse);
}
