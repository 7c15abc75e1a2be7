/* guard.c - memory whose misuse is noticed: unmapped pages around tensors,
 * read-only inputs, guard bytes between the elements of outputs. In: sizes,
 * shapes, layouts. Out: tensors, and whether anything beside them changed. */
#include "numeric.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_BYTE = 0xA5, GUARD_EDGE = 192 };

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void *must_map(void *memory) {
  if (memory == NULL || memory == MAP_FAILED) {
    perror("guarded memory");
    abort();
  }
  return memory;
}

guard guard_new(size_t size, bool at_end) {
  size_t page = page_size();
  size_t inside = (size + GUARD_EDGE + page - 1) / page * page;
  guard g = {.size = size, .map_size = inside + 2 * page};
  g.map = must_map(
      mmap(NULL, g.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (mprotect(g.map + page, inside, PROT_READ | PROT_WRITE) != 0)
    must_map(NULL);
  memset(g.map + page, GUARD_BYTE, inside);
  g.bytes = g.map + page + (at_end ? inside - size : 0);
  return g;
}

void guard_free(guard *g) {
  if (g->map) munmap(g->map, g->map_size);
  free(g->snapshot);
  *g = (guard){0};
}

void guard_protect(guard *g) {
  size_t page = page_size();
  if (mprotect(g->map + page, g->map_size - 2 * page, PROT_READ) != 0)
    must_map(NULL);
}

size_t guard_inner_size(const guard *g) {
  return g->map_size - 2 * page_size();
}

unsigned char *guard_inner(const guard *g) { return g->map + page_size(); }

void guard_snapshot(guard *g) {
  free(g->snapshot);
  g->snapshot = must_map(malloc(guard_inner_size(g)));
  memcpy(g->snapshot, g->map + page_size(), guard_inner_size(g));
}

int64_t tensor_index(const dil_tensor *tensor, const int64_t *at) {
  int64_t index = 0;
  for (int32_t axis = 0; axis < tensor->rank; axis++)
    index += at[axis] * tensor->stride[axis];
  return index;
}

bool tensor_next(const dil_tensor *tensor, int64_t *at) {
  for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
    if (++at[axis] < tensor->shape[axis]) return true;
    at[axis] = 0;
  }
  return false;
}

/* Copies the elements of the tensor from the memory as it is into a copy of
 * the snapshot: what still differs was no element. */
bool guard_intact(const guard *g, const dil_tensor *tensor) {
  size_t inside = guard_inner_size(g), size = dil_dtype_size(tensor->dtype);
  const unsigned char *base = g->map + page_size();
  unsigned char *copy = must_map(malloc(inside));
  memcpy(copy, g->snapshot, inside);
  int64_t at[DIL_RANK_MAX] = {0};
  bool more = dil_tensor_count(tensor) > 0;
  for (; more; more = tensor_next(tensor, at)) {
    const unsigned char *element = (const unsigned char *)tensor->data +
                                   tensor_index(tensor, at) * (int64_t)size;
    memcpy(copy + (element - base), element, size);
  }
  bool same = memcmp(copy, base, inside) == 0;
  free(copy);
  return same;
}

dil_tensor guard_tensor(guard *g, dil_dtype dtype, const int64_t shape[4],
                        guard_layout layout, bool at_end) {
  int64_t hole = layout == GUARD_HOLES ? 3 : 0;
  int64_t rows = shape[1], heads = shape[2], width = shape[3] + hole;
  dil_tensor t = dil_tensor_make(NULL, dtype, 4, shape);
  if (layout == GUARD_HEADS) {
    t.stride[2] = rows * width;
    t.stride[1] = width;
  } else {
    t.stride[2] = width;
    t.stride[1] = heads * width + 2 * hole;
  }
  t.stride[0] = rows * heads * width + rows * 2 * hole;
  int64_t count = shape[0] * t.stride[0];
  *g = guard_new((size_t)count * dil_dtype_size(dtype), at_end);
  t.data = g->bytes;
  if (layout == GUARD_BACKWARD && rows > 0) {
    int64_t size = (int64_t)dil_dtype_size(dtype);
    t.data = g->bytes + (rows - 1) * t.stride[1] * size;
    t.stride[1] = -t.stride[1];
  }
  return t;
}
