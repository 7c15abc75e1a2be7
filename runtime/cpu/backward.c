/* backward.c - the gradients of a call on a processor: the call checked, its
 * memory, its passes.
 *
 * In: a kernel, a call that ran forward with its o and perhaps lse, and dO. Out:
 * dQ, dK, dV and the gradients of inputs, or an error that names what is wrong
 * with the call. */
#include "gradient.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/documents.h"
#include "runtime/base/status.h"
#include "runtime/observe/trace.h"
#include "runtime/rowset/walk.h"
#include <string.h>

enum {
  SUM_COPIES = 64,           /* copies of the sums of inputs, at most */
  SUM_BYTES = 64 << 20       /* of all copies, unless one alone has more */
};

/* ---- checking ------------------------------------------------------------ */

/* A wanted gradient: dtype that of its tensor or f32. */
static dil_status check_gradient(const char *name, const dil_tensor *t,
                                 dil_dtype dtype, const int64_t want[4]) {
  if (!t->data) return DIL_OK;
  return cpu_run_check_tensor(name, t, t->dtype == DIL_F32 ? DIL_F32 : dtype,
                              want);
}

static dil_status check_lse(const cpu_run *r, const dil_tensor *t,
                            const char *name) {
  char got[DIL_TENSOR_TEXT];
  if (!t->data) return DIL_OK;
  if (!r->table->lse_allowed)
    return dil_fail(DIL_USAGE, "kernel '%s' has no lse, and %s is given",
                    r->table->name, name);
  const int64_t *q = r->call->q.shape;
  if (t->dtype == DIL_F32 && t->rank == 3 && t->shape[0] == q[0] &&
      t->shape[1] == r->table->heads && t->shape[2] == q[1])
    return DIL_OK;
  return dil_fail(DIL_USAGE, "%s must be f32 [%lld, %d, %lld], got %s", name,
                  (long long)q[0], r->table->heads, (long long)q[1],
                  dil_tensor_text(t, got));
}

static dil_status check_input(const cpu_run *r, int32_t index,
                              const dil_tensor *t) {
  const dil_input *input = &r->table->inputs[index];
  const dil_tensor *of = &r->call->inputs[index];
  char got[DIL_TENSOR_TEXT], want[DIL_TENSOR_TEXT];
  if (!t->data) return DIL_OK;
  if (!input->gradient)
    return dil_fail(DIL_USAGE, "input '%s' has no gradient: its declaration "
                    "does not end in `gradient`", input->name);
  bool fits = t->rank == of->rank &&
              (t->dtype == DIL_F32 || t->dtype == of->dtype) &&
              !memcmp(t->shape, of->shape, (size_t)t->rank * sizeof *t->shape);
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "the gradient of input '%s' must be %s or f32, got "
                  "%s", input->name, dil_tensor_text(of, want),
                  dil_tensor_text(t, got));
}

static dil_status check_call(cpu_gradient_run *g) {
  cpu_run *r = g->run;
  const dil_backward_call *c = g->call;
  const dil_table *t = r->table;
  if (c->size != sizeof *c)
    return dil_fail(DIL_USAGE, "dil_backward_call.size must be %zu, got %zu",
                    sizeof *c, c->size);
  const dil_call *f = &c->forward;
  dil_status status = dil_run_check(r);
  if (!status)
    status = cpu_run_check_tensor("dO", &c->output, t->dtype, f->o.shape);
  if (!status) status = check_lse(r, &c->lse, "the gradient of lse");
  if (!status) status = check_gradient("dq", &c->dq, t->dtype, f->q.shape);
  if (!status) status = check_gradient("dk", &c->dk, t->dtype, f->k.shape);
  if (!status) status = check_gradient("dv", &c->dv, t->dtype, f->v.shape);
  for (int32_t x = 0; x < t->input_count && !status; x++)
    status = check_input(r, x, &c->inputs[x]);
  if (status || !documents_given(f)) return status;
  return documents_check_offsets(f);
}

/* ---- memory -------------------------------------------------------------- */

