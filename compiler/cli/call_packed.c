/* call_packed.c - the documents of a packed call. In: --offsets and
 * --key-offsets. Out: offsets in a call setup, and the sizes that follow from
 * them: a batch of one, and as many rows as the documents have. */
#include "call_setup.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"

/* ---- options ------------------------------------------------------------- */

dil_status call_packed_check(const options *o) {
  if (!o->offsets && o->key_offsets)
    return dil_fail(DIL_USAGE, "--key-offsets needs --offsets, those of the "
                               "queries");
  if (!o->offsets) return DIL_OK;
  const char *other = o->lengths                  ? "--lengths"
                      : o->seen[OPTION_STREAM]    ? "--stream"
                      : o->seen[OPTION_TOPOLOGY] ? "--topology"
                                                  : NULL;
  if (!other) return DIL_OK;
  return dil_fail(DIL_USAGE, "--offsets cannot be used with %s: documents are "
                             "packed into whole calls", other);
}

/* ---- one file ------------------------------------------------------------ */

static dil_status check_rank(const call_setup *b, const char *path,
                             const dil_tensor *t) {
  if (t->rank == 1 && t->shape[0] >= 1) return DIL_OK;
  return dil_fail(DIL_INPUT, "offsets are [B + 1], the sums of the lengths of B "
                  "documents from 0 on, but '%s' is %s", path,
                  call_tensor_shape_text(b->arena, t));
}

static dil_status check_elements(const char *path, const dil_tensor *t) {
  const int32_t *at = t->data;
  if (at[0] != 0)
    return dil_fail(DIL_INPUT, "'%s' begins with %d, and offsets with 0", path,
                    at[0]);
  for (int64_t d = 1; d < t->shape[0]; d++)
    if (at[d] < at[d - 1])
      return dil_fail(DIL_INPUT, "'%s' falls at element %lld, from %d to %d: "
                      "offsets are sums of lengths", path, (long long)d,
                      at[d - 1], at[d]);
  return DIL_OK;
}

static dil_status load_offsets(call_setup *b, const char *path,
                               dil_tensor *to) {
  dil_npy file;
  dil_status status = dil_npy_read(path, &file);
  if (status) return status;
  status = check_rank(b, path, &file.tensor);
  if (!status) status = call_take_array(b, path, DIL_I32, &file, to);
  dil_npy_free(&file);
  return status ? status : check_elements(path, to);
}

static int64_t longest_of(const dil_tensor *t) {
  const int32_t *at = t->data;
  int64_t longest = 0;
  for (int64_t d = 1; d < t->shape[0]; d++)
    longest = maximum(longest, at[d] - at[d - 1]);
  return longest;
}

/* The rows of an array or of an option may be more than those of documents. */
static dil_status claim_rows(call_setup *b, call_size which, const char *path,
                             const dil_tensor *t) {
  int64_t end = ((const int32_t *)t->data)[t->shape[0] - 1];
  const options *o = b->options;
  bool given = o->seen[which == CALL_N ? OPTION_SEQ : OPTION_KEYS];
  int64_t option = which == CALL_N ? o->seq : o->keys;
  bool claimed = b->claimed[which] != NULL;
  int64_t rows = claimed ? b->size[which] : given ? option : end;
  if (end > rows)
    return dil_fail(DIL_INPUT, "'%s' ends at %lld, but %s has %lld %s", path,
                    (long long)end,
                    claimed            ? b->claimed[which]
                    : which == CALL_N ? "--seq"
                                       : "--keys",
                    (long long)rows, which == CALL_N ? "queries" : "keys");
  const char *who = arena_print(b->arena, "'%s'", path);
  return claimed || given ? DIL_OK : call_claim_size(b, which, rows, who);
}

/* ---- both ---------------------------------------------------------------- */

static dil_status check_counts(const call_setup *b, const dil_tensor *q,
                               const dil_tensor *k) {
  const options *o = b->options;
  if (q->shape[0] == k->shape[0]) return DIL_OK;
  return dil_fail(DIL_INPUT, "'%s' has %lld documents, but '%s' has %lld",
                  o->offsets, (long long)q->shape[0] - 1, o->key_offsets,
                  (long long)k->shape[0] - 1);
}

dil_status call_packed_load(call_setup *b) {
  const options *o = b->options;
  dil_tensor q, k;
  if (!o->offsets) return DIL_OK;
  dil_status status = load_offsets(b, o->offsets, &q);
  const char *who = arena_print(b->arena, "'%s'", o->offsets);
  if (!status) status = call_claim_size(b, CALL_B, 1, who);
  if (!status) status = claim_rows(b, CALL_N, o->offsets, &q);
  if (status) return status;
  const char *path = o->key_offsets ? o->key_offsets : o->offsets;
  k = q;
  if (o->key_offsets) status = load_offsets(b, path, &k);
  if (!status) status = check_counts(b, &q, &k);
  if (!status && (o->key_offsets || b->claimed[CALL_M]))
    status = claim_rows(b, CALL_M, path, &k);
  if (status) return status;
  b->call.packed = (dil_packed){.queries = q.data,
                                .keys = k.data,
                                .count = q.shape[0] - 1,
                                .longest_queries = longest_of(&q),
                                .longest_keys = longest_of(&k)};
  return DIL_OK;
}

/* ---- what a check sees --------------------------------------------------- */

bool call_packed_row(const call_setup *b, int64_t n, dil_call *document,
                     int64_t *number) {
  const dil_packed *p = &b->call.packed;
  *number = documents_find(p->queries, p->count, n);
  if (*number < 0) return false;
  *document = documents_take(&b->call, *number);
  return true;
}
