/* cpu_run.c - one run of a kernel: it checks the call, lays out memory and
 * runs the passes.
 *
 * In: a plan as data, generated code, a call. Out: o and lse, or an error that
 * names what is wrong with the call. Nothing here depends on threads. */
#include "cpu_run.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include "runtime/observe/watch.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- checking a call ----------------------------------------------------- */

static dil_status cpu_run_wrong_shape(const char *name, const dil_tensor *t,
                                      const int64_t want[4]) {
  bool turned = t->shape[2] != want[2] && t->shape[1] == want[2];
  return dil_fail(DIL_USAGE, "%s must be [%lld, %lld, %lld, %lld], got "
                  "[%lld, %lld, %lld, %lld]%s", name, (long long)want[0],
                  (long long)want[1], (long long)want[2], (long long)want[3],
                  (long long)t->shape[0], (long long)t->shape[1],
                  (long long)t->shape[2], (long long)t->shape[3],
                  turned ? ": rows come before heads" : "");
}

dil_status cpu_run_check_tensor(const char *name, const dil_tensor *t,
                                dil_dtype dtype, const int64_t want[4]) {
  if (t->dtype != dtype)
    return dil_fail(DIL_USAGE, "%s must be %s, got %s", name,
                    dil_dtype_name(dtype), dil_dtype_name(t->dtype));
  if (t->rank != 4)
    return dil_fail(DIL_USAGE, "%s must have 4 dimensions, got %d", name,
                    t->rank);
  for (int32_t axis = 0; axis < 4; axis++)
    if (t->shape[axis] != want[axis]) return cpu_run_wrong_shape(name, t, want);
  int64_t count = dil_tensor_count(t);
  if (count && !t->data)
    return dil_fail(DIL_USAGE, "%s is not given", name);
  if (count && t->shape[3] > 1 && t->stride[3] != 1)
    return dil_fail(DIL_USAGE, "the last dimension of %s must be contiguous, "
                    "its stride is %lld", name, (long long)t->stride[3]);
  if (count && (uintptr_t)t->data % dil_dtype_size(dtype))
    return dil_fail(DIL_USAGE, "%s is not aligned to its elements", name);
  return DIL_OK;
}

static dil_status cpu_run_check_lse(const cpu_run *r) {
  char got[DIL_TENSOR_TEXT];
  const dil_tensor *t = &r->call->lse;
  if (!t->data) return DIL_OK;
  if (!r->table->lse_allowed)
    return dil_fail(DIL_USAGE, "kernel '%s' has no lse: its branches are "
                    "combined after their own softmax", r->table->name);
  const int64_t *q = r->call->q.shape;
  bool fits = t->dtype == DIL_F32 && t->rank == 3 && t->shape[0] == q[0] &&
              t->shape[1] == r->table->heads && t->shape[2] == q[1];
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "lse must be f32 [%lld, %d, %lld], got %s",
                  (long long)q[0], r->table->heads, (long long)q[1],
                  dil_tensor_text(t, got));
}

static dil_status cpu_run_check_lengths(const cpu_run *r) {
  for (int64_t b = 0; r->call->lengths && b < r->B; b++)
    if (r->call->lengths[b] < 0 || r->call->lengths[b] > r->M)
      return dil_fail(DIL_USAGE, "lengths[%lld] must be within 0 and %lld, "
                      "got %d", (long long)b, (long long)r->M,
                      r->call->lengths[b]);
  return DIL_OK;
}

