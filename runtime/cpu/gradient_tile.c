/* gradient_tile.c - query rows backward: loaded, taken over their keys, and
 * their dQ written.
 *
 * In: rows of one class of a cell, dO, o and lse. delta is dO . o - dlse. A
 * branch with a softmax of its own (`mean`, `sum`) has an lse and an o of its
 * own: the tile first runs forward to make them. Under `gradient detached` the
 * lse is the joint one, and each branch has a delta of its own: the mean of dP
 * by the branch's weights. In f32 one walk makes those of all branches from the
 * joint weights; else the tile runs forward for each branch. */
#include "gradient.h"
#include "patch_tile.h"
#include "runtime/arch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- memory -------------------------------------------------------------- */

static int64_t outer_bytes(const dil_code *code, int64_t width) {
  return code->lanes / code->pack * dil_code_outer(width) * DIL_CODE_CELL;
}

static void cut_rows(cutter *c, const cpu_gradient_run *g,
                     gradient_rows *rows) {
  const dil_table *table = g->run->table;
  const dil_code *code = g->run->code[DIL_TILES];
  int64_t row = code->lanes * (int64_t)sizeof(float);
  rows->q = cutter_cut(c, outer_bytes(code, table->head_dim));
  rows->d = cutter_cut(c, outer_bytes(code, table->value_dim));
  rows->dot = cutter_cut(c, round_up(table->value_dim, 2) * row);
  rows->dq = cutter_cut(c, table->head_dim * row);
  rows->dq_sum = cutter_cut(c, table->head_dim * row);
  rows->lse = cutter_cut(c, row);
  rows->delta = cutter_cut(c, row);
  int64_t sums = g->weighs ? table->branch_count * 2 * row : 0;
  rows->weights = cutter_cut(c, sums);
  rows->dots = cutter_cut(c, sums);
}

/* Rows of a range: their packed keys and sums stay in the cache. */
static int64_t range_rows(const cpu_gradient_run *g) {
  const dil_table *table = g->run->table;
  const dil_code *code = g->run->code[DIL_TILES];
  int64_t bytes = pack_key_bytes(table->head_dim, code->pack) +
                  pack_value_bytes(table->value_dim, code->pack) +
                  (dil_code_outer(table->head_dim) +
                   dil_code_outer(table->value_dim)) * DIL_CODE_CELL;
  return maximum(2 * RANGE_BYTES / bytes, code->tile_keys);
}

static int64_t cut_worker(gradient_worker *wk, const cpu_gradient_run *g,
                          char *memory) {
  const dil_code *code = g->run->code[DIL_TILES];
  cutter c = {memory, 0};
  int64_t row = code->lanes * (int64_t)sizeof(float);
  int64_t tile = (code->tile_keys + code->key_block) * row;
  bool pairs = code->pack == DIL_PACK_BF16_PAIRS;
  for (int32_t i = 0; i < TILE_GROUP; i++) cut_rows(&c, g, &wk->rows[i]);
  wk->dp = cutter_cut(&c, tile);
  wk->raw = g->sums_length ? cutter_cut(&c, tile) : NULL;
  wk->plain = g->sums_length ? cutter_cut(&c, tile) : NULL;
  wk->slope = g->run->table->scored ? cutter_cut(&c, tile) : NULL;
  wk->ones = cutter_cut(&c, row);
  wk->zeros = cutter_cut(&c, row);
  wk->p = pairs ? cutter_cut(&c, tile / 2) : wk->tile.s;
  wk->ds = pairs ? cutter_cut(&c, tile / 2) : wk->dp;
  wk->pairs = pairs ? cutter_cut(&c, tile / 2 + row) : wk->dp;
  return c.used;
}

int64_t gradient_worker_bytes(const cpu_gradient_run *g, const dil_pass *pass) {
  gradient_worker unused = {.of = NULL};
  return round_up(tile_worker_bytes(g->run, pass), 64) +
         cut_worker(&unused, g, NULL);
}

