/* map.c - tensor maps: what cuTensorMapEncodeTiled takes and refuses, and the
 * boxes that are copied by them. Columns, rows and all else outside of the
 * tensor come as zeros and are not written. */
#include "map.h"
#include "driver.h"
#include "memory.h"
#include <stdio.h>
#include <string.h>

enum { RANK = 5, MAGIC = 0x7e4504a9 };

struct tensor_map { /* 128 bytes at the most, as the chip's */
  uint32_t magic;
  uint8_t element, swizzle; /* bytes; 0, or 32, 64, 128 */
  uint16_t box[RANK];
  char *data;
  uint32_t size[RANK];      /* less 1 */
  uint64_t stride[RANK - 1];
};
_Static_assert(sizeof(tensor_map) <= 128, "it is handed to kernels as that");

static char problem[200];

const char *map_problem(void) { return problem; }

/* ---- making ------------------------------------------------------------------ */

static cu_result refuse(const char *what, unsigned long long value) {
  snprintf(problem, sizeof problem, "a tensor map: %s (%llu)", what, value);
  return driver_refuse(INVALID_VALUE, problem);
}

/* Numbers of CUtensorMapDataType. */
static int bytes_of(int type) {
  static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static cu_result check_axis(int axis, const tensor_map *m, uint64_t size,
                            const uint64_t *stride, unsigned box) {
  if (!size || size > 1ull << 32) return refuse("a size", size);
  if (!box || box > 256) return refuse("a box", box);
  if (axis == 0) {
    unsigned row = box * m->element;
    if (row % 16) return refuse("bytes of a box's row", row);
    if (m->swizzle && row > m->swizzle)
      return refuse("a box's row is wider than the swizzle", row);
  } else if (stride[axis - 1] % 16 || stride[axis - 1] >= 1ull << 40)
    return refuse("a stride", stride[axis - 1]);
  return 0;
}

CUDA(cuTensorMapEncodeTiled, void *map, int type, unsigned rank, void *data,
     const uint64_t *size, const uint64_t *stride, const unsigned *box,
     const unsigned *step, int interleave, int swizzle, int promotion,
     int fill) {
  static const uint8_t widths[] = {0, 32, 64, 128};
  (void)promotion;
  if (rank != RANK) return refuse("only rank 5 is known, not", rank);
  if (!bytes_of(type)) return refuse("a type", (unsigned)type);
  if (interleave || fill || swizzle < 0 || swizzle > 3)
    return refuse("an interleave, a fill, a swizzle", (unsigned)swizzle);
  if ((uintptr_t)map % 64) return refuse("it stands at", (uintptr_t)map);
  if ((uintptr_t)data % 16) return refuse("an address", (uintptr_t)data);
  tensor_map m = {.magic = MAGIC,
                  .element = (uint8_t)bytes_of(type),
                  .swizzle = widths[swizzle],
                  .data = data};
  for (int i = 0; i < RANK; i++) {
    cu_result bad = check_axis(i, &m, size[i], stride, box[i]);
    if (bad) return bad;
    if (step[i] != 1) return refuse("a step", step[i]);
    m.box[i] = (uint16_t)box[i];
    m.size[i] = (uint32_t)(size[i] - 1);
    if (i) m.stride[i - 1] = stride[i - 1];
  }
  memset(map, 0, 128);
  memcpy(map, &m, sizeof m);
  return 0;
}

/* ---- using --------------------------------------------------------------------- */

bool map_is_one(const void *map) {
  const tensor_map *m = map;
  if ((uintptr_t)map % 64) {
    snprintf(problem, sizeof problem, "it is not at a multiple of 64");
    return false;
  }
  if (m->magic == MAGIC) return true;
  snprintf(problem, sizeof problem, "nobody made this map (%08x)", m->magic);
  return false;
}

uint32_t map_box_bytes(const tensor_map *m) {
  uint32_t bytes = m->element;
  for (int i = 0; i < RANK; i++) bytes *= m->box[i];
  return bytes;
}

/* Sixteen bytes stand where their address says. */
static uint32_t swizzled(const tensor_map *m, uint32_t at) {
  uint32_t rows = m->swizzle ? m->swizzle / 16u - 1 : 0;
  return at ^ ((at >> 7 & rows) << 4);
}

/* `inside` of the bytes of one row of the box at `row`. */
static bool copy_row(const tensor_map *m, int device, char *row,
                     uint32_t inside, char *base, uint32_t shared, bool load) {
  uint32_t bytes = (uint32_t)m->box[0] * m->element;
  if (inside && !memory_holds(row, inside, device)) {
    snprintf(problem, sizeof problem, "%u bytes at %p: %s", inside,
             (void *)row, memory_problem());
    return false;
  }
  for (uint32_t i = 0; i < bytes; i += 16) {
    char *to = base + swizzled(m, shared + i);
    uint32_t some = i >= inside ? 0 : inside - i < 16 ? inside - i : 16;
    if (load) {
      if (some) memcpy(to, row + i, some);
      memset(to + some, 0, 16 - some);
    } else if (some) memcpy(row + i, to, some);
  }
  return true;
}

static bool is_inside(const tensor_map *m, int axis, int64_t at) {
  return at >= 0 && at <= (int64_t)m->size[axis];
}

/* Bytes of a box's row that belong to the tensor, from its first column on. */
static uint32_t row_bytes(const tensor_map *m, int column) {
  int64_t left = (int64_t)m->size[0] + 1 - column;
  if (column < 0 || left <= 0) return 0;
  return (uint32_t)(left < m->box[0] ? left : m->box[0]) * m->element;
}

bool map_copy(const tensor_map *m, int device, const int *at, char *shared,
              const char *base, bool load) {
  uint32_t row = (uint32_t)m->box[0] * m->element, rows = 1, wide;
  uint32_t place = (uint32_t)(shared - base);
  if (at[0] < 0) {
    snprintf(problem, sizeof problem, "columns before the first");
    return false;
  }
  for (int i = 1; i < RANK; i++) rows *= m->box[i];
  wide = row_bytes(m, at[0]);
  for (uint32_t r = 0; r < rows; r++) {
    char *from = m->data + (int64_t)at[0] * m->element;
    uint32_t inside = wide, rest = r;
    for (int i = 1; i < RANK; i++) {
      int64_t x = (int64_t)at[i] + rest % m->box[i];
      rest /= m->box[i];
      if (!is_inside(m, i, x)) inside = 0;
      else from += x * (int64_t)m->stride[i - 1];
    }
    if (!copy_row(m, device, from, inside, shared - place, place + r * row,
                  load))
      return false;
  }
  return true;
}
