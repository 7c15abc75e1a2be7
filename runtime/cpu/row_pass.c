/* row_pass.c - a pass over single rows: for few queries, and for segments too
 * small to fill a tile.
 *
 * In: a pass and a call. Keys and values are read in place, at the stride of
 * the branch, or copied together from pages. The rows of one K/V head (decoding
 * with grouped queries) go over the same keys together. Where there are few rows,
 * the keys are split, the splits are computed in parallel and their states are
 * merged in order, as in Flash-Decoding (Dao, Haziza, Massa and Sizov 2023, on
 * the PyTorch blog). The number of splits follows from the batch row's own keys,
 * never from the batch. */
#include "query_row.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include "runtime/observe/watch.h"
#include <math.h>
#include <string.h>

enum {
  SPLIT_ITEMS = 64,   /* split keys until there are about this many items */
  SPLIT_LEAST = 1024, /* positions a split, at least */
  LIST_STEP = 4096    /* positions a step where a list of keys is visited */
};

/* ---- shape of the work and memory ---------------------------------------- */

static int64_t row_state_count(const cpu_run *r) {
  return r->B * r->N * r->table->heads;
}

/* Memory of the class table, which only `union` needs. */
static int64_t row_class_area(const cpu_run *r, const dil_pass *pass) {
  if (r->table->combine != DIL_COMBINE_UNION) return 0;
  return round_up((int64_t)class_table_size(cpu_run_period(r, pass)), 64);
}

static int64_t row_worker_area(const cpu_run *r, const dil_pass *pass) {
  int64_t width = round_up(r->table->head_dim, 16) +
                  round_up(r->table->value_dim, 16);
  return round_up((int64_t)sizeof(row_worker), 64) +
         ROW_BATCH * width * (int64_t)sizeof(float) + (ROW_KEYS + DIL_CODE_ROOM) * 12 +
         row_class_area(r, pass) + paged_rows_bytes(r, ROW_KEYS);
}

/* From the first to the last key of the call, in positions: the keys of a striped
 * shard stand apart. */
static int64_t longest_span(const cpu_run *r) {
  if (!r->shard) return r->M;
  return progression_end(r->shard->keys) - r->shard->keys.first;
}

/* The splits of a batch row with so many positions of keys. Other batch rows have
 * no part in it: a row has the same bits alone or in a batch. */
static int64_t row_splits(const row_pass *w, int64_t span) {
  int64_t items = w->run->table->kv_heads * w->batches;
  int64_t most = maximum((span + SPLIT_LEAST - 1) / SPLIT_LEAST, 1);
  return minimum((SPLIT_ITEMS + items - 1) / maximum(items, 1), most);
}

static row_pass row_pass_plan(const cpu_run *r, const dil_pass *pass) {
  const dil_table *table = r->table;
  row_pass w = {.run = r, .pass = pass, .code = r->code[DIL_ROWS]};
  int64_t dilation = INT64_MAX;
  for (uint64_t rest = pass->branches; rest; rest &= rest - 1)
    dilation = minimum(dilation,
                       table->branches[__builtin_ctzll(rest)].dilation);
  w.group = table->heads / table->kv_heads;
  w.batches = (r->N * w.group + ROW_BATCH - 1) / ROW_BATCH;
  w.chunk = ROW_KEYS * dilation * (r->shard ? r->shard->keys.step : 1);
  if (dil_pass_list(table, pass) >= 0) w.chunk = LIST_STEP;
  w.splits = row_splits(&w, longest_span(r));
  w.state_floats = round_up(2 + table->value_dim, 16);
  w.worker_bytes = row_worker_area(r, pass);
  return w;
}

static int64_t row_states_bytes(const row_pass *w) {
  if (w->splits == 1) return 0;
  return w->splits * row_state_count(w->run) * w->state_floats *
         (int64_t)sizeof(float);
}

int64_t row_pass_bytes(const cpu_run *r, const dil_pass *pass) {
  row_pass w = row_pass_plan(r, pass);
  return round_up(row_states_bytes(&w), 64) +
         dil_threads_count(r->threads) * w.worker_bytes;
}

static void row_worker_init(const row_pass *w, char *at) {
  const dil_table *table = w->run->table;
  row_worker *wk = (row_worker *)at;
  wk->waiting = (key_sequence){.step = 1};
  at += round_up((int64_t)sizeof(row_worker), 64);
  wk->s = (float *)at;
  at += (ROW_KEYS + DIL_CODE_ROOM) * sizeof(float);
  wk->j = (int32_t *)at;
  at += (ROW_KEYS + DIL_CODE_ROOM) * sizeof(int32_t);
  wk->words = (uint32_t *)at;
  at += (ROW_KEYS + DIL_CODE_ROOM) * sizeof(uint32_t);
  for (int32_t i = 0; i < ROW_BATCH; i++) {
    wk->row[i].q = (float *)at;
    at += round_up(table->head_dim, 16) * (int64_t)sizeof(float);
    wk->row[i].acc = (float *)at;
    at += round_up(table->value_dim, 16) * (int64_t)sizeof(float);
  }
  if (row_class_area(w->run, w->pass))
    class_table_init(&wk->streamed, cpu_run_period(w->run, w->pass), at);
  paged_rows_init(&wk->gathered, w->run, ROW_KEYS,
                  at + row_class_area(w->run, w->pass));
}

