/* choose.c - estimates of blocks, and the lists of those that are chosen.
 *
 * In: a call, its q and k or the numbers that it brings. Out: sorted lists in the
 * form CSR for each batch row and head. A strip of query blocks is one piece of
 * work: what it chooses follows from its own rows and from the means of the key
 * blocks, so that threads and batches change nothing. */
#include "choose.h"
#include "runtime/arch.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include <math.h>
#include <string.h>

enum {
  LANES = 16,      /* key blocks of a panel */
  STRIP_ROWS = 16, /* rows that meet a panel at once */
  AHEAD = 8,       /* rows of a mean that are asked for before they are added */
};

/* One choice of a run. Means of key blocks stand in panels [D][LANES], for each
 * batch row and key/value head. */
typedef struct choosing {
  const cpu_run *run;
  int32_t choice;
  const dil_choice *of;
  const dil_tensor *rows, *cols;
  int64_t queries, keys, panels, strip, strips, room; /* counts of blocks */
  int32_t heads, group;  /* that choose, and that choose as one */
  float *means;
  char *own;             /* of a worker: own_bytes */
  int64_t own_bytes;
} choosing;

/* The memory of a worker: rows of queries, their products with a panel, estimates,
 * kinds and ranks of a block of queries. */
typedef struct choosing_room {
  float *query, *product, *estimate, *total;
  uint64_t *rank;
  uint8_t *kind;
} choosing_room;

/* ---- sizes --------------------------------------------------------------- */

static int64_t rows_of_block(const dil_choice *c) {
  return c->estimate == DIL_ESTIMATE_EACH ? c->query_block : 1;
}

static choosing choosing_of(const cpu_run *r, int32_t choice) {
  const dil_table *t = r->table;
  const dil_choice *c = &t->choices[choice];
  choosing x = {.run = r,
               .choice = choice,
               .of = c,
               .rows = &r->read[c->rows],
               .cols = &r->read[c->rows + 1],
               .queries = dil_choice_blocks(r->M, c->query_block),
               .keys = dil_choice_blocks(r->M, c->block),
               .group = c->shared ? t->heads / t->kv_heads : 1,
               .room = dil_choice_room(c, r->M)};
  x.heads = t->heads / x.group;
  x.panels = (x.keys + LANES - 1) / LANES;
  x.strip = maximum(STRIP_ROWS / rows_of_block(c), 1);
  x.strips = (x.queries + x.strip - 1) / x.strip;
  return x;
}

static int64_t means_bytes(const choosing *x) {
  const dil_table *t = x->run->table;
  if (x->of->estimate == DIL_ESTIMATE_INPUT) return 0;
  return x->run->B * t->kv_heads * x->panels * LANES * t->head_dim *
         (int64_t)sizeof(float);
}

/* One worker's room, cut from memory that may be NULL: then it is counted. */
static int64_t cut_room(const choosing *x, char *memory, choosing_room *room) {
  cutter c = {.base = memory};
  int64_t width = x->panels * LANES, D = x->run->table->head_dim;
  room->query = cutter_cut(&c, (STRIP_ROWS + 1) * D * (int64_t)sizeof(float));
  room->product = cutter_cut(&c, STRIP_ROWS * LANES * (int64_t)sizeof(float));
  room->estimate = cutter_cut(&c, x->strip * width * (int64_t)sizeof(float));
  room->total = cutter_cut(&c, x->strip * width * (int64_t)sizeof(float));
  room->rank = cutter_cut(&c, x->keys * (int64_t)sizeof(uint64_t));
  room->kind = cutter_cut(&c, x->keys);
  return c.used;
}

static int64_t workers(const cpu_run *r) {
  return dil_threads_count(r->threads);
}

int64_t choose_bytes(const cpu_run *r) {
  int64_t most = 0;
  for (int32_t k = 0; k < r->table->choice_count; k++) {
    choosing x = choosing_of(r, k);
    choosing_room room;
    int64_t bytes = round_up(means_bytes(&x), 64) +
                    workers(r) * cut_room(&x, NULL, &room);
    most = maximum(most, bytes);
  }
  return most;
}

/* ---- means --------------------------------------------------------------- */

/* Whole panels of lanes without a branch, so that they are added together. */
static void add_row(float *restrict sum, const float *restrict row,
                    int32_t width) {
  int32_t d = 0;
  for (; d + LANES <= width; d += LANES)
    for (int lane = 0; lane < LANES; lane++) sum[d + lane] += row[d + lane];
  for (; d < width; d++) sum[d] += row[d];
}

