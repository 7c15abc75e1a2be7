/* way.h - the way that each branch goes in a run backward over a ring. Keys come:
 * K and V go to the queries, and dK and dV come back in f32. Queries come: Q, dO
 * and the numbers of the rows go to the keys, and dQ comes back in f32. A branch
 * takes the way of fewer bytes. All ranks of a ring choose alike. */
#ifndef DIL_RUNTIME_RING_WAY_H
#define DIL_RUNTIME_RING_WAY_H

#include "route.h"

/* Bytes there and back of a branch that travels alone, between all ranks. */
typedef struct way_bytes {
  double keys, queries;
} way_bytes;

/* Counts both ways of each branch for `B` batch rows. Masks are not looked at. Of
 * a K/V head's rows the first head of the branch stands for all, and of a large
 * ring some ranks stand for all. As partition_reach. */
dil_status way_count(const ring_shape *r, int64_t B,
                     way_bytes bytes[DIL_BRANCH_MAX]);
/* The branches whose queries come, as bits. Branches of a union go one way
 * together, since each of their pairs counts once for all of them. */
uint64_t way_cheaper(const dil_table *table,
                     const way_bytes bytes[DIL_BRANCH_MAX]);
uint64_t way_settle(const dil_table *table, uint64_t queries);

/* Bytes of one row: of a query there, of a key's gradients back, and of a query's
 * back. A key there: route_row_bytes. */
int64_t way_query_bytes(const dil_table *table);
int64_t way_key_back(const dil_table *table);
int64_t way_query_back(const dil_table *table);

/* The shapes of the two ways: each leaves out the branches of the other. */
ring_shape way_keys(const ring_shape *r, uint64_t queries);
ring_shape way_queries(const ring_shape *r, uint64_t queries);

#endif
