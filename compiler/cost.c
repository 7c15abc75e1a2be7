/* cost.c - from counted pairs and tiles to operations, bytes and a predicted
 * time: every tile that is not empty is computed whole, at the share of the
 * peak that its dtype and head size reach, and k and v are packed once for
 * each branch. */
#include "cost.h"
#include <math.h>

/* 1 / share of the peak = whole + each / mean(D, Dv), from kernels measured at
 * head sizes 32 to 256 and 2048 keys; bf16 is beside its own, doubled peak. */
static const struct {
  double whole, each;
} slowness[DIL_DTYPE_COUNT] = {
    [DIL_F32] = {1.03, 3.85},
    [DIL_F16] = {1.04, 3.85},
    [DIL_BF16] = {1.057, 8.1},
};

/* A partial tile also evaluates its predicate; a scored one its scores: cycles
 * of a vector of 16 pairs, as operations that the peak would have done. */
static const double PREDICATE_FLOPS = 64, SCORE_FLOPS = 160;
/* Bytes a second that packing k and v reads and writes. */
static const double PACK_RATE = 10e9;

double cost_flops(const pattern *p, double reached) {
  return 2.0 * (double)(p->head_dim + p->value_dim) * reached;
}

double cost_bytes(const pattern *p, int64_t N, int64_t M) {
  double queries = (double)N * (double)p->heads;
  double keys = (double)M * (double)p->kv_heads;
  return (queries + keys) * (double)(p->head_dim + p->value_dim) *
         (double)dil_dtype_size(p->dtype);
}

double cost_dense(const pattern *p, int64_t N, int64_t M, bool causal) {
  double rows = (double)N, keys = (double)M, heads = (double)p->heads;
  if (!causal) return heads * rows * keys;
  /* rows at t = M - N .. M - 1 see t + 1 keys, those at t < 0 none */
  double seen = fmin(rows, keys);
  return heads * (seen * keys - seen * (seen - 1) / 2);
}

static bool is_scored(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (p->branch[i].score_count) return true;
  return false;
}

double cost_seconds(const pattern *p, const cover_count *count, int64_t M,
                    int64_t batch, bool dedup, double peak) {
  double dim = (double)(p->head_dim + p->value_dim) / 2;
  double area = (double)COST_TILE_ROWS * COST_TILE_KEYS;
  double visited = (count->full + count->partial) * area;
  if (dedup && count->pairs > 0) visited *= count->distinct / count->pairs;
  double flops = cost_flops(p, visited) *
                 (slowness[p->dtype].whole + slowness[p->dtype].each / dim);
  flops += count->partial * area * PREDICATE_FLOPS;
  if (is_scored(p)) flops += visited * SCORE_FLOPS;
  double packed = (double)M * (double)p->kv_heads * 2 * dim * 4;
  packed *= (double)batch * p->branch_count;
  return flops / peak + packed / PACK_RATE;
}
