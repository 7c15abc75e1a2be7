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

/* What rows that run one by one reach of the f32 peak. */
static const double ROW_SHARE = 0.10;
/* Cycles that a vector of pairs takes to be judged, or to have its score
 * rewritten, before any operation of the expression. */
static const double JUDGE_CYCLES = 8, SCORE_CYCLES = 4;
/* Of bounding what a vector would take a cycle for. */
static const double BOUND_SECONDS = 2e-9;
/* A vector multiplies and adds twice a cycle: four operations a lane. */
static const double FLOPS_OF_LANE_CYCLE = 4;
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

/* ---- time ---------------------------------------------------------------- */

/* Cycles of one vector operation; leaves are at hand, inputs are gathered. */
static double operation_cycles(const expr *e) {
  switch (e->op) {
  case EXPR_EXP:
  case EXPR_LOG:
  case EXPR_TANH:
  case EXPR_HASH:
    return 12;
  case EXPR_DIV:
  case EXPR_MOD:
    return 8;
  case EXPR_INPUT:
    return 4;
  default:
    return e->count ? 1 : 0;
  }
}

static double expr_cycles(const expr *e) {
  double cycles = operation_cycles(e);
  for (int32_t i = 0; i < e->count; i++) cycles += expr_cycles(e->arg[i]);
  return cycles;
}

/* Of the branch's masks and keeps over one vector of pairs. */
static double mask_cycles(const branch *b) {
  double cycles = 0;
  for (int32_t i = 0; i < b->mask_count; i++) cycles += expr_cycles(b->mask[i]);
  for (int32_t level = 0; level < 2; level++)
    for (int32_t i = 0; i < b->keeps[level].count; i++)
      if (b->keeps[level].keep[i].kind == KEEP_EXPR)
        cycles += expr_cycles(b->keeps[level].keep[i].condition);
  return cycles;
}

static double score_cycles(const branch *b) {
  double cycles = b->score_count ? SCORE_CYCLES : 0;
  for (int32_t i = 0; i < b->score_count; i++)
    cycles += expr_cycles(b->score[i]);
  return cycles;
}

/* Lane cycles that predicates and scores take, the mean over the branches. */
static double pair_cycles(const pattern *p, double partial, double visited) {
  double judge = 0, score = 0;
  for (int32_t i = 0; i < p->branch_count; i++) {
    judge += (JUDGE_CYCLES + mask_cycles(&p->branch[i])) / p->branch_count;
    score += score_cycles(&p->branch[i]) / p->branch_count;
  }
  return partial * judge + visited * score;
}

/* Masks are bounded over every tile, by scalar code as long as they are. */
static double bound_seconds(const pattern *p, const cover_count *n) {
  double tiles = n->full + n->partial + n->empty, cycles = 0;
  for (int32_t i = 0; i < p->branch_count; i++)
    cycles += mask_cycles(&p->branch[i]) / p->branch_count;
  return tiles * cycles * BOUND_SECONDS;
}

/* Rows one by one: every pair by itself, keys in place. */
static double row_seconds(const pattern *p, const cost_case *c, double plain) {
  double lanes = pair_cycles(p, 0, c->count->pairs) * FLOPS_OF_LANE_CYCLE;
  return cost_flops(p, c->count->pairs) / (plain * ROW_SHARE) + lanes / plain;
}

/* Pairs computed in partial tiles, which leave out keys that none of their rows
 * keeps: between the pairs kept and all, here half-way in size. */
static double partial_visits(double kept, double all) {
  return sqrt(fmax(kept, 0) * all);
}

double cost_seconds(const pattern *p, const cost_case *c) {
  double dim = (double)(p->head_dim + p->value_dim) / 2;
  double plain = c->bf16 ? c->peak / 2 : c->peak; /* of f32 */
  if (c->rows) return row_seconds(p, c, plain);
  double partial = c->count->partial * c->tile;
  double full = c->count->full * c->tile;
  double visited = full + partial_visits(c->count->pairs - full, partial);
  if (c->dedup && c->count->pairs > 0)
    visited *= c->count->distinct / c->count->pairs;
  double slow = slowness[p->dtype].whole + slowness[p->dtype].each / dim;
  double lanes = pair_cycles(p, partial, visited) * FLOPS_OF_LANE_CYCLE;
  double packed = (double)c->B * (double)c->M * (double)p->kv_heads *
                  p->branch_count * 2 * dim * 4;
  return cost_flops(p, visited) * slow / c->peak + lanes / plain +
         packed / PACK_RATE + bound_seconds(p, c->count) / c->threads;
}
