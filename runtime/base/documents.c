/* documents.c - the documents of a packed call; see documents.h. */
#include "documents.h"
#include "status.h"

/* ---- checking ------------------------------------------------------------ */

static dil_status check_longest(const char *name, int64_t longest,
                                int64_t rows) {
  if (longest >= 0 && longest <= rows) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s must be the rows of the longest document, "
                  "within 0 and %lld, got %lld", name, (long long)rows,
                  (long long)longest);
}

dil_status documents_check_shape(const dil_call *c) {
  const dil_packed *p = &c->packed;
  if (c->lengths)
    return dil_fail(DIL_USAGE, "lengths cannot be used with offsets_q: each "
                    "document has the keys that its offsets say");
  if (c->q.shape[0] != 1 || c->k.shape[0] != 1)
    return dil_fail(DIL_USAGE, "the batch of q and k must be 1 in a packed "
                    "call, got %lld and %lld: documents follow one another in "
                    "one batch row", (long long)c->q.shape[0],
                    (long long)c->k.shape[0]);
  if (p->count < 0 || p->count > INT32_MAX - 1)
    return dil_fail(DIL_USAGE, "offsets_q must have 1 to 2^31 - 1 elements");
  dil_status status =
      check_longest("longest_q", p->longest_queries, c->q.shape[1]);
  return status ? status
                : check_longest("longest_k", p->longest_keys, c->k.shape[1]);
}

/* One array of offsets. */
typedef struct offset_list {
  const char *name, *longest_name;
  const int32_t *at;
  int64_t rows, longest;
} offset_list;

static dil_status check_rise(const offset_list *o, int64_t b) {
  if (o->at[b + 1] >= o->at[b]) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s falls at element %lld, from %d to %d: offsets "
                  "are sums of lengths", o->name, (long long)b + 1, o->at[b],
                  o->at[b + 1]);
}

static dil_status check_length(const offset_list *o, int64_t b) {
  int64_t length = (int64_t)o->at[b + 1] - o->at[b];
  if (length <= o->longest) return DIL_OK;
  return dil_fail(DIL_USAGE, "document %lld of %s has %lld rows, and %s is "
                  "%lld", (long long)b, o->name, (long long)length,
                  o->longest_name, (long long)o->longest);
}

static dil_status check_offsets(const offset_list *o, int64_t count) {
  dil_status status = DIL_OK;
  if (o->at[0] != 0)
    return dil_fail(DIL_USAGE, "%s must begin with 0, got %d", o->name,
                    o->at[0]);
  for (int64_t b = 0; b < count && !status; b++) status = check_rise(o, b);
  for (int64_t b = 0; b < count && !status; b++) status = check_length(o, b);
  if (status || o->at[count] <= o->rows) return status;
  return dil_fail(DIL_USAGE, "%s ends at %d, and there are %lld rows", o->name,
                  o->at[count], (long long)o->rows);
}

dil_status documents_check_offsets(const dil_call *c) {
  const dil_packed *p = &c->packed;
  const offset_list q = {"offsets_q", "longest_q", p->queries, c->q.shape[1],
                         p->longest_queries};
  const offset_list k = {p->keys == p->queries ? "offsets_q" : "offsets_k",
                         "longest_k", p->keys, c->k.shape[1], p->longest_keys};
  dil_status status = check_offsets(&q, p->count);
  return status ? status : check_offsets(&k, p->count);
}

/* ---- one document -------------------------------------------------------- */

/* Rows from offsets[b] to offsets[b + 1] of an axis. */
static dil_tensor take_rows(const dil_tensor *t, int32_t axis,
                            const int32_t *offsets, int64_t b) {
  dil_tensor part = *t;
  int64_t at = offsets[b] * t->stride[axis];
  if (t->data)
    part.data = (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
  part.shape[axis] = offsets[b + 1] - offsets[b];
  return part;
}

dil_call documents_take(const dil_call *c, int64_t b) {
  const dil_packed *p = &c->packed;
  dil_call one = *c;
  one.packed = (dil_packed){0};
  one.q = take_rows(&c->q, 1, p->queries, b);
  one.k = take_rows(&c->k, 1, p->keys, b);
  one.v = take_rows(&c->v, 1, p->keys, b);
  one.o = take_rows(&c->o, 1, p->queries, b);
  if (c->lse.data) one.lse = take_rows(&c->lse, 2, p->queries, b);
  return one;
}

dil_backward_call documents_take_backward(const dil_backward_call *c,
                                          int64_t b) {
  const dil_packed *p = &c->forward.packed;
  dil_backward_call one = *c;
  one.forward = documents_take(&c->forward, b);
  one.output = take_rows(&c->output, 1, p->queries, b);
  if (c->lse.data) one.lse = take_rows(&c->lse, 2, p->queries, b);
  if (c->dq.data) one.dq = take_rows(&c->dq, 1, p->queries, b);
  if (c->dk.data) one.dk = take_rows(&c->dk, 1, p->keys, b);
  if (c->dv.data) one.dv = take_rows(&c->dv, 1, p->keys, b);
  return one;
}

/* The last document that begins at the row or before it. Empty documents before
 * it begin there, too. */
int64_t documents_find(const int32_t *offsets, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  if (count == 0 || row < 0 || row >= offsets[count]) return -1;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (offsets[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}
