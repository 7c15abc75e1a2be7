/* oracle_choice.c - blocks chosen by their scores, straight from the definition.
 *
 * In: a pattern, a call, one of its choices. Out: what each block of keys is to a
 * block of queries, with its estimate in float64; and the chosen blocks, by
 * sorting. Which blocks a query reaches is found query by query. */
#include "oracle.h"
#include "oracle_query.h"
#include "runtime/base/lists.h"
#include "runtime/base/pages.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING 0x1p-24 /* of f32, relative */

struct oracle_choice {
  const pattern *pattern;
  const dil_call *call;
  dil_choice of;
  const branch *branch;
  oracle_source source;
  int64_t queries, keys; /* blocks of the call */
  double *mean, *size;   /* [B, Hkv, keys, D]: of k, and of |k| */
  double *query;         /* rows of head_dim: q, its mean, the mean of |q|, k */
  oracle_block *sorted;  /* [keys] */
  const int64_t *cell;   /* of blocks of cells; NULL: of positions */
  int64_t *place;        /* [keys] a position of each block of cells */
};

/* The number of the block of `size` positions, or of cells, at a position. */
static int64_t block_number(const oracle_choice *x, int64_t size,
                            int64_t position) {
  return x->cell ? oracle_grid_block(&x->pattern->grid, x->cell, position)
                 : position / size;
}

/* Row n of a call is in a query block. Where blocks are of cells, a row is a
 * position. */
static bool is_of_block(const oracle_choice *x, int64_t bi, int64_t n) {
  return !x->cell || block_number(x, 0, n) == bi;
}

int64_t oracle_choice_group(const oracle_choice *x) {
  return x->of.shared ? x->pattern->heads / x->pattern->kv_heads : 1;
}

int64_t oracle_choice_queries(const oracle_choice *x) { return x->queries; }
int64_t oracle_choice_keys(const oracle_choice *x) { return x->keys; }

static int64_t keys_of(const dil_call *call, int64_t b) {
  return query_document(call, b, 0, false).end_key;
}

/* A query at row n of a head, whose own row is not read where q is NULL. */
static void open_at(oracle_query *r, const oracle_choice *x, int64_t b,
                    int64_t n, int64_t h, double *q) {
  int64_t D = x->pattern->head_dim;
  query_open(r, x->pattern, x->call, (const int64_t[3]){b, n, h}, q,
             x->query + 3 * D);
}

/* ---- means --------------------------------------------------------------- */

static void add_row(double *mean, double *size, const double *row, int64_t D,
                    int64_t count) {
  for (int64_t d = 0; d < D; d++) {
    mean[d] += row[d] / (double)count;
    size[d] += fabs(row[d]) / (double)count;
  }
}

static void fill_means(oracle_choice *x) {
  const pattern *p = x->pattern;
  int64_t D = p->head_dim, S = x->of.block;
  for (int64_t b = 0; b < x->call->q.shape[0]; b++)
    for (int64_t kv = 0; kv < p->kv_heads && x->call->q.shape[1]; kv++) {
      oracle_query r;
      int64_t M = keys_of(x->call, b);
      open_at(&r, x, b, 0, kv * (p->heads / p->kv_heads), NULL);
      for (int64_t j = 0; j < M; j++) {
        int64_t first = j / S * S, end = first + S < M ? first + S : M;
        int64_t at =
            ((b * p->kv_heads + kv) * x->keys + block_number(x, S, j)) * D;
        query_read_key(&r, &x->call->k, j);
        add_row(x->mean + at, x->size + at, r.key, D, x->cell ? S : end - first);
      }
    }
}

void oracle_choice_close(oracle_choice *x) {
  if (!x) return;
  free(x->mean);
  free(x->size);
  free(x->query);
  free(x->sorted);
  free(x->place);
  free(x);
}

/* Returns whether the call has what the estimates are made of. */
static bool has_numbers(const dil_call *call, const dil_choice *c) {
  if (c->estimate == DIL_ESTIMATE_INPUT)
    return call->inputs[c->gate].data != NULL;
  return call->q.data && call->k.data;
}

