/* row_pass.c - a pass over single rows: for few queries, and for segments too
 * small to fill a tile.
 *
 * In: a pass and a call. Keys and values are read in place, at the stride of
 * the branch, or copied together from pages; the keys that a row sees of a
 * branch are found exactly by arithmetic, so that only mask expressions are
 * evaluated. The rows of one K/V head (decoding with grouped queries) go over
 * the same keys together. Where there are few rows, the keys are split, the
 * splits are computed in parallel and their states are merged in order, as in
 * Flash-Decoding (Dao, Haziza, Massa and Sizov 2023, on the PyTorch blog). The
 * number of splits follows from the batch row's own keys, never from the batch. */
#include "cpu_run.h"
#include "paged_rows.h"
#include "runtime/base/arithmetic.h"
#include "runtime/observe/trace.h"
#include "runtime/observe/watch.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

enum {
  BATCH = 16,       /* rows a work item */
  CHUNK = 256,      /* keys of one branch a step */
  SPLIT_ITEMS = 64, /* split keys until there are about this many items */
  SPLIT_LEAST = 1024 /* positions a split, at least */
};

/* One query row and its running state; acc is [value_dim]. */
typedef struct query_row {
  int64_t n, t;
  int32_t head;
  uint64_t selected; /* branches that select it */
  uint32_t word;     /* of dropout */
  float state[2];    /* m in units of log2, l */
  float *q, *acc;
} query_row;

typedef struct row_worker {
  query_row row[BATCH];
  float *s;
  int32_t *j;
  uint32_t *words;      /* of dropout, for the keys j */
  class_table streamed; /* of key rows */
  paged_rows gathered;  /* from pages of a cache */
} row_worker;

typedef struct row_pass {
  const cpu_run *run;
  const dil_pass *pass;
  const dil_code *code;
  int64_t group;          /* query heads a K/V head */
  int64_t batches, splits;
  int64_t chunk;          /* positions a step */
  int64_t state_floats;   /* of one row's state: 2 + value_dim, rounded */
  float *states;          /* [splits][rows of the call]; splits > 1 only */
  char *workers;
  int64_t worker_bytes;
} row_pass;

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
         BATCH * width * (int64_t)sizeof(float) + (CHUNK + DIL_CODE_ROOM) * 12 +
         row_class_area(r, pass) + paged_rows_bytes(r, CHUNK);
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
  w.batches = (r->N * w.group + BATCH - 1) / BATCH;
  w.chunk = CHUNK * dilation * (r->shard ? r->shard->keys.step : 1);
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
  at += round_up((int64_t)sizeof(row_worker), 64);
  wk->s = (float *)at;
  at += (CHUNK + DIL_CODE_ROOM) * sizeof(float);
  wk->j = (int32_t *)at;
  at += (CHUNK + DIL_CODE_ROOM) * sizeof(int32_t);
  wk->words = (uint32_t *)at;
  at += (CHUNK + DIL_CODE_ROOM) * sizeof(uint32_t);
  for (int32_t i = 0; i < BATCH; i++) {
    wk->row[i].q = (float *)at;
    at += round_up(table->head_dim, 16) * (int64_t)sizeof(float);
    wk->row[i].acc = (float *)at;
    at += round_up(table->value_dim, 16) * (int64_t)sizeof(float);
  }
  if (row_class_area(w->run, w->pass))
    class_table_init(&wk->streamed, cpu_run_period(w->run, w->pass), at);
  paged_rows_init(&wk->gathered, w->run, CHUNK,
                  at + row_class_area(w->run, w->pass));
}

/* ---- the keys of one row ------------------------------------------------- */

/* Keys first, first + step, ... below `end`, under these predicates. */
typedef struct key_sequence {
  int64_t first, step, end;
  uint64_t predicates;
  int32_t chain;
} key_sequence;

typedef struct row_source { /* the keys and values of a work item */
  row_view k, v;
  cpu_run_env env;
} row_source;

static void row_visit(const row_pass *w, row_worker *wk, query_row *q,
                      const row_source *at, const key_sequence *ks) {
  const dil_code *code = w->code;
  const dil_env *env = &at->env.env;
  int64_t n = (ks->end - ks->first + ks->step - 1) / ks->step;
  float c2 = env->scale * DIL_LOG2_E;
  bool rewrite = ks->predicates || w->run->table->scored || !(c2 > 0);
  row_run rows = paged_rows_take(&wk->gathered, &at->k, &at->v, ks->first,
                                 ks->step, n);
  code->row_qk(q->q, rows.k, rows.k_stride, wk->s, n);
  if (rewrite || w->run->drop)
    for (int64_t i = 0; i < n; i++)
      wk->j[i] = (int32_t)(ks->first + i * ks->step);
  if (rewrite) {
    code->row_modify[ks->chain](wk->s, n, (int32_t)q->t, wk->j,
                                ks->predicates, env);
    c2 = DIL_LOG2_E;
  }
  if (w->run->drop)
    code->dropout_words(wk->j, n, DIL_DROPOUT_KEY, env, wk->words);
  float alpha = w->run->drop ? code->row_softmax_drop(wk->s, n, c2, 0, q->state,
                                                      q->word, wk->words)
                             : code->row_softmax(wk->s, n, c2, 0, q->state);
  code->row_pv(wk->s, rows.v, rows.v_stride, q->acc, alpha, n);
}

static void row_visit_chunks(const row_pass *w, row_worker *wk, query_row *q,
                             const row_source *at, key_sequence ks) {
  int64_t end = ks.end;
  for (; ks.first < end; ks.first += CHUNK * ks.step) {
    ks.end = minimum(end, ks.first + CHUNK * ks.step);
    row_visit(w, wk, q, at, &ks);
  }
}

