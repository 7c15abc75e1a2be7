/* route.c - makes the list of the rows that travel between two ranks; see
 * route.h. In: ranges of rows from partition.c. Out: runs with their offsets,
 * counted. */
#include "route.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/rowset/walk.h"
#include <stdlib.h>
#include <string.h>

typedef struct route_builder {
  route *made;
  int32_t kv, runs_room, offsets_room;
  bool lacking;            /* there was no memory */
} route_builder;

static bool grow(void **array, int32_t *room, int32_t wanted, size_t size) {
  int32_t more = *room ? *room : 8;
  while (more < wanted) more = more > INT32_MAX / 2 ? INT32_MAX : more * 2;
  if (wanted <= *room) return true;
  void *grown = realloc(*array, (size_t)more * size);
  if (!grown) return false;
  *array = grown;
  *room = more;
  return true;
}

static bool same_offsets(const route *r, const row_range *s) {
  const route_run *last = r->run_count ? &r->run[r->run_count - 1] : NULL;
  return last && last->count == s->count &&
         !memcmp(r->offset + last->first, s->offset,
                 (size_t)s->count * sizeof *s->offset);
}

static void add_run(void *context, const row_range *s) {
  route_builder *m = context;
  route *r = m->made;
  bool same = same_offsets(r, s);
  int32_t first = same ? r->run[r->run_count - 1].first : r->offset_count;
  void *runs = r->run, *offsets = r->offset;
  if (m->lacking) return;
  m->lacking =
      !grow(&runs, &m->runs_room, r->run_count + 1, sizeof *r->run) ||
      !grow(&offsets, &m->offsets_room, first + s->count, sizeof *r->offset);
  r->run = runs;
  r->offset = offsets;
  if (m->lacking) return;
  if (!same) {
    memcpy(r->offset + first, s->offset, (size_t)s->count * sizeof *r->offset);
    r->offset_count += s->count;
  }
  r->run[r->run_count++] =
      (route_run){s->low, s->high, s->period, r->rows,
                  m->kv,  s->progression, first,     s->count};
  r->low = r->rows ? minimum(r->low, s->low) : s->low;
  r->high = r->rows ? maximum(r->high, s->high) : s->high;
  r->rows += row_range_count(s);
}

static dil_status end(route_builder *m, dil_status status) {
  if (!status && m->lacking)
    status = dil_fail(DIL_MEMORY, "no memory to list the rows that travel");
  if (status) route_free(m->made);
  return status;
}

dil_status route_between(const dil_table *t, const positions *owned,
                         const positions *asking, route *made) {
  route_builder m = {.made = made};
  dil_status status = DIL_OK;
  *made = (route){.from = -1, .to = -1, .owned = *owned};
  for (m.kv = 0; m.kv < t->kv_heads && !status; m.kv++)
    status = partition_reach(t, owned, asking, m.kv, add_run, &m);
  return end(&m, status);
}

dil_status route_new(const ring_shape *r, int32_t from, int32_t to,
                     exchange_phase phase, route *made) {
  route_builder m = {.made = made};
  dil_status status = DIL_OK;
  *made =
      (route){.from = from, .to = to, .owned = partition_travelling(r, from)};
  for (m.kv = 0; m.kv < partition_lists(r) && !status; m.kv++)
    status = partition_rows(r, from, to, m.kv, phase, add_run, &m);
  return end(&m, status);
}

static void *copy_list(const void *list, int32_t count, size_t size) {
  void *copy = malloc((size_t)count * size + 1);
  if (copy && count) memcpy(copy, list, (size_t)count * size);
  return copy;
}

dil_status route_reverse(const route *r, route *made) {
  route_builder m = {.made = made};
  *made = *r;
  made->from = r->to;
  made->to = r->from;
  made->back = !r->back;
  made->run = copy_list(r->run, r->run_count, sizeof *r->run);
  made->offset = copy_list(r->offset, r->offset_count, sizeof *r->offset);
  made->copy = NULL;
  m.lacking = !made->run || !made->offset;
  return end(&m, DIL_OK);
}

void route_free(route *r) {
  free(r->run);
  free(r->offset);
  r->run = NULL;
  r->offset = NULL;
  r->run_count = r->offset_count = 0;
}

int64_t route_row_bytes(const dil_table *t) {
  return (t->head_dim + t->value_dim) * (int64_t)dil_dtype_size(t->dtype);
}

int64_t route_run_rows(const route *r, int32_t index) {
  int64_t end = index + 1 < r->run_count ? r->run[index + 1].before : r->rows;
  return end - r->run[index].before;
}