/* Asks for a row that is added soon: the rows of a head stand apart. */
static void fetch_row(const row_view *rows, int64_t position) {
  const char *row = row_view_at(rows, position);
  int64_t bytes = rows->width * (int64_t)dil_dtype_size(rows->dtype);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

/* The sum of the rows at places first..last, in their order, over their number; 0 of
 * none. `room` is for one row. */
static void mean_of(const choosing *x, const row_view *rows, int64_t first,
                    int64_t last, float *room, float *mean) {
  int32_t width = rows->width;
  for (int32_t d = 0; d < width; d++) mean[d] = 0;
  for (int64_t n = first; n <= last; n++) {
    const void *row = row_view_at(rows, choose_position(x->run, x->of, n));
    if (n + AHEAD <= last)
      fetch_row(rows, choose_position(x->run, x->of, n + AHEAD));
    if (rows->dtype != DIL_F32) row_to_f32(row, rows->dtype, width, room);
    add_row(mean, rows->dtype == DIL_F32 ? row : room, width);
  }
  for (int32_t d = 0; d < width && last >= first; d++)
    mean[d] /= (float)(last - first + 1);
}

static float *panel_at(const choosing *x, int64_t b, int64_t kv, int64_t panel) {
  const dil_table *t = x->run->table;
  return x->means + ((b * t->kv_heads + kv) * x->panels + panel) * LANES *
                        t->head_dim;
}

/* A panel of means of key blocks. */
static void fill_panel(void *context, int64_t index, int32_t worker) {
  const choosing *x = context;
  const cpu_run *r = x->run;
  int64_t panel = index % x->panels, kv = index / x->panels % r->table->kv_heads;
  int64_t b = index / x->panels / r->table->kv_heads, M = cpu_run_keys(r, b);
  row_view rows = cpu_run_key_view(r, &r->call->k, b, (int32_t)kv);
  float *to = panel_at(x, b, kv, panel);
  choosing_room room;
  cut_room(x, x->own + worker * x->own_bytes, &room);
  for (int64_t lane = 0; lane < LANES; lane++) {
    int64_t first = (panel * LANES + lane) * x->of->block;
    float *mean = room.query + r->table->head_dim;
    mean_of(x, &rows, first, minimum(first + x->of->block, M) - 1, room.query,
            mean);
    for (int32_t d = 0; d < r->table->head_dim; d++)
      to[d * LANES + lane] = mean[d];
  }
}

/* ---- estimates ----------------------------------------------------------- */

/* Rows of queries of a strip that meet panels together, and the block of each,
 * counted from the strip's first; `end` is behind the last place of these. */
typedef struct strip_rows {
  int32_t count, block[STRIP_ROWS];
  int64_t end;
} strip_rows;

/* Without a branch, so that lanes are compared together. */
static void keep_larger(float *restrict estimate, const float *restrict product,
                        float scale) {
  for (int lane = 0; lane < LANES; lane++) {
    float one = scale * product[lane], before = estimate[lane];
    float larger = one > before ? one : before;
    estimate[lane] = before == before ? larger : one; /* any number is above NaN */
  }
}

/* Panels up to the last block that a query before `end` may see. On a grid the
 * order of blocks is not that of positions. */
static int64_t panels_before(const choosing *x, int64_t end) {
  if (x->of->right == DIL_ENDLESS || x->run->table->inputs[x->of->rows].cell[0])
    return x->panels;
  int64_t last = maximum(end + minimum(x->of->right, x->run->M), 0);
  return minimum(last / x->of->block / LANES + 1, x->panels);
}

/* Estimates of the strip's blocks become the largest of them and of these
 * rows. */
static void meet_panels(const choosing *x, const choosing_room *room, int64_t b,
                        int64_t kv, const strip_rows *rows) {
  int64_t width = x->panels * LANES, D = x->run->table->head_dim;
  int64_t panels = rows->count ? panels_before(x, rows->end) : 0;
  for (int64_t panel = 0; panel < panels; panel++) {
    dil_host_arch.panel(room->query + D, rows->count,
                        panel_at(x, b, kv, panel), (int32_t)D, room->product);
    for (int32_t n = 0; n < rows->count; n++)
      keep_larger(room->estimate + rows->block[n] * width + panel * LANES,
                  room->product + n * LANES, x->run->scale);
  }
}

static void read_query(const choosing *x, const choosing_room *room,
                       const row_view *rows, const choose_place *at, int64_t n,
                       int32_t place) {
  int64_t D = x->run->table->head_dim;
  float *to = room->query + (place + 1) * D;
  if (x->of->estimate == DIL_ESTIMATE_MEAN)
    mean_of(x, rows, at->first, at->last, room->query, to);
  else
    row_to_f32(row_view_at(rows, choose_position(x->run, x->of, n)), rows->dtype,
               (int32_t)D, to);
}

static void estimate_head(const choosing *x, const choosing_room *room, int64_t b,
                          int32_t h, int64_t first) {
  const cpu_run *r = x->run;
  int64_t kv = h / (r->table->heads / r->table->kv_heads);
  int64_t width = x->panels * LANES;
  row_view view = cpu_run_row_view(&r->call->q, b, h, cpu_run_queries(r, b));
  strip_rows rows = {0};
  for (int64_t k = 0; k < x->strip * width; k++) room->estimate[k] = NAN;
  for (int64_t k = 0; k < x->strip && first + k < x->queries; k++) {
    choose_place at = choose_place_of(r, x->of, b, first + k);
    bool each = x->of->estimate == DIL_ESTIMATE_EACH;
    int64_t last = each ? at.last : minimum(at.first, at.last);
    for (int64_t n = at.first; n <= last; n++) {
      rows.block[rows.count] = (int32_t)k;
      rows.end = at.last + 1;
      read_query(x, room, &view, &at, n, rows.count++);
      if (rows.count < STRIP_ROWS) continue;
      meet_panels(x, room, b, kv, &rows);
      rows.count = 0;
    }
  }
  meet_panels(x, room, b, kv, &rows);
}

/* The call's own numbers, in whatever rank they have. */
static void read_head(const choosing *x, const choosing_room *room, int64_t b,
                      int32_t h, int64_t first) {
  const dil_tensor *g = &x->run->read[x->of->gate];
  int64_t width = x->panels * LANES, at = 0;
  int32_t rank = g->rank;
  if (rank > 3) at += b * g->stride[rank - 4];
  if (rank > 2) at += h * g->stride[rank - 3];
  for (int64_t k = 0; k < x->strip && first + k < x->queries; k++)
    for (int64_t bj = 0; bj < x->keys; bj++)
      room->estimate[k * width + bj] =
          ((const float *)g->data)[at + (first + k) * g->stride[rank - 2] +
                                   bj * g->stride[rank - 1]];
}

/* Estimates of a group of heads: the sums over those that the branch serves. */
static void estimate_group(const choosing *x, choosing_room *room, int64_t b,
                           int32_t group, int64_t first) {
  const dil_branch *branch = &x->run->table->branches[x->of->branch];
  int64_t count = x->strip * x->panels * LANES;
  bool begun = false;
  for (int32_t h = group * x->group; h < (group + 1) * x->group; h++) {
    if (h < branch->head_first || h > branch->head_last) continue;
    if (x->of->estimate == DIL_ESTIMATE_INPUT) read_head(x, room, b, h, first);
    else estimate_head(x, room, b, h, first);
    for (int64_t k = 0; k < count; k++)
      room->total[k] = (begun ? room->total[k] : 0) + room->estimate[k];
    begun = true;
  }
}

/* ---- lists --------------------------------------------------------------- */

static int32_t *line_of(const dil_tensor *t, int64_t b, int64_t h) {
  return (int32_t *)t->data + b * t->stride[0] + h * t->stride[1];
}

/* The lists of a query block, of all heads of its group: each in a place that
 * has room for any, its length in rows. */
static void choose_block(const choosing *x, const choosing_room *room, int64_t b,
                         int32_t group, int64_t bi, const float *estimate) {
  const cpu_run *r = x->run;
  const dil_branch *branch = &r->table->branches[x->of->branch];
  choose_place at = choose_place_of(r, x->of, b, bi);
  int32_t h = group * x->group, end = h + x->group, first = -1;
  bool asked = at.first <= at.last; /* the call has queries there */
  for (int64_t bj = 0; bj < x->keys && asked; bj++)
    room->kind[bj] = (uint8_t)choose_kind_of(r, x->choice, &at, h, end, bj);
  for (; h < end; h++) {
    int32_t *length = line_of(x->rows, b, h) + bi + 1;
    int32_t *list = line_of(x->cols, b, h) + bi * x->room;
    *length = 0;
    if (!asked || h < branch->head_first || h > branch->head_last) continue;
    if (first < 0) {
      first = h;
      *length = (int32_t)choose_best(x->of, room->kind, estimate, x->keys,
                                     room->rank, list);
    } else {
      *length = line_of(x->rows, b, first)[bi + 1];
      memcpy(list, line_of(x->cols, b, first) + bi * x->room,
             (size_t)*length * sizeof *list);
    }
  }
}

/* Whether the call has a query in some block of the strip. */
static bool strip_has_queries(const choosing *x, int64_t b, int64_t first) {
  int64_t last = minimum(first + x->strip, x->queries) - 1;
  return choose_place_of(x->run, x->of, b, first).first <=
         choose_place_of(x->run, x->of, b, last).last;
}

static void choose_strip(void *context, int64_t index, int32_t worker) {
  const choosing *x = context;
  int64_t first = index % x->strips * x->strip;
  int32_t group = (int32_t)(index / x->strips % x->heads);
  int64_t b = index / x->strips / x->heads;
  choosing_room room;
  cut_room(x, x->own + worker * x->own_bytes, &room);
  if (strip_has_queries(x, b, first)) estimate_group(x, &room, b, group, first);
  for (int64_t k = 0; k < x->strip && first + k < x->queries; k++)
    choose_block(x, &room, b, group, first + k,
                 room.total + k * x->panels * LANES);
}

/* Lengths become places, and lists move together. */
static void join_lists(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const choosing *x = context;
  int64_t b = index / x->run->table->heads, h = index % x->run->table->heads;
  int32_t *rows = line_of(x->rows, b, h), *cols = line_of(x->cols, b, h);
  rows[0] = 0;
  for (int64_t bi = 0; bi < x->queries; bi++) {
    memmove(cols + rows[bi], cols + bi * x->room,
            (size_t)rows[bi + 1] * sizeof *cols);
    rows[bi + 1] += rows[bi];
  }
  memset(cols + rows[x->queries], 0xFF,
         (size_t)(x->queries * x->room - rows[x->queries]) * sizeof *cols);
}

static dil_status choose_one(const cpu_run *r, int32_t choice, char *memory) {
  choosing x = choosing_of(r, choice);
  choosing_room room;
  int64_t kv = r->table->kv_heads;
  x.means = (float *)memory;
  x.own = memory + round_up(means_bytes(&x), 64);
  x.own_bytes = cut_room(&x, NULL, &room);
  dil_status status = DIL_OK;
  if (means_bytes(&x))
    status = dil_threads_run(r->threads, r->B * kv * x.panels, fill_panel, &x);
  if (!status)
    status = dil_threads_run(r->threads, r->B * x.heads * x.strips,
                             choose_strip, &x);
  return status ? status
                : dil_threads_run(r->threads, r->B * r->table->heads,
                                  join_lists, &x);
}

/* The call's place for a list; NULL: the call does not ask for it. */
static const dil_tensor *place_of(const cpu_run *r, int32_t index) {
  if (!r->call->made) return NULL;
  const dil_tensor *to = &r->call->made[index - r->table->input_count];
  return to->data ? to : NULL;
}

static size_t list_bytes(const dil_tensor *list) {
  return (size_t)dil_tensor_count(list) * sizeof(int32_t);
}

static void show_list(const cpu_run *r, int32_t index) {
  const dil_tensor *to = place_of(r, index);
  if (to) memcpy(to->data, r->read[index].data, list_bytes(to));
}

void choose_nothing(const cpu_run *r) {
  for (int32_t k = 0; k < r->table->choice_count; k++)
    for (int32_t cols = 0; cols < 2; cols++) {
      const dil_tensor *to = place_of(r, r->table->choices[k].rows + cols);
      if (to) memset(to->data, cols ? 0xFF : 0, list_bytes(to));
    }
}

/* The lists that the run forward has chosen. */
static void take_chosen(cpu_run *r) {
  for (int32_t i = 0; i < 2 * r->table->choice_count; i++) {
    int32_t index = r->table->choices[i / 2].rows + i % 2;
    const dil_tensor *from = place_of(r, index);
    if (from) memcpy(r->read[index].data, from->data, list_bytes(from));
  }
}

dil_status choose_run(cpu_run *r, char *memory) {
  dil_status status = DIL_OK;
  if (r->call->chosen) {
    take_chosen(r);
    return DIL_OK;
  }
  for (int32_t k = 0; k < r->table->choice_count && !status; k++) {
    int64_t begin = trace_begin();
    status = choose_one(r, k, memory);
    trace_end(begin, "choose", "blocks by their scores", NULL, k);
    show_list(r, r->table->choices[k].rows);
    show_list(r, r->table->choices[k].rows + 1);
  }
  return status;
}