void gradient_worker_init(gradient_worker *wk, const cpu_gradient_run *g,
                          const dil_pass *pass, char *memory) {
  *wk = (gradient_worker){.of = g};
  tile_worker_init(&wk->tile, g->run, pass, memory);
  cut_worker(wk, g, memory + round_up(tile_worker_bytes(g->run, pass), 64));
  wk->tile.range_rows = range_rows(g);
  wk->tile.enter = gradient_enter;
  wk->tile.finish = FINISH_WRITE;
  for (int32_t lane = 0; lane < wk->tile.code->lanes; lane++) {
    wk->ones[lane] = 1;
    wk->zeros[lane] = 0;
  }
}

/* ---- loading ------------------------------------------------------------- */

/* Rows as dk and dv take them, zeros behind each; true: all are finite. */
static bool pack_outer(const gradient_worker *wk, const row_view *from,
                       const int32_t *t, void *out) {
  const dil_code *code = wk->tile.code;
  int64_t row = dil_code_outer(from->width) * DIL_CODE_CELL;
  bool finite = true;
  memset(out, 0, (size_t)outer_bytes(code, from->width));
  for (int32_t lane = 0; lane < code->lanes; lane += code->pack) {
    char *to = (char *)out + lane / code->pack * row;
    const char *first = row_view_at(from, t[lane]);
    if (code->pack == DIL_PACK_BF16_PAIRS) {
      const char *second = row_view_at(from, t[lane + 1]);
      finite &= dil_host_arch.interleave((const uint16_t *)first,
                                         (const uint16_t *)second, from->width,
                                         (uint16_t *)to);
      continue;
    }
    row_to_f32(first, from->dtype, from->width, (float *)to);
    finite &= dil_host_arch.is_finite((const float *)to, from->width);
  }
  return finite;
}

/* Asks for the rows of dO and o of tile i. */
static void fetch_rows(const gradient_worker *wk, int32_t i, int64_t b) {
  const cpu_run *r = wk->tile.run;
  const dil_tensor *rows[] = {&wk->of->call->output, &r->call->o};
  if (i >= wk->tile.group_count) return;
  for (int x = 0; x < 2; x++) {
    row_view of =
        cpu_run_row_view(rows[x], b, wk->tile.walk.head, cpu_run_queries(r, b));
    pack_fetch_queries(&of, wk->tile.group[i].t, wk->tile.code->lanes);
  }
}

/* Elements of a tile's dQ. */
static int64_t dq_length(const gradient_worker *wk) {
  return (int64_t)wk->tile.run->table->head_dim * wk->tile.code->lanes;
}

static void load_rows(gradient_worker *wk, int32_t i, int64_t b) {
  const cpu_run *r = wk->tile.run;
  int32_t head = wk->tile.walk.head;
  const query_tile *q = &wk->tile.group[i];
  gradient_rows *rows = &wk->rows[i];
  dil_progression asked = cpu_run_queries(r, b);
  row_view queries = cpu_run_row_view(&r->call->q, b, head, asked);
  row_view output = cpu_run_row_view(&wk->of->call->output, b, head, asked);
  pack_queries(&output, q->t, wk->tile.code->lanes, wk->tile.code->pack,
               rows->dot, wk->tile.spare);
  bool finite = pack_outer(wk, &queries, q->t, rows->q);
  rows->finite = pack_outer(wk, &output, q->t, rows->d) && finite;
  size_t bytes = (size_t)dq_length(wk) * sizeof(float);
  memset(rows->dq, 0, bytes);
  memset(rows->dq_sum, 0, bytes);
}

/* A lane without a row has no weight. */
static void close_lanes(const gradient_worker *wk, gradient_rows *rows,
                        int64_t count) {
  for (int64_t lane = count; lane < wk->tile.code->lanes; lane++) {
    rows->lse[lane] = INFINITY;
    rows->delta[lane] = 0;
  }
}

/* lse and delta of the joint softmax. */
static void load_joint(gradient_worker *wk, int32_t i, int64_t count,
                       int64_t b) {
  gradient_rows *rows = &wk->rows[i];
  for (int32_t lane = 0; lane < count; lane++) {
    int64_t n = cpu_run_row(wk->tile.run, b, wk->tile.group[i].t[lane]);
    gradient_row(wk->of, b, n, wk->tile.walk.head, wk->tile.spare,
                 &rows->lse[lane], &rows->delta[lane]);
  }
  close_lanes(wk, rows, count);
}

/* ---- a softmax of a branch ----------------------------------------------- */

/* The delta of the o that the visits forward have just summed in the tile, and
 * its lse unless the joint one holds. */
