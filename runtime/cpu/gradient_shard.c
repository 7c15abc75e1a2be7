/* gradient_shard.c - the gradients of a shard: some queries over some keys of a
 * longer sequence.
 *
 * In: a call with o and lse of the whole sequence, dO, and f32 sums. Out: the
 * sums, advanced by what the shard's pairs give. Where a branch has a softmax of
 * its own, or a delta of its own (`gradient detached`), the keys of the shard
 * alone do not say its lse and o: the states of the rows do, a state for each
 * pass. Sinks belong to rows, so that a caller asks for them once a row. Where
 * queries come to the keys of another rank, their lse and delta come with them,
 * as numbers that their own rank has made. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <math.h>
#include <string.h>

/* ---- checking ------------------------------------------------------------ */

static dil_status check_sums(const char *name, const dil_tensor *sums,
                             const int64_t want[4]) {
  return sums->data ? cpu_run_check_tensor(name, sums, DIL_F32, want) : DIL_OK;
}

dil_status dil_gradient_shard_check(const cpu_run *r,
                                    const dil_backward_call *c) {
  const dil_call *f = &c->forward;
  bool joint = !combine_is_additive(r->table);
  dil_status status =
      cpu_run_check_tensor("dO", &c->output, r->table->dtype, f->o.shape);
  if (!status) status = check_sums("the sums of dq", &c->dq, f->q.shape);
  if (!status) status = check_sums("the sums of dk", &c->dk, f->k.shape);
  if (!status) status = check_sums("the sums of dv", &c->dv, f->v.shape);
  if (r->shard->numbers) return status;
  if (!status && joint && !f->lse.data)
    return dil_fail(DIL_USAGE, "the gradients of a shard need the lse of its "
                    "rows");
  if (!status && backward_asks_states(r->table) && !(r->shard->o && r->shard->lse))
    return dil_fail(DIL_USAGE, "the gradients of a shard need the states of "
                    "its rows");
  return status;
}

/* ---- rows ---------------------------------------------------------------- */

void gradient_shard_row(const cpu_gradient_run *g, int64_t b, int64_t n,
                        int32_t head, float *spare, float *lse, float *delta) {
  const cpu_run *r = g->run;
  const dil_table *table = r->table;
  if (gradient_known_row(g, b, n, head, g->pass, lse, delta)) return;
  int64_t row = (b * r->N + n) * table->heads + head;
  int64_t state = g->pass * r->B * r->N * table->heads + row;
  const float *o = r->shard->o + state * table->value_dim;
  row_view given = cpu_run_row_view(&g->call->output, b, head,
                                    (dil_progression){0, 1, r->N});
  double sum = 0;
  float own = r->shard->lse[state];
  row_to_f32(row_view_at(&given, n), given.dtype, table->value_dim, spare);
  for (int32_t d = 0; d < table->value_dim && own != -INFINITY; d++)
    sum += (double)spare[d] * o[d];
  sum -= (double)gradient_of_lse(g, b, n, head) / (double)r->weight;
  if (!g->own_lse) gradient_row(g, b, n, head, spare, lse, delta);
  else *lse = own == -INFINITY ? INFINITY : own * DIL_LOG2_E;
  *delta = (float)sum;
}

/* ---- numbers of rows that travel ----------------------------------------- */

typedef struct row_numbers {
  cpu_gradient_run *g;     /* its pass is the state under way */
  float *to;               /* [B, N, heads][states][lse, delta] */
  int32_t states;
} row_numbers;

static void write_numbers(void *context, int64_t row, int32_t worker) {
  const row_numbers *work = context;
  const cpu_run *r = work->g->run;
  int64_t heads = r->table->heads;
  int64_t b = row / heads / r->N, n = row / heads % r->N;
  int32_t head = (int32_t)(row % heads);
  float spare[2 * DIL_HEAD_DIM_MAX];
  float *to = work->to + 2 * (row * work->states + work->g->pass);
  (void)worker;
  if (backward_asks_states(r->table))
    gradient_shard_row(work->g, b, n, head, spare, &to[0], &to[1]);
  else
    gradient_row(work->g, b, n, head, spare, &to[0], &to[1]);
}

/* ---- sinks --------------------------------------------------------------- */

/* Work: some lists of (batch row, head), each with its copy of the sums. */
typedef struct shard_sinks {
  cpu_gradient_run *g;     /* its pass is under way */
  int64_t lists;
} shard_sinks;

/* The sinks of the pass under way, in one row. A row that no branch of the pass
 * selects has the pattern's sinks alone, where the softmax is the pass's. */
static void add_row(const cpu_gradient_run *g, const dil_env *env, int64_t b,
                    int64_t n, int32_t head, double *const *sums) {
  const dil_table *table = g->run->table;
  dil_progression queries = cpu_run_queries(g->run, b);
  int32_t t = (int32_t)(queries.first + n * queries.step);
  uint64_t served = walk_served(table, &g->passes[g->pass], head);
  uint64_t branches = walk_selecting(table, served, head, t);
  float lse, delta, spare[2 * DIL_HEAD_DIM_MAX];
  if (!served) return;
  if (branches) {
    gradient_shard_row(g, b, n, head, spare, &lse, &delta);
    g->code->sink_inputs(g->own_lse, branches, &t, 1, env, &lse, &delta, sums);
  } else if (g->own_lse && g->call->lse.data) {
    gradient_bare_row(g, env, b, n, head, sums);
  }
}

