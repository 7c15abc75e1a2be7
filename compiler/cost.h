/* cost.h - what a call costs: counted by cover, and predicted in time. */
#ifndef DIL_COST_H
#define DIL_COST_H

#include "all.h"

enum { COST_TILE_ROWS = 32, COST_TILE_KEYS = 128 };

/* Floating point operations of the definition for that many pairs. */
double cost_flops(const pattern *p, double reached);
/* Bytes of q, k, v and o of one batch row. */
double cost_bytes(const pattern *p, int64_t N, int64_t M);
/* (query, key, head) triples of dense attention over one batch row; causal:
 * those with j <= t. */
double cost_dense(const pattern *p, int64_t N, int64_t M, bool causal);
/* Seconds on the cpu for what was counted over `batch` batch rows of M keys,
 * when all threads together reach `peak` operations a second. dedup: keys that
 * several branches reach are visited once. A prediction, not a measurement. */
double cost_seconds(const pattern *p, const cover_count *count, int64_t M,
                    int64_t batch, bool dedup, double peak);

#endif