dil_status dil_run_check(cpu_run *r) {
  const dil_table *table = r->table;
  const dil_call *c = r->call;
  if (c->size != sizeof *c)
    return dil_fail(DIL_USAGE, "dil_call.size must be %zu, got %zu",
                    sizeof *c, c->size);
  int64_t B = c->q.shape[0], N = c->q.shape[1], M = dil_pages_keys(c);
  if (B < 0 || N < 0 || M < 0 || B > INT32_MAX || N > DIL_LENGTH_MAX ||
      M > DIL_LENGTH_MAX)
    return dil_fail(DIL_USAGE, "batch and lengths must be within 0 and %d",
                    DIL_LENGTH_MAX);
  const int64_t q[] = {B, N, table->heads, table->head_dim};
  const int64_t batch = pages_given(c) ? c->k.shape[0] : B;
  const int64_t rows = pages_given(c) ? c->k.shape[1] : M;
  const int64_t k[] = {batch, rows, table->kv_heads, table->head_dim};
  const int64_t v[] = {batch, rows, table->kv_heads, table->value_dim};
  const int64_t o[] = {B, N, table->heads, table->value_dim};
  dil_status status = cpu_run_check_tensor("q", &c->q, table->dtype, q);
  if (!status) status = cpu_run_check_tensor("k", &c->k, table->dtype, k);
  if (!status) status = cpu_run_check_tensor("v", &c->v, table->dtype, v);
  if (!status) status = cpu_run_check_tensor("o", &c->o, table->dtype, o);
  if (!status) status = cpu_run_check_lse(r);
  if (!status) status = dil_pages_check(c);
  if (!status && documents_given(c)) status = documents_check_shape(c);
  if (status) return status;
  r->B = documents_count(c);
  r->N = documents_queries(c);
  r->M = documents_given(c) ? documents_keys(c) : M;
  status = cpu_run_check_lengths(r);
  if (!status) status = cpu_run_check_grid(r);
  double scale = table->runtime_scale ? c->scale : table->scale;
  if (!status && !isfinite(scale))
    status = dil_fail(DIL_USAGE, "the softmax scale must be finite, got %g",
                      scale);
  r->scale = (float)scale;
  r->weight = table->combine == DIL_COMBINE_MEAN
                  ? 1 / (float)table->branch_count
                  : 1;
  r->drop = c->train && table->dropout > 0;
  return status;
}

static dil_status cpu_run_check_progression(const char *what,
                                            const dil_progression *progression,
                                            int64_t rows_given, int64_t low,
                                            int64_t high) {
  if (progression->count == rows_given && progression->step >= 1 &&
      progression->count >= 0 &&
      (progression->count == 0 ||
       (progression->first >= low && progression_end(*progression) <= high)))
    return DIL_OK;
  return dil_fail(DIL_USAGE,
                  "%lld %s for %lld rows at positions %lld, %lld "
                  "apart, of %lld to %lld",
                  (long long)progression->count, what, (long long)rows_given,
                  (long long)progression->first, (long long)progression->step,
                  (long long)low, (long long)high);
}

dil_status dil_shard_check(cpu_run *r) {
  const dil_shard *p = r->shard;
  dil_status status = dil_run_check(r);
  if (status) return status;
  if (p->N < 0 || p->M < 0 || p->N > DIL_LENGTH_MAX || p->M > DIL_LENGTH_MAX)
    return dil_fail(DIL_USAGE, "lengths of the whole must be within 0 and %d",
                    DIL_LENGTH_MAX);
  status = cpu_run_check_progression("queries", &p->queries, r->N, p->M - p->N,
                                     p->M);
  return status ? status
                : cpu_run_check_progression("keys", &p->keys, r->M, 0, p->M);
}

/* ---- which variant ------------------------------------------------------- */

/* No cell is longer than the positions of the call: a residue beyond them has
 * no row, and none comes twice. */
int64_t cpu_run_period(const cpu_run *r, const dil_pass *pass) {
  const dil_shard *p = r->shard;
  int64_t step = p ? least_multiple(p->queries.step, p->keys.step) : 1;
  int64_t span = p ? maximum(p->N, p->M) : maximum(r->N, r->M);
  return minimum(least_multiple(pass->period, step),
                 round_up(maximum(span, 1), step));
}