/* Passes that add to a row of a K/V head, or of a query head. */
static int32_t turns_of_keys(const cpu_gradient_run *g) {
  int32_t turns = 0;
  for (int32_t p = 0; p < g->pass_count; p++)
    turns += gradient_pass_turns(g->run, &g->passes[p]);
  return turns;
}

static bool turns_of_queries(const cpu_gradient_run *g) {
  const dil_table *table = g->run->table;
  for (int32_t h = 0; h < table->heads; h++) {
    int32_t passes = 0;
    for (int32_t p = 0; p < g->pass_count; p++)
      passes += walk_served(table, &g->passes[p], h) != 0;
    if (passes > 1) return true;
  }
  return false;
}

/* Scratch: [bounds of inputs][sums of inputs][o, lse made again][f32 sums of
 * dq, dk, dv][what a pass needs]. */
typedef struct cpu_backward_layout {
  int64_t bounds, sums, o, lse, dq, dk, dv, pass, bytes; /* offsets */
  bool remakes_lse;
} cpu_backward_layout;

static int64_t area(int64_t *at, int64_t bytes) {
  int64_t begin = *at;
  *at += round_up(bytes, 64);
  return begin;
}

static int64_t rows_bytes(const dil_tensor *t, size_t element) {
  return dil_tensor_count(t) * (int64_t)element;
}

/* Decides where the sums of each input begin, and how many copies there are. */
static void plan_sums(cpu_gradient_run *g) {
  g->sums_length = 0;
  for (int32_t x = 0; x < g->run->table->input_count; x++) {
    g->at[x] = -1;
    if (!g->call->inputs[x].data) continue;
    g->at[x] = g->sums_length;
    g->sums_length += dil_tensor_count(&g->call->inputs[x]);
  }
  int64_t bytes = maximum(g->sums_length, 1) * (int64_t)sizeof(double);
  g->copies = (int32_t)minimum(SUM_COPIES, maximum(SUM_BYTES / bytes, 1));
}

static cpu_backward_layout lay_out(cpu_gradient_run *g) {
  const cpu_run *r = g->run;
  const dil_backward_call *c = g->call;
  const dil_table *t = r->table;
  cpu_backward_layout l = {.remakes_lse = !g->own_lse && !c->forward.lse.data};
  int64_t end = 0, pass = 64;
  l.bounds = area(&end, input_bounds_bytes(r));
  int64_t sums = g->packed ? 0 : g->sums_length * g->copies;
  l.sums = area(&end, sums * (int64_t)sizeof(double));
  l.o = area(&end, l.remakes_lse
                       ? rows_bytes(&c->forward.o, dil_dtype_size(t->dtype))
                       : 0);
  l.lse = area(&end, l.remakes_lse ? r->B * r->N * t->heads * 4 : 0);
  bool keys = turns_of_keys(g) > 1;
  l.dq = area(&end, g->dq.add ? rows_bytes(&c->dq, 4) : 0);
  l.dk = area(&end, keys && c->dk.data ? rows_bytes(&c->dk, 4) : 0);
  l.dv = area(&end, keys && c->dv.data ? rows_bytes(&c->dv, 4) : 0);
  for (int32_t p = 0; p < g->pass_count; p++)
    pass = maximum(pass, gradient_pass_bytes(g, &g->passes[p]));
  if (l.remakes_lse) pass = maximum(pass, cpu_run_bytes(r));
  l.pass = area(&end, pass);
  l.bytes = end;
  return l;
}

/* ---- sums of several passes ---------------------------------------------- */

static dil_tensor sums_tensor(const dil_tensor *like, char *memory) {
  return dil_tensor_make(memory, DIL_F32, 4, like->shape);
}

static cpu_gradient_target target_of(const dil_tensor *given, bool add,
                                     char *memory) {
  if (!given->data) return (cpu_gradient_target){.to = *given};
  return (cpu_gradient_target){add ? sums_tensor(given, memory) : *given, add};
}

/* Rows of a tensor [B, N, H, width], one a task. */
typedef struct row_task {
  const dil_tensor *from; /* NULL: zeros */
  const dil_tensor *to;
} row_task;

