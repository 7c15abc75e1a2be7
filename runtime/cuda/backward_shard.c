/* backward_shard.c - the gradients of a shard on a GPU: some queries over some
 * keys of a longer sequence.
 *
 * In: a call with o and lse of the whole sequence, dO, and f32 sums. Out:
 * launches that add to the sums what the shard's pairs give. Where a branch has a
 * softmax or a delta of its own, the states of the rows say its lse and o. Rows
 * that come from another rank bring numbers in place of all that. The fast kernels
 * leave out rows whose sums are not finite, and mark them: the general ones then
 * add these alone. A shard that opens its sums writes them in its first pass, or
 * clears them before it. */
#include "backward.h"
#include "workspace.h"
#include "general.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu_run.h"
#include "runtime/cuda/hopper/hopper_gradient.h"
#include "runtime/rowset/walk.h"

bool kernel_asks_states(const dil_cuda_kernel *kernel) {
  return backward_asks_states(kernel->table);
}

/* ---- checking ------------------------------------------------------------ */

static dil_status shard_check(dil_cuda_kernel *kernel,
                              const dil_backward_call *call,
                              const dil_shard *shard, backward_run *b) {
  const cpu_run checked = {
      .table = kernel->table, .call = &call->forward, .shard = shard};
  *b = (backward_run){.kernel = kernel, .call = call, .seen = call->forward};
  dil_status status =
      kernel_check_call(kernel, &call->forward, shard, &b->run);
  if (!status) status = backward_refuse(kernel);
  if (!status && cuda_rows(&b->run)) /* else no memory of states is there */
    status = dil_gradient_shard_check(&checked, call);
  b->seen.o = call->output;
  b->run.call = &b->seen;
  return status;
}

/* ---- codes and memory ---------------------------------------------------- */

static dil_status shard_have_codes(backward_run *b) {
  cuda_codes *codes = &b->kernel->codes;
  backward_codes *of = &b->codes;
  dil_status status = DIL_OK;
  if (b->run.shard->inputs && backward_wants_scores(b))
    status = codes_take_gradient(codes, GRADIENT_INPUTS, true, &of->inputs);
  if (!status) status = backward_have_general_codes(b, true);
  if (!status) status = backward_have_fast_codes(b);
  if (!status && cuda_bounds_bytes(&b->run))
    status = codes_take_last(codes, &of->general);
  return status;
}

static bool shard_is_fast(const backward_run *b) {
  const cuda_run *r = &b->run;
  return !r->shard->sinks && !backward_asks_states(r->table) &&
         !backward_fast_refusal(b);
}

/* Marks of the rows of dQ, dK and dV. */
static int64_t shard_marks(const cuda_run *r, int32_t of) {
  const dil_table *t = r->table;
  return r->B * (of ? r->M * t->kv_heads : r->N * t->heads);
}

/* Facts, but where numbers stand for them; of the fast kernels their facts, their
 * space and the marks; sums of inputs; bounds of inputs. */
static void shard_lay_out(backward_run *b) {
  const cuda_run *r = &b->run;
  backward_layout *at = &b->at;
  int64_t rows = r->shard->numbers ? 0 : cuda_rows(r) * r->table->heads;
  bool fast = shard_is_fast(b);
  int64_t facts = round_up(cuda_rows(r) * r->table->heads * DIL_FACTS *
                               (int64_t)sizeof(float), 256);
  int64_t marks = 0;
  for (int32_t i = 0; i < 3; i++) marks += shard_marks(r, i);
  at->fast = round_up(rows * DIL_FACTS * (int64_t)sizeof(float), 256);
  at->sums[0] = at->fast + (fast ? facts : 0);
  at->sums[1] = at->sums[0] + (fast ? hopper_gradient_bytes(r) : 0);
  at->inputs = round_up(at->sums[1] + (fast ? marks : 0), 256);
  if (r->shard->inputs) {
    input_sums_plan(r, b->call->inputs,
                    b->codes.inputs ? b->codes.inputs->about.threads / 32 : 1,
                    &b->inputs);
    input_sums_add_to(&b->inputs, r->shard->inputs);
  }
  at->bounds = at->inputs + input_sums_bytes(&b->inputs);
  at->end = at->bounds + cuda_bounds_bytes(r);
}

static void shard_place(backward_run *b, char *base) {
  const dil_backward_call *c = b->call;
  gradient_run *g = &b->gradient;
  *g = (gradient_run){.of = &b->run,
                      .o = c->forward.o,
                      .lse_gradient = &c->lse,
                      .facts = (float *)base,
                      .fact_states = 1,
                      .q = {.to = &c->dq},
                      .k = {.to = &c->dk},
                      .v = {.to = &c->dv}};
  gradient_take_lse(g, &c->forward.lse);
  b->run.bounds = cuda_bounds_bytes(&b->run) ? base + b->at.bounds : NULL;
  b->sums = base + b->at.inputs;
}

