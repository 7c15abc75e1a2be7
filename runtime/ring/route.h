/* route.h - the layout of a message: the list of the rows that travel from one
 * rank to another. The device of each rank packs and spreads by this list.
 *
 * A message holds, for each batch row, the rows of the list in order: a row of
 * K, then the same row of V; or a row of Q, then the same row of dO. Sender and
 * receiver compute the same list, so that no index travels. */
#ifndef DIL_RUNTIME_RING_ROUTE_H
#define DIL_RUNTIME_RING_ROUTE_H

#include "partition.h"

/* Some rows of one K/V head: the positions low + offset[first + i] + n * period
 * below `high`, for 0 <= i < count and n >= 0. */
typedef struct route_run {
  int64_t low, high, period;
  int64_t before;          /* number of the list's rows before this run */
  int32_t kv, progression; /* K/V head, or query head of a route of queries;
                              progression of the owner's shard */
  int32_t first, count;
} route_run;

typedef struct route {
  int32_t from, to;
  bool back;               /* the receiver owns the rows, not the sender */
  positions owned;         /* the keys, or the queries, of their owner */
  int64_t rows;            /* rows of all heads, in one batch row */
  int64_t low, high;       /* all positions are in low..high-1 */
  int32_t run_count, offset_count;
  route_run *run;
  int32_t *offset;
  void *copy;              /* the device's copy of the list; NULL: none yet */
} route;

dil_status route_new(const ring_shape *r, int32_t from, int32_t to,
                     exchange_phase phase, route *made);
/* The rows of `owned` that queries of `asking` reach, without a ring. */
dil_status route_between(const dil_table *table, const positions *owned,
                         const positions *asking, route *made);
/* The rows that go back along a route, to the rank that owns them: the same
 * list, from the receiver to the sender. Its reverse is the first route again.
 * The device makes its own copy of it. DIL_MEMORY. */
dil_status route_reverse(const route *r, route *made);
void route_free(route *route); /* the device frees its copy (forget) */

/* Bytes of one row of K and one of V. */
int64_t route_row_bytes(const dil_table *table);
/* Position of row `index` of a run. */
static inline int64_t route_position(const route *r, const route_run *run,
                                     int64_t index) {
  return run->low + index / run->count * run->period +
         r->offset[run->first + index % run->count];
}
/* Rows of a run. */
int64_t route_run_rows(const route *r, int32_t index);

#endif