static void load_branch(gradient_worker *wk, int32_t i, int64_t count,
                        int64_t b) {
  const cpu_run *r = wk->tile.run;
  int32_t lanes = wk->tile.code->lanes, width = r->table->value_dim;
  const query_tile *q = &wk->tile.group[i];
  gradient_rows *rows = &wk->rows[i];
  row_view given = cpu_run_row_view(&wk->of->call->output, b,
                                    wk->tile.walk.head, cpu_run_queries(r, b));
  float *d = wk->tile.spare;
  for (int32_t lane = 0; lane < count; lane++) {
    double sum = 0;
    row_to_f32(row_view_at(&given, q->t[lane]), given.dtype, width, d);
    for (int32_t at = 0; at < width; at++)
      sum += (double)d[at] * q->o[at * lanes + lane];
    bool none = q->l[lane] == 0;
    if (!none) sum /= q->l[lane];
    int64_t n = cpu_run_row(r, b, q->t[lane]);
    float dlse = gradient_of_lse(wk->of, b, n, wk->tile.walk.head);
    rows->delta[lane] = (float)(sum - dlse / r->weight);
    if (wk->of->own_lse)
      rows->lse[lane] = none ? INFINITY : q->m[lane] + log2f(q->l[lane]);
  }
  close_lanes(wk, rows, count);
}

/* The state before the keys of a branch under `gradient detached`: its own
 * sinks. */
static void begin_branch(gradient_worker *wk, uint64_t branch) {
  tile_worker *tile = &wk->tile;
  int32_t lanes = tile->code->lanes;
  bool sinks = tile->run->table->sink_branches & branch;
  for (int32_t i = 0; i < tile->group_count; i++) {
    const query_tile *q = &tile->group[i];
    memset(q->o, 0,
           (size_t)(tile->run->table->value_dim * lanes) * sizeof(float));
    if (sinks)
      wk->of->code->branch_sink(branch, q->t, lanes, &tile->env.env, tile->mx);
    for (int32_t lane = 0; lane < lanes; lane++)
      state_begin(sinks ? tile->mx[lane] : -INFINITY, &q->m[lane],
                  &q->l[lane]);
  }
}

/* Rows of tile i among those of the group. */
static int64_t rows_in_tile(const gradient_worker *wk, int32_t i,
                            int64_t all) {
  int64_t lanes = wk->tile.code->lanes;
  return minimum(all - i * lanes, lanes);
}

/* The gradients of sinks that the softmax of `branches` has: the pattern's are
 * its own only where there is no joint one. */
static void add_sinks(gradient_worker *wk, int32_t i, uint64_t branches,
                      int64_t count) {
  const gradient_rows *rows = &wk->rows[i];
  if (!wk->of->sums || !wk->tile.run->table->sinks) return;
  if (wk->tile.run->shard) return; /* see gradient_shard.c */
  wk->of->code->sink_inputs(wk->of->own_lse, branches, wk->tile.group[i].t,
                            count, &wk->tile.env.env, rows->lse, rows->delta,
                            wk->sums);
}

/* lse and delta of a shard's rows: the keys of the shard alone do not say
 * them. */
static void load_states(gradient_worker *wk, int32_t i, int64_t count,
                        int64_t b) {
  gradient_rows *rows = &wk->rows[i];
  for (int32_t lane = 0; lane < count; lane++) {
    int64_t n = cpu_run_row(wk->tile.run, b, wk->tile.group[i].t[lane]);
    gradient_shard_row(wk->of, b, n, wk->tile.walk.head, wk->tile.spare,
                       &rows->lse[lane], &rows->delta[lane]);
  }
  close_lanes(wk, rows, count);
}

static void run_states_of(gradient_worker *wk, segment_cell held,
                          uint64_t branches, int64_t rows_count, int64_t b) {
  for (int32_t i = 0; i < wk->tile.group_count; i++)
    load_states(wk, i, rows_in_tile(wk, i, rows_count), b);
  wk->tile.visit = gradient_visit;
  query_tile_visit(&wk->tile, held, branches);
}