/* ---- facts --------------------------------------------------------------- */

/* The facts of all rows, or those of pass p, are made from o and lse, or from the
 * states of the pass. */
static dil_status shard_make_facts(backward_run *b, int32_t p) {
  const cuda_run *r = &b->run;
  const dil_table *t = r->table;
  gradient_run *g = &b->gradient;
  const int64_t shape[4] = {r->B, r->N, t->heads, t->value_dim};
  int64_t state = p * cuda_rows(r) * t->heads;
  if (backward_asks_states(t))
    g->o = dil_tensor_make(r->shard->o + state * t->value_dim, DIL_F32, 4,
                           shape);
  if (combine_is_additive(t)) {
    g->lse = r->shard->lse + state;
    g->lse_stride[0] = r->N * t->heads;
    g->lse_stride[1] = t->heads;
    g->lse_stride[2] = 1;
  }
  return gradient_delta(g, b->codes.q);
}

/* The facts of pass p, unless they are there. */
static dil_status shard_take_facts(backward_run *b, int32_t p) {
  const dil_shard *shard = b->run.shard;
  bool apart = backward_asks_states(b->run.table);
  gradient_run *g = &b->gradient;
  if (!shard->numbers) return apart || p == 0 ? shard_make_facts(b, p) : DIL_OK;
  g->fact_states = backward_states(b->run.table);
  g->facts = (float *)(uintptr_t)shard->numbers + (apart ? DIL_FACTS * p : 0);
  return DIL_OK;
}

/* ---- the run ------------------------------------------------------------- */

/* The sinks of the softmax of pass p: in `detached`, of its branches' deltas. */
static dil_status shard_run_sinks(backward_run *b, int32_t p) {
  const dil_table *t = b->run.table;
  bool additive = combine_is_additive(t);
  if (!b->run.shard->sinks || !t->sinks) return DIL_OK;
  if (additive || t->detached)
    return backward_run_sinks(b, additive, t->passes[p].branches);
  return p ? DIL_OK : backward_run_sinks(b, true, UINT64_MAX);
}

/* In `detached` the pattern's own sinks move the joint lse alone. */
static dil_status shard_end_sinks(backward_run *b) {
  const dil_table *t = b->run.table;
  if (!b->run.shard->sinks || !t->sinks || !t->detached) return DIL_OK;
  if (combine_is_additive(t)) return DIL_OK;
  b->gradient.o.data = NULL;
  dil_status status = gradient_delta(&b->gradient, b->codes.q);
  return status ? status : backward_run_sinks(b, true, 0);
}

static bool shard_has_pass(const backward_run *b, int32_t p) {
  const cuda_run *r = &b->run;
  return r->M && r->table->passes[p].branches & ~r->shard->left_out;
}

static dil_status shard_run_pass(backward_run *b, int32_t p) {
  dil_status status = shard_take_facts(b, p);
  if (!status && shard_has_pass(b, p)) status = backward_run_pass(b, p, false);
  return status ? status : shard_run_sinks(b, p);
}

/* ---- by the fast kernels -------------------------------------------------- */

static dil_status shard_clear_marks(const backward_run *b) {
  const cuda_driver *driver = b->run.device->driver;
  size_t bytes = (size_t)(b->at.inputs - b->at.sums[1]);
  return cuda_check(
      driver,
      driver->fill_ordered((cu_pointer)(uintptr_t)b->gradient.q.marks, 0, bytes,
                           b->run.stream),
      "clear marks");
}

/* A pass, and of the rows that it marks once more. */
static dil_status shard_run_fast_pass(backward_run *b, int32_t p,
                                      const hopper_gradient_space *space) {
  gradient_run *g = &b->gradient;
  float *facts = g->facts;
  if (!shard_has_pass(b, p)) return DIL_OK;
  dil_status status = shard_clear_marks(b);
  if (!status) status = backward_run_fast_pass(b, p, space);
  g->only_if = space->spoiled;
  if (!status)
    status = b->run.shard->numbers ? shard_take_facts(b, p)
                                   : shard_make_facts(b, p);
  if (!status) status = backward_run_pass(b, p, false);
  g->only_if = NULL;
  g->facts = facts;
  return status;
}

static dil_status shard_run_fast(backward_run *b, char *base) {
  const cuda_run *r = &b->run;
  gradient_run *g = &b->gradient;
  hopper_gradient_space space =
      hopper_gradient_place(g, base + b->at.sums[0]);
  space.facts = (float *)(base + b->at.fast);
  g->q.marks = (unsigned char *)base + b->at.sums[1];
  g->k.marks = g->q.marks + shard_marks(r, 0);
  g->v.marks = g->k.marks + shard_marks(r, 1);
  dil_status status = hopper_gradient_facts(g, 0, NULL, &space, b->codes.fast_q);
  for (int32_t p = 0; p < r->table->pass_count && !status; p++)
    status = shard_run_fast_pass(b, p, &space);
  return status;
}