dil_status oracle_choice_open(const pattern *p, const dil_call *call,
                              int32_t index, oracle_source numbers,
                              oracle_choice **made) {
  oracle_choice *x = calloc(1, sizeof *x);
  *made = x;
  if (!x) return dil_fail(DIL_MEMORY, "no memory for a choice");
  int64_t M = dil_pages_keys(call), D = p->head_dim;
  *x = (oracle_choice){.pattern = p,
                       .call = call,
                       .of = pattern_choice(p, index),
                       .branch = &p->branch[index],
                       .source = numbers};
  if (numbers == ORACLE_EXPECTED && has_numbers(call, &x->of))
    x->source = ORACLE_NUMBERS;
  const keeps *level = x->branch->keeps;
  for (int32_t k = 0; k < 2; k++)
    if (level[k].count && level[k].cell[0]) x->cell = level[k].cell;
  x->queries = dil_choice_blocks(M, x->of.query_block);
  x->keys = dil_choice_blocks(M, x->of.block);
  bool means = x->source == ORACLE_NUMBERS &&
               x->of.estimate != DIL_ESTIMATE_INPUT;
  int64_t count = means ? call->q.shape[0] * p->kv_heads * x->keys * D : 0;
  x->mean = calloc((size_t)count + 1, sizeof *x->mean);
  x->size = calloc((size_t)count + 1, sizeof *x->size);
  x->query = calloc((size_t)(4 * D), sizeof *x->query);
  x->sorted = calloc((size_t)x->keys + 1, sizeof *x->sorted);
  x->place = calloc((size_t)x->keys + 1, sizeof *x->place);
  if (!x->mean || !x->size || !x->query || !x->sorted || !x->place)
    return dil_fail(DIL_MEMORY, "no memory for the estimates of blocks");
  for (int64_t j = 0; x->cell && j < M; j++) x->place[block_number(x, 0, j)] = j;
  if (means) fill_means(x);
  return DIL_OK;
}

/* ---- candidates ---------------------------------------------------------- */

/* Marks the key blocks that hold a key of the progression. */
static void mark_blocks(const oracle_choice *x, oracle_range keys,
                        oracle_block *blocks) {
  int64_t S = x->of.block;
  if (keys.last < keys.first) return;
  for (int64_t bj = 0; x->cell && bj < x->keys; bj++) blocks[bj].reached = true;
  if (x->cell) return; /* a branch that chooses sees the whole grid */
  for (int64_t bj = keys.first / S; bj <= keys.last / S; bj++) {
    int64_t from = bj * S > keys.first ? bj * S - keys.first : 0;
    int64_t key = keys.first + (from + keys.step - 1) / keys.step * keys.step;
    if (key <= keys.last && key < (bj + 1) * S) blocks[bj].reached = true;
  }
}

/* A block that some query reaches is a candidate, unless another keep of its
 * level holds it or none of the other level does. */
static void judge_block(const oracle_choice *x, oracle_query *r, int64_t bi,
                        int64_t bj, oracle_block *block) {
  const keeps *level = x->branch->keeps;
  bool first = false;
  for (int32_t k = 0; k < level[0].count; k++)
    first |= level[0].keep[k].kind != KEEP_EXPR;
  const keeps *own = &level[first ? 0 : 1], *other = &level[first ? 1 : 0];
  int64_t j0 = bj * x->of.block, i0 = bi * x->of.query_block;
  r->point.j = (int32_t)j0;
  if (x->cell) r->point.j = (int32_t)x->place[bj];
  if (!block->reached || query_level_holds(r, own)) return;
  if (other->count && !query_level_holds(r, other)) return;
  block->candidate = true;
  block->always |= x->of.right <= 0 && j0 < i0 + x->of.query_block &&
                   i0 < j0 + x->of.block;
}

/* The rows of a query block that exist: first..last - 1, as far as they are of the
 * block. */
