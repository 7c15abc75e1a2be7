/* copy.c - memory taken, given, copied and filled, at once or in the order of a
 * stream. Memory of the host that is not pinned is read when a copy is given,
 * and written before it returns, as the driver does. */
#include "driver.h"
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *pointer(cu_pointer p) { return (void *)(uintptr_t)p; }

/* ---- taking and giving ----------------------------------------------------------- */

static cu_result take(cu_pointer *memory, size_t size) {
  int device = device_now();
  if (device < 0) return INVALID_CONTEXT;
  if (!size) return driver_refuse(INVALID_VALUE, "no bytes are asked for");
  void *at = memory_take(device, size);
  *memory = (cu_pointer)(uintptr_t)at;
  return at ? driver_broken() : OUT_OF_MEMORY;
}
CUDA(cuMemAlloc_v2, cu_pointer *memory, size_t size) {
  LOCKED(take(memory, size));
}
CUDA(cuMemAllocAsync, cu_pointer *memory, size_t size, cu_stream stream) {
  (void)stream; /* nobody has had the address before */
  LOCKED(take(memory, size));
}

static cu_result give(cu_pointer memory) {
  if (!memory) return 0;
  /* It waits for the device, not for others, which may wait for this one. */
  streams_finish(memory_device(pointer(memory)));
  if (!memory_give(pointer(memory))) {
    if (!driver_broken()) driver_break(memory_problem());
  }
  return driver_broken();
}
CUDA(cuMemFree_v2, cu_pointer memory) { LOCKED(give(memory)); }

static void run_give(work *w) {
  void *at;
  memcpy(&at, w->data, sizeof at);
  if (!memory_give(at)) driver_break(memory_problem());
}

CUDA(cuMemFreeAsync, cu_pointer memory, cu_stream stream) {
  void *at = pointer(memory);
  work *w = work_new(sizeof at, run_give);
  memcpy(w->data, &at, sizeof at);
  LOCKED(work_put(stream, w));
}

CUDA(cuMemGetInfo_v2, size_t *left, size_t *all) {
  if (device_now() < 0) return INVALID_CONTEXT;
  *left = (size_t)memory_left(device_now());
  *all = (size_t)wish("FAKE_MEMORY", 1ll << 34);
  return 0;
}

/* ---- the host's memory -------------------------------------------------------------- */

CUDA(cuMemHostAlloc, void **memory, size_t size, unsigned flags) {
  (void)flags;
  void *at = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  driver_lock();
  memory_pin(at, size);
  driver_unlock();
  return *memory = at, 0;
}
CUDA(cuMemAllocHost_v2, void **memory, size_t size) {
  return cuMemHostAlloc(memory, size, 0);
}

static cu_result unpin(const void *memory, size_t *size) {
  streams_finish(device_now());
  if (!memory_unpin(memory, size))
    return driver_refuse(INVALID_VALUE, "this memory is not pinned");
  return driver_broken();
}
CUDA(cuMemFreeHost, void *memory) {
  size_t size;
  driver_lock();
  cu_result result = unpin(memory, &size);
  if (!result) munmap(memory, size ? size : 1);
  driver_unlock();
  return result;
}
CUDA(cuMemHostRegister_v2, void *memory, size_t size, unsigned flags) {
  (void)flags;
  driver_lock();
  memory_pin(memory, size);
  driver_unlock();
  return 0;
}
CUDA(cuMemHostUnregister, void *memory) {
  size_t size;
  LOCKED(unpin(memory, &size));
}
CUDA(cuMemHostGetDevicePointer_v2, cu_pointer *memory, void *host,
     unsigned flags) {
  (void)flags;
  return *memory = (cu_pointer)(uintptr_t)host, 0;
}

enum { HOST = 1, DEVICE = 2 };

