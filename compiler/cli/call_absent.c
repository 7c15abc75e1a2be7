/* call_absent.c - calls too large for the host's memory: each rank of a
 * topology makes random q, k and v on its own GPU. Only rows of o and lse that
 * a check looks at come here. In: a call setup with sizes. Out: room for o and
 * lse that takes memory only where it is written. */
#include "call_setup.h"
#include "runtime/base/status.h"
#include <sys/mman.h>

static double absent_bytes(const dil_tensor *t) {
  double bytes = (double)dil_dtype_size(t->dtype);
  for (int32_t i = 0; i < t->rank; i++) bytes *= (double)t->shape[i];
  return bytes;
}

bool call_is_absent(const call_setup *b) {
  const double small = (double)(1 << 30);
  const options *o = b->options;
  bool arrays = o->array[0] || o->array[1] || o->array[2] || o->out || o->lse;
  const dil_call *c = &b->call;
  return o->device.word == DEVICE_CUDA && o->topology && !arrays &&
         !b->is_rank &&
         absent_bytes(&c->q) + absent_bytes(&c->k) + absent_bytes(&c->v) >
             small;
}

bool call_is_sparse(const call_setup *b) {
  const options *o = b->options;
  return b->absent || (b->is_rank && !o->out && !o->lse);
}

static dil_status reserve_pages(call_setup *b, int32_t index, dil_tensor *t) {
  size_t bytes = (size_t)absent_bytes(t) + 1; /* mmap refuses 0 bytes */
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return dil_fail(DIL_MEMORY, "no room for %g bytes of the output",
                    absent_bytes(t));
  b->sparse[index] = bytes;
  *t = dil_tensor_make(data, t->dtype, t->rank, t->shape);
  return DIL_OK;
}

dil_status call_sparse_map(call_setup *b) {
  dil_status status = reserve_pages(b, 0, &b->call.o);
  if (!status && pattern_has_lse(b->pattern))
    status = reserve_pages(b, 1, &b->call.lse);
  return status;
}

void call_sparse_free(call_setup *b) {
  void *const data[] = {b->call.o.data, b->call.lse.data};
  for (int32_t i = 0; i < 2; i++)
    if (b->sparse[i]) munmap(data[i], b->sparse[i]);
}
