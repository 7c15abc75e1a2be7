/* cover_input.c - elements and ranges of a call's inputs, for cover.
 *
 * In: the tensors of a call. Out: single elements, and the bounds of a run of
 * them along one axis; what lies outside reads 0. Bounds of long runs come
 * from chunks whose smallest and largest element are remembered for the line
 * asked for last. */
#include "cover_set.h"
#include <assert.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 64 };

static const dil_tensor *tensor_of(const cover *c, int32_t index) {
  assert(c->call && c->call->inputs && c->call->inputs[index].data);
  return &c->call->inputs[index];
}

static double tensor_element(const dil_tensor *x, const int32_t *at) {
  int64_t place = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return 0;
    place += at[axis] * x->stride[axis];
  }
  return dil_element_read(x->data, x->dtype, place);
}

value cover_input(void *context, int32_t index, const int32_t *at) {
  const cover *c = context;
  const dil_tensor *x = tensor_of(c, index);
  double number = tensor_element(x, at);
  bool whole = x->dtype == DIL_I32 || x->dtype == DIL_U8;
  return (value){whole ? (int64_t)number : 0, number};
}

static void interval_include(interval *all, double number) {
  if (isnan(number)) {
    all->nan = true;
    return;
  }
  all->low = fmin(all->low, number);
  all->high = fmax(all->high, number);
}

static void interval_include_run(const dil_tensor *x, const cover_line *line,
                                 int64_t first, int64_t last, interval *all) {
  int32_t at[DIL_RANK_MAX];
  memcpy(at, line->at, sizeof at);
  for (int64_t k = first; k <= last; k++) {
    at[line->axis] = (int32_t)k;
    interval_include(all, tensor_element(x, at));
  }
}

static interval empty_interval(void) {
  return (interval){INFINITY, -INFINITY, false};
}

static void fill_line(cover *c, const dil_tensor *x, cover_line *line) {
  int64_t chunks = (line->count + CHUNK - 1) / CHUNK;
  if (line->chunks == NULL)
    line->chunks = ARENA_ARRAY(c->arena, interval, chunks + 1);
  for (int64_t k = 0; k < chunks; k++) {
    int64_t end = (k + 1) * CHUNK < line->count ? (k + 1) * CHUNK : line->count;
    line->chunks[k] = empty_interval();
    interval_include_run(x, line, k * CHUNK, end - 1, &line->chunks[k]);
  }
}

static bool is_line(const cover_line *line, const dil_tensor *x, int32_t axis,
                    const int32_t *at) {
  if (line->chunks == NULL || line->axis != axis) return false;
  for (int32_t k = 0; k < x->rank; k++)
    if (k != axis && line->at[k] != at[k]) return false;
  return true;
}

/* The memory of a line is used again for the next one of the same axis. */
static const cover_line *line_of(cover *c, int32_t index, int32_t axis,
                                 const int32_t *at) {
  const dil_tensor *x = tensor_of(c, index);
  cover_line *line = &c->lines[index];
  if (is_line(line, x, axis, at)) return line;
  if (line->axis != axis) line->chunks = NULL;
  line->axis = axis;
  line->count = x->shape[axis];
  memcpy(line->at, at, (size_t)x->rank * sizeof *at);
  fill_line(c, x, line);
  return line;
}

static void interval_include_line(cover *c, int32_t index,
                                  const cover_line *line, int64_t first,
                                  int64_t last, interval *all) {
  const dil_tensor *x = tensor_of(c, index);
  int64_t begin = (first + CHUNK - 1) / CHUNK, end = (last + 1) / CHUNK;
  if (begin >= end) {
    interval_include_run(x, line, first, last, all);
    return;
  }
  interval_include_run(x, line, first, begin * CHUNK - 1, all);
  for (int64_t k = begin; k < end; k++) {
    const interval *chunk = &line->chunks[k];
    all->low = fmin(all->low, chunk->low);
    all->high = fmax(all->high, chunk->high);
    all->nan = all->nan || chunk->nan;
  }
  interval_include_run(x, line, end * CHUNK, last, all);
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
    interval_include(&all, tensor_element(x, at));
  else if (outside)
    interval_include(&all, 0);
  if (first < last && from <= to)
    interval_include_line(c, index, line_of(c, index, axis, at), from, to,
                          &all);
  return all.low <= all.high ? all : (interval){-INFINITY, INFINITY, true};
}