/* Rows that share their keys in a pass: a class of the shortest cell. */
dil_variant cpu_run_variant(const cpu_run *r, const dil_pass *pass) {
  const dil_table *table = r->table;
  if (table->general) return DIL_ROWS;
  int64_t shortest = r->shard ? r->N * r->shard->queries.step : r->N;
  for (int32_t b = 0; b < table->branch_count; b++) {
    int64_t s = table->branches[b].segment;
    if ((pass->branches >> b & 1) && s) shortest = minimum(shortest, s);
  }
  return shortest / cpu_run_period(r, pass) < DIL_TILE_ROWS_LEAST ? DIL_ROWS
                                                                  : DIL_TILES;
}

unsigned cpu_run_variants(const cpu_run *r) {
  unsigned mask = 0;
  for (int32_t p = 0; p < r->table->pass_count; p++)
    mask |= 1u << cpu_run_variant(r, &r->table->passes[p]);
  return mask;
}

/* ---- one run ------------------------------------------------------------- */

finish cpu_run_finish(const cpu_run *r, int32_t head) {
  if (r->shard) return FINISH_RESUME;
  if (!r->chained[head]) return FINISH_WRITE;
  return combine_is_additive(r->table) ? FINISH_ADD : FINISH_RESUME;
}

static char *cpu_run_final_output(const cpu_run *r, int64_t b, int64_t n,
                                  int32_t h) {
  const dil_tensor *o = &r->call->o;
  int64_t at = b * o->stride[0] + n * o->stride[1] + h * o->stride[2];
  return (char *)o->data + at * (int64_t)dil_dtype_size(o->dtype);
}

static int64_t cpu_run_state_row(const cpu_run *r, int64_t b, int64_t n,
                                 int32_t h) {
  return (b * r->N + n) * r->table->heads + h;
}

char *cpu_run_output(const cpu_run *r, int64_t b, int64_t n, int32_t h) {
  if (!r->shard && !r->chained[h]) return cpu_run_final_output(r, b, n, h);
  return (char *)(r->state_o +
                  cpu_run_state_row(r, b, n, h) * r->table->value_dim);
}

static float *cpu_run_final_lse(const cpu_run *r, int64_t b, int64_t n,
                                int32_t h) {
  const dil_tensor *t = &r->call->lse;
  if (!t->data) return NULL;
  return (float *)t->data + b * t->stride[0] + h * t->stride[1] +
         n * t->stride[2];
}

float *cpu_run_lse(const cpu_run *r, int64_t b, int64_t n, int32_t h) {
  if (!r->shard && !r->chained[h]) return cpu_run_final_lse(r, b, n, h);
  return r->state_lse + cpu_run_state_row(r, b, n, h);
}

row_view cpu_run_row_view(const dil_tensor *t, int64_t b, int32_t head,
                          dil_progression progression) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  return (row_view){.base = (const char *)t->data +
                            (b * t->stride[0] + head * t->stride[2]) * size,
                    .stride = t->stride[1] * size,
                    .first = progression.first,
                    .step = progression.step,
                    .dtype = t->dtype,
                    .width = (int32_t)t->shape[3]};
}

row_view cpu_run_key_view(const cpu_run *r, const dil_tensor *t, int64_t b,
                          int32_t head) {
  dil_progression keys = cpu_run_key_progression(r, b);
  if (!pages_given(r->call)) return cpu_run_row_view(t, b, head, keys);
  row_view view = cpu_run_row_view(t, 0, head, keys);
  view.page = pages_of(r->call, b);
  view.page_shift = pages_shift(r->call);
  view.page_stride = t->stride[0] * (int64_t)dil_dtype_size(t->dtype);
  return view;
}