static void rows_of(const oracle_choice *x, int64_t b, int64_t bi,
                    int64_t *first, int64_t *last) {
  int64_t N = x->call->q.shape[1], M = keys_of(x->call, b), skip = M - N;
  *first = 0;
  *last = N;
  if (x->cell) return; /* those among all rows: is_of_block */
  int64_t SQ = x->of.query_block, t = bi * SQ, end = t + SQ < M ? t + SQ : M;
  *first = t - skip > 0 ? t - skip : 0;
  *last = end - skip;
}

static void find_candidates(const oracle_choice *x, int64_t b, int64_t bi,
                            int64_t h, oracle_block *blocks) {
  int64_t first, last;
  oracle_query r;
  rows_of(x, b, bi, &first, &last);
  for (int64_t bj = 0; bj < x->keys; bj++) blocks[bj].reached = false;
  for (int64_t n = first; n < last; n++) {
    if (!is_of_block(x, bi, n)) continue;
    open_at(&r, x, b, n, h, NULL);
    mark_blocks(x, query_range(&r, x->of.branch), blocks);
  }
  if (first < last)
    for (int64_t bj = 0; bj < x->keys; bj++)
      judge_block(x, &r, bi, bj, &blocks[bj]);
}

/* ---- estimates ----------------------------------------------------------- */

/* Adds scale times the product of a query and a block's mean, and how far
 * rounding in f32 may move it: sums of `terms` numbers. */
static oracle_block product_of(const oracle_choice *x, double scale,
                               const double *q, const double *size,
                               const double *k, const double *k_size,
                               int64_t terms) {
  int64_t D = x->pattern->head_dim;
  double sum = 0, sizes = 0;
  for (int64_t d = 0; d < D; d++) {
    sum += q[d] * k[d];
    sizes += size[d] * k_size[d];
  }
  return (oracle_block){.estimate = scale * sum,
                        .error = fabs(scale) * sizes * ROUNDING *
                                 (double)(terms + D + 8)};
}

static void raise_to(oracle_block *block, const oracle_block *by, bool first) {
  if (first || by->estimate > block->estimate || isnan(block->estimate))
    block->estimate = by->estimate;
  block->error = fmax(first ? 0 : block->error, by->error);
}

/* One head's estimates, over the rows of the query block. */
static void estimate_head(oracle_choice *x, int64_t b, int64_t bi, int64_t h,
                          oracle_block *one) {
  const pattern *p = x->pattern;
  int64_t D = p->head_dim, first, last;
  bool each = x->of.estimate == DIL_ESTIMATE_EACH;
  double *q = x->query, *mean = q + D, *size = mean + D;
  int64_t kv = h / (p->heads / p->kv_heads), terms = x->of.block;
  double scale = 0;
  rows_of(x, b, bi, &first, &last);
  int64_t count = x->cell ? x->of.query_block : last - first, seen = 0;
  memset(mean, 0, 2 * (size_t)D * sizeof *mean);
  for (int64_t n = first; n < last; n++) {
    oracle_query r;
    if (!is_of_block(x, bi, n)) continue;
    seen++;
    open_at(&r, x, b, n, h, q);
    scale = r.scale;
    if (each) memset(mean, 0, 2 * (size_t)D * sizeof *mean);
    add_row(mean, size, q, D, each ? 1 : count);
    if (!each && seen < count) continue;
    for (int64_t bj = 0; bj < x->keys; bj++) {
      int64_t at = ((b * p->kv_heads + kv) * x->keys + bj) * D;
      oracle_block by = product_of(x, scale, mean, size, x->mean + at,
                                   x->size + at, terms + (each ? 0 : count));
      raise_to(&one[bj], &by, !each || seen == 1);
    }
  }
}