static char *task_row(const dil_tensor *t, int64_t index) {
  int64_t h = index % t->shape[2], n = index / t->shape[2] % t->shape[1];
  int64_t b = index / t->shape[2] / t->shape[1];
  int64_t at = b * t->stride[0] + n * t->stride[1] + h * t->stride[2];
  return (char *)t->data + at * (int64_t)dil_dtype_size(t->dtype);
}

static void copy_row(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const row_task *task = context;
  char *to = task_row(task->to, index);
  int64_t width = task->to->shape[3];
  if (!task->from)
    memset(to, 0, (size_t)width * dil_dtype_size(task->to->dtype));
  else
    row_from_f32((const float *)task_row(task->from, index), task->to->dtype,
                 (int32_t)width, to);
}

/* Zeros, or the sums, to every row of a wanted gradient. */
static dil_status fill_rows(const cpu_gradient_run *g, const dil_tensor *from,
                            const dil_tensor *to) {
  row_task task = {from, to};
  if (!to->data) return DIL_OK;
  return dil_threads_run(g->run->threads,
                         to->shape[0] * to->shape[1] * to->shape[2], copy_row,
                         &task);
}

static dil_status begin_rows(const cpu_gradient_run *g) {
  dil_status status = fill_rows(g, NULL, &g->dq.to);
  if (!status) status = fill_rows(g, NULL, &g->dk.to);
  return status ? status : fill_rows(g, NULL, &g->dv.to);
}

static dil_status end_rows(const cpu_gradient_run *g) {
  const cpu_gradient_target *target[] = {&g->dq, &g->dk, &g->dv};
  const dil_tensor *given[] = {&g->call->dq, &g->call->dk, &g->call->dv};
  dil_status status = DIL_OK;
  for (int i = 0; i < 3 && !status; i++)
    if (target[i]->add) status = fill_rows(g, &target[i]->to, given[i]);
  return status;
}

/* ---- gradients of inputs ------------------------------------------------- */

void gradient_sums(const cpu_gradient_run *g, int64_t copy,
                   double *sums[DIL_INPUT_MAX]) {
  for (int32_t x = 0; x < g->run->table->input_count; x++)
    sums[x] = g->sums && g->at[x] >= 0
                  ? g->sums + copy * g->sums_length + g->at[x]
                  : NULL;
}

/* The copies of an input's sums, added in order, to the caller's tensor. */
static void store_input(const cpu_gradient_run *g, int32_t x) {
  const dil_tensor *t = &g->call->inputs[x];
  if (!t->data) return;
  int64_t count = dil_tensor_count(t);
  const double *sums = g->sums + g->at[x];
  for (int64_t i = 0; i < count; i++) {
    double sum = 0;
    for (int32_t copy = 0; copy < g->copies; copy++)
      sum += sums[copy * g->sums_length + i];
    int64_t rest = i, at = 0;
    for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
      at += rest % t->shape[axis] * t->stride[axis];
      rest /= t->shape[axis];
    }
    dil_element_write(t->data, t->dtype, at, sum * g->run->weight);
  }
}

void gradient_store_inputs(const cpu_gradient_run *g) {
  for (int32_t x = 0; x < g->run->table->input_count; x++) store_input(g, x);
}

/* ---- the run ------------------------------------------------------------- */

/* lse, where the host did not keep it: the forward pass, with an o that nobody
 * reads. */
static dil_status remake_lse(cpu_gradient_run *g, char *memory,
                             const cpu_backward_layout *l) {
  cpu_run forward = *g->run;
  dil_call call = *g->run->call;
  const int64_t rows[] = {g->run->B, g->run->table->heads, g->run->N};
  call.o = dil_tensor_make(memory + l->o, call.o.dtype, 4, call.o.shape);
  call.lse = dil_tensor_make(memory + l->lse, DIL_F32, 3, rows);
  forward.call = &call;
  g->lse = call.lse;
  return cpu_run_passes(&forward, memory + l->pass);
}