/* ---- a batch of rows ----------------------------------------------------- */

/* Expressions see the row's head. */
static void row_set_head(const row_pass *w, const query_row *q,
                         row_source *at) {
  at->env.env.head = q->head + (w->run->shard ? w->run->shard->head : 0);
}

/* Returns the lse that the row starts from: that of its sinks, or the state
 * that an earlier pass left. Only the first split of the keys starts from it.
 */
static float row_start(const row_pass *w, const query_row *q,
                       const row_source *at, int64_t b) {
  const cpu_run *r = w->run;
  int32_t t = (int32_t)q->t;
  float sink;
  if (cpu_run_finish(r, q->head) == FINISH_RESUME)
    return *cpu_run_lse(r, b, q->n, q->head);
  cpu_run_sinks(r, &at->env.env, q->selected, &t, 1, &sink);
  return sink;
}

static void row_begin(const row_pass *w, query_row *q, row_source *at,
                      int64_t b, bool first) {
  const cpu_run *r = w->run;
  int32_t t = (int32_t)q->t;
  row_view from =
      cpu_run_row_view(&r->call->q, b, q->head, cpu_run_queries(r, b));
  int32_t width = r->table->value_dim;
  row_to_f32(row_view_at(&from, q->t), from.dtype, from.width, q->q);
  memset(q->acc, 0, (size_t)width * sizeof(float));
  memset(q->vain, 0, sizeof q->vain);
  memset(q->rest, 0, sizeof q->rest);
  row_set_head(w, q, at);
  if (r->drop)
    w->code->dropout_words(&t, 1, DIL_DROPOUT_ROW, &at->env.env, &q->word);
  state_begin(first ? row_start(w, q, at, b) : -INFINITY, &q->state[0],
              &q->state[1]);
  if (q->state[1] != 0 && cpu_run_finish(r, q->head) == FINISH_RESUME)
    memcpy(q->acc, cpu_run_output(r, b, q->n, q->head),
           (size_t)width * sizeof(float));
}

static void row_finish(const row_pass *w, int64_t b, int64_t n, int32_t head,
                       const float *state, float *acc) {
  const cpu_run *r = w->run;
  int32_t width = r->table->value_dim;
  finish how = cpu_run_finish(r, head);
  bool none = state[1] == 0;
  float factor = none ? 0 : r->weight / state[1];
  char *out = cpu_run_output(r, b, n, head);
  float *lse = cpu_run_lse(r, b, n, head);
  for (int32_t d = 0; d < width; d++) acc[d] = none ? 0 : acc[d] * factor;
  if (how == FINISH_ADD) {
    for (int32_t d = 0; d < width; d++) ((float *)out)[d] += acc[d];
    return;
  }
  row_from_f32(acc, how == FINISH_WRITE ? r->table->dtype : DIL_F32, width,
               out);
  if (lse) *lse = none ? -INFINITY : state[0] * DIL_LN_2 + logf(state[1]);
}

static void row_advance(const row_pass *w, row_worker *wk, query_row *q,
                        row_source *at, int64_t low, int64_t high) {
  row_set_head(w, q, at);
  row_visit_keys(w, wk, q, at, low, high);
}

static float *row_state(const row_pass *w, int64_t split, int64_t b, int64_t n,
                        int32_t head) {
  const cpu_run *r = w->run;
  int64_t row_index = (b * r->N + n) * r->table->heads + head;
  return w->states + (split * row_state_count(r) + row_index) * w->state_floats;
}

static void row_end(const row_pass *w, query_row *q, int64_t b, int64_t split) {
  if (w->splits == 1) {
    row_finish(w, b, q->n, q->head, q->state, q->acc);
    return;
  }
  float *state = row_state(w, split, b, q->n, q->head);
  memcpy(state, q->state, sizeof q->state);
  memcpy(state + 2, q->acc,
         (size_t)w->run->table->value_dim * sizeof(float));
}