/* Reads the estimate that the call brings. */
static void read_gate(const oracle_choice *x, int64_t b, int64_t bi, int64_t h,
                      oracle_block *one) {
  const dil_tensor *g = &x->call->inputs[x->of.gate];
  const int64_t at[] = {b, h, bi};
  int64_t start = 0;
  for (int32_t axis = 0; axis + 1 < g->rank; axis++)
    start += at[4 - g->rank + axis] * g->stride[axis];
  for (int64_t bj = 0; bj < x->keys; bj++)
    one[bj] = (oracle_block){
        .estimate = dil_element_read(g->data, g->dtype,
                                     start + bj * g->stride[g->rank - 1])};
}

/* Numbers that stand for those of a call that is not there. */
static void stand_in(const oracle_choice *x, int64_t b, int64_t bi, int64_t h,
                     oracle_block *one) {
  const uint32_t key[] = {(uint32_t)h, (uint32_t)b};
  for (int64_t bj = 0; bj < x->keys; bj++) {
    const uint32_t counter[4] = {(uint32_t)bi, (uint32_t)bj, 0, 0};
    uint32_t word[4];
    dil_philox(counter, key, word);
    one[bj] = (oracle_block){.estimate = (double)word[0] * 0x1p-32};
  }
}

static bool is_served(const oracle_choice *x, int64_t h) {
  return x->branch->head_first <= h && h <= x->branch->head_last;
}

void oracle_choice_blocks(oracle_choice *x, int64_t b, int64_t bi, int64_t h,
                          oracle_block *blocks) {
  int64_t group = oracle_choice_group(x), from = h / group * group;
  memset(blocks, 0, (size_t)x->keys * sizeof *blocks);
  for (int64_t head = from; head < from + group; head++) {
    oracle_block *one = x->sorted;
    if (!is_served(x, head)) continue;
    find_candidates(x, b, bi, head, blocks);
    memset(one, 0, (size_t)x->keys * sizeof *one);
    if (x->source == ORACLE_EXPECTED) stand_in(x, b, bi, from, one);
    else if (x->of.estimate == DIL_ESTIMATE_INPUT) read_gate(x, b, bi, head, one);
    else estimate_head(x, b, bi, head, one);
    for (int64_t bj = 0; bj < x->keys; bj++) {
      blocks[bj].estimate += one[bj].estimate;
      blocks[bj].error += one[bj].error;
      if (group > 1)
        blocks[bj].error +=
            (double)group * ROUNDING * fabs(one[bj].estimate);
    }
  }
  for (int64_t bj = 0; bj < x->keys; bj++) blocks[bj].block = (int32_t)bj;
}

/* ---- the chosen ---------------------------------------------------------- */

static int by_estimate(const void *a, const void *b) {
  const oracle_block *x = a, *y = b;
  if (isnan(x->estimate) != isnan(y->estimate))
    return isnan(x->estimate) ? 1 : -1;
  if (x->estimate != y->estimate && !isnan(x->estimate))
    return x->estimate < y->estimate ? 1 : -1;
  return (x->block > y->block) - (x->block < y->block);
}

