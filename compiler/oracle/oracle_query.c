/* oracle_query.c - a query row of a call: its numbers, its keys, its scores.
 *
 * In: a pattern, a call and a place in it. Out: the range of keys of each
 * branch, its conditions, scores and dropped pairs, straight from the formulas
 * of the language reference. Only keys that a row has are ever read;
 * conditions are evaluated as every target does, in single f32 roundings,
 * scores in float64. */
#include "oracle_query.h"
#include "runtime/base/pages.h"
#include "runtime/base/random.h"
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------- */

static int64_t row_start(const dil_tensor *x, int64_t b, int64_t n, int64_t h) {
  return b * x->stride[0] + n * x->stride[1] + h * x->stride[2];
}

static float bits_float(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

/* The 16-bit types are written out here, without branches, for reading takes
 * most of the time of a row. bf16 is the upper half of an f32; f16 is an f32
 * whose exponent is too small by 112, or full in both. */
static inline double of_bf16(uint16_t half) {
  return (double)bits_float((uint32_t)half << 16);
}

static inline double of_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  uint32_t full = (half & 0x7c00) == 0x7c00 ? 0x70000000u : 0;
  uint32_t bits = sign | full | (uint32_t)(half & 0x7fff) << 13;
  return (double)bits_float(bits) * 0x1p112;
}

/* A row of an array as the pattern stores it, if the array is wider. */
static void round_row(dil_dtype dtype, int64_t count, double *to) {
  for (int64_t d = 0; d < count; d++)
    to[d] = dtype == DIL_BF16  ? of_bf16(dil_f32_to_bf16((float)to[d]))
            : dtype == DIL_F16 ? of_f16(dil_f32_to_f16((float)to[d]))
                               : to[d];
}

static void read_stored(const dil_tensor *x, int64_t start, int64_t count,
                        double *to) {
  const float *wide = (const float *)x->data + start;
  const uint16_t *half = (const uint16_t *)x->data + start;
  switch (x->dtype) {
  case DIL_F32:
    for (int64_t d = 0; d < count; d++) to[d] = (double)wide[d];
    return;
  case DIL_BF16:
    for (int64_t d = 0; d < count; d++) to[d] = of_bf16(half[d]);
    return;
  case DIL_F16:
    for (int64_t d = 0; d < count; d++) to[d] = of_f16(half[d]);
    return;
  default:
    abort();
  }
}

static void read_tensor_row(const pattern *p, const dil_tensor *x,
                            int64_t start, int64_t count, double *to) {
  read_stored(x, start, count, to);
  if (x->dtype != p->dtype) round_row(p->dtype, count, to);
}

/* A row of q, k or v, made here when it has no data. */
static void read_operand(const oracle_query *r, const dil_tensor *x,
                         int64_t start, int64_t count, double *to) {
  if (x->data)
    read_tensor_row(r->pattern, x, start, count, to);
  else
    dil_normal_row(r->call, x, start, count, to);
}

void query_read(const oracle_query *r, const dil_tensor *x, double *to) {
  read_operand(r, x, row_start(x, r->b, r->n, r->h), x->shape[3], to);
}

/* With pages, key j is row j % rows of page pages[b, j / rows]. */
void query_read_key(oracle_query *r, const dil_tensor *x, int64_t j) {
  const dil_call_pages *pages = &r->call->pages;
  int64_t rows = x->shape[1];
  int64_t start = row_start(x, r->b, r->first_key + j, r->kv);
  if (pages->number)
    start = row_start(x, pages->number[r->b * pages->stride + j / rows],
                      j % rows, r->kv);
  read_operand(r, x, start, x->shape[3], r->key);
}

/* One i32 of a line of an array, of which at[] says all axes but the last; 0
 * outside. */
static int64_t read_line(const dil_tensor *x, const int32_t *at, int64_t last) {
  int64_t element = last * x->stride[x->rank - 1];
  if (last < 0 || last >= x->shape[x->rank - 1]) return 0;
  for (int32_t axis = 0; axis + 1 < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return 0;
    element += at[axis] * x->stride[axis];
  }
  return (int64_t)dil_element_read(x->data, DIL_I32, element);
}

/* Returns whether lists hold block `bj` of query block `bi`: entry by entry. */
static bool is_listed(const dil_tensor *rows, const dil_tensor *cols,
                      const int32_t *at, int64_t bi, int64_t bj) {
  if (bi < 0 || bj < 0) return false;
  int64_t first = read_line(rows, at, bi), end = read_line(rows, at, bi + 1);
  for (int64_t e = first; e < end; e++)
    if (read_line(cols, at, e) == bj) return true;
  return false;
}

