/* call_fill.c - fills tensors: from arrays, rounded to the wanted dtype, or
 * with random numbers. The call setup's threads share the work. Each random
 * number depends on the seed, the tensor and the element's index alone
 * (counter-based Philox), so that a check can make it again. */
#include "call_setup.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 11 }; /* elements a work item */

static dil_status no_tensor_memory(const call_setup *b, dil_dtype dtype,
                                   int32_t rank, const int64_t *shape) {
  char size[QUANTITY_TEXT];
  double bytes = (double)dil_dtype_size(dtype);
  dil_tensor wanted = dil_tensor_make(NULL, dtype, rank, shape);
  for (int32_t i = 0; i < rank; i++) bytes *= (double)shape[i];
  return dil_fail(DIL_MEMORY, "no memory for %s of %s: %s",
                  call_tensor_shape_text(b->arena, &wanted),
                  dil_dtype_name(dtype), quantity_bytes(bytes, size));
}

dil_status call_tensor_new(call_setup *b, dil_dtype dtype, int32_t rank,
                           const int64_t *shape, dil_tensor *tensor) {
  size_t bytes = dil_dtype_size(dtype);
  bool huge = false;
  for (int32_t i = 0; i < rank; i++)
    huge |= __builtin_mul_overflow(bytes, (size_t)shape[i], &bytes);
  huge |= bytes > SIZE_MAX / 2;
  size_t rounded = huge ? 0 : (bytes + 64) / 64 * 64; /* never 0 */
  void *data = huge ? NULL : aligned_alloc(64, rounded);
  if (!data) return no_tensor_memory(b, dtype, rank, shape);
  memset(data, 0, rounded);
  b->buffer[b->buffer_count++] = data;
  *tensor = dil_tensor_make(data, dtype, rank, shape);
  return DIL_OK;
}

typedef struct fill {
  const dil_tensor *from; /* NULL: random numbers */
  dil_tensor *to;
  uint32_t seed, number;
} fill;

static double random_element(const fill *f, uint64_t element) {
  if (f->to->dtype != DIL_I32 && f->to->dtype != DIL_U8)
    return dil_normal(f->seed, f->number, element);
  uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
  uint32_t key[2] = {f->seed, f->number}, out[4];
  dil_philox(counter, key, out);
  return f->to->dtype == DIL_I32 ? out[0] & 7 : out[0] & 1;
}

static void fill_chunk(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const fill *f = context;
  int64_t end = dil_tensor_count(f->to), first = index * CHUNK;
  if (end > first + CHUNK) end = first + CHUNK;
  for (int64_t e = first; e < end; e++) {
    double element = f->from
                         ? dil_element_read(f->from->data, f->from->dtype, e)
                         : random_element(f, (uint64_t)e);
    dil_element_write(f->to->data, f->to->dtype, e, element);
  }
}

static dil_status fill_tensor(call_setup *b, fill f) {
  int64_t chunks = (dil_tensor_count(f.to) + CHUNK - 1) / CHUNK;
  return dil_threads_run(b->threads, chunks, fill_chunk, &f);
}

dil_status call_tensor_convert(call_setup *b, const dil_tensor *from,
                               dil_tensor *to) {
  return fill_tensor(b, (fill){from, to, 0, 0});
}

dil_status call_write_wide(call_setup *b, const char *path,
                           const dil_tensor *tensor) {
  dil_tensor wide = *tensor;
  dil_status status = DIL_OK;
  if (wide.dtype != DIL_F32) {
    status = call_tensor_new(b, DIL_F32, tensor->rank, tensor->shape, &wide);
    if (!status) status = call_tensor_convert(b, tensor, &wide);
  }
  return status ? status : dil_npy_write(path, &wide);
}

dil_status call_tensor_random(call_setup *b, uint32_t seed, uint32_t number,
                              dil_tensor *tensor) {
  return fill_tensor(b, (fill){NULL, tensor, seed, number});
}

const char *call_tensor_shape_text(arena *a, const dil_tensor *tensor) {
  const char *text = "[";
  for (int32_t i = 0; i < tensor->rank; i++)
    text = tensor->shape[i] == DIL_ANY_SIZE
               ? arena_print(a, "%s%s*", text, i ? ", " : "")
               : arena_print(a, "%s%s%lld", text, i ? ", " : "",
                             (long long)tensor->shape[i]);
  return arena_print(a, "%s]", text);
}
