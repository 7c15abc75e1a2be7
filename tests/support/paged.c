/* paged.c - see paged.h. In: a call. Out: the same call with pages, in guarded
 * memory. */
#include "paged.h"
#include "runtime/base/random.h"
#include <stdlib.h>

enum { SPARE_PAGES = 2, PAGE_STRIDE_MORE = 3 };

typedef struct paging {
  data *d;
  page_layout layout;
  int64_t columns, pool;
  int32_t *number;
} paging;

static guard *next_guard(data *d) {
  if (d->guard_count == NUMERIC_GUARDS) abort();
  return &d->guards[d->guard_count++];
}

static int64_t row_keys(const data *d, int64_t b) {
  return d->call.lengths ? d->call.lengths[b] : d->shape.keys;
}

/* A permutation of the pool: times an odd number below a power of two, without
 * what is too large. */
static int32_t page_number(const paging *p, int64_t n) {
  uint64_t size = 1;
  while (size < (uint64_t)p->pool) size *= 2;
  uint64_t at = (uint64_t)n;
  do at = (at * 5 + 3) % size;
  while (at >= (uint64_t)p->pool);
  return (int32_t)at;
}

static void fill_numbers(paging *p, int64_t b) {
  int64_t used = (row_keys(p->d, b) + p->layout.rows - 1) / p->layout.rows;
  int64_t first = p->layout.shared ? 0 : b * p->columns;
  int32_t *to = p->number + b * p->d->call.pages.stride;
  for (int64_t c = 0; c < p->columns; c++)
    to[c] = c < used ? page_number(p, first + c) : c % 2 ? INT32_MAX : -1;
  if (p->layout.absent && p->layout.absent < used)
    to[p->layout.absent] = b % 2 ? (int32_t)p->pool : -7;
}

static void make_numbers(paging *p) {
  data *d = p->d;
  int64_t stride = p->columns + PAGE_STRIDE_MORE;
  guard *g = next_guard(d);
  *g = guard_new((size_t)(d->shape.batch * stride) * sizeof(int32_t), true);
  p->number = (int32_t *)(void *)g->bytes;
  d->call.pages = (dil_call_pages){p->number, p->columns, stride};
  for (int64_t b = 0; b < d->shape.batch; b++) fill_numbers(p, b);
  guard_protect(g);
}

static void copy_row(const paging *p, const dil_tensor *from, int64_t b,
                     int64_t j, const dil_tensor *to) {
  int32_t page = p->number[b * p->d->call.pages.stride + j / p->layout.rows];
  if (page < 0 || page >= p->pool) return;
  for (int64_t h = 0; h < to->shape[2]; h++)
    for (int64_t x = 0; x < to->shape[3]; x++) {
      int64_t seat = tensor_index(from, (int64_t[]){b, j, h, x});
      int64_t place =
          tensor_index(to, (int64_t[]){page, j % p->layout.rows, h, x});
      double element = dil_element_read(from->data, from->dtype, seat);
      dil_element_write(to->data, to->dtype, place, element);
    }
}

static void lay_out(const paging *p, dil_tensor *t) {
  const dil_tensor from = *t;
  const int64_t shape[] = {p->pool, p->layout.rows, from.shape[2],
                           from.shape[3]};
  int64_t batches = p->layout.shared ? 1 : p->d->shape.batch;
  guard *g = next_guard(p->d);
  *t = guard_tensor(g, from.dtype, shape, p->d->shape.layout,
                    !p->d->shape.at_start);
  tensor_fill_nan(t);
  for (int64_t b = 0; b < batches; b++)
    for (int64_t j = 0; j < row_keys(p->d, b); j++) copy_row(p, &from, b, j, t);
  guard_protect(g);
}

void paged_lay_out(data *d, page_layout layout) {
  paging p = {.d = d, .layout = layout};
  p.columns = (d->shape.keys + layout.rows - 1) / layout.rows;
  p.pool = d->shape.batch * p.columns + SPARE_PAGES;
  make_numbers(&p);
  lay_out(&p, &d->call.k);
  lay_out(&p, &d->call.v);
}