CUDA(cuPointerGetAttribute, void *value, int attribute, cu_pointer memory) {
  enum { CONTEXT = 1, MEMORY_TYPE = 2, IS_MANAGED = 8, ORDINAL = 9 };
  int device = memory_device(pointer(memory));
  bool pinned = device < 0 && memory_pinned(pointer(memory), 1);
  if (device < 0 && !pinned)
    return driver_refuse(INVALID_VALUE, "the driver does not know the address");
  if (attribute == MEMORY_TYPE) *(unsigned *)value = pinned ? HOST : DEVICE;
  else if (attribute == ORDINAL) *(int *)value = pinned ? 0 : device;
  else if (attribute == IS_MANAGED) *(unsigned *)value = 0;
  else return driver_refuse(NOT_SUPPORTED, "an attribute of an address");
  return 0;
}

/* ---- copies --------------------------------------------------------------------------- */

typedef struct rows { /* of a copy: one is plain */
  char *to;
  const char *from;
  size_t width, height, to_pitch, from_pitch;
  int device;
  bool kept; /* `from` is ours */
} rows;

static size_t extent(size_t width, size_t height, size_t pitch) {
  return height ? (height - 1) * pitch + width : 0;
}

/* Memory of the host is not looked at: who reads or writes it is the host. */
static bool is_good(const void *at, size_t size) {
  return memory_device(at) < 0 || memory_holds(at, size, -1);
}

static void run_copy(work *w) {
  const rows *r = (const rows *)(const void *)w->data;
  if (!is_good(r->to, extent(r->width, r->height, r->to_pitch)) ||
      !is_good(r->from, extent(r->width, r->height, r->from_pitch))) {
    char text[400];
    snprintf(text, sizeof text, "a copy: %s", memory_problem());
    driver_break(text);
    return;
  }
  for (size_t i = 0; i < r->height; i++)
    memmove(r->to + i * r->to_pitch, r->from + i * r->from_pitch, r->width);
}

static void drop_copy(work *w) {
  const rows *r = (const rows *)(const void *)w->data;
  if (r->kept) free((void *)(uintptr_t)r->from);
}

static bool is_pageable(const void *at, size_t size) {
  return memory_device(at) < 0 && !memory_pinned(at, size);
}

static void keep_source(rows *r) {
  size_t size = extent(r->width, r->height, r->from_pitch);
  char *own = malloc(size ? size : 1);
  if (!own) abort();
  memcpy(own, r->from, size);
  r->from = own;
  r->kept = true;
}

/* `finish`: the copy is over when the call returns. What comes of pageable
 * memory is not: the call returns when it has been staged. */
static cu_result put_copy(rows r, cu_stream stream, bool finish) {
  if (!r.width || !r.height) return driver_broken();
  size_t to_size = extent(r.width, r.height, r.to_pitch);
  size_t from_size = extent(r.width, r.height, r.from_pitch);
  if (!is_good(r.to, to_size) || !is_good(r.from, from_size))
    return driver_refuse(INVALID_VALUE, memory_problem());
  if (is_pageable(r.from, from_size)) {
    keep_source(&r);
    finish = false;
  }
  finish |= is_pageable(r.to, to_size);
  work *w = work_new(sizeof r, run_copy);
  w->drop = drop_copy;
  *(rows *)(void *)w->data = r;
  cu_result result = work_put(stream, w);
  return result || !finish ? result : stream_finish(stream);
}

static rows plain(void *to, const void *from, size_t size) {
  return (rows){to, from, size, 1, size, size, device_now(), false};
}

#define COPY(name, to_type, from_type, to_pointer, from_pointer)             \
  CUDA(name##_v2, to_type to, from_type from, size_t size) {                 \
    LOCKED(put_copy(plain(to_pointer, from_pointer, size), NULL, true));     \
  }                                                                          \
  CUDA(name##Async_v2, to_type to, from_type from, size_t size,              \
       cu_stream stream) {                                                   \
    LOCKED(put_copy(plain(to_pointer, from_pointer, size), stream, false));  \
  }
COPY(cuMemcpyHtoD, cu_pointer, const void *, pointer(to), from)
COPY(cuMemcpyDtoH, void *, cu_pointer, to, pointer(from))
COPY(cuMemcpyDtoD, cu_pointer, cu_pointer, pointer(to), pointer(from))

CUDA(cuMemcpy, cu_pointer to, cu_pointer from, size_t size) {
  LOCKED(put_copy(plain(pointer(to), pointer(from), size), NULL, true));
}
CUDA(cuMemcpyAsync, cu_pointer to, cu_pointer from, size_t size,
     cu_stream stream) {
  LOCKED(put_copy(plain(pointer(to), pointer(from), size), stream, false));
}

