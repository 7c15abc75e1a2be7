/* gradient_sink.c - rows backward: their lse and delta, and the gradients of
 * sinks that the joint softmax has.
 *
 * In: a run with o and lse, dO, dlse. Out: numbers of a row; the sums of inputs,
 * advanced by what the sinks of all rows give. A row counts even where no pass
 * has a key for it. Sinks of a softmax that is a branch's own are added where
 * its tiles are: see gradient_tile.c. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"
#include <math.h>

/* ---- rows ---------------------------------------------------------------- */

static float row_element(const dil_tensor *x, int64_t b, int64_t h,
                         int64_t n) {
  return ((const float *)x->data)[b * x->stride[0] + h * x->stride[1] +
                                  n * x->stride[2]];
}

float gradient_of_lse(const cpu_gradient_run *g, int64_t b, int64_t n,
                      int32_t head) {
  const dil_tensor *x = &g->call->lse;
  return x->data ? row_element(x, b, head, n) : 0;
}

static double row_dot(const float *a, const float *b, int32_t width) {
  double sum = 0;
  for (int32_t d = 0; d < width; d++) sum += (double)a[d] * b[d];
  return sum;
}

/* In units of log2; +inf for a row without keys, whose pairs weigh 0. */
static float lse_power(float lse) {
  return lse == -INFINITY ? INFINITY : lse * DIL_LOG2_E;
}

void gradient_row(const cpu_gradient_run *g, int64_t b, int64_t n, int32_t head,
                  float *spare, float *lse, float *delta) {
  const cpu_run *r = g->run;
  int32_t width = r->table->value_dim;
  dil_progression queries = cpu_run_queries(r, b);
  int64_t t = queries.first + n * queries.step;
  row_view saved = cpu_run_row_view(&r->call->o, b, head, queries);
  row_view given = cpu_run_row_view(&g->call->output, b, head, queries);
  if (gradient_known_row(g, b, n, head, 0, lse, delta)) return;
  row_to_f32(row_view_at(&saved, t), saved.dtype, width, spare);
  row_to_f32(row_view_at(&given, t), given.dtype, width, spare + width);
  *lse = lse_power(row_element(&g->lse, b, head, n));
  *delta = (float)(row_dot(spare, spare + width, width) -
                   gradient_of_lse(g, b, n, head));
}

/* ---- sinks of rows ------------------------------------------------------- */

/* Work: some lists of (batch row, head), each with its copy of the sums. */
typedef struct sink_work {
  const cpu_gradient_run *g;
  int64_t lists;
} sink_work;

/* One row at a time: the branches that select it may differ. */
static void add_row(const cpu_gradient_run *g, const dil_env *env, int64_t b,
                    int64_t n, int32_t head, double *const *sums) {
  const dil_table *table = g->run->table;
  dil_progression queries = cpu_run_queries(g->run, b);
  int32_t t = (int32_t)(queries.first + n * queries.step);
  float lse, delta, spare[2 * DIL_HEAD_DIM_MAX];
  uint64_t branches = 0;
  gradient_row(g, b, n, head, spare, &lse, &delta);
  if (g->detached)
    delta = -gradient_of_lse(g, b, n, head);
  else
    branches = walk_selecting(table, table->sink_branches, head, t);
  g->code->sink_inputs(1, branches, &t, 1, env, &lse, &delta, sums);
}

static void add_head(void *context, int64_t list, int32_t worker) {
  const sink_work *work = context;
  const cpu_gradient_run *g = work->g;
  const cpu_run *r = g->run;
  int64_t heads = r->table->heads;
  double *sums[DIL_INPUT_MAX];
  cpu_run_env env;
  (void)worker;
  gradient_sums(g, list, sums);
  for (int64_t item = list; item < r->B * heads; item += work->lists) {
    int64_t b = item / heads;
    int32_t head = (int32_t)(item % heads);
    cpu_run_env_init(r, b, head, &env);
    for (int64_t n = 0; n < r->N; n++)
      add_row(g, &env.env, b, n, head, sums);
  }
}

dil_status gradient_sinks_run(const cpu_gradient_run *g) {
  sink_work work = {g, minimum(g->copies, g->run->B * g->run->table->heads)};
  if (!g->sums || !g->run->table->sinks || g->own_lse) return DIL_OK;
  return dil_threads_run(g->run->threads, work.lists, add_head, &work);
}

/* ---- rows that a branch does not select ---------------------------------- */

void gradient_bare_row(const cpu_gradient_run *g, const dil_env *env, int64_t b,
                       int64_t n, int32_t head, double *const *sums) {
  dil_progression queries = cpu_run_queries(g->run, b);
  int32_t t = (int32_t)(queries.first + n * queries.step);
  float lse = lse_power(cpu_run_row_sink(g->run, b, n, head, 0));
  float delta = -gradient_of_lse(g, b, n, head) / g->run->weight;
  g->code->sink_inputs(1, 0, &t, 1, env, &lse, &delta, sums);
}
