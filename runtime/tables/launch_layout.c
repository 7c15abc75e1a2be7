/* launch_layout.c - see launch_layout.h. In: the tables of a kernel's passes, a
 * launch. Out: the places that the compiler of C gives to tables of so many rows. */
#include "launch_layout.h"
#include "runtime/base/arithmetic.h"
#include <stddef.h>
#include <string.h>

_Static_assert(offsetof(hopper_launch, zeros) == HOPPER_NUMBERS_BYTES,
               "tables begin there");

/* A table: its place in the host's launch, and its rows in the kernel's. */
typedef struct layout_part {
  size_t at, row, align;
  int32_t rows;
} layout_part;

#define PART(field, count)                                      \
  {offsetof(hopper_launch, field),                              \
   sizeof(((const hopper_launch *)0)->field[0]),                \
   _Alignof(__typeof__(((const hopper_launch *)0)->field[0])), \
   count}

enum { LAYOUT_MAPS = 5, LAYOUT_PARTS = LAYOUT_MAPS + 8 };

/* In the order of their places; the tensor maps are first. */
typedef struct layout_parts {
  layout_part part[LAYOUT_PARTS];
} layout_parts;

static layout_parts layout_parts_of(const launch_layout *l) {
  return (layout_parts){{PART(zeros, 2),
                         PART(q, l->strides),
                         PART(k, l->strides),
                         PART(v, l->strides),
                         PART(o, l->strides),
                         PART(input, l->inputs),
                         PART(shapes, l->shapes),
                         PART(classes, l->classes),
                         PART(ranges, l->ranges),
                         PART(live, l->live_branches),
                         PART(instances, l->instances),
                         PART(by_interval, l->instances),
                         PART(live_phase, l->live_phases)}};
}

/* One of three steps that holds so many rows: kernels of like patterns then have the
 * same source, and share their machine code. */
static void layout_raise(int32_t *rows, int64_t count, int32_t few, int32_t some,
                         int32_t most) {
  int32_t step = count <= few ? few : count <= some ? some : most;
  *rows = (int32_t)maximum(*rows, step);
}

launch_layout layout_of(const dil_table *t, bool keeps_states) {
  launch_layout l = {.live_branches = 1, .live_phases = 1};
  static const hopper_table nothing;
  layout_add(&l, &nothing);
  layout_raise(&l.inputs, dil_table_reads(t), 2, 6, HOPPER_INPUTS);
  if (!keeps_states) return l;
  layout_raise(&l.live_branches, t->branch_count, 4, 8, HOPPER_LIVE_BRANCHES);
  layout_raise(&l.live_phases, (int64_t)t->branch_count * t->heads, 64, 256,
               HOPPER_LIVE_PHASES);
  return l;
}

void layout_add_phases(launch_layout *l, const dil_table *t) {
  if (t->pass_count > 1)
    layout_raise(&l->live_phases, t->heads, 64, 256, HOPPER_LIVE_PHASES);
}

/* The kernels may look at one key range behind the last. */
void layout_add(launch_layout *l, const hopper_table *made) {
  layout_raise(&l->strides, made->stride_count, 4, 4, HOPPER_STRIDES);
  layout_raise(&l->shapes, made->shape_count, 2, 6, HOPPER_SHAPES);
  layout_raise(&l->classes, made->class_count, 8, 24, HOPPER_CLASSES);
  layout_raise(&l->ranges, made->range_count + 1, 16, 48, HOPPER_KEY_RANGES);
  layout_raise(&l->instances, made->instance_count, 32, 128, HOPPER_INSTANCES);
}

static size_t layout_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

int64_t layout_bytes(const launch_layout *l) {
  const layout_parts parts = layout_parts_of(l);
  size_t bytes = HOPPER_NUMBERS_BYTES;
  for (int32_t i = 0; i < LAYOUT_PARTS; i++) {
    const layout_part *p = &parts.part[i];
    bytes = layout_up(bytes, p->align) + p->row * (size_t)p->rows;
  }
  return (int64_t)layout_up(bytes, _Alignof(hopper_launch));
}

void layout_copy(const launch_layout *l, const hopper_launch *from,
                 hopper_launch *to) {
  const layout_parts parts = layout_parts_of(l);
  memcpy(to, from, HOPPER_NUMBERS_BYTES);
  for (int32_t i = LAYOUT_MAPS; i < LAYOUT_PARTS; i++) {
    const layout_part *p = &parts.part[i];
    memcpy((char *)to + p->at, (const char *)from + p->at,
           p->row * (size_t)p->rows);
  }
}

void layout_pack(const launch_layout *l, const hopper_launch *from,
                 char *parameter) {
  const layout_parts parts = layout_parts_of(l);
  size_t bytes = HOPPER_NUMBERS_BYTES;
  memcpy(parameter, from, bytes);
  for (int32_t i = 0; i < LAYOUT_PARTS; i++) {
    const layout_part *p = &parts.part[i];
    bytes = layout_up(bytes, p->align);
    memcpy(parameter + bytes, (const char *)from + p->at,
           p->row * (size_t)p->rows);
    bytes += p->row * (size_t)p->rows;
  }
}