/* `branches` forward over all keys of the block, and then their pairs. */
static void run_branches(gradient_worker *wk, segment_cell held,
                         uint64_t branches, int64_t rows_count, int64_t b) {
  int64_t from = wk->from, to = wk->to;
  if (wk->of->detached) begin_branch(wk, branches);
  wk->from = 0;
  wk->to = INT64_MAX;
  wk->tile.visit = key_visit_forward;
  query_tile_visit(&wk->tile, held, branches);
  for (int32_t i = 0; i < wk->tile.group_count; i++) {
    int64_t count = rows_in_tile(wk, i, rows_count);
    load_branch(wk, i, count, b);
    add_sinks(wk, i, branches, count);
  }
  wk->from = from;
  wk->to = to;
  wk->tile.visit = gradient_visit;
  query_tile_visit(&wk->tile, held, branches);
}

/* ---- deltas of branches, from the joint weights ---------------------------
 */

static void begin_weights(gradient_worker *wk) {
  int64_t length =
      (int64_t)wk->tile.run->table->branch_count * wk->tile.code->lanes;
  for (int32_t i = 0; i < wk->tile.group_count; i++) {
    memset(wk->rows[i].weights, 0, (size_t)length * sizeof(double));
    memset(wk->rows[i].dots, 0, (size_t)length * sizeof(double));
  }
}

/* The delta of one branch in the place of its dots, and for its sinks. A row's
 * sinks are part of the branch's weights. */
static void end_weights(gradient_worker *wk, int32_t i, int32_t branch,
                        int64_t count, int64_t b) {
  tile_worker *tile = &wk->tile;
  const gradient_rows *rows = &wk->rows[i];
  int32_t lanes = tile->code->lanes;
  double *dots = rows->dots + (int64_t)branch * lanes;
  const double *weights = rows->weights + (int64_t)branch * lanes;
  const int32_t *t = tile->group[i].t;
  bool sinks = tile->run->table->sink_branches >> branch & 1;
  if (sinks)
    wk->of->code->branch_sink(1ull << branch, t, lanes, &tile->env.env,
                              tile->mx);
  for (int32_t lane = 0; lane < count; lane++) {
    float lse = rows->lse[lane];
    double sum = weights[lane];
    if (sinks && lse != INFINITY)
      sum += exp2((double)tile->mx[lane] * DIL_LOG2_E - lse);
    if (sum > 0) dots[lane] /= sum;
    dots[lane] -= gradient_of_lse(wk->of, b, cpu_run_row(tile->run, b, t[lane]),
                                  tile->walk.head);
    rows->delta[lane] = (float)dots[lane];
  }
  add_sinks(wk, i, 1ull << branch, count);
}

/* One walk for the deltas, and then the pairs. */
static void run_weighed(gradient_worker *wk, segment_cell held,
                        uint64_t branches, int64_t rows_count, int64_t b) {
  int64_t from = wk->from, to = wk->to;
  begin_weights(wk);
  wk->from = 0;
  wk->to = INT64_MAX;
  wk->tile.visit = gradient_weigh;
  query_tile_visit(&wk->tile, held, branches);
  for (int32_t i = 0; i < wk->tile.group_count; i++)
    for (uint64_t rest = branches; rest; rest &= rest - 1)
      end_weights(wk, i, __builtin_ctzll(rest), rows_in_tile(wk, i, rows_count),
                  b);
  wk->from = from;
  wk->to = to;
  wk->tile.visit = gradient_visit;
  query_tile_visit(&wk->tile, held, branches);
}

/* ---- dQ ------------------------------------------------------------------ */

void gradient_end_part(gradient_worker *wk) {
  int64_t length = dq_length(wk);
  if (!wk->wants_dq) return;
  for (int32_t i = 0; i < wk->tile.group_count; i++) {
    float *dq = wk->rows[i].dq, *sum = wk->rows[i].dq_sum;
    for (int64_t at = 0; at < length; at++) sum[at] += dq[at];
    memset(dq, 0, (size_t)length * sizeof *dq);
  }
}

void gradient_store_row(const cpu_gradient_target *target, float *sum,
                        float factor, char *to) {
  int64_t width = target->to.shape[3];
  for (int64_t d = 0; d < width; d++) sum[d] *= factor;
  if (!target->add) {
    row_from_f32(sum, target->to.dtype, (int32_t)width, to);
    return;
  }
  for (int64_t d = 0; d < width; d++) ((float *)to)[d] += sum[d];
}

