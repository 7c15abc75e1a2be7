/* cpu_grid.c - a call of a pattern with a grid, on any device. In: a plan's grid
 * and a call. Out: DIL_USAGE unless queries and keys are the grid's cells, each
 * once. */
#include "cpu_run.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"
#include <stdio.h>

/* "128 x 128", "any x 48 x 80". */
static const char *grid_text(const dil_grid *g, char *text, size_t size) {
  size_t used = 0;
  for (int32_t a = 0; a < g->axes && used < size; a++) {
    const char *by = a ? " x " : "";
    int more = g->extent[a] ? snprintf(text + used, size - used, "%s%lld", by,
                                       (long long)g->extent[a])
                            : snprintf(text + used, size - used, "%sany", by);
    used += more > 0 ? (size_t)more : 0;
  }
  return text;
}

dil_status dil_grid_check_lengths(const dil_table *table,
                                  const dil_call *call) {
  if (!table->grid.axes) return DIL_OK;
  if (documents_given(call))
    return dil_fail(DIL_USAGE, "kernel '%s' has a grid and takes no packed "
                    "documents: each batch row has all cells", table->name);
  if (call->pages.number)
    return dil_fail(DIL_USAGE, "kernel '%s' has a grid and takes no pages: each "
                    "batch row has all cells", table->name);
  if (!call->lengths) return DIL_OK;
  return dil_fail(DIL_USAGE, "kernel '%s' has a grid and takes no lengths: each "
                  "batch row has all cells", table->name);
}

/* A rank of a topology without a ring has all rows; it begins and ends them
 * without keys. */
static bool is_whole(const cpu_run *r) {
  const dil_shard *s = r->shard;
  return !s || (s->N == r->N && (s->M == r->M || r->M == 0));
}

/* Lists of blocks want blocks that divide the grid; the checker has seen to all
 * axes but one of any extent. */
static dil_status check_blocks(const dil_table *t, int64_t M) {
  int64_t extent = M / dil_grid_plane(&t->grid);
  for (int32_t i = t->input_count; i < dil_table_reads(t); i++) {
    int32_t size = t->inputs[i].cell[0];
    if (size && extent % size)
      return dil_fail(DIL_USAGE, "blocks of %d cells do not divide the first axis "
                      "of the grid of kernel '%s', which has %lld", size, t->name,
                      (long long)extent);
  }
  return DIL_OK;
}

dil_status cpu_run_check_grid(const cpu_run *r) {
  const dil_grid *g = &r->table->grid;
  int64_t cells = dil_grid_cells(g), plane = dil_grid_plane(g);
  int64_t N = r->shard ? r->shard->N : r->N, M = r->shard ? r->shard->M : r->M;
  char text[96];
  dil_status status = dil_grid_check_lengths(r->table, r->call);
  if (status || !g->axes) return status;
  if (!is_whole(r))
    return dil_fail(DIL_USAGE, "kernel '%s' has a grid, whose cells are neither "
                    "shared out by a ring nor streamed", r->table->name);
  bool fits = cells ? M == cells : M % plane == 0;
  if (fits && N == M) return check_blocks(r->table, M);
  return dil_fail(DIL_USAGE, "the grid of kernel '%s' is %s: q and k have %s%lld "
                  "rows, got %lld and %lld", r->table->name,
                  grid_text(g, text, sizeof text),
                  cells ? "" : "the same multiple of ",
                  (long long)(cells ? cells : plane), (long long)N,
                  (long long)M);
}