/* Cuts low..high-1 to the keys that the window of a predicate shows row t. */
static void window_clip(const dil_predicate *p, int64_t t, int64_t *low,
                        int64_t *high) {
  if (p->left != DIL_ENDLESS) *low = maximum(*low, t - p->left);
  if (p->right != DIL_ENDLESS) *high = minimum(*high, t + p->right + 1);
  *low = maximum(*low, p->key_first);
  *high = minimum(*high, dil_predicate_end(p));
  if (!dil_predicate_meets_rows(p, t, t)) *high = *low;
}

static int64_t segment_low(const dil_branch *b, int64_t t) {
  return b->segment ? floor_to(t, b->segment) : 0;
}

/* Keeps the keys of a sequence that are among the rows of this call. */
static bool key_sequence_align(key_sequence *ks, const row_view *there) {
  int64_t tries = 0, step = ks->step;
  while ((ks->first - there->first) % there->step && tries++ < there->step)
    ks->first += step;
  while (ks->step % there->step) ks->step += step;
  return tries <= there->step;
}

/* The residue of the keys that the row sees, counted from its segment. */
static int64_t key_phase(const dil_branch *b, const query_row *q,
                         int64_t base) {
  return b->each ? floor_mod(q->t - b->shift - base, b->dilation)
                 : b->phase[q->head];
}

/* The keys of branch b in positions low..high-1: an arithmetic sequence. */
static void row_visit_branch(const row_pass *w, row_worker *wk, query_row *q,
                             const row_source *at, int32_t b, int64_t low,
                             int64_t high) {
  const dil_branch *branch = &w->run->table->branches[b];
  int64_t base = segment_low(branch, q->t);
  key_sequence ks = {.step = branch->dilation, .chain = branch->chain};
  low = maximum(low, base);
  if (branch->segment) high = minimum(high, base + branch->segment);
  if (branch->predicate >= 0) {
    const dil_predicate *p = &w->run->table->predicates[branch->predicate];
    window_clip(p, q->t, &low, &high);
    if (p->masked) ks.predicates = 1ull << branch->predicate;
  }
  int64_t origin = base + key_phase(branch, q, base);
  ks.first = origin + round_up(maximum(low - origin, 0), ks.step);
  ks.end = high;
  if (key_sequence_align(&ks, &at->k)) row_visit_chunks(w, wk, q, at, ks);
}

/* `union`: each residue of the period once, with all branches that reach it. */
static void row_visit_residue(const row_pass *w, row_worker *wk, query_row *q,
                              const row_source *at, uint64_t reach,
                              int64_t first, int64_t high) {
  const dil_table *table = w->run->table;
  key_sequence ks = {first, wk->streamed.period, high, 0,
                     table->branches[__builtin_ctzll(reach)].chain};
  for (; reach; reach &= reach - 1) {
    int32_t p = table->branches[__builtin_ctzll(reach)].predicate;
    if (p < 0) {
      ks.predicates = 0;
      break;
    }
    ks.predicates |= 1ull << p;
  }
  row_visit_chunks(w, wk, q, at, ks);
}

static void row_visit_union(const row_pass *w, row_worker *wk, query_row *q,
                            const row_source *at, int64_t low, int64_t high) {
  walk wa = {.table = w->run->table,
             .pass = w->pass,
             .served = q->selected,
             .head = q->head,
             .round = 1};
  segment_cell held = {q->t, q->t + 1};
  dil_progression there = {at->k.first, at->k.step, 0};
  class_table_reset(&wk->streamed, &there);
  while (low < high) {
    segment_cell c = walk_cell(&wa, low, high);
    uint64_t near = walk_together(&wa, held, c, q->selected);
    if (near) walk_classes(&wa, c, &wk->streamed);
    for (int32_t i = 0; near && i < wk->streamed.count; i++) {
      uint64_t reach = near & wk->streamed.branches[i];
      reach = walk_meeting(&wa, reach, q->t,
                           c.low + wk->streamed.offset[wk->streamed.first[i]]);
      for (int32_t o = wk->streamed.first[i];
           reach && o < wk->streamed.first[i + 1]; o++)
        row_visit_residue(w, wk, q, at, reach, c.low + wk->streamed.offset[o],
                          c.high);
    }
    low = c.high;
  }
}

/* ---- a batch of rows ----------------------------------------------------- */

/* Positions that the row's branches can reach at all. */
static void row_reach(const row_pass *w, const query_row *q, int64_t *low,
                      int64_t *high) {
  for (uint64_t rest = q->selected; rest; rest &= rest - 1) {
    const dil_branch *b =
        &w->run->table->branches[__builtin_ctzll(rest)];
    int64_t from = segment_low(b, q->t);
    int64_t to = b->segment ? from + b->segment : INT64_MAX;
    if (b->predicate >= 0)
      window_clip(&w->run->table->predicates[b->predicate], q->t, &from, &to);
    *low = minimum(*low, from);
    *high = maximum(*high, to);
  }
}

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
  if (w->run->table->combine == DIL_COMBINE_UNION) {
    row_visit_union(w, wk, q, at, low, high);
    return;
  }
  for (uint64_t rest = q->selected; rest; rest &= rest - 1)
    row_visit_branch(w, wk, q, at, __builtin_ctzll(rest), low, high);
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
  for (int64_t i = batch * BATCH; i < minimum(all, (batch + 1) * BATCH); i++) {
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
  for (int64_t from = low; from < high; from += w->chunk)
    for (int32_t i = 0; i < count; i++)
      row_advance(w, wk, &wk->row[i], &at, from,
                  minimum(from + w->chunk, high));
  for (int32_t i = 0; i < count; i++) row_end(w, &wk->row[i], b, split);
  watch_add(r->call->watch, BATCH);
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
  return row_item_count(&w) * BATCH;
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
