/* row_copy.c - copies rows within the host's memory; see row_copy.h. In:
 * strided tensors. Out: the same rows elsewhere. */
#include "row_copy.h"
#include "runtime/base/arithmetic.h"
#include "runtime/cpu/pack.h"
#include "runtime/rowset/walk.h"
#include <string.h>

enum { TASK_ROWS = 1024, TASK_BYTES = 256 << 10 }; /* of a task, at most */

typedef struct copier {
  const dil_tensor *from, *to; /* [B, rows, heads, width] */
  const route *route;          /* NULL: all rows */
  int64_t first;               /* row of `from` that is row 0 of `to` */
  int64_t rows;                /* of one batch row */
  int32_t runs;                /* of the route, that are looked at */
  bool together;               /* all heads want the same rows */
} copier;

/* Rows of a route to a message. */
typedef struct packer {
  copier list;                 /* its route and runs */
  const dil_tensor *k, *v;
  dil_tensor row[2];           /* of K and of V, in the message */
  int64_t b, begin, end, bytes;
  char *message;               /* row `begin` of the list */
} packer;

static char *place(const dil_tensor *t, int64_t b, int64_t row, int64_t h) {
  int64_t at = b * t->stride[0] + row * t->stride[1] + h * t->stride[2];
  return (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
}

static void convert(const dil_tensor *from, const char *source,
                    const dil_tensor *to, char *target) {
  float wide[DIL_HEAD_DIM_MAX];
  int32_t width = (int32_t)to->shape[3];
  row_to_f32(source, from->dtype, width, wide);
  row_from_f32(wide, to->dtype, width, target);
}

/* `heads` heads of a row, the first of which is `h`. */
static void copy_row(const copier *c, int64_t b, int64_t row, int64_t h,
                     int64_t heads) {
  const dil_tensor *from = c->from, *to = c->to;
  int64_t width = to->shape[3];
  bool same = from->dtype == to->dtype;
  bool dense = heads == 1 || (from->stride[2] == width &&
                              to->stride[2] == width);
  int64_t at_once = same && dense ? heads : 1;
  size_t bytes = (size_t)(at_once * width) * dil_dtype_size(to->dtype);
  for (int64_t i = 0; i < heads; i += at_once) {
    const char *source = place(from, b, row + c->first, h + i);
    char *target = place(to, b, row, h + i);
    if (same) memcpy(target, source, bytes);
    else convert(from, source, to, target);
  }
}

/* The run of a route that row `index` of its list is in. */
static int32_t find_run(const copier *c, int64_t index) {
  int32_t low = 0, high = c->runs;
  while (high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    if (c->route->run[middle].before <= index) low = middle;
    else high = middle;
  }
  return low;
}

static void copy_listed(const copier *c, int64_t b, int64_t begin,
                        int64_t end) {
  const route *r = c->route;
  int64_t heads = c->together ? c->to->shape[2] : 1;
  for (int32_t i = find_run(c, begin); begin < end; i++) {
    const route_run *at = &r->run[i];
    int64_t stop = minimum(at->before + route_run_rows(r, i), end);
    for (; begin < stop; begin++)
      copy_row(c, b, route_position(r, at, begin - at->before) - c->first,
               at->kv, heads);
  }
}

/* Rows of both lie one behind the other. */
static bool is_block(const copier *c) {
  const dil_tensor *t[] = {c->from, c->to};
  bool dense = !c->route && c->from->dtype == c->to->dtype;
  for (int32_t i = 0; i < 2; i++)
    dense = dense && t[i]->stride[1] == t[i]->shape[2] * t[i]->shape[3] &&
            (t[i]->shape[2] == 1 || t[i]->stride[2] == t[i]->shape[3]);
  return dense;
}

static void copy_block(const copier *c, int64_t b, int64_t row, int64_t end) {
  int64_t elements = (end - row) * c->to->stride[1];
  memcpy(place(c->to, b, row, 0), place(c->from, b, row, 0),
         (size_t)elements * dil_dtype_size(c->to->dtype));
}

/* Rows that a thread takes at a time, few enough that all have some. */
static int64_t task_rows(const copier *c) {
  int64_t bytes = c->to->shape[2] * c->to->shape[3] *
                  (int64_t)dil_dtype_size(c->to->dtype);
  return maximum(1, minimum(TASK_ROWS, TASK_BYTES / maximum(bytes, 1)));
}

static void copy_task(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const copier *c = context;
  int64_t each = task_rows(c), tasks = (c->rows + each - 1) / each;
  int64_t b = index / tasks, begin = index % tasks * each;
  int64_t end = minimum(begin + each, c->rows);
  if (is_block(c)) {
    copy_block(c, b, begin, end);
    return;
  }
  if (c->route) copy_listed(c, b, begin, end);
  for (int64_t row = begin; row < end && !c->route; row++)
    copy_row(c, b, row, 0, c->to->shape[2]);
}

static dil_status copy_all(dil_threads *threads, copier *c) {
  int64_t each = task_rows(c), tasks = (c->rows + each - 1) / each;
  return dil_threads_run(threads, tasks * c->to->shape[0], copy_task, c);
}

/* Each number of lse is a row of its own. */
static dil_tensor with_width(const dil_tensor *t) {
  dil_tensor wide = *t;
  if (t->rank != 3) return wide;
  wide.rank = 4;
  wide.shape[3] = wide.stride[3] = 1;
  return wide;
}

dil_status row_copy(dil_threads *threads, const dil_tensor *from,
                       const dil_tensor *to) {
  dil_tensor source = with_width(from), target = with_width(to);
  copier c = {.from = &source, .to = &target, .rows = target.shape[1]};
  return copy_all(threads, &c);
}

/* Do all heads have the runs of the first? */
static bool heads_agree(const route *r, int64_t heads) {
  int32_t each = (int32_t)(r->run_count / heads);
  if (r->run_count % heads) return false;
  for (int32_t i = each; i < r->run_count; i++) {
    const route_run *a = &r->run[i], *b = &r->run[i % each];
    if (a->kv != i / each || b->kv != 0 || a->low != b->low ||
        a->high != b->high || a->period != b->period || a->count != b->count ||
        memcmp(r->offset + a->first, r->offset + b->first,
               (size_t)a->count * sizeof *r->offset))
      return false;
  }
  return true;
}

dil_status row_copy_route(dil_threads *threads, const route *r,
                             const dil_tensor *from, const dil_tensor *to,
                             int64_t first) {
  copier c = {.from = from, .to = to, .route = r, .first = first,
              .rows = r->rows, .runs = r->run_count};
  c.together = heads_agree(r, to->shape[2]);
  if (c.together) {
    c.rows /= to->shape[2];
    c.runs /= (int32_t)to->shape[2];
  }
  return copy_all(threads, &c);
}

/* ---- messages ------------------------------------------------------------ */

static void pack_row(packer *p, const dil_tensor *from, int32_t of, int64_t row,
                     int32_t kv, char *target) {
  const char *source = place(from, p->b, row, kv);
  const dil_tensor *to = &p->row[of];
  if (from->dtype == to->dtype)
    memcpy(target, source, (size_t)to->shape[3] * dil_dtype_size(to->dtype));
  else
    convert(from, source, to, target);
}

static void pack_task(void *context, int64_t index, int32_t worker) {
  (void)worker;
  packer *p = context;
  const route *r = p->list.route;
  int64_t n = p->begin + index * TASK_ROWS;
  int64_t end = minimum(n + TASK_ROWS, p->end);
  int64_t key = p->row[0].shape[3] * (int64_t)dil_dtype_size(p->row[0].dtype);
  char *target = p->message + (n - p->begin) * p->bytes;
  for (int32_t i = find_run(&p->list, n); n < end; i++) {
    const route_run *at = &r->run[i];
    int64_t stop = minimum(at->before + route_run_rows(r, i), end);
    for (; n < stop; n++, target += p->bytes) {
      int64_t row = route_position(r, at, n - at->before);
      pack_row(p, p->k, 0, row, at->kv, target);
      pack_row(p, p->v, 1, row, at->kv, target + key);
    }
  }
}

dil_status row_copy_pack(dil_threads *threads, const route *r,
                       const dil_tensor *k, const dil_tensor *v, int64_t b,
                       int64_t begin, int64_t end, dil_dtype dtype,
                       void *message) {
  const int64_t shape_of[2][4] = {{1, 1, 1, k->shape[3]},
                                  {1, 1, 1, v->shape[3]}};
  packer p = {.list = {.route = r, .runs = r->run_count}, .k = k, .v = v,
              .b = b, .begin = begin, .end = end, .message = message};
  for (int32_t i = 0; i < 2; i++)
    p.row[i] = dil_tensor_make(NULL, dtype, 4, shape_of[i]);
  p.bytes = (k->shape[3] + v->shape[3]) * (int64_t)dil_dtype_size(dtype);
  return dil_threads_run(threads, (end - begin + TASK_ROWS - 1) / TASK_ROWS,
                         pack_task, &p);
}