/* Returns whether a list holds key `j`: entry by entry. */
static bool is_listed_key(const dil_tensor *list, const int32_t *at, int64_t j) {
  if (j < 0) return false;
  for (int64_t e = 0; e < list->shape[list->rank - 1]; e++)
    if (read_line(list, at, e) == j) return true;
  return false;
}

/* The element of a list at which a line begins; -1: it is outside. */
static int64_t list_line(const dil_tensor *list, const int32_t *at) {
  int64_t element = 0;
  for (int32_t axis = 0; axis + 1 < list->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= list->shape[axis]) return -1;
    element += at[axis] * list->stride[axis];
  }
  return element;
}

/* Marks the keys of a line of a list, once for all keys of a row: most rows ask
 * for one line of each list, that of their batch row and head. */
static uint8_t *mark_keys(const oracle_query *r, const dil_tensor *list,
                          const int32_t *at) {
  uint8_t *held = calloc((size_t)r->M, 1);
  for (int64_t e = 0; held && e < list->shape[list->rank - 1]; e++) {
    int64_t key = read_line(list, at, e);
    if (0 <= key && key < r->M) held[key] = 1;
  }
  return held;
}

/* Returns whether input `index` holds key `j`. The entries of another line than
 * the first are looked at, and of all lines without memory for marks. */
static bool holds_key(oracle_query *r, int32_t index, const int32_t *at,
                      int64_t j) {
  const dil_tensor *list = &r->call->inputs[index];
  if (j < 0 || j >= r->M) return false;
  int64_t line = list_line(list, at);
  if (line < 0) return false;
  if (!r->held[index]) {
    r->held[index] = mark_keys(r, list, at);
    r->held_line[index] = line;
  }
  bool marked = r->held[index] && r->held_line[index] == line;
  return marked ? r->held[index][j] : is_listed_key(list, at, j);
}

/* Input `index`, or a list that a choice made. */
static const dil_tensor *array_of(const oracle_query *r, int32_t index) {
  int32_t own = r->pattern->input_count;
  if (index < own) return &r->call->inputs[index];
  assert(r->call->made);
  return &r->call->made[index - own];
}

static value read_input_element(void *context, int32_t index,
                                const int32_t *at) {
  oracle_query *r = context;
  if (index >= r->pattern->input_count) { /* a table that lists stand for */
    const dil_input *made = &r->pattern->input[index];
    int32_t last = made->rank - 1;
    bool kept =
        made->keys
            ? holds_key(r, made->rows, at, at[last])
            : is_listed(array_of(r, made->rows), array_of(r, made->cols), at,
                        at[last - 1], at[last]);
    return (value){kept, kept};
  }
  const dil_tensor *x = &r->call->inputs[index];
  int64_t element = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (at[axis] < 0 || at[axis] >= x->shape[axis]) return (value){0, 0};
    element += at[axis] * x->stride[axis];
  }
  double number = dil_element_read(x->data, x->dtype, element);
  bool whole = x->dtype == DIL_I32 || x->dtype == DIL_U8;
  return (value){whole ? (int64_t)number : 0, number};
}

/* ---- which keys ---------------------------------------------------------- */