static int by_number(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

double oracle_choice_weight(double estimate, double best) {
  if (isnan(best)) return 1;
  if (isnan(estimate)) return 0;
  return estimate == best ? 1 : exp(estimate - best);
}

/* The fewest of the sorted blocks that have the share. */
static int64_t count_share(const oracle_choice *x, int64_t count) {
  double all = 0, sum = 0, best = count ? x->sorted[0].estimate : 0;
  for (int64_t k = 0; k < count; k++)
    all += oracle_choice_weight(x->sorted[k].estimate, best);
  for (int64_t k = 0; k < count; k++) {
    sum += oracle_choice_weight(x->sorted[k].estimate, best);
    if (sum >= x->of.share * all) return k + 1;
  }
  return count;
}

int64_t oracle_choice_take(oracle_choice *x, const oracle_block *blocks,
                           int32_t *out) {
  int64_t scored = 0, chosen = 0;
  for (int64_t bj = 0; bj < x->keys; bj++) {
    if (!blocks[bj].candidate) continue;
    if (blocks[bj].always) out[chosen++] = (int32_t)bj;
    else x->sorted[scored++] = blocks[bj];
  }
  int64_t taken = x->of.most > chosen ? x->of.most - chosen : 0;
  qsort(x->sorted, (size_t)scored, sizeof *x->sorted, by_estimate);
  if (x->of.share > 0) {
    int64_t enough = count_share(x, scored);
    if (enough < taken) taken = enough;
  }
  if (taken > scored) taken = scored;
  for (int64_t k = 0; k < taken; k++) out[chosen++] = x->sorted[k].block;
  qsort(out, (size_t)chosen, sizeof *out, by_number);
  return chosen;
}

/* ---- all lists of a call ------------------------------------------------- */

static void write_line(oracle_choice *x, int64_t b, int64_t h,
                       oracle_block *blocks, int32_t *rows, int32_t *cols) {
  int64_t first, last;
  *rows = 0;
  for (int64_t bi = 0; bi < x->queries; bi++, rows++) {
    rows[1] = rows[0];
    rows_of(x, b, bi, &first, &last);
    if (!is_served(x, h) || first >= last) continue;
    oracle_choice_blocks(x, b, bi, h, blocks);
    rows[1] += (int32_t)oracle_choice_take(x, blocks, cols + rows[0]);
  }
}

static dil_status choose_lists(oracle_choice *x, const dil_tensor *rows,
                               const dil_tensor *cols) {
  oracle_block *blocks = calloc((size_t)x->keys + 1, sizeof *blocks);
  if (!blocks) return dil_fail(DIL_MEMORY, "no memory for blocks");
  memset(cols->data, 0xFF, (size_t)dil_tensor_count(cols) * sizeof(int32_t));
  for (int64_t b = 0; b < rows->shape[0]; b++)
    for (int64_t h = 0; h < rows->shape[1]; h++)
      write_line(x, b, h, blocks,
                 (int32_t *)rows->data + b * rows->stride[0] +
                     h * rows->stride[1],
                 (int32_t *)cols->data + b * cols->stride[0] +
                     h * cols->stride[1]);
  free(blocks);
  return DIL_OK;
}

dil_status oracle_choose(const pattern *p, const dil_call *call,
                         oracle_source numbers, const dil_tensor *made) {
  dil_status status = DIL_OK;
  for (int32_t b = 0; b < p->branch_count && !status; b++) {
    oracle_choice *x;
    const keep *k = branch_choice(&p->branch[b]);
    if (!k) continue;
    status = oracle_choice_open(p, call, b, numbers, &x);
    const dil_tensor *lists = &made[k->chosen - p->input_count];
    if (!status) status = choose_lists(x, &lists[0], &lists[1]);
    oracle_choice_close(x);
  }
  return status;
}

static dil_status add_list(const pattern *p, const dil_call *call, int32_t b,
                           bool cols, oracle_lists *lists) {
  dil_choice c = pattern_choice(p, b);
  dil_tensor *t = &lists->made[c.rows + cols - p->input_count];
  *t = dil_choice_list(&c, p->heads, call->q.shape[0], dil_pages_keys(call),
                       cols, NULL);
  t->data = calloc((size_t)dil_tensor_count(t) + 1, sizeof(int32_t));
  if (!t->data) return dil_fail(DIL_MEMORY, "no memory for lists of blocks");
  lists->memory[lists->count++] = t->data;
  return DIL_OK;
}

dil_status oracle_lists_open(const pattern *p, dil_call *call,
                             oracle_lists *lists) {
  dil_status status = DIL_OK;
  if (call->made) return DIL_OK;
  for (int32_t b = 0; b < p->branch_count && !status; b++) {
    if (!branch_choice(&p->branch[b])) continue;
    status = add_list(p, call, b, false, lists);
    if (!status) status = add_list(p, call, b, true, lists);
    call->made = lists->made;
  }
  return status;
}

void oracle_lists_free(oracle_lists *lists) {
  while (lists->count > 0) free(lists->memory[--lists->count]);
}