void cpu_run_env_init(const cpu_run *r, int64_t b, int32_t h,
                      cpu_run_env *env) {
  const dil_shard *shard = r->shard;
  const dil_call *c = r->call;
  *env = (cpu_run_env){
      .env = {.batch = (int32_t)(shard ? shard->batch + b : r->document + b),
              .head = shard ? shard->head + h : h,
              .B = (int32_t)(shard ? shard->B : (r->packed ? r->packed : r)->B),
              .N = (int32_t)(shard ? shard->N : r->N),
              .M = (int32_t)(shard ? shard->M : cpu_run_keys(r, b)),
              .seed_low = c->seed_at ? c->seed_at[0] : (uint32_t)c->seed,
              .seed_high = c->seed_at ? c->seed_at[1]
                                      : (uint32_t)(c->seed >> 32),
              .scale = r->scale,
              .inputs = r->inputs,
              .range = input_range},
      .run = r};
}

/* The first state of every row of the chained heads. Additive passes start with
 * their sinks themselves; the pattern's alone say whether the row is NaN. */
static void cpu_run_begin_row(void *context, int64_t row, int32_t worker) {
  (void)worker;
  const cpu_run *r = context;
  int64_t b = row / r->N, n = row % r->N;
  uint64_t among = combine_is_additive(r->table) ? 0 : ~0ull;
  for (int32_t h = 0; h < r->table->heads; h++)
    if (r->chained[h])
      cpu_run_bare_row(r, DIL_F32, cpu_run_row_sink(r, b, n, h, among),
                       cpu_run_output(r, b, n, h), cpu_run_lse(r, b, n, h));
}

static bool cpu_run_serves(const cpu_run *r, int32_t h) {
  for (int32_t p = 0; p < r->table->pass_count; p++)
    if (walk_served(r->table, &r->table->passes[p], h)) return true;
  return false;
}

/* Returns the lse that a row of a head without branches starts from. Additive
 * passes have a softmax for each branch, so there is none here. */
static float cpu_run_unserved_sink(const cpu_run *r, int64_t b, int64_t n,
                                   int32_t h) {
  return combine_is_additive(r->table) ? -INFINITY
                                       : cpu_run_row_sink(r, b, n, h, 0);
}

/* Rounds the state once to the output; heads that no branch serves get 0. */
static void cpu_run_end_row(void *context, int64_t row, int32_t worker) {
  (void)worker;
  const cpu_run *r = context;
  int64_t b = row / r->N, n = row % r->N;
  for (int32_t h = 0; h < r->table->heads; h++) {
    float *lse = cpu_run_final_lse(r, b, n, h);
    if (!cpu_run_serves(r, h)) {
      cpu_run_bare_row(r, r->table->dtype, cpu_run_unserved_sink(r, b, n, h),
                       cpu_run_final_output(r, b, n, h), lse);
    } else if (r->chained[h]) {
      row_from_f32((const float *)cpu_run_output(r, b, n, h), r->table->dtype,
                   r->table->value_dim, cpu_run_final_output(r, b, n, h));
      if (lse) *lse = *cpu_run_lse(r, b, n, h);
    }
  }
}

static bool cpu_run_leaves_heads_out(const cpu_run *r) {
  for (int32_t h = 0; h < r->table->heads; h++)
    if (!cpu_run_serves(r, h)) return true;
  return false;
}

static int64_t cpu_run_pass_bytes(const cpu_run *r, int32_t p) {
  const dil_pass *pass = &r->table->passes[p];
  return cpu_run_variant(r, pass) == DIL_ROWS ? row_pass_bytes(r, pass)
                                              : tile_pass_bytes(r, pass);
}

/* Scratch: [bounds of inputs][chained o][chained lse][memory of a pass]. */
typedef struct cpu_run_layout {
  int64_t state_o, state_lse, pass, end; /* offsets */
} cpu_run_layout;

