/* row.c - the phases for one query row, where lanes of queries would stand
 * empty: dimensions are in the lanes of the products, keys in those of the
 * softmax. Keys and values are read in place, in their stored type. */
#include "cpu.h"
#include <math.h>

enum { ROW_KEYS = 8, ROW_SUMS = 8 }; /* registers of sums: keys, dimensions */
_Static_assert((int)ROW_KEYS <= (int)DIL_CODE_ROOM, "scores past n have room");

ref lanes_before(build *b, ref count) {
  const emit *e = &b->emit;
  return emit_compare(e, IS_LESS, emit_iota(e),
                      emit_convert(e, LLVMTrunc, count, e->i32));
}

/* The first `count` lanes, known when the code is written. */
static ref lanes_constant(const build *b, int count) {
  ref lane[64];
  for (int i = 0; i < b->emit.width; i++)
    lane[i] = emit_truth(&b->emit, i < count);
  return LLVMConstVector(lane, (unsigned)b->emit.width);
}

/* `count` elements (a register of them, or fewer) of the stored type, as f32;
 * what is missing is 0 and is not read. */
static ref load_stored(build *b, ref place, dil_dtype dtype, int count) {
  emit *e = &b->emit;
  ref_type element = dtype == DIL_F32   ? e->f32
                     : dtype == DIL_F16 ? e->f16
                                        : e->i16;
  ref_type type = emit_vector(element, e->width);
  unsigned align = (unsigned)element_bytes(dtype);
  ref stored =
      count == e->width
          ? emit_load(e, type, place, align)
          : emit_load_masked(e, type, place, lanes_constant(b, count), align);
  if (dtype == DIL_F32) return stored;
  if (dtype == DIL_F16) return emit_convert(e, LLVMFPExt, stored, e->f32);
  ref word = emit_convert(e, LLVMZExt, stored, e->i32);
  return emit_bits(e, emit_shift_left(e, word, 16), e->f32);
}

/* ---- row_qk -------------------------------------------------------------- */

/* The rows of ROW_KEYS keys; beyond the last one it stands again. */
static void key_rows(build *b, ref first, ref *row) {
  const emit *e = &b->emit;
  ref last = emit_sub(e, emit_parameter(e, 4), emit_long(e, 1));
  for (int key = 0; key < ROW_KEYS; key++) {
    ref index = emit_lesser(e, emit_add(e, first, emit_long(e, key)), last);
    row[key] = emit_at(e, emit_parameter(e, 1),
                       emit_mul(e, index, emit_parameter(e, 2)));
  }
}

/* sum[key] += q[d...] * k[key][d...] over `count` dimensions from d on. */
static void row_step(build *b, ref const *row, ref d, int count, ref const *sum,
                     ref *next) {
  emit *e = &b->emit;
  dil_dtype dtype = b->plan->table.dtype;
  ref q = load_stored(
      b, emit_at(e, emit_parameter(e, 0), emit_mul(e, d, emit_long(e, CELL))),
      DIL_F32, count);
  ref bytes = emit_mul(e, d, emit_long(e, element_bytes(dtype)));
  for (int key = 0; key < ROW_KEYS; key++)
    next[key] =
        emit_fma(e, load_stored(b, emit_at(e, row[key], bytes), dtype, count),
                 q, sum[key]);
}

static ref lower_and_upper(build *b, ref vector) {
  const emit *e = &b->emit;
  int low[ROW_KEYS], high[ROW_KEYS];
  if (e->width == ROW_KEYS) return vector;
  for (int i = 0; i < ROW_KEYS; i++) {
    low[i] = i;
    high[i] = ROW_KEYS + i;
  }
  return emit_add(e, emit_shuffle(e, vector, vector, low, ROW_KEYS),
                  emit_shuffle(e, vector, vector, high, ROW_KEYS));
}

/* Lane k of the result is the sum over all lanes of sum[k]: three rounds that
 * each add neighbours of two vectors into one. */
