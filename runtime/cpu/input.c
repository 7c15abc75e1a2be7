/* input.c - the tensors that a pattern declares, at a call.
 *
 * In: the call's inputs in the pattern's order. Out: what generated code reads
 * (dil_env_input), checked against the declared sizes; and blockwise smallest
 * and largest elements along the last axis, so that a mask over, say, document
 * numbers can skip whole tiles. */
#include "choose.h"
#include "cpu.h"
#include "key_list.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <stdio.h>

enum { BOUNDS_BLOCK = 64 }; /* positions a summary covers */

/* Summaries of one input: [rows][blocks] of low and high, rows being all the
 * leading indices flattened; a NaN widens its block to -inf..inf. low NULL:
 * there are none, elements are looked at. */
typedef struct input_bounds {
  float *low, *high;
  int64_t rows, blocks;
} input_bounds;

static const char *axis_names[] = {"first", "second", "third", "fourth"};

static dil_status input_check(const cpu_run *r, int32_t index,
                              const dil_code *code, const dil_env *env) {
  const dil_input *want = &r->table->inputs[index];
  const dil_tensor *have = &r->call->inputs[index];
  if (have->dtype != want->dtype)
    return dil_fail(DIL_USAGE, "input '%s' must be %s, got %s", want->name,
                    dil_dtype_name(want->dtype), dil_dtype_name(have->dtype));
  if (have->rank != want->rank)
    return dil_fail(DIL_USAGE, "input '%s' must have %d dimensions, got %d",
                    want->name, want->rank, have->rank);
  for (int32_t axis = 0; axis < want->rank; axis++) {
    int64_t size = code->dimension(index, axis, env);
    if (size != DIL_ANY_SIZE && have->shape[axis] != size)
      return dil_fail(DIL_USAGE,
                      "the %s dimension of input '%s' must be %lld, got %lld",
                      axis_names[axis], want->name, (long long)size,
                      (long long)have->shape[axis]);
  }
  if (!have->data && dil_tensor_count(have) > 0)
    return dil_fail(DIL_USAGE, "input '%s' is not given", want->name);
  return DIL_OK;
}

dil_status dil_input_check_count(const dil_table *table, int32_t got) {
  enum { SHOWN = 4, NAME = 40 };
  char names[SHOWN * (NAME + 8)] = "";
  int32_t want = table->input_count, at = 0;
  if (got == want) return DIL_OK;
  if (want == 0)
    return dil_fail(DIL_USAGE, "kernel '%s' takes no inputs, got %d",
                    table->name, got);
  for (int32_t i = 0; i < want && i < SHOWN; i++)
    at += snprintf(names + at, sizeof names - (size_t)at, "%s'%.*s'",
                   i ? ", " : "", NAME, table->inputs[i].name);
  return dil_fail(DIL_USAGE, "kernel '%s' takes %d input%s (%s%s), got %d",
                  table->name, want, want == 1 ? "" : "s", names,
                  want > SHOWN ? ", ..." : "", got);
}

/* ---- binding ------------------------------------------------------------- */

/* What generated code sees of a tensor. */
static void input_show(cpu_run *r, int32_t index) {
  const dil_tensor *have = &r->read[index];
  r->inputs[index].data = have->data;
  for (int32_t axis = 0; axis < have->rank; axis++) {
    r->inputs[index].dim[axis] = have->shape[axis];
    r->inputs[index].stride[axis] = have->stride[axis];
  }
}

/* A made input has its shape now and its memory later, from
 * input_bounds_fill. */
static dil_status input_bind_made(cpu_run *r, int32_t index) {
  const dil_input *in = &r->table->inputs[index];
  if (r->shard || documents_given(r->call))
    return dil_lists_refuse(r->table, index);
  const dil_choice *c = dil_choice_of(r->table, index);
  r->read[index] =
      c ? dil_choice_list(c, r->table->heads, r->B, r->M, c->rows != index, NULL)
        : dil_lists_bits(in, &r->read[in->rows], r->M, NULL);
  input_show(r, index);
  return c ? dil_choice_check(r->table, r->call, index, &r->read[index])
           : DIL_OK;
}