static dil_status run_all(cpu_gradient_run *g, char *memory) {
  cpu_run *r = g->run;
  cpu_backward_layout l = lay_out(g);
  bool keys = turns_of_keys(g) > 1;
  dil_status status = DIL_OK;
  if (l.sums > l.bounds) status = input_bounds_fill(r, memory + l.bounds);
  if (status) return status;
  g->dq = target_of(&g->call->dq, g->dq.add, memory + l.dq);
  g->dk = target_of(&g->call->dk, keys, memory + l.dk);
  g->dv = target_of(&g->call->dv, keys, memory + l.dv);
  g->sums = g->packed        ? g->packed->sums
            : g->sums_length ? (double *)(memory + l.sums)
                             : NULL;
  if (l.o > l.sums) memset(g->sums, 0, (size_t)(l.o - l.sums));
  g->lse = g->call->forward.lse;
  status = begin_rows(g);
  if (!status && l.remakes_lse && r->N && r->B)
    status = remake_lse(g, memory, &l);
  r->scratch = memory + l.pass;
  for (int32_t p = 0; p < g->pass_count && !status && r->N && r->B; p++) {
    int64_t begin = trace_begin();
    status = gradient_pass_run(g, &g->passes[p]);
    trace_end(begin, "pass", "pass backward", NULL, p);
  }
  if (!status) status = gradient_sinks_run(g);
  if (!status) status = end_rows(g);
  if (!status && !g->packed) gradient_store_inputs(g);
  return status;
}

/* Joins a pass to the first one before it with which it shares tiles and
 * heads; plans have a pass for each detached branch. */
static bool join_pass(cpu_gradient_run *g, const dil_pass *pass) {
  const dil_table *table = g->run->table;
  for (int32_t p = 0; p < g->pass_count; p++) {
    dil_pass *into = &g->passes[p];
    uint64_t both = into->branches | pass->branches;
    bool share = false;
    for (int32_t h = 0; h < table->heads && !share; h++)
      share = walk_served(table, into, h) && walk_served(table, pass, h);
    if (!share || !walk_fills_tiles(table, both)) continue;
    *into = (dil_pass){both, walk_period(table, both)};
    return true;
  }
  return false;
}

static void plan_passes(cpu_gradient_run *g) {
  const dil_table *table = g->run->table;
  g->pass_count = 0;
  for (int32_t p = 0; p < table->pass_count; p++)
    if (!g->weighs || !join_pass(g, &table->passes[p]))
      g->passes[g->pass_count++] = table->passes[p];
}

void gradient_run_open(cpu_gradient_run *g) {
  const dil_table *t = g->run->table;
  g->code = g->run->code[DIL_GRADIENTS];
  g->own_lse = combine_is_additive(t);
  g->detached = t->detached;
  g->weighs = g->detached && !g->own_lse && !g->run->drop && !g->run->shard &&
              g->run->code[DIL_TILES]->pack == DIL_PACK_F32;
  plan_passes(g);
  g->dq.add = g->call->dq.data && turns_of_queries(g);
  plan_sums(g);
}

int64_t gradient_run_bytes(cpu_run *r, const dil_backward_call *call) {
  cpu_gradient_run g = {.run = r, .call = call};
  gradient_run_open(&g);
  return documents_given(&call->forward) ? packed_gradient_bytes(&g)
                                         : lay_out(&g).bytes;
}

dil_status gradient_run_check(cpu_run *r, const dil_backward_call *call) {
  cpu_gradient_run g = {.run = r, .call = call};
  return check_call(&g);
}

dil_status gradient_run_all(cpu_run *r, const dil_backward_call *call,
                            char *memory) {
  cpu_gradient_run g = {.run = r, .call = call};
  gradient_run_open(&g);
  return documents_given(&call->forward) ? packed_gradient_run(&g, memory)
                                         : run_all(&g, memory);
}

int64_t gradient_document_bytes(const cpu_gradient_run *of, cpu_run *document,
                                const dil_backward_call *call) {
  cpu_gradient_run g = {.run = document, .call = call, .packed = of};
  gradient_run_open(&g);
  return lay_out(&g).bytes;
}

dil_status gradient_document_run(const cpu_gradient_run *of, cpu_run *document,
                                 const dil_backward_call *call, char *memory) {
  cpu_gradient_run g = {.run = document, .call = call, .packed = of};
  gradient_run_open(&g);
  return run_all(&g, memory);
}