static ref sum_each(build *b, ref const *sum) {
  static const int pick[3][2][8] = {
      {{0, 8, 2, 10, 4, 12, 6, 14}, {1, 9, 3, 11, 5, 13, 7, 15}},
      {{0, 1, 8, 9, 4, 5, 12, 13}, {2, 3, 10, 11, 6, 7, 14, 15}},
      {{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}},
  };
  const emit *e = &b->emit;
  ref reg[ROW_KEYS];
  for (int i = 0; i < ROW_KEYS; i++) reg[i] = lower_and_upper(b, sum[i]);
  for (int round = 0, count = ROW_KEYS / 2; round < 3; round++, count /= 2)
    for (int i = 0; i < count; i++)
      reg[i] = emit_add(
          e, emit_shuffle(e, reg[2 * i], reg[2 * i + 1], pick[round][0], 8),
          emit_shuffle(e, reg[2 * i], reg[2 * i + 1], pick[round][1], 8));
  return reg[0];
}

void row_qk(build *b) {
  emit *e = &b->emit;
  int rest = b->plan->table.head_dim % e->width;
  int whole = b->plan->table.head_dim - rest;
  ref row[ROW_KEYS], sum[ROW_KEYS], next[ROW_KEYS];
  emit_function(e, "row_qk", 'v', "pplpl");
  emit_noalias(e, 3);
  loop key, d;
  loop_begin(e, &key, "keys", emit_long(e, 0), emit_parameter(e, 4), ROW_KEYS,
             NULL, 0);
  key_rows(b, key.index, row);
  for (int i = 0; i < ROW_KEYS; i++)
    sum[i] = emit_zero(emit_vector(e->f32, e->width));
  if (whole > 0) {
    loop_begin(e, &d, "depth", emit_long(e, 0), emit_long(e, whole), e->width,
               sum, ROW_KEYS);
    row_step(b, row, d.index, e->width, d.carried, next);
    loop_end(e, &d, next);
    for (int i = 0; i < ROW_KEYS; i++) sum[i] = d.carried[i];
  }
  if (rest > 0) row_step(b, row, emit_long(e, whole), rest, sum, sum);
  emit_store(e, sum_each(b, sum),
             emit_at(e, emit_parameter(e, 3),
                     emit_mul(e, key.index, emit_long(e, CELL))),
             ROW_KEYS * CELL);
  loop_end(e, &key, NULL);
  emit_return(e, NULL);
}

/* ---- row_softmax --------------------------------------------------------- */

static ref score_place(build *b, ref key) {
  const emit *e = &b->emit;
  return emit_at(e, emit_parameter(e, 0), emit_mul(e, key, emit_long(e, CELL)));
}

/* -inf after the last score: whole registers can then be read. */
static ref row_maximum(build *b) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref n = emit_parameter(e, 1), next;
  ref none = emit_splat(e, emit_real(e, -INFINITY), e->width);
  emit_store(e, none, score_place(b, n), CELL);
  loop key;
  loop_begin(e, &key, "maximum", emit_long(e, 0), n, e->width, &none, 1);
  next = emit_greater(
      e,
      emit_load(e, type, score_place(b, key.index), (unsigned)e->width * CELL),
      key.carried[0]);
  loop_end(e, &key, &next);
  return emit_splat(e, emit_largest(e, key.carried[0]), e->width);
}

/* Scores lose a large maximum first. */
static void row_large(build *b, softmax_turn *turn, ref bias) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  unsigned align = (unsigned)e->width * CELL;
  ref large = large_of(b, turn);
  branch_block is_large;
  loop key;
  branch_begin(e, &is_large, "large", large_any(b, &large, 1));
  loop_begin(e, &key, "settle", emit_long(e, 0), emit_parameter(e, 1), e->width,
             NULL, 0);
  ref place = score_place(b, key.index);
  ref score = emit_load(e, type, place, align);
  emit_store(e, large_score(b, score, large, turn, bias), place, align);
  loop_end(e, &key, NULL);
  branch_end(e, &is_large);
  large_settle(b, large, turn);
}

/* Scores become weights; their sum comes back. */
static ref row_weights(build *b, const softmax_turn *turn, bool drop) {
  emit *e = &b->emit;
  ref_type type = emit_vector(e->f32, e->width);
  ref n = emit_parameter(e, 1), sum = emit_zero(type);
  unsigned align = (unsigned)e->width * CELL;
  loop key;
  loop_begin(e, &key, "weights", emit_long(e, 0), n, e->width, &sum, 1);
  ref place = score_place(b, key.index);
  ref weight = softmax_weight(b, emit_load(e, type, place, align), turn);
  sum = emit_add(e, key.carried[0], weight);
  if (drop) {
    ref at = emit_at(e, emit_parameter(e, 6),
                     emit_mul(e, key.index, emit_long(e, CELL)));
    ref word =
        emit_load_masked(e, emit_vector(e->i32, e->width), at,
                         lanes_before(b, emit_sub(e, n, key.index)), CELL);
    weight = dropout_weight(b, emit_parameter(e, 5), word, weight);
  }
  emit_store(e, weight, place, align);
  loop_end(e, &key, &sum);
  return emit_sum(e, key.carried[0]);
}

