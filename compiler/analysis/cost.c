/* cost.c - from counted pairs and tiles to operations, bytes and a predicted
 * time: every tile that is not empty is computed whole, at the share of the
 * peak that its dtype and head size reach, and k and v are packed once for
 * each branch. Masks and scores cost what their operations do (cost_expr.c); a
 * mask is bounded over each box that a walk asks about. */
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

/* The same of gradients, at head sizes 64 and 128. */
static const struct {
  double whole, each;
} gradient_slowness[DIL_DTYPE_COUNT] = {
    [DIL_F32] = {1.28, 0},
    [DIL_F16] = {1.22, 0},
    [DIL_BF16] = {1.25, 8.5},
};

/* The same of products by tiles, forward and of gradients: what is not a product takes
 * most of the time. */
static const struct {
  double whole, each;
} tile_slowness[] = {{3.7, 250}, {4.8, 190}};

/* The fraction of the f32 peak that rows reach that run one by one. */
static const double ROW_SHARE = 0.35;
/* Rows of one K/V head that go over the same keys together. */
static const double ROW_BATCH = 16;
/* Cycles that a vector of pairs takes to have its scores rewritten, and to be
 * masked besides, before any operation of the expressions. */
static const double REWRITE_CYCLES = 1.5, MASK_CYCLES = 1;
/* A key whose scores are rewritten: its position. */
static const double KEY_SECONDS = 2e-9;
/* A tile that is visited in parts costs as much as these keys more, each
 * part; neighbours are visited together, here two by two. */
static const double VISIT_KEYS = 8, VISIT_PIECES = 2;
/* A box of a walk, before any operation of its masks. */
static const double BOX_SECONDS = 5e-9;
/* An element that lanes gather, with its address and the check of it. */
static const double GATHER_SECONDS = 0.6e-9;
/* A vector multiplies and adds twice a cycle: four operations a lane. */
static const double FLOPS_OF_LANE_CYCLE = 4;
/* Bytes a second: of rows packed, of keys read in order, of lines of an input
 * that rows of a tile fetch each for itself. */
static const double PACK_RATE = 10e9, READ_RATE = 8e9, FETCH_RATE = 3.5e9;

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

/* ---- masks and scores ---------------------------------------------------- */

static bool branch_has_masks(const branch *b) {
  return b->mask_count > 0 || b->keeps[0].count > 0 || b->keeps[1].count > 0;
}

static bool any_masks(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (branch_has_masks(&p->branch[i])) return true;
  return false;
}

static bool any_scores(const pattern *p) {
  for (int32_t i = 0; i < p->branch_count; i++)
    if (p->branch[i].score_count > 0) return true;
  return false;
}

typedef cost_work work_function(const pattern *p, const cost_case *c,
                                const branch *b);

/* The mean over the branches. */
static cost_work mean_work(const pattern *p, const cost_case *c,
                           work_function *work) {
  cost_work sum = {0};
  for (int32_t i = 0; i < p->branch_count; i++) {
    cost_work one = work(p, c, &p->branch[i]);
    sum.cycles += one.cycles / p->branch_count;
    sum.gathered += one.gathered / p->branch_count;
    sum.fetched += one.fetched / p->branch_count;
    sum.key_seconds += one.key_seconds / p->branch_count;
    sum.inputs |= one.inputs;
  }
  return sum;
}

static double f32_peak(const cost_case *c) {
  static const double shares[] = {[COST_F32] = 1, [COST_PAIRS] = 2, [COST_TILES] = 16};
  return c->peak / shares[c->products];
}

/* Of one thread: cycles go by the peak, all else by the clock. Rows that run
 * alone share no keys. */
static double work_seconds(const cost_case *c, const cost_work *w, double base,
                           double pairs) {
  double lanes = pairs * (base + w->cycles) * FLOPS_OF_LANE_CYCLE / f32_peak(c);
  double keys = pairs / (c->rows ? 1 : COST_TILE_ROWS);
  double other = pairs * w->gathered * GATHER_SECONDS +
                 pairs * w->fetched / FETCH_RATE + keys * w->key_seconds;
  return lanes + other / c->threads;
}

/* Every pair whose score is rewritten, by scores or because a mask hides it. */
static void add_work(cost_parts *to, const pattern *p, const cost_case *c,
                     double visited, double masked_pairs) {
  cost_work masks = mean_work(p, c, cost_masks);
  cost_work scores = mean_work(p, c, cost_scores);
  masks.key_seconds += KEY_SECONDS;
  scores.key_seconds += KEY_SECONDS;
  if (any_scores(p)) {
    to->scores = work_seconds(c, &scores, REWRITE_CYCLES, visited);
    to->fetched = visited * scores.fetched / FETCH_RATE / c->threads;
  }
  double base = MASK_CYCLES + (any_scores(p) ? 0 : REWRITE_CYCLES);
  to->masks = work_seconds(c, &masks, base, masked_pairs);
}

/* Inputs that masks read are summed up once a call. */
static double bound_seconds(const pattern *p, const cost_case *c) {
  double box = BOX_SECONDS, elements = 0;
  uint64_t inputs = mean_work(p, c, cost_masks).inputs;
  for (int32_t i = 0; i < p->branch_count; i++)
    box += cost_bound(p, c, &p->branch[i]) / p->branch_count;
  for (; inputs; inputs &= inputs - 1)
    elements += cost_input_count(p, c, __builtin_ctzll(inputs));
  return c->count->asked * box / c->threads + elements * COST_ELEMENT_SECONDS;
}

