/* route.h - the rows that travel from one rank to another, as a list that is
 * made once and read by whoever packs or spreads them.
 *
 * A message holds, for each batch row, the rows of the list in order: a row of
 * K, then the same row of V. Sender and receiver make the same list. */
#ifndef DIL_ROUTE_H
#define DIL_ROUTE_H

#include "place.h"

/* Positions low + offset[first + i] + n * period below `high`, i < count. */
typedef struct route_run {
  int64_t low, high, period;
  int64_t before;          /* rows of the list that stand before these */
  int32_t kv, comb;        /* K/V head; comb of the sender's shard */
  int32_t first, count;
} route_run;

typedef struct route {
  int32_t from, to;
  shard owned;             /* the sender's keys */
  int64_t rows;            /* of one batch row */
  int64_t low, high;       /* all positions are in low..high-1 */
  int32_t run_count, offset_count;
  route_run *run;
  int32_t *offset;
  void *copy;              /* a device's own form of it; NULL: none yet */
} route;

dil_status route_new(const ring_shape *r, int32_t from, int32_t to,
                     place_part part, route *made);
/* The rows among some keys that some queries reach, whoever they are of. */
dil_status route_between(const dil_table *table, const shard *owned,
                         const shard *asking, route *made);
void route_free(route *route); /* the copy is its device's to free */

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