/* Fills the batch's rows; returns how many there are. */
static int32_t row_batch_begin(const row_pass *w, row_worker *wk,
                               row_source *at, int64_t b, int32_t kv,
                               int64_t batch, int64_t split) {
  const cpu_run *r = w->run;
  int64_t all = r->N * w->group;
  dil_progression progression = cpu_run_queries(r, b);
  int32_t count = 0;
  for (int64_t i = batch * ROW_BATCH; i < minimum(all, (batch + 1) * ROW_BATCH); i++) {
    query_row *q = &wk->row[count];
    q->n = i / w->group;
    q->t = progression.first + q->n * progression.step;
    q->head = kv * (int32_t)w->group + (int32_t)(i % w->group);
    if (!walk_served(r->table, w->pass, q->head)) continue;
    q->selected = walk_selecting(r->table, w->pass->branches, q->head, q->t);
    row_begin(w, q, at, b, split == 0);
    count++;
  }
  return count;
}

static void row_pass_work(void *context, int64_t item, int32_t worker_index) {
  const row_pass *w = context;
  const cpu_run *r = w->run;
  row_worker *wk = (row_worker *)(w->workers + worker_index * w->worker_bytes);
  int64_t begin = trace_begin();
  int64_t split = item % w->splits;
  int64_t batch = item / w->splits % w->batches;
  int64_t unit = item / w->splits / w->batches;
  int64_t b = unit / r->table->kv_heads;
  int32_t kv = (int32_t)(unit % r->table->kv_heads);
  dil_progression progression = cpu_run_key_progression(r, b);
  int64_t span = progression_end(progression) - progression.first;
  int64_t own = row_splits(w, span);
  int64_t share = round_up((span + own - 1) / own, w->chunk);
  int64_t low = INT64_MAX, high = INT64_MIN;
  row_source at = {cpu_run_key_view(r, &r->call->k, b, kv),
                   cpu_run_key_view(r, &r->call->v, b, kv),
                   {{0}, NULL}};
  wk->gathered.count = 0;
  cpu_run_env_init(r, b, 0, &at.env);
  int32_t count = row_batch_begin(w, wk, &at, b, kv, batch, split);
  for (int32_t i = 0; i < count; i++) row_reach(w, &wk->row[i], &low, &high);
  low = maximum(low, progression.first + split * share);
  high = minimum(high, progression.first + minimum((split + 1) * share, span));
  for (int64_t from = low, to; from < high; from = to) {
    to = minimum(floor_to(from, w->chunk) + w->chunk, high);
    for (int32_t i = 0; i < count; i++)
      row_advance(w, wk, &wk->row[i], &at, from, to);
  }
  for (int32_t i = 0; i < count; i++) row_end(w, &wk->row[i], b, split);
  watch_add(r->call->watch, ROW_BATCH);
  trace_end(begin, "work", "rows", NULL, item);
}

/* Merges a row's states of all splits, in order, into the first. */
static void row_merge_splits(void *context, int64_t item,
                             int32_t worker_index) {
  (void)worker_index;
  const row_pass *w = context;
  const cpu_run *r = w->run;
  int32_t head = (int32_t)(item % r->table->heads);
  int64_t n = item / r->table->heads % r->N;
  int64_t b = item / r->table->heads / r->N;
  if (!walk_served(r->table, w->pass, head)) return;
  float *total = row_state(w, 0, b, n, head);
  for (int64_t split = 1; split < w->splits; split++) {
    const float *part = row_state(w, split, b, n, head);
    if (part[1] == 0) continue;
    float m = total[0] > part[0] || total[1] != total[1] ? total[0] : part[0];
    float old = total[1] == 0 ? 0 : exp2f(total[0] - m);
    float new = exp2f(part[0] - m);
    total[0] = m;
    total[1] = total[1] * old + part[1] * new;
    for (int32_t d = 0; d < r->table->value_dim; d++)
      total[2 + d] = total[2 + d] * old + part[2 + d] * new;
  }
  row_finish(w, b, n, head, total, total + 2);
}

static int64_t row_item_count(const row_pass *w) {
  return w->run->B * w->run->table->kv_heads * w->batches * w->splits;
}

int64_t row_pass_watch_rows(const cpu_run *r, const dil_pass *pass) {
  row_pass w = row_pass_plan(r, pass);
  return row_item_count(&w) * ROW_BATCH;
}

dil_status row_pass_run(cpu_run *r, const dil_pass *pass) {
  row_pass w = row_pass_plan(r, pass);
  int64_t threads = dil_threads_count(r->threads);
  w.states = (float *)r->scratch;
  w.workers = r->scratch + round_up(row_states_bytes(&w), 64);
  for (int64_t i = 0; i < threads; i++)
    row_worker_init(&w, w.workers + i * w.worker_bytes);
  dil_status status =
      dil_threads_run(r->threads, row_item_count(&w), row_pass_work, &w);
  if (status || w.splits == 1) return status;
  return dil_threads_run(r->threads, row_state_count(r), row_merge_splits, &w);
}