/* Lanes of `dq` times `factor`, to their rows of the target. */
static void store_lanes(gradient_worker *wk, int32_t i, int64_t count,
                        int64_t b, const cpu_gradient_target *target,
                        const float *dq, float factor) {
  const cpu_run *r = wk->tile.run;
  char *out[DIL_LANES_MAX] = {0};
  row_view rows = cpu_run_row_view(&target->to, b, wk->tile.walk.head,
                                   cpu_run_queries(r, b));
  for (int32_t lane = 0; lane < wk->tile.code->lanes; lane++) {
    wk->tile.mx[lane] = factor;
    if (lane < count)
      out[lane] = (char *)row_view_at(&rows, wk->tile.group[i].t[lane]);
  }
  unpack_rows(dq, r->table->head_dim, wk->tile.code->lanes, wk->tile.mx, out,
              target->to.dtype, target->add, wk->tile.spare);
}

/* The factor of the sums of dQ. */
static float dq_factor(const gradient_worker *wk) {
  return wk->tile.env.env.scale * wk->tile.run->weight;
}

static void store_dq(gradient_worker *wk, int32_t i, int64_t count, int64_t b) {
  const cpu_gradient_target part = {.to = wk->part_dq};
  if (part.to.data)
    store_lanes(wk, i, count, b, &part, wk->rows[i].dq, 1);
  else
    store_lanes(wk, i, count, b, &wk->of->dq, wk->rows[i].dq_sum,
                dq_factor(wk));
}

void gradient_sum_parts(gradient_worker *wk, segment_cell held, int32_t c,
                        int64_t n0, int64_t n1, int64_t b) {
  int32_t head = wk->tile.walk.head;
  dil_progression asked = cpu_run_queries(wk->tile.run, b);
  row_view parts = cpu_run_row_view(&wk->part_dq, b, head, asked);
  row_view out = cpu_run_row_view(&wk->of->dq.to, b, head, asked);
  int64_t apart = dil_tensor_count(&wk->part_dq);
  float sum[DIL_HEAD_DIM_MAX];
  for (int64_t n = n0; n < n1; n++) {
    int64_t t = wk->tile.patch
                    ? wk->tile.patch->t[n]
                    : held.low + class_table_row(&wk->tile.held, c, n);
    const float *row = (const float *)row_view_at(&parts, t);
    memset(sum, 0, sizeof sum);
    for (int64_t part = 0; part < wk->parts; part++)
      for (int32_t d = 0; d < parts.width; d++)
        sum[d] += row[part * apart + d];
    gradient_store_row(&wk->of->dq, sum, dq_factor(wk),
                       (char *)row_view_at(&out, t));
  }
}

/* ---- a tile -------------------------------------------------------------- */

void gradient_tile_run(gradient_worker *wk, segment_cell held, int32_t c,
                       int64_t n0, int64_t n1, int64_t b) {
  uint64_t branches = wk->tile.held.branches[c];
  wk->part = 0;
  query_tile_begin(&wk->tile, held, c, n0, n1, b);
  fetch_rows(wk, 0, b);
  for (int32_t i = 0; i < wk->tile.group_count; i++) {
    fetch_rows(wk, i + 1, b);
    load_rows(wk, i, b);
    if (!wk->of->own_lse)
      load_joint(wk, i, rows_in_tile(wk, i, n1 - n0), b);
  }
  wk->tile.visit = gradient_visit;
  if (wk->tile.run->shard && (wk->of->own_lse || wk->of->detached))
    run_states_of(wk, held, branches, n1 - n0, b);
  else if (wk->of->own_lse)
    run_branches(wk, held, branches, n1 - n0, b);
  else if (wk->of->weighs)
    run_weighed(wk, held, branches, n1 - n0, b);
  else if (wk->of->detached)
    for (uint64_t rest = branches; rest; rest &= rest - 1)
      run_branches(wk, held, rest & -rest, n1 - n0, b);
  else
    query_tile_visit(&wk->tile, held, branches);
  if (!wk->wants_dq) return;
  if (!wk->part_dq.data) gradient_end_part(wk);
  for (int32_t i = 0; i < wk->tile.group_count; i++)
    store_dq(wk, i, rows_in_tile(wk, i, n1 - n0), b);
}