/* Whether the first pass writes all sums. Its shard has rows, and keys. */
static bool shard_opens_fast(const backward_run *b) {
  const gradient_run *g = &b->gradient;
  const backward_codes *codes = &b->codes;
  return shard_is_fast(b) && shard_has_pass(b, 0) &&
         hopper_gradient_opens(g, codes->fast_q) &&
         hopper_gradient_opens(g, codes->fast_k) &&
         hopper_gradient_opens(g, codes->fast_v);
}

/* The sums of a shard that opens them are contiguous. */
static dil_status shard_clear_sums(const backward_run *b) {
  const cuda_driver *driver = b->run.device->driver;
  const dil_backward_call *c = b->call;
  const dil_tensor *const all[] = {&c->dq, &c->dk, &c->dv};
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < 3 && !status; i++) {
    size_t bytes = (size_t)dil_tensor_count(all[i]) * sizeof(float);
    if (all[i]->data && bytes)
      status = cuda_check(
          driver,
          driver->fill_ordered((cu_pointer)(uintptr_t)all[i]->data, 0, bytes,
                               b->run.stream),
          "clear sums");
  }
  return status;
}

static dil_status shard_run_all(backward_run *b) {
  const gradient_run *g = &b->gradient;
  dil_status status = DIL_OK;
  if (b->run.shard->opens && !shard_opens_fast(b)) status = shard_clear_sums(b);
  if (status) return status;
  if (b->run.bounds) status = general_bounds(&b->run, b->codes.general);
  if (!status) status = input_sums_begin(g, b->sums, b->codes.q, &b->inputs);
  if (!status && shard_is_fast(b)) return shard_run_fast(b, (char *)g->facts);
  for (int32_t p = 0; p < b->run.table->pass_count && !status; p++)
    status = shard_run_pass(b, p);
  if (!status) status = shard_end_sinks(b);
  return status ? status : input_sums_end(g, &b->inputs, b->codes.q);
}

static dil_status shard_run_in_workspace(backward_run *b,
                                         dil_status (*work)(backward_run *b)) {
  const dil_cuda *device = b->kernel->device;
  workspace w = {0};
  dil_status status = workspace_take(device, b->run.stream, b->at.end, &w);
  if (status) return status;
  shard_place(b, w.memory);
  status = work(b);
  dil_status given = workspace_give(device, b->run.stream, &w);
  return status ? status : given;
}

/* ---- calls --------------------------------------------------------------- */

static dil_status shard_run_entered(backward_run *b, void *stream,
                                    dil_status (*work)(backward_run *b)) {
  dil_status status = cuda_enter(b->kernel->device);
  if (status) return status;
  b->run.stream = stream;
  status = shard_have_codes(b);
  if (!status) shard_lay_out(b);
  if (!status) status = shard_run_in_workspace(b, work);
  cuda_leave(b->kernel->device);
  return status;
}

static dil_status shard_clear_entered(backward_run *b, void *stream) {
  dil_status status = cuda_enter(b->kernel->device);
  if (status) return status;
  b->run.stream = stream;
  status = shard_clear_sums(b);
  cuda_leave(b->kernel->device);
  return status;
}

dil_status kernel_backward_shard(dil_cuda_kernel *kernel,
                                 const dil_backward_call *call,
                                 const dil_shard *shard, void *stream) {
  backward_run b;
  dil_status status = shard_check(kernel, call, shard, &b);
  bool nothing = (!shard->sinks && b.run.M == 0) || cuda_rows(&b.run) == 0;
  if (status || (nothing && !shard->opens)) return status;
  if (nothing) return shard_clear_entered(&b, stream);
  return shard_run_entered(&b, stream, shard_run_all);
}

static dil_status shard_make_numbers(backward_run *b) {
  float *numbers = b->gradient.facts;
  dil_status status = DIL_OK;
  b->gradient.fact_states = backward_states(b->run.table);
  for (int32_t p = 0; p < b->gradient.fact_states && !status; p++) {
    b->gradient.facts = numbers + DIL_FACTS * p;
    status = shard_make_facts(b, p);
  }
  return status;
}

dil_status kernel_row_numbers(dil_cuda_kernel *kernel,
                              const dil_backward_call *call,
                              const dil_shard *shard, float *numbers,
                              void *stream) {
  backward_run b;
  dil_status status = shard_check(kernel, call, shard, &b);
  if (status || cuda_rows(&b.run) == 0) return status;
  status = cuda_enter(kernel->device);
  if (status) return status;
  b.run.stream = stream;
  status = backward_have_general_codes(&b, true);
  if (!status) shard_place(&b, NULL);
  b.gradient.facts = numbers;
  if (!status) status = shard_make_numbers(&b);
  cuda_leave(kernel->device);
  return status;
}