/* ---- time ---------------------------------------------------------------- */

/* Keys that a row of the branch goes over, by itself: masks skip none. */
static double row_reach(const branch *b, double M) {
  double reach = M;
  if (b->segment) reach = fmin(reach, (double)b->segment);
  if (b->left != DIL_ENDLESS && b->right != DIL_ENDLESS)
    reach = fmin(reach, (double)b->left + (double)b->right + 1);
  else if (b->left != DIL_ENDLESS && b->causal)
    reach = fmin(reach, (double)b->left + 1);
  return reach / (double)b->dilation;
}

static double row_pairs(const pattern *p, const cost_case *c) {
  double pairs = 0;
  if (!any_masks(p)) return c->count->pairs;
  for (int32_t i = 0; i < p->branch_count; i++) {
    const branch *b = &p->branch[i];
    pairs += (b->head_last - b->head_first + 1) * row_reach(b, (double)c->M);
  }
  return fmax((double)c->B * (double)c->N * pairs, c->count->pairs);
}

/* Rows one by one, in batches that share their keys while these are near. */
static cost_parts row_parts(const pattern *p, const cost_case *c) {
  double rate = f32_peak(c) * ROW_SHARE, pairs = row_pairs(p, c);
  double group = (double)p->heads / (double)p->kv_heads * (double)c->N;
  double bytes = pairs / fmax(fmin(group, ROW_BATCH), 1) * /* N may be 0 */
                 (double)(p->head_dim + p->value_dim) *
                 (double)dil_dtype_size(p->dtype);
  cost_parts parts = {.products = cost_flops(p, pairs) / rate,
                      .kept = cost_flops(p, c->count->pairs) / rate,
                      .rows = bytes / READ_RATE / c->threads};
  add_work(&parts, p, c, pairs, any_masks(p) ? pairs : 0);
  return parts;
}

/* Pairs of partial tiles that are computed. Where windows alone cut them, keys
 * that no row of the tile sees are left out: half a square is computed beside
 * the kept keys. */
static double partial_visits(const cost_case *c, double tile, bool masked) {
  double partial = c->count->partial * tile;
  double kept = fmax(c->count->pairs - c->count->full * tile, 0);
  double square = (double)COST_TILE_ROWS * COST_TILE_ROWS / 2;
  return masked ? partial : fmin(kept + c->count->partial * square, partial);
}

/* Parts of tiles that are visited by themselves. */
static double tile_visits(const cost_case *c, bool masked) {
  const cover_count *n = c->count;
  return masked ? (n->full + n->partial - n->together) / VISIT_PIECES
                : n->partial;
}

/* q, k and v packed, once for each branch, and o written. */
static double packed_bytes(const pattern *p, const cost_case *c) {
  double rows = (double)c->M * (double)p->kv_heads * p->branch_count +
                (double)c->N * (double)p->heads;
  return (double)c->B * rows * (double)(p->head_dim + p->value_dim) * 4;
}

/* The peak over the rate that products reach. */
static double slow_of(const pattern *p, const cost_case *c) {
  double dim = (double)(p->head_dim + p->value_dim) / 2;
  const bool backward = c->backward;
  if (c->products == COST_TILES)
    return tile_slowness[backward].whole + tile_slowness[backward].each / dim;
  return backward ? gradient_slowness[p->dtype].whole +
                        gradient_slowness[p->dtype].each / dim
                  : slowness[p->dtype].whole + slowness[p->dtype].each / dim;
}

/* Operations of so many pairs, in the direction of the case. */
static double tile_flops(const pattern *p, const cost_case *c, double pairs) {
  return c->backward ? cost_gradient_flops(p, pairs) : cost_flops(p, pairs);
}

static cost_parts tile_parts(const pattern *p, const cost_case *c) {
  const cover_count *n = c->count;
  double tile = (double)COST_TILE_ROWS * c->tile_keys;
  double slow = slow_of(p, c);
  bool masked = any_masks(p);
  double masked_pairs = partial_visits(c, tile, masked);
  double visited = n->full * tile + masked_pairs;
  double extra = tile_visits(c, masked) * VISIT_KEYS * COST_TILE_ROWS;
  double once = c->dedup && n->pairs > 0 ? n->distinct / n->pairs : 1;
  cost_parts parts = {
      .products = tile_flops(p, c, (visited + extra) * once) * slow / c->peak,
      .kept = tile_flops(p, c, n->pairs * once) * slow / c->peak,
      .bounds = masked ? bound_seconds(p, c) : 0,
      .rows = packed_bytes(p, c) / PACK_RATE / c->threads};
  add_work(&parts, p, c, visited * once, masked_pairs * once);
  return parts;
}

cost_parts cost_split(const pattern *p, const cost_case *c) {
  return c->rows ? row_parts(p, c) : tile_parts(p, c);
}

double cost_seconds(const pattern *p, const cost_case *c) {
  cost_parts parts = cost_split(p, c);
  return parts.products + parts.masks + parts.scores + parts.bounds +
         parts.rows;
}