dil_status input_bind(cpu_run *r, const dil_code *code) {
  dil_status wrong = dil_input_check_count(r->table, r->call->input_count);
  if (wrong) return wrong;
  const dil_shard *shard = r->shard;
  dil_env sizes = {.B = (int32_t)(shard ? shard->B : r->B),
                   .N = (int32_t)(shard ? shard->N : r->N),
                   .M = (int32_t)(shard ? shard_longest(shard) : r->M)};
  for (int32_t i = 0; i < r->table->input_count; i++) {
    dil_status status = input_check(r, i, code, &sizes);
    if (status) return status;
    r->read[i] = r->call->inputs[i];
    input_show(r, i);
  }
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++) {
    dil_status status = input_bind_made(r, i);
    if (status) return status;
  }
  return DIL_OK;
}

static int64_t input_made_one(const cpu_run *r, int32_t index) {
  const dil_input *in = &r->table->inputs[index];
  const dil_tensor *t = &r->read[index];
  int64_t bytes = dil_input_is_table(in)
                      ? dil_lists_bytes(in, t)
                      : dil_tensor_count(t) * (int64_t)dil_dtype_size(t->dtype);
  return round_up(bytes, 64);
}

/* Bytes of what is made, and what making it takes. */
static int64_t input_made_bytes(const cpu_run *r) {
  int64_t bytes = choose_bytes(r) + key_list_bytes(r);
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++)
    bytes += input_made_one(r, i);
  return bytes;
}

/* Tables of the lists that the call brings, or of those that choices made. */
static dil_status input_make_tables(cpu_run *r, bool chosen) {
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++) {
    const dil_input *in = &r->table->inputs[i];
    const dil_tensor *rows = &r->read[in->rows], *cols = &r->read[in->cols];
    if (!dil_input_is_table(in) ||
        (in->rows >= r->table->input_count) != chosen)
      continue;
    dil_status wrong = chosen ? DIL_OK
                              : dil_lists_check(in, r->table->inputs, rows,
                                                cols, &r->read[i]);
    if (wrong) return wrong;
    dil_lists_fill(in, rows, cols, &r->read[i]);
  }
  return DIL_OK;
}

/* Choices may ask tables of the call's own lists. */
static dil_status input_make(cpu_run *r, char *memory) {
  for (int32_t i = r->table->input_count; i < dil_table_reads(r->table); i++) {
    r->read[i].data = memory;
    input_show(r, i);
    memory += input_made_one(r, i);
  }
  dil_status status = input_make_tables(r, false);
  if (status) return status;
  key_list_fill(r, memory);
  status = choose_run(r, memory + key_list_bytes(r));
  return status ? status : input_make_tables(r, true);
}

/* ---- summaries ----------------------------------------------------------- */

static input_bounds input_bounds_size(const dil_tensor *t) {
  input_bounds b = {.rows = 1};
  for (int32_t axis = 0; axis + 1 < t->rank; axis++) b.rows *= t->shape[axis];
  b.blocks = (t->shape[t->rank - 1] + BOUNDS_BLOCK - 1) / BOUNDS_BLOCK;
  return b;
}

/* Summaries are made where queries may ask for as many lines of the input as it
 * has: a few queries ask for few lines of a table of blocks. */
static bool input_has_summary(const cpu_run *r, int32_t index) {
  const dil_tensor *t = &r->read[index];
  const dil_input *in = &r->table->inputs[index];
  return in->masks && !dil_input_is_bits(in) && t->rank > 0 &&
         t->shape[t->rank - 1] > BOUNDS_BLOCK &&
         input_bounds_size(t).rows <= r->B * r->N * r->table->heads;
}

int64_t input_bounds_bytes(const cpu_run *r) {
  int32_t count = dil_table_reads(r->table);
  if (count == 0 || r->packed) return 0;
  int64_t bytes = round_up((int64_t)sizeof(input_bounds) * count, 64);
  for (int32_t i = 0; i < count; i++) {
    if (!input_has_summary(r, i)) continue;
    input_bounds b = input_bounds_size(&r->read[i]);
    bytes += round_up(2 * b.rows * b.blocks * (int64_t)sizeof(float), 64);
  }
  return bytes + input_made_bytes(r);
}