static cpu_run_layout cpu_run_lay_out(const cpu_run *r) {
  int64_t rows_of_state = 0, pass = 64;
  for (int32_t h = 0; h < r->table->heads && !r->shard; h++)
    if (r->chained[h]) rows_of_state = r->B * r->N * r->table->heads;
  for (int32_t p = 0; p < r->table->pass_count; p++)
    pass = maximum(pass, cpu_run_pass_bytes(r, p));
  cpu_run_layout at = {.state_o = round_up(input_bounds_bytes(r), 64)};
  at.state_lse = at.state_o +
                 round_up(rows_of_state * r->table->value_dim * 4, 64);
  at.pass = at.state_lse + round_up(rows_of_state * 4, 64);
  at.end = at.pass + pass;
  return at;
}

int64_t cpu_run_bytes(const cpu_run *r) {
  return cpu_run_lay_out(r).end;
}

static dil_status cpu_run_pass(cpu_run *r, int32_t p) {
  const dil_pass *pass = &r->table->passes[p];
  bool by_rows = cpu_run_variant(r, pass) == DIL_ROWS;
  int64_t begin = trace_begin();
  dil_status status = by_rows ? row_pass_run(r, pass) : tile_pass_run(r, pass);
  trace_end(begin, "pass", by_rows ? "pass by rows" : "pass by tiles", NULL, p);
  return status;
}

static void cpu_run_begin_watch(const cpu_run *r) {
  int64_t total = 0;
  for (int32_t p = 0; p < r->table->pass_count; p++) {
    const dil_pass *pass = &r->table->passes[p];
    total += cpu_run_variant(r, pass) == DIL_ROWS
                 ? row_pass_watch_rows(r, pass)
                 : tile_pass_watch_rows(r, pass);
  }
  atomic_store(&r->call->watch->done, 0);
  atomic_store(&r->call->watch->total, total);
}

dil_status cpu_run_passes(cpu_run *r, char *memory) {
  cpu_run_layout at = cpu_run_lay_out(r);
  dil_status status = at.state_o ? input_bounds_fill(r, memory) : DIL_OK;
  if (status) return status;
  r->state_o = (float *)(memory + at.state_o);
  r->state_lse = (float *)(memory + at.state_lse);
  r->scratch = memory + at.pass;
  bool stateful = at.state_lse > at.state_o;
  int64_t rows_count = r->B * r->N;
  if (r->call->watch) cpu_run_begin_watch(r);
  if (stateful)
    status = dil_threads_run(r->threads, rows_count, cpu_run_begin_row, r);
  for (int32_t p = 0; p < r->table->pass_count && !status; p++)
    status = cpu_run_pass(r, p);
  if (status || !(stateful || cpu_run_leaves_heads_out(r))) return status;
  return dil_threads_run(r->threads, rows_count, cpu_run_end_row, r);
}

/* ---- a shard of a sequence ----------------------------------------------- */

/* `state_o` and `state_lse` become those of pass p. */
static void cpu_run_choose_state(cpu_run *r, int32_t p) {
  int64_t rows_of_state = r->B * r->N * r->table->heads;
  int64_t state = shard_is_by_pass(r->table, r->shard) ? p : 0;
  r->state_o = r->shard->o + state * rows_of_state * r->table->value_dim;
  r->state_lse = r->shard->lse + state * rows_of_state;
}

/* The sinks that the branches of one pass have themselves: those of a softmax
 * whose o `gradient detached` asks for. */
static float cpu_run_branch_sink(const cpu_run *r, const dil_pass *own,
                                 int64_t b, int64_t n, int32_t h) {
  dil_progression queries = cpu_run_queries(r, b);
  int32_t t = (int32_t)(queries.first + n * queries.step);
  uint64_t sinks = r->table->sink_branches & own->branches;
  cpu_run_env env;
  float s = -INFINITY;
  sinks = walk_selecting(r->table, sinks, h, t);
  if (!sinks) return s;
  cpu_run_env_init(r, b, h, &env);
  r->code[DIL_GRADIENTS]->branch_sink(sinks, &t, 1, &env.env, &s);
  return s;
}

