/* documents.c - packed calls for the suites of kernels. In: the data of a call of
 * one batch row, and offsets. Out: the same tensors as documents, inputs in the
 * sizes of the documents, the oracle's o and lse. */
#include "gpu.h"
#include "numeric.h"
#include "compiler/oracle/oracle.h"
#include "runtime/base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static guard *next_guard(data *d) {
  if (d->guard_count == NUMERIC_GUARDS) abort();
  return &d->guards[d->guard_count++];
}

/* ---- offsets ------------------------------------------------------------- */

static const int32_t *put_offsets(data *d, const int32_t *offsets) {
  size_t size = (size_t)(d->shape.documents + 1) * sizeof *offsets;
  guard *g = next_guard(d);
  *g = guard_new(size, true);
  memcpy(g->bytes, offsets, size);
  guard_protect(g);
  return (const int32_t *)(const void *)g->bytes;
}

static int64_t longest_of(const int32_t *offsets, int64_t count) {
  int64_t longest = 0;
  for (int64_t b = 0; b < count; b++)
    if (offsets[b + 1] - offsets[b] > longest)
      longest = offsets[b + 1] - offsets[b];
  return longest;
}

static void make_packed(data *d) {
  const call_shape *s = &d->shape;
  dil_packed *p = &d->call.packed;
  p->count = s->documents;
  p->queries = put_offsets(d, s->offsets);
  p->keys = s->key_offsets ? put_offsets(d, s->key_offsets) : p->queries;
  p->longest_queries = longest_of(p->queries, p->count);
  p->longest_keys = longest_of(p->keys, p->count);
}

/* ---- inputs -------------------------------------------------------------- */

/* Whole numbers of 0 to 2, floats between 0 and 1. */
static double element_of(const data *d, int32_t index, uint64_t element) {
  double normal = dil_normal(d->shape.seed, 16u + (uint32_t)index, element);
  bool whole = d->pattern->input[index].dtype == DIL_I32 ||
               d->pattern->input[index].dtype == DIL_U8;
  return whole ? (double)((int64_t)(fabs(normal) * 2) % 3) : fabs(normal) / 4;
}

static void make_input(data *d, int32_t index) {
  const dil_input *input = &d->pattern->input[index];
  const dil_packed *p = &d->call.packed;
  expr_point point = {.B = (int32_t)p->count,
                      .N = (int32_t)p->longest_queries,
                      .M = (int32_t)p->longest_keys};
  int64_t shape[DIL_RANK_MAX], count = 1;
  for (int32_t axis = 0; axis < input->rank; axis++) {
    shape[axis] =
        expr_eval(d->pattern->dimension[index][axis], &point, false).integer;
    count *= shape[axis];
  }
  guard *g = next_guard(d);
  *g = guard_new((size_t)count * dil_dtype_size(input->dtype), true);
  dil_tensor *t = &d->inputs[index];
  *t = dil_tensor_make(g->bytes, input->dtype, input->rank, shape);
  for (int64_t e = 0; e < count; e++)
    dil_element_write(t->data, t->dtype, e, element_of(d, index, (uint64_t)e));
  guard_protect(g);
}

/* ---- the oracle's answer ------------------------------------------------- */

void documents_pack(data *d) {
  const pattern *p = d->pattern;
  int64_t N = d->shape.queries, H = p->heads;
  if (d->shape.batch != 1 || !d->shape.clean) abort();
  make_packed(d);
  for (int32_t i = 0; i < p->input_count; i++) make_input(d, i);
  if (oracle_check(p, &d->call)) abort();
  if (!gpu_computes()) return;
  for (int64_t n = 0; n < N; n++)
    for (int64_t h = 0; h < H; h++)
      oracle_row(p, &d->call, 0, n, h, d->o + (n * H + h) * p->value_dim,
                 d->lse + h * N + n);
  /* Nothing is explained by rounding: scores here are small. */
  d->explained = calloc((size_t)(N * H) + 1, sizeof *d->explained);
  if (!d->explained) abort();
}

void documents_tell(data *d, const int32_t *offsets) {
  d->call.packed.queries = put_offsets(d, offsets);
  d->call.packed.keys = d->call.packed.queries;
}