/* The element offset of a flattened leading index. */
static int64_t leading_offset(const dil_tensor *t, int64_t row) {
  int64_t offset = 0;
  for (int32_t axis = t->rank - 2; axis >= 0; axis--) {
    offset += row % t->shape[axis] * t->stride[axis];
    row /= t->shape[axis];
  }
  return offset;
}

/* A float below (or above) a double that need not be a float itself. */
static float outward(double x, double side) {
  float f = (float)x;
  if ((side < 0 && (double)f > x) || (side > 0 && (double)f < x))
    f = nextafterf(f, side < 0 ? -INFINITY : INFINITY);
  return f;
}

/* Widens low..high to n (> 0) neighbours, in lanes that are compared together. */
static void input_scan_i32(const int32_t *x, int64_t n, double *low,
                           double *high) {
  enum { LANES = 8 };
  int32_t least[LANES], most[LANES];
  int64_t i = 0;
  for (int lane = 0; lane < LANES; lane++) least[lane] = most[lane] = x[0];
  for (; i + LANES <= n; i += LANES)
    for (int lane = 0; lane < LANES; lane++) {
      int32_t one = x[i + lane];
      least[lane] = one < least[lane] ? one : least[lane];
      most[lane] = one > most[lane] ? one : most[lane];
    }
  for (; i < n; i++) {
    least[0] = x[i] < least[0] ? x[i] : least[0];
    most[0] = x[i] > most[0] ? x[i] : most[0];
  }
  for (int lane = 0; lane < LANES; lane++) {
    *low = least[lane] < *low ? least[lane] : *low;
    *high = most[lane] > *high ? most[lane] : *high;
  }
}

/* Elements from..to - 1 of a line, the first of which is at `offset`. */
static void input_scan(const dil_tensor *t, int32_t axis, int64_t offset,
                       int64_t from, int64_t to, double *low, double *high) {
  int64_t stride = t->stride[axis];
  if (t->dtype == DIL_I32 && stride == 1 && from < to) {
    input_scan_i32((const int32_t *)t->data + offset + from, to - from, low, high);
    return;
  }
  for (int64_t i = from; i < to; i++) {
    double x = dil_element_read(t->data, t->dtype, offset + i * stride);
    *low = x < *low || isnan(x) ? (isnan(x) ? -INFINITY : x) : *low;
    *high = x > *high || isnan(x) ? (isnan(x) ? INFINITY : x) : *high;
  }
}

/* The same of `count` bits, at least one, from number `at` on: neighbours word by
 * word. */
static void input_scan_bits(const dil_tensor *t, int64_t at, int64_t stride,
                            int64_t count, double *low, double *high) {
  const uint32_t *words = t->data;
  bool some = false, missing = false;
  for (int64_t n = 0; n < count && !(some && missing);) {
    int64_t bit = at + n * stride, shift = bit % 32;
    int64_t taken = stride == 1 ? minimum(32 - shift, count - n) : 1;
    uint32_t asked = UINT32_MAX >> (32 - taken), held = words[bit / 32] >> shift;
    some |= held & asked;
    missing |= ~held & asked;
    n += taken;
  }
  if (!missing < *low) *low = !missing;
  if (some > *high) *high = some;
}

static void input_bounds_fill_one(const dil_tensor *t, input_bounds *b) {
  int64_t last = t->shape[t->rank - 1];
  for (int64_t row = 0; row < b->rows; row++)
    for (int64_t block = 0; block < b->blocks; block++) {
      double low = INFINITY, high = -INFINITY;
      int64_t from = block * BOUNDS_BLOCK;
      input_scan(t, t->rank - 1, leading_offset(t, row), from,
                 minimum(from + BOUNDS_BLOCK, last), &low, &high);
      b->low[row * b->blocks + block] = outward(low, -1);
      b->high[row * b->blocks + block] = outward(high, 1);
    }
}