void row_softmax(build *b, bool drop) {
  emit *e = &b->emit;
  if (drop)
    emit_function(e, "row_softmax_drop", 'f', "plffpwp");
  else
    emit_function(e, "row_softmax", 'f', "plffp");
  emit_noalias(e, 0);
  emit_noalias(e, 4);
  ref place = emit_parameter(e, 4), c2 = emit_parameter(e, 2);
  ref before = emit_load(e, e->f32, place, CELL);
  ref l = emit_load(e, e->f32, emit_offset(e, place, CELL), CELL);
  softmax_turn turn =
      softmax_turn_of(b, before, row_maximum(b), c2, emit_parameter(e, 3));
  ref alpha = emit_lane(e, turn.alpha, 0);
  row_large(b, &turn, emit_parameter(e, 3));
  ref sum = row_weights(b, &turn, drop);
  emit_store(e, emit_lane(e, turn.maximum, 0), place, CELL);
  emit_store(e, emit_add(e, emit_mul(e, alpha, l), sum),
             emit_offset(e, place, CELL), CELL);
  emit_return(e, alpha);
}

/* ---- row_pv -------------------------------------------------------------- */

/* Elements of register `index` of the block of dimensions from `first` on. */
static int elements_of(const build *b, int first, int index) {
  int left = b->plan->table.value_dim - first - index * b->emit.width;
  return left < b->emit.width ? left : b->emit.width;
}

/* One key: sum += weight * v, unless the weight is 0. */
static void value_step(build *b, ref key, int first, int count, ref const *sum,
                       ref *next) {
  emit *e = &b->emit;
  dil_dtype dtype = b->plan->table.dtype;
  int64_t bytes = element_bytes(dtype);
  ref with[ROW_SUMS];
  ref weight = emit_load(e, e->f32, score_place(b, key), CELL);
  branch_block used;
  branch_begin(e, &used, "used",
               emit_compare(e, IS_UNEQUAL, weight, emit_real(e, 0)));
  ref row =
      emit_at(e, emit_parameter(e, 1), emit_mul(e, key, emit_parameter(e, 2)));
  for (int i = 0; i < count; i++)
    with[i] = emit_fma(
        e,
        load_stored(b, emit_offset(e, row, (first + i * e->width) * bytes),
                    dtype, elements_of(b, first, i)),
        weight, sum[i]);
  branch_end(e, &used);
  for (int i = 0; i < count; i++)
    next[i] = branch_merge(e, &used, with[i], sum[i]);
}

/* The dimensions from `first` on that fit the registers, summed from 0; what
 * was there joins at the end. */
static void value_block(build *b, int first) {
  emit *e = &b->emit;
  int left = b->plan->table.value_dim - first, count = 0;
  ref sum[ROW_SUMS], next[ROW_SUMS];
  ref acc = emit_offset(e, emit_parameter(e, 3), (int64_t)first * CELL);
  for (; count < ROW_SUMS && count * e->width < left; count++)
    sum[count] = emit_zero(emit_vector(e->f32, e->width));
  loop key;
  loop_begin(e, &key, "keys", emit_long(e, 0), emit_parameter(e, 5), 1, sum,
             count);
  value_step(b, key.index, first, count, key.carried, next);
  loop_end(e, &key, next);
  for (int i = 0; i < count; i++) {
    ref place = emit_offset(e, acc, i * e->width * CELL);
    int elements = elements_of(b, first, i);
    ref all = emit_fma(e, load_stored(b, place, DIL_F32, elements),
                       emit_parameter(e, 4), key.carried[i]);
    if (elements == e->width)
      emit_store(e, all, place, CELL);
    else
      emit_store_masked(e, all, place, lanes_constant(b, elements), CELL);
  }
}

void row_pv(build *b) {
  emit *e = &b->emit;
  emit_function(e, "row_pv", 'v', "pplpfl");
  emit_noalias(e, 3);
  for (int first = 0; first < b->plan->table.value_dim;
       first += ROW_SUMS * e->width)
    value_block(b, first);
  emit_return(e, NULL);
}