static void add_head(void *context, int64_t list, int32_t worker) {
  const shard_sinks *work = context;
  const cpu_run *r = work->g->run;
  int64_t heads = r->table->heads;
  double *sums[DIL_INPUT_MAX];
  cpu_run_env env;
  (void)worker;
  gradient_sums(work->g, list, sums);
  for (int64_t item = list; item < r->B * heads; item += work->lists) {
    int64_t b = item / heads;
    int32_t head = (int32_t)(item % heads);
    cpu_run_env_init(r, b, head, &env);
    for (int64_t n = 0; n < r->N; n++)
      add_row(work->g, &env.env, b, n, head, sums);
  }
}

/* The sinks of all rows: those of the joint softmax, then those of passes. */
static dil_status run_sinks(cpu_gradient_run *g) {
  const dil_table *table = g->run->table;
  shard_sinks work = {g, minimum(g->copies, g->run->B * table->heads)};
  if (!g->sums || !table->sinks || !g->run->shard->sinks) return DIL_OK;
  dil_status status = gradient_sinks_run(g);
  bool apart = g->own_lse || g->detached;
  for (g->pass = 0; apart && g->pass < g->pass_count && !status; g->pass++)
    status = dil_threads_run(g->run->threads, work.lists, add_head, &work);
  return status;
}

/* ---- the run ------------------------------------------------------------- */

/* Scratch: [bounds of inputs][sums of inputs][what a pass needs]. */
typedef struct shard_layout {
  int64_t sums, pass, bytes; /* offsets */
} shard_layout;

static shard_layout lay_out(const cpu_gradient_run *g) {
  int64_t pass = 64;
  shard_layout l = {.sums = round_up(input_bounds_bytes(g->run), 64)};
  l.pass = l.sums + round_up(g->sums_length * g->copies *
                                 (int64_t)sizeof(double), 64);
  for (int32_t p = 0; p < g->pass_count; p++)
    if (g->passes[p].branches)
      pass = maximum(pass, gradient_pass_bytes(g, &g->passes[p]));
  l.bytes = l.pass + pass;
  return l;
}

static cpu_gradient_run shard_open(cpu_run *r, const dil_backward_call *call) {
  cpu_gradient_run g = {.run = r, .call = call};
  gradient_run_open(&g);
  for (int32_t p = 0; p < g.pass_count; p++)
    g.passes[p].branches &= ~r->shard->left_out;
  g.dq = (cpu_gradient_target){call->dq, true};
  g.dk = (cpu_gradient_target){call->dk, true};
  g.dv = (cpu_gradient_target){call->dv, true};
  g.lse = call->forward.lse;
  return g;
}

int64_t gradient_shard_bytes(cpu_run *r, const dil_backward_call *call) {
  cpu_gradient_run g = shard_open(r, call);
  return lay_out(&g).bytes;
}

/* The copies of the sums of inputs, in order, to the caller's. */
static void add_inputs(const cpu_gradient_run *g) {
  for (int64_t i = 0; g->sums && i < g->sums_length; i++) {
    double sum = 0;
    for (int32_t copy = 0; copy < g->copies; copy++)
      sum += g->sums[copy * g->sums_length + i];
    g->run->shard->inputs[i] += sum * (double)g->run->weight;
  }
}

dil_status gradient_shard_run(cpu_run *r, const dil_backward_call *call,
                              char *memory) {
  cpu_gradient_run g = shard_open(r, call);
  shard_layout l = lay_out(&g);
  dil_status status = DIL_OK;
  if (l.sums) status = input_bounds_fill(r, memory);
  if (g.sums_length && r->shard->inputs) {
    g.sums = (double *)(memory + l.sums);
    memset(g.sums, 0, (size_t)(l.pass - l.sums));
  }
  r->scratch = memory + l.pass;
  for (g.pass = 0; g.pass < g.pass_count && r->M && !status; g.pass++) {
    int64_t begin = trace_begin();
    if (!g.passes[g.pass].branches) continue;
    status = gradient_pass_run(&g, &g.passes[g.pass]);
    trace_end(begin, "pass", "pass backward", NULL, g.pass);
  }
  if (!status) status = run_sinks(&g);
  if (!status) add_inputs(&g);
  return status;
}

dil_status gradient_shard_numbers(cpu_run *r, const dil_backward_call *call,
                                  float *numbers) {
  cpu_gradient_run g = shard_open(r, call);
  row_numbers work = {&g, numbers, backward_states(r->table)};
  dil_status status = DIL_OK;
  for (g.pass = 0; g.pass < work.states && !status; g.pass++)
    status = dil_threads_run(r->threads, r->B * r->N * r->table->heads,
                             write_numbers, &work);
  return status;
}
