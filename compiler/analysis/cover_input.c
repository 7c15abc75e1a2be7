/* cover_input.c - elements and ranges of a call's inputs, for cover.
 *
 * In: the tensors of a call, and the tables of bits that lists stand for. Out:
 * single elements, and the bounds of a run of them along one axis; what lies
 * outside reads 0. Bounds of long runs come
 * from chunks of the line asked for last: the smallest and the largest element of
 * a chunk are found when they are first asked for. */
#include "cover_set.h"
#include "runtime/base/lists.h"
#include <assert.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 64 };

static const dil_tensor *tensor_of(const cover *c, int32_t index) {
  assert(c->call && c->call->inputs && c->call->inputs[index].data);
  return &c->call->inputs[index];
}

static bool has_bits(const cover *c, int32_t index) {
  return dil_input_is_bits(&c->pattern->input[index]);
}

static double tensor_element(const dil_tensor *x, bool bits, const int32_t *at) {
  int64_t place = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return 0;
    place += at[axis] * x->stride[axis];
  }
  if (bits) return dil_lists_bit(x, place);
  return dil_element_read(x->data, x->dtype, place);
}

value cover_input(void *context, int32_t index, const int32_t *at) {
  const cover *c = context;
  const dil_tensor *x = tensor_of(c, index);
  double number = tensor_element(x, has_bits(c, index), at);
  bool whole = x->dtype == DIL_I32 || x->dtype == DIL_U8;
  return (value){whole ? (int64_t)number : 0, number};
}

static void interval_include(interval *all, double number) {
  if (isnan(number)) all->nan = true;
  if (number < all->low) all->low = number;
  if (number > all->high) all->high = number;
}

static interval empty_interval(void) {
  return (interval){INFINITY, -INFINITY, false};
}

/* Elements first..last of the line, which lie inside the input; 0 where the line
 * itself does not. */
static void interval_include_run(const dil_tensor *x, bool bits, int32_t axis,
                                 const int32_t *at, int64_t first, int64_t last,
                                 interval *all) {
  int64_t place = 0, stride = x->stride[axis];
  for (int32_t k = 0; k < x->rank; k++) {
    if (k != axis && (at[k] < 0 || at[k] >= x->shape[k])) {
      if (first <= last) interval_include(all, 0);
      return;
    }
    if (k != axis) place += at[k] * x->stride[k];
  }
  if (bits) {
    for (int64_t k = first; k <= last; k++)
      interval_include(all, dil_lists_bit(x, place + k * stride));
    return;
  }
  if (x->dtype != DIL_U8) {
    for (int64_t k = first; k <= last; k++)
      interval_include(
          all, dil_element_read(x->data, x->dtype, place + k * stride));
    return;
  }
  const uint8_t *bytes = (const uint8_t *)x->data + place;
  for (int64_t k = first; k <= last; k++)
    interval_include(all, bytes[k * stride]);
}

static bool is_line(const cover_line *line, const dil_tensor *x, int32_t axis,
                    const int32_t *at) {
  if (line->number == 0 || line->axis != axis) return false;
  for (int32_t k = 0; k < x->rank; k++)
    if (k != axis && line->at[k] != at[k]) return false;
  return true;
}

/* The memory of a line is used again for the next one: a new number says that its
 * chunks are not known. */
static cover_line *line_of(cover *c, int32_t index, int32_t axis,
                           const int32_t *at) {
  const dil_tensor *x = tensor_of(c, index);
  cover_line *line = &c->lines[index];
  if (is_line(line, x, axis, at)) return line;
  if (line->number == 0) {
    int64_t longest = 0;
    for (int32_t k = 0; k < x->rank; k++)
      if (x->shape[k] > longest) longest = x->shape[k];
    line->chunks = ARENA_ARRAY(c->arena, cover_chunk, longest / CHUNK);
    for (int64_t k = 0; k < longest / CHUNK; k++) line->chunks[k].line = 0;
  }
  line->number++;
  line->axis = axis;
  memcpy(line->at, at, (size_t)x->rank * sizeof *at);
  return line;
}

static const interval *chunk_of(const dil_tensor *x, bool bits,
                                cover_line *line, int64_t k) {
  cover_chunk *chunk = &line->chunks[k];
  if (chunk->line == line->number) return &chunk->of;
  chunk->line = line->number;
  chunk->of = empty_interval();
  interval_include_run(x, bits, line->axis, line->at, k * CHUNK,
                       (k + 1) * CHUNK - 1, &chunk->of);
  return &chunk->of;
}

/* Runs without a whole chunk leave the line asked for last as it is. */
static void interval_include_line(cover *c, int32_t index, int32_t axis,
                                  const int32_t *at, int64_t first,
                                  int64_t last, interval *all) {
  const dil_tensor *x = tensor_of(c, index);
  bool bits = has_bits(c, index);
  int64_t begin = (first + CHUNK - 1) / CHUNK, end = (last + 1) / CHUNK;
  if (begin >= end) {
    interval_include_run(x, bits, axis, at, first, last, all);
    return;
  }
  cover_line *line = line_of(c, index, axis, at);
  interval_include_run(x, bits, axis, at, first, begin * CHUNK - 1, all);
  for (int64_t k = begin; k < end; k++) {
    const interval *chunk = chunk_of(x, bits, line, k);
    if (chunk->low < all->low) all->low = chunk->low;
    if (chunk->high > all->high) all->high = chunk->high;
    all->nan = all->nan || chunk->nan;
  }
  interval_include_run(x, bits, axis, at, end * CHUNK, last, all);
}

interval cover_range(void *context, int32_t index, int32_t axis,
                     const int32_t *at, int32_t first, int32_t last) {
  cover *c = context;
  const dil_tensor *x = tensor_of(c, index);
  int64_t count = x->shape[axis];
  interval all = empty_interval();
  bool outside = first < 0 || last >= count;
  int64_t from = first < 0 ? 0 : first, to = last < count ? last : count - 1;
  if (first == last)
    interval_include(&all, tensor_element(x, has_bits(c, index), at));
  else if (outside)
    interval_include(&all, 0);
  if (first < last && from <= to)
    interval_include_line(c, index, axis, at, from, to, &all);
  return all.low <= all.high ? all : (interval){-INFINITY, INFINITY, true};
}