dil_status input_bounds_fill(cpu_run *r, void *memory) {
  input_bounds *all = memory;
  int32_t count = dil_table_reads(r->table);
  char *next =
      (char *)memory + round_up((int64_t)sizeof(input_bounds) * count, 64);
  dil_status wrong = input_make(r, next);
  if (wrong) return wrong;
  next += input_made_bytes(r);
  for (int32_t i = 0; i < count; i++) {
    const dil_tensor *t = &r->read[i];
    all[i] = (input_bounds){0};
    if (!input_has_summary(r, i)) continue;
    all[i] = input_bounds_size(t);
    int64_t blocks = all[i].rows * all[i].blocks;
    all[i].low = (float *)next;
    all[i].high = all[i].low + blocks;
    next += round_up(2 * blocks * (int64_t)sizeof(float), 64);
    input_bounds_fill_one(t, &all[i]);
  }
  r->bounds = all;
  return DIL_OK;
}

/* Whole blocks from the summary, the ends element by element. */
static void input_last_axis_range(const dil_tensor *t, const input_bounds *b,
                                  int64_t row, int64_t offset, int64_t first,
                                  int64_t last, double *low, double *high) {
  int32_t axis = t->rank - 1;
  int64_t from = round_up(first, BOUNDS_BLOCK);
  int64_t to = floor_to(last + 1, BOUNDS_BLOCK);
  if (from >= to) {
    input_scan(t, axis, offset, first, last + 1, low, high);
    return;
  }
  input_scan(t, axis, offset, first, from, low, high);
  input_scan(t, axis, offset, to, last + 1, low, high);
  for (int64_t block = from / BOUNDS_BLOCK; block < to / BOUNDS_BLOCK;
       block++) {
    double l = b->low[row * b->blocks + block];
    double h = b->high[row * b->blocks + block];
    if (l < *low) *low = l;
    if (h > *high) *high = h;
  }
}

/* A line of an input: all elements whose indices on other axes are the same.
 * False: those indices are outside of the input. */
static bool input_find_line(const dil_tensor *t, int32_t axis,
                            const int32_t *at, int64_t *row, int64_t *offset) {
  *row = *offset = 0;
  for (int32_t a = 0; a < t->rank; a++) {
    if (a == axis) continue;
    if (at[a] < 0 || at[a] >= t->shape[a]) return false;
    *row = *row * t->shape[a] + at[a];
    *offset += at[a] * t->stride[a];
  }
  return true;
}

void input_range(const dil_env *env, int32_t index, int32_t axis,
                 const int32_t *at, int32_t first, int32_t last, double *low,
                 double *high) {
  const cpu_run *r = ((const cpu_run_env *)env)->run;
  const dil_tensor *t = &r->read[index];
  const input_bounds *summary = r->bounds ? &r->bounds[index] : NULL;
  int64_t size = t->shape[axis], row, offset;
  bool inside = input_find_line(t, axis, at, &row, &offset);
  *low = INFINITY;
  *high = -INFINITY;
  if (!inside || first < 0 || last >= size) *low = *high = 0; /* reads 0 */
  int64_t from = maximum(first, 0), to = minimum(last, size - 1);
  if (!inside || from > to) return;
  bool bits = dil_input_is_bits(&r->table->inputs[index]);
  if (bits && (axis == t->rank - 1 || to - from < BOUNDS_BLOCK)) {
    int64_t stride = t->stride[axis];
    input_scan_bits(t, offset + from * stride, stride, to - from + 1, low, high);
  } else if (axis == t->rank - 1 && summary && summary->low) {
    input_last_axis_range(t, summary, row, offset, from, to, low, high);
  } else if (!bits && (to - from < BOUNDS_BLOCK || axis == t->rank - 1)) {
    input_scan(t, axis, offset, from, to + 1, low, high);
  } else {
    *low = -INFINITY; /* a long run without a summary: anything */
    *high = INFINITY;
  }
}
