/* overlap.c - whether strided tensors share memory.
 *
 * In: tensors. Out: yes or no, by arithmetic on strides. Two tensors may be
 * woven into each other, as q and o of one [B, N, 2, H, D] array are: then
 * both repeat with one pitch, and inside of it each has a range of its own. */
#include "context.h"
#include <stdlib.h>

typedef struct byte_range { /* bytes of all elements */
  uintptr_t low, high; /* high is one past the last */
} byte_range;

typedef struct extent { /* one axis with more than one element */
  int64_t count, step;  /* bytes, not negative */
} extent;

typedef struct spread { /* a tensor as bytes */
  byte_range all;
  int32_t count;
  extent axis[DIL_RANK_MAX]; /* by rising step */
  int64_t size;              /* of an element */
} spread;

static int by_step(const void *left, const void *right) {
  const extent *a = left, *b = right;
  return (a->step > b->step) - (a->step < b->step);
}

static byte_range bytes_of(const dil_tensor *t) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  uintptr_t low = (uintptr_t)t->data, high = low + (uintptr_t)size;
  for (int32_t i = 0; i < t->rank; i++) {
    if (t->shape[i] < 2) continue; /* its stride may be any number */
    int64_t reach = t->stride[i] * size * (t->shape[i] - 1);
    if (reach < 0) low += (uintptr_t)reach;
    else high += (uintptr_t)reach;
  }
  return (byte_range){low, high};
}

static spread spread_of(const dil_tensor *t) {
  spread s = {.all = bytes_of(t), .size = (int64_t)dil_dtype_size(t->dtype)};
  for (int32_t i = 0; i < t->rank; i++) {
    if (t->shape[i] < 2) continue;
    int64_t step = t->stride[i] * s.size;
    s.axis[s.count++] = (extent){t->shape[i], step < 0 ? -step : step};
  }
  qsort(s.axis, (size_t)s.count, sizeof *s.axis, by_step);
  return s;
}

/* Every axis steps over all that the finer ones reach: no two meet. */
bool overlap_within(const dil_tensor *t) {
  if (dil_tensor_count(t) <= 0) return false;
  spread s = spread_of(t);
  int64_t reach = s.size;
  for (int32_t i = 0; i < s.count; i++) {
    if (s.axis[i].step < reach) return true;
    reach += s.axis[i].step * (s.axis[i].count - 1);
  }
  return false;
}

/* Bytes that the axes reach which are not whole pitches. */
static int64_t reach_inside(const spread *s, int64_t pitch) {
  int64_t reach = s->size;
  for (int32_t i = 0; i < s->count; i++)
    if (s->axis[i].step % pitch)
      reach += s->axis[i].step * (s->axis[i].count - 1);
  return reach;
}

/* Both repeat with this pitch, in ranges of it that do not meet. */
static bool apart_by(const spread *a, const spread *b, int64_t pitch) {
  int64_t in_a = reach_inside(a, pitch), in_b = reach_inside(b, pitch);
  if (in_a > pitch || in_b > pitch) return false;
  uintptr_t at_a = a->all.low, at_b = b->all.low;
  uint64_t ahead =
      at_a <= at_b
          ? (uint64_t)(at_b - at_a) % (uint64_t)pitch
          : (uint64_t)pitch - (uint64_t)(at_a - at_b) % (uint64_t)pitch;
  return (int64_t)ahead >= in_a && (int64_t)ahead + in_b <= pitch;
}

bool overlap_between(const dil_tensor *a, const dil_tensor *b) {
  if (dil_tensor_count(a) <= 0 || dil_tensor_count(b) <= 0) return false;
  byte_range in_a = bytes_of(a), in_b = bytes_of(b);
  if (in_a.high <= in_b.low || in_b.high <= in_a.low) return false;
  spread x = spread_of(a), y = spread_of(b);
  const spread *const both[] = {&x, &y};
  for (int32_t s = 0; s < 2; s++)
    for (int32_t i = 0; i < both[s]->count; i++) {
      int64_t pitch = both[s]->axis[i].step;
      if (pitch && apart_by(&x, &y, pitch)) return false;
    }
  return true;
}