static cu_result peer_copy(cu_pointer to, cu_context to_context,
                           cu_pointer from, cu_context from_context,
                           size_t size, cu_stream stream, bool finish) {
  if (memory_device(pointer(to)) != device_of(to_context) ||
      memory_device(pointer(from)) != device_of(from_context))
    return driver_refuse(INVALID_VALUE, "a peer copy names the device of "
                         "other memory");
  return put_copy(plain(pointer(to), pointer(from), size), stream, finish);
}
CUDA(cuMemcpyPeer, cu_pointer to, cu_context to_context, cu_pointer from,
     cu_context from_context, size_t size) {
  LOCKED(peer_copy(to, to_context, from, from_context, size, NULL, true));
}
CUDA(cuMemcpyPeerAsync, cu_pointer to, cu_context to_context, cu_pointer from,
     cu_context from_context, size_t size, cu_stream stream) {
  LOCKED(peer_copy(to, to_context, from, from_context, size, stream, false));
}

/* CUDA_MEMCPY2D */
typedef struct copy_2d {
  size_t from_x, from_y;
  unsigned from_kind;
  const void *from_host;
  cu_pointer from_device;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_kind;
  void *to_host;
  cu_pointer to_device;
  void *to_array;
  size_t to_pitch, width, height;
} copy_2d;

static cu_result put_2d(const copy_2d *c, cu_stream stream, bool finish) {
  const char *from = c->from_kind == HOST ? c->from_host
                                          : pointer(c->from_device);
  char *to = c->to_kind == HOST ? c->to_host : pointer(c->to_device);
  rows r = {.to = to + c->to_y * c->to_pitch + c->to_x,
            .from = from + c->from_y * c->from_pitch + c->from_x,
            .width = c->width,
            .height = c->height,
            .to_pitch = c->to_pitch,
            .from_pitch = c->from_pitch};
  if (c->width > c->to_pitch || c->width > c->from_pitch)
    return driver_refuse(INVALID_VALUE, "rows are wider than their pitch");
  return put_copy(r, stream, finish);
}
CUDA(cuMemcpy2DAsync_v2, const copy_2d *c, cu_stream stream) {
  LOCKED(put_2d(c, stream, false));
}
CUDA(cuMemcpy2D_v2, const copy_2d *c) { LOCKED(put_2d(c, NULL, true)); }
CUDA(cuMemcpy2DUnaligned_v2, const copy_2d *c) {
  LOCKED(put_2d(c, NULL, true));
}

/* ---- filling ------------------------------------------------------------------------------ */

typedef struct filling {
  char *to;
  unsigned value;
  size_t each, count;
} filling;

static void run_fill(work *w) {
  const filling *f = (const filling *)(const void *)w->data;
  if (!memory_holds(f->to, f->each * f->count, -1)) {
    driver_break(memory_problem());
    return;
  }
  for (size_t i = 0; i < f->count; i++)
    memcpy(f->to + i * f->each, &f->value, f->each);
}

static cu_result put_fill(cu_pointer to, unsigned value, size_t each,
                          size_t count, cu_stream stream, bool finish) {
  filling f = {pointer(to), value, each, count};
  if (!count) return driver_broken();
  if (!memory_holds(f.to, each * count, -1))
    return driver_refuse(INVALID_VALUE, memory_problem());
  work *w = work_new(sizeof f, run_fill);
  *(filling *)(void *)w->data = f;
  cu_result result = work_put(stream, w);
  return result || !finish ? result : stream_finish(stream);
}

/* cuMemsetD8_v2 does not wait for the device; who relies on it must. */
#define FILL(name, type)                                                     \
  CUDA(name##_v2, cu_pointer to, type value, size_t count) {                 \
    LOCKED(put_fill(to, value, sizeof value, count, NULL, false));           \
  }                                                                          \
  CUDA(name##Async, cu_pointer to, type value, size_t count,                 \
       cu_stream stream) {                                                   \
    LOCKED(put_fill(to, value, sizeof value, count, stream, false));         \
  }
FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned)
