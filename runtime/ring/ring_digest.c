/* ring_digest.c - what a run reads, as a few numbers: a state that is kept
 * (ring_state.h) is of these gradients and of this data, and of no other.
 * In: a ring. Out: its digest. Memory is read once, which a run does many
 * times. */
#include "checkpoint.h"
#include "ring_state.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include <stdlib.h>
#include <string.h>

const char *const ring_digest_words[DIGEST_COUNT] = {
    "q", "k", "v", "o", "lse", "dO", "dlse", "declared input"};

/* A sum of bytes. checkpoint_sum finds torn files; two signs that change would
 * cancel in it, so that each step here moves high bits down, too. */
static uint64_t digest_bytes(uint64_t sum, const char *bytes, int64_t count) {
  for (int64_t n = 0; n < count; n += (int64_t)sizeof(uint64_t)) {
    int64_t here = minimum(count - n, (int64_t)sizeof(uint64_t));
    sum = checkpoint_sum(sum, bytes + n, here);
    sum ^= sum >> 29;
  }
  return sum;
}

/* The elements of one row, which lie `stride` elements apart. */
static uint64_t sum_row(uint64_t sum, const char *at, int64_t count,
                        int64_t stride, int64_t size) {
  enum { ROOM = 64 }; /* elements: whole words of the sum, of any type */
  char row[ROOM * sizeof(double)];
  if (stride == 1) return digest_bytes(sum, at, count * size);
  for (int64_t first = 0; first < count; first += ROOM) {
    int64_t here = minimum(count - first, ROOM);
    for (int64_t i = 0; i < here; i++)
      memcpy(row + i * size, at + (first + i) * stride * size, (size_t)size);
    sum = digest_bytes(sum, row, here * size);
  }
  return sum;
}

/* Rows along the last axis, one after the other. */
static uint64_t sum_tensor(uint64_t sum, const dil_tensor *t) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype), count = dil_tensor_count(t);
  int32_t last = t->rank - 1;
  if (!t->data || !count) return sum;
  int64_t width = last < 0 ? 1 : t->shape[last];
  int64_t stride = last < 0 ? 1 : t->stride[last];
  for (int64_t row = 0; row < count / width; row++) {
    int64_t rest = row, at = 0;
    for (int32_t axis = last - 1; axis >= 0; axis--) {
      at += rest % t->shape[axis] * t->stride[axis];
      rest /= t->shape[axis];
    }
    sum = sum_row(sum, (const char *)t->data + at * size, width, stride, size);
  }
  return sum;
}

/* Tensors of another device are row-major, and are copied for this. */
static dil_status sum_tensors(const dil_ring *r, const dil_tensor *t,
                              int32_t count, uint64_t *sum) {
  const ring_device_calls *calls = r->device->calls;
  dil_status status = DIL_OK;
  *sum = CHECKPOINT_SUM;
  for (int32_t i = 0; i < count && !status; i++) {
    int64_t bytes = dil_tensor_count(&t[i]) * (int64_t)dil_dtype_size(t[i].dtype);
    dil_tensor here = t[i];
    void *copy = NULL;
    if (!calls->on_host && here.data && bytes) {
      here.data = copy = malloc((size_t)bytes);
      status = copy ? calls->read(r->device, copy, t[i].data, bytes)
                    : dil_fail(DIL_MEMORY, "no memory to read a rank's rows");
    }
    if (!status) *sum = sum_tensor(*sum, &here);
    free(copy);
  }
  return status;
}

dil_status ring_digest_of(const dil_ring *r, ring_digest *d) {
  const ring_gradients *g = r->gradients;
  const ring_rows *rows = r->rows;
  const dil_tensor *own[DIGEST_INPUTS] = {rows->q, rows->keys.k, rows->keys.v};
  dil_status status = DIL_OK;
  *d = (ring_digest){.gradients = ring_gradient_set(r)};
  if (g) {
    own[DIGEST_O] = rows->o;
    own[DIGEST_LSE] = rows->lse;
    own[DIGEST_D_O] = g->output;
    own[DIGEST_D_LSE] = g->lse;
  }
  for (int32_t i = 0; i < DIGEST_INPUTS && !status; i++)
    if (own[i]) status = sum_tensors(r, own[i], PROGRESSIONS_MOST, &d->sum[i]);
  return status ? status
                : sum_tensors(r, r->call->inputs, r->call->input_count,
                              &d->sum[DIGEST_INPUTS]);
}