/* The first state of a row: of one pass, or of all of them (NULL). */
static float cpu_run_state_sink(const cpu_run *r, const dil_pass *own,
                                int64_t row, int32_t h) {
  int64_t b = row / r->N % r->B, n = row % r->N;
  if (!own) return cpu_run_row_sink(r, b, n, h, ~0ull);
  if (!walk_served(r->table, own, h)) return -INFINITY;
  if (!combine_is_additive(r->table))
    return cpu_run_branch_sink(r, own, b, n, h);
  return cpu_run_row_sink(r, b, n, h, own->branches);
}

/* Rows are counted through all states. */
static void cpu_run_begin_shard_row(void *context, int64_t row,
                                    int32_t worker) {
  (void)worker;
  const cpu_run *r = context;
  const dil_table *table = r->table;
  int64_t heads = table->heads, state = row / (r->B * r->N);
  const dil_pass *own =
      shard_is_by_pass(table, r->shard) ? &table->passes[state] : NULL;
  for (int32_t h = 0; h < heads; h++)
    cpu_run_bare_row(
        r, DIL_F32, cpu_run_state_sink(r, own, row, h),
        (char *)(r->shard->o + (row * heads + h) * table->value_dim),
        &r->shard->lse[row * heads + h]);
}

dil_status cpu_run_begin(cpu_run *r) {
  bool by_pass = shard_is_by_pass(r->table, r->shard);
  int64_t states = by_pass ? r->table->pass_count : 1;
  return dil_threads_run(r->threads, states * r->B * r->N,
                         cpu_run_begin_shard_row, r);
}

dil_status cpu_run_advance(cpu_run *r, char *memory) {
  cpu_run_layout at = cpu_run_lay_out(r);
  dil_status status = at.state_o ? input_bounds_fill(r, memory) : DIL_OK;
  r->scratch = memory + at.pass;
  r->weight = 1; /* states are weighted when they are added */
  for (int32_t p = 0; p < r->table->pass_count && !status; p++) {
    cpu_run_choose_state(r, p);
    status = cpu_run_pass(r, p);
  }
  return status;
}

/* The states of one row and head, weighted and added, in place of the first. */
static float *cpu_run_add_states(const cpu_run *r, int64_t row) {
  int64_t width = r->table->value_dim;
  int64_t size = r->B * r->N * r->table->heads * width;
  float *sum = r->shard->o + row * width;
  if (!combine_is_additive(r->table)) return sum;
  for (int64_t d = 0; d < width; d++) {
    sum[d] *= r->weight;
    for (int32_t p = 1; p < r->table->pass_count; p++)
      sum[d] += r->weight * sum[p * size + d];
  }
  return sum;
}

/* lse of `mean` and `sum`: of the one pass that serves the head. */
static float cpu_run_state_lse(const cpu_run *r, int64_t row, int32_t h) {
  int64_t size = r->B * r->N * r->table->heads;
  for (int32_t p = 0; p < run_states(r->table); p++)
    if (run_states(r->table) == 1 ||
        walk_served(r->table, &r->table->passes[p], h))
      return r->shard->lse[p * size + row];
  return -INFINITY;
}

static void cpu_run_end_shard_row(void *context, int64_t row, int32_t worker) {
  (void)worker;
  const cpu_run *r = context;
  int64_t b = row / r->N, n = row % r->N;
  for (int32_t h = 0; h < r->table->heads; h++) {
    float *lse = cpu_run_final_lse(r, b, n, h);
    row_from_f32(cpu_run_add_states(r, row * r->table->heads + h),
                 r->table->dtype, r->table->value_dim,
                 cpu_run_final_output(r, b, n, h));
    if (lse) *lse = cpu_run_state_lse(r, row * r->table->heads + h, h);
  }
}

dil_status cpu_run_end(cpu_run *r) {
  return dil_threads_run(r->threads, r->B * r->N, cpu_run_end_shard_row, r);
}
