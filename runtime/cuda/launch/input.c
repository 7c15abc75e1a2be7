/* input.c - the declared inputs as kernels see them. In: a call. Out: addresses
 * and strides. Inputs that masks read also get room for the bounds of their
 * blocks (templates/shared/bounds.cuh). By these bounds, kernels know whole
 * tiles to be empty or full. Inputs whose elements masks compare with each other
 * get room for the ranges of equal elements, too (templates/shared/spans.cuh).
 * Lists of blocks get room for the table that they stand for
 * (templates/shared/lists.cuh), for gradients of keys once more turned round, and
 * choices of blocks for their lists and, at the
 * end, for what choose.c needs. */
#include "family.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"
#include "runtime/rowset/walk.h"

/* Input `index`, or a table made of lists, whose memory is not known here, or a
 * list that a choice makes: where the call wants it, or NULL. */
static dil_tensor input_tensor(const cuda_run *r, int32_t index) {
  const dil_table *t = r->table;
  const dil_input *in = &t->inputs[index];
  if (index < t->input_count) return r->call->inputs[index];
  const dil_choice *c = dil_choice_of(t, index);
  if (c) {
    const dil_tensor *made = r->call->made;
    return dil_choice_list(c, t->heads, r->B, r->M, c->rows != index,
                           made ? made[index - t->input_count].data : NULL);
  }
  const dil_tensor rows = input_tensor(r, in->rows);
  return dil_lists_bits(in, &rows, r->M, NULL);
}

static bool input_has_bounds(const cuda_run *r, int32_t index) {
  dil_tensor t = input_tensor(r, index);
  const dil_input *in = &r->table->inputs[index];
  return in->masks && !dil_input_is_bits(in) && t.rank > 0 &&
         t.shape[t.rank - 1] > DIL_BOUNDS_BLOCK && dil_tensor_count(&t) > 0;
}

static int64_t input_blocks(const dil_tensor *t) {
  int64_t size = t->shape[t->rank - 1];
  int64_t blocks = (size + DIL_BOUNDS_BLOCK - 1) / DIL_BOUNDS_BLOCK;
  for (int32_t axis = 0; axis + 1 < t->rank; axis++) blocks *= t->shape[axis];
  return blocks;
}

/* Bounds, and behind them spans and a word for each block (spans.cuh). */
static int64_t input_bounds_bytes(const cuda_run *r, int32_t index) {
  enum { SPAN_BYTES = 8, RISE_BYTES = 4 };
  dil_tensor t = input_tensor(r, index);
  int64_t blocks = input_blocks(&t), bytes = blocks * DIL_BOUND_BYTES;
  if (r->table->inputs[index].spans)
    bytes += dil_tensor_count(&t) * SPAN_BYTES + blocks * RISE_BYTES;
  return round_up(bytes, 256);
}

/* Behind a table of keys: its sorted lists. */
static int64_t input_list_bytes(const cuda_run *r, int32_t index) {
  const dil_tensor list = input_tensor(r, r->table->inputs[index].rows);
  return cuda_list_bytes(r, index, &list);
}

static int64_t input_table_bytes(const cuda_run *r, int32_t index) {
  dil_tensor t = input_tensor(r, index);
  const dil_input *in = &r->table->inputs[index];
  if (index < r->table->input_count || t.data) return 0;
  if (dil_input_is_table(in))
    return round_up(dil_lists_bytes(in, &t), 256) + input_list_bytes(r, index);
  return round_up(dil_tensor_count(&t) * (int64_t)dil_dtype_size(t.dtype), 256);
}

/* The squares of 32 x 32 bits of a table that gets a copy turned round. */
static int64_t input_turned_squares(const cuda_run *r, int32_t index) {
  dil_tensor t = input_tensor(r, index);
  enum { SIDE = 32 };
  if (!r->turns || !dil_input_is_bits(&r->table->inputs[index])) return 0;
  int64_t tables = 1;
  for (int32_t axis = 0; axis + 2 < t.rank; axis++) tables *= t.shape[axis];
  return tables * ((t.shape[t.rank - 2] + SIDE - 1) / SIDE) *
         ((t.shape[t.rank - 1] + SIDE - 1) / SIDE);
}

static int64_t input_turned_bytes(const cuda_run *r, int32_t index) {
  enum { SQUARE_BYTES = 32 * 32 / 8 };
  return round_up(input_turned_squares(r, index) * SQUARE_BYTES, 256);
}

int64_t cuda_turned_squares(const cuda_run *r) {
  int64_t squares = 0;
  for (int32_t i = 0; i < dil_table_reads(r->table); i++)
    squares += input_turned_squares(r, i);
  return squares;
}

int64_t cuda_bounds_bytes(const cuda_run *r) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < dil_table_reads(r->table); i++) {
    bytes += input_table_bytes(r, i) + input_turned_bytes(r, i);
    if (input_has_bounds(r, i)) bytes += input_bounds_bytes(r, i);
  }
  return bytes + cuda_choose_bytes(r);
}

int64_t cuda_bounds_blocks(const cuda_run *r, bool spans) {
  int64_t blocks = 0;
  for (int32_t i = 0; i < dil_table_reads(r->table); i++) {
    dil_tensor t = input_tensor(r, i);
    if (input_has_bounds(r, i) && (!spans || r->table->inputs[i].spans))
      blocks += input_blocks(&t);
  }
  return blocks;
}

int64_t cuda_table_rows(const cuda_run *r, bool own) {
  const dil_table *table = r->table;
  int64_t rows = 0;
  for (int32_t i = table->input_count; i < dil_table_reads(table); i++) {
    const dil_input *in = &table->inputs[i];
    if (!dil_input_is_table(in)) continue;
    if (own && in->rows >= table->input_count) continue; /* a choice makes them */
    dil_tensor t = input_tensor(r, i);
    if (t.shape[t.rank - 1]) rows += dil_tensor_count(&t) / t.shape[t.rank - 1];
  }
  return rows;
}

dil_status cuda_choices_check(const cuda_run *r) {
  const dil_table *t = r->table;
  dil_status status = DIL_OK;
  for (int32_t i = t->input_count; i < dil_table_reads(t) && !status; i++) {
    if (!dil_choice_of(t, i)) continue;
    dil_tensor list = input_tensor(r, i);
    status = dil_choice_check(t, r->call, i, &list);
  }
  return status;
}

void cuda_inputs_fill(const cuda_run *r, dil_device_input *out) {
  char *next = r->bounds;
  for (int32_t i = 0; i < dil_table_reads(r->table); i++) {
    dil_tensor t = input_tensor(r, i);
    out[i].data = t.data;
    for (int32_t axis = 0; axis < t.rank; axis++) {
      out[i].dim[axis] = t.shape[axis];
      out[i].stride[axis] = t.stride[axis];
    }
    if (!next) continue;
    if (i >= r->table->input_count && !t.data) out[i].data = next;
    next += input_table_bytes(r, i);
    if (input_turned_bytes(r, i)) out[i].bounds = next;
    next += input_turned_bytes(r, i);
    if (!input_has_bounds(r, i)) continue;
    out[i].bounds = next;
    next += input_bounds_bytes(r, i);
  }
}