static int64_t positive_part(int64_t a, int64_t b) {
  int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

bool query_serves(const oracle_query *r, int32_t index) {
  const branch *b = &r->pattern->branch[index];
  return !r->of_nobody && b->head_first <= r->h && r->h <= b->head_last;
}

/* Returns the position at which the row's segment of a branch begins. */
static int64_t segment_start(const oracle_query *r, const branch *b) {
  return b->segment > 0 ? r->t / b->segment * b->segment : 0;
}

bool query_selects(const oracle_query *r, int32_t index) {
  const branch *b = &r->pattern->branch[index];
  if (!query_serves(r, index) || (b->segment > 0 && r->t < 0)) return false;
  int64_t inside = r->t - segment_start(r, b);
  if (b->phase_kind == PHASE_EACH) return true;
  return positive_part(inside, b->dilation) == b->phase[r->h];
}

oracle_range query_range(const oracle_query *r, int32_t index) {
  const branch *b = &r->pattern->branch[index];
  if (!query_selects(r, index)) return (oracle_range){0, -1, 1};
  if (r->pattern->grid.axes) return (oracle_range){0, r->M - 1, 1};
  int64_t start = segment_start(r, b), end = r->M, t = r->t;
  if (b->segment > 0 && end - start > b->segment) end = start + b->segment;
  int64_t first = start, last = end - 1;
  int64_t aligned = b->phase_kind == PHASE_EACH ? t - b->shift
                                                : start + b->phase[r->h];
  if (b->left != DIL_ENDLESS && t - first > b->left) first = t - b->left;
  if (b->causal && last > t) last = t;
  if (b->right != DIL_ENDLESS && last - t > b->right) last = t + b->right;
  first += positive_part(aligned - first, b->dilation);
  return (oracle_range){first, last, b->dilation};
}

static int32_t input_named(const pattern *p, const char *name) {
  int32_t input = 0;
  while (p->input[input].name != name) input++;
  return input;
}

/* The block of `size` positions, or of cells, that position x lies in. */
static int64_t block_of(const oracle_query *r, const keeps *level, int64_t size,
                        int64_t x) {
  return level->cell[0] ? oracle_grid_block(&r->pattern->grid, level->cell, x)
                        : (x - positive_part(x, size)) / size;
}

/* Returns whether the choice of a keep holds the pair's block: its lists are
 * sorted. */
static bool is_chosen(const oracle_query *r, const keeps *level,
                      const keep *one) {
  int64_t bi = block_of(r, level, level->query_block, r->point.i);
  int64_t bj = block_of(r, level, level->block, r->point.j);
  const int32_t at[] = {r->point.b, r->point.h};
  const dil_tensor *rows = array_of(r, one->chosen);
  const dil_tensor *cols = array_of(r, one->chosen + 1);
  if (bi < 0 || bj < 0) return false;
  int64_t low = read_line(rows, at, bi), high = read_line(rows, at, bi + 1);
  while (low < high) {
    int64_t middle = low + (high - low) / 2, block = read_line(cols, at, middle);
    if (block == bj) return true;
    if (block < bj) low = middle + 1;
    else high = middle;
  }
  return false;
}

/* TABLE[bi, bj], TABLE[h, bi, bj] or TABLE[b, h, bi, bj], by its rank; of lists
 * an entry of them. */
static bool is_given(const oracle_query *r, const keeps *level,
                     const keep *one) {
  const pattern *p = r->pattern;
  int32_t input = input_named(p, one->table);
  int64_t bi = block_of(r, level, level->query_block, r->point.i);
  int64_t bj = block_of(r, level, level->block, r->point.j);
  const int32_t at[DIL_RANK_MAX] = {r->point.b, r->point.h, (int32_t)bi,
                                    (int32_t)bj};
  if (one->cols) {
    const dil_tensor *rows = &r->call->inputs[input];
    return is_listed(rows, &r->call->inputs[input_named(p, one->cols)],
                     at + 3 - rows->rank, bi, bj);
  }
  int32_t surplus = DIL_RANK_MAX - p->input[input].rank;
  return read_input_element((void *)r, input, at + surplus).integer != 0;
}

static bool keep_holds(const oracle_query *r, const keeps *level,
                       const keep *one) {
  if (one->kind != KEEP_EXPR) return is_chosen(r, level, one);
  return one->table ? is_given(r, level, one)
                    : expr_eval(one->condition, &r->point, false).integer != 0;
}

static bool is_kept(const oracle_query *r, const keeps *level) {
  bool any = level->count == 0;
  for (int32_t k = 0; k < level->count && !any; k++)
    any = keep_holds(r, level, &level->keep[k]);
  return any;
}

bool query_level_holds(const oracle_query *r, const keeps *level) {
  bool any = false;
  for (int32_t k = 0; k < level->count && !any; k++)
    any = level->keep[k].kind == KEEP_EXPR &&
          keep_holds(r, level, &level->keep[k]);
  return any;
}

/* The conditions of a branch for a key that its geometry reaches. */
static bool is_allowed(oracle_query *r, const branch *b, int64_t j) {
  r->point.j = (int32_t)j;
  if (r->pattern->grid.axes &&
      !oracle_grid_sees(&r->pattern->grid, &b->reach, r->M, r->t, j))
    return false;
  for (int32_t k = b->reach.mask_count; k < b->mask_count; k++)
    if (expr_eval(b->mask[k], &r->point, false).integer == 0) return false;
  return is_kept(r, &b->keeps[0]) && is_kept(r, &b->keeps[1]);
}

/* Returns whether one of the branches before `index` has the key as well. */
static bool is_repeated(oracle_query *r, int32_t index, int64_t j) {
  for (int32_t k = 0; k < index; k++) {
    oracle_range keys = query_range(r, k);
    if (j < keys.first || j > keys.last) continue;
    if ((j - keys.first) % keys.step == 0 &&
        is_allowed(r, &r->pattern->branch[k], j))
      return true;
  }
  return false;
}

bool query_keeps(oracle_query *r, int32_t index, int64_t j) {
  if (!is_allowed(r, &r->pattern->branch[index], j)) return false;
  return r->pattern->combine != DIL_COMBINE_UNION || !is_repeated(r, index, j);
}

/* ---- one key ------------------------------------------------------------- */

/* Four sums side by side, so that long rows do not wait for each addition. */
static double dot_product(const double *a, const double *b, int64_t count) {
  double sum[4] = {0, 0, 0, 0};
  int64_t d = 0;
  for (; d + 4 <= count; d += 4)
    for (int lane = 0; lane < 4; lane++) sum[lane] += a[d + lane] * b[d + lane];
  for (; d < count; d++) sum[0] += a[d] * b[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

double query_dot(oracle_query *r, int64_t j) {
  query_read_key(r, &r->call->k, j);
  return r->scale * dot_product(r->q, r->key, r->pattern->head_dim);
}

double query_counted(double score) {
  const double most = (double)FLT_MAX * 0.69314718055994530942; /* log 2 */
  return fabs(score) > most ? copysign(INFINITY, score) : score;
}

double query_score(oracle_query *r, int32_t index, int64_t j) {
  const branch *b = &r->pattern->branch[index];
  r->point.j = (int32_t)j;
  r->point.s = query_dot(r, j);
  for (int32_t n = 0; n < b->score_count; n++) {
    value v = expr_eval(b->score[n], &r->point, true);
    r->point.s = b->score[n]->type == TYPE_F32 ? v.real : (double)v.integer;
  }
  return r->point.s = query_counted(r->point.s);
}

/* The random word of a row (side 0) or of a key (side 1) at a position. */
static uint32_t dropout_word(const oracle_query *r, int64_t position,
                             uint32_t side) {
  const uint32_t counter[4] = {(uint32_t)position, (uint32_t)r->h,
                               (uint32_t)r->number, side};
  const uint32_t key[2] = {(uint32_t)r->call->seed,
                           (uint32_t)(r->call->seed >> 32)};
  uint32_t word[4];
  dil_philox(counter, key, word);
  return word[0];
}

bool query_drops(const oracle_query *r, int64_t j) {
  if (!r->drops) return false;
  uint32_t u = (r->row_word ^ dropout_word(r, j, 1)) * 0x7feb352du;
  u = (u ^ u >> 15) * 0x846ca68bu;
  return (double)u < floor(r->pattern->dropout * 4294967296.0);
}

/* ---- one row ------------------------------------------------------------- */

static double call_scale(const pattern *p, const dil_call *call) {
  switch (p->scale_kind) {
  case SCALE_DEFAULT:
    return 1 / sqrt((double)p->head_dim);
  case SCALE_FIXED:
    return p->scale;
  case SCALE_RUNTIME:
    return call->scale;
  }
  abort();
}

/* Documents begin at rising offsets; an empty one has no row. */
static int64_t find_document(const int32_t *offsets, int64_t count,
                             int64_t row) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (offsets[middle + 1] <= row) low = middle + 1;
    else high = middle;
  }
  return low < count ? low : -1;
}

oracle_document query_document(const dil_call *call, int64_t b, int64_t row,
                               bool keys) {
  const dil_packed *p = &call->packed;
  if (!p->queries) {
    int64_t M = call->lengths ? call->lengths[b] : dil_pages_keys(call);
    return (oracle_document){b, 0, call->q.shape[1], 0, M};
  }
  int64_t d = find_document(keys ? p->keys : p->queries, p->count, row);
  if (d < 0) return (oracle_document){-1, 0, 0, 0, 0};
  return (oracle_document){d, p->queries[d], p->queries[d + 1], p->keys[d],
                           p->keys[d + 1]};
}

static expr_point row_point(oracle_query *r) {
  const dil_call *call = r->call;
  const dil_packed *packed = &call->packed;
  int64_t B = packed->queries ? packed->count : call->q.shape[0];
  return (expr_point){.b = (int32_t)r->number,
                      .h = (int32_t)r->h,
                      .i = (int32_t)r->t,
                      .B = (int32_t)B,
                      .N = (int32_t)r->N,
                      .M = (int32_t)r->M,
                      .input = read_input_element,
                      .context = r};
}

void query_open(oracle_query *r, const pattern *p, const dil_call *call,
                const int64_t at[3], double *q, double *key) {
  oracle_document own = query_document(call, at[0], at[1], false);
  *r = (oracle_query){.pattern = p,
                      .call = call,
                      .b = at[0],
                      .n = at[1],
                      .h = at[2],
                      .M = own.end_key - own.first_key,
                      .N = own.end_query - own.first_query,
                      .number = own.number,
                      .first_key = own.first_key,
                      .of_nobody = own.number < 0};
  r->kv = r->h / (p->heads / p->kv_heads);
  r->t = r->n - own.first_query + r->M - r->N;
  r->scale = call_scale(p, call);
  r->drops = call->train && p->dropout > 0;
  if (r->drops) r->row_word = dropout_word(r, r->t, 0);
  r->q = q;
  r->key = key;
  r->point = row_point(r);
  if (q) query_read(r, &call->q, q);
}

void query_close(oracle_query *r) {
  for (int32_t i = 0; i < r->call->input_count; i++) free(r->held[i]);
}
