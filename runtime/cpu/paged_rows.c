/* paged_rows.c - see paged_rows.h.
 *
 * In: views of keys and values, positions. Out: rows at one distance. The kernels
 * see the same rows in the same order as without pages, so that a call with
 * pages has the same bits. */
#include "paged_rows.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/pages.h"
#include <string.h>

static int64_t row_bytes(dil_dtype dtype, int32_t width) {
  return (int64_t)dil_dtype_size(dtype) * width;
}

static int64_t key_bytes(const cpu_run *r, int64_t most) {
  return round_up(most * row_bytes(r->table->dtype, r->table->head_dim), 64);
}

static int64_t value_bytes(const cpu_run *r, int64_t most) {
  return round_up(most * row_bytes(r->table->dtype, r->table->value_dim), 64);
}

static bool has_key_lists(const dil_table *t) {
  for (int32_t b = 0; b < t->branch_count; b++)
    if (t->branches[b].listed >= 0) return true;
  return false;
}

int64_t paged_rows_bytes(const cpu_run *r, int64_t most) {
  bool copies = pages_given(r->call) || has_key_lists(r->table);
  return copies ? key_bytes(r, most) + value_bytes(r, most) : 0;
}

void paged_rows_init(paged_rows *p, const cpu_run *r, int64_t most, char *at) {
  *p = (paged_rows){.k = at, .v = at + key_bytes(r, most)};
}

static void copy_rows(const row_view *from, const paged_rows *p, char *to) {
  int64_t bytes = row_bytes(from->dtype, from->width);
  for (int64_t i = 0; i < p->count; i++)
    memcpy(to + i * bytes, row_view_at(from, p->first + i * p->step),
           (size_t)bytes);
}

static row_run rows_in_place(const row_view *k, const row_view *v,
                             int64_t first, int64_t rows_a_step) {
  return (row_run){row_view_at(k, first), row_view_at(v, first),
                   rows_a_step * k->stride, rows_a_step * v->stride};
}

row_run paged_rows_take(paged_rows *p, const row_view *k, const row_view *v,
                        int64_t first, int64_t step, int64_t count) {
  int64_t last = first + (count - 1) * step;
  if (!k->page) return rows_in_place(k, v, first, step / k->step);
  if (first >> k->page_shift == last >> k->page_shift)
    return rows_in_place(k, v, first, step);
  if (p->first != first || p->step != step || p->count != count) {
    *p = (paged_rows){p->k, p->v, first, step, count};
    copy_rows(k, p, p->k);
    copy_rows(v, p, p->v);
  }
  return (row_run){p->k, p->v, row_bytes(k->dtype, k->width),
                   row_bytes(v->dtype, v->width)};
}

static void copy_listed(const row_view *from, const int32_t *positions,
                        int64_t count, char *to) {
  int64_t bytes = row_bytes(from->dtype, from->width);
  for (int64_t i = 0; i < count; i++)
    memcpy(to + i * bytes, row_view_at(from, positions[i]), (size_t)bytes);
}

row_run paged_rows_gather(paged_rows *p, const row_view *k, const row_view *v,
                          const int32_t *positions, int64_t count) {
  p->count = 0; /* what paged_rows_take copied is lost */
  copy_listed(k, positions, count, p->k);
  copy_listed(v, positions, count, p->v);
  return (row_run){p->k, p->v, row_bytes(k->dtype, k->width),
                   row_bytes(v->dtype, v->width)};
}
