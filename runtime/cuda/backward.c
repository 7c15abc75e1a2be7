/* backward.c - the gradients of a call on a GPU. In: a kernel of a backward
 * plan, a call that ran forward with its o and lse, and dO. Out: launches that
 * write dQ, dK, dV and the gradients of inputs.
 *
 * A row's weights follow from the lse of its softmax. Where the call brings
 * none, and for `mean` and `sum`, where each pass has a softmax of its own, the
 * passes run forward once more, as those of a shard do: their states have lse,
 * and o of each pass. Under `gradient detached` a pass is one branch: its own o
 * is made so, and the lse stays the joint one. Each pass has facts of its own in
 * both cases. Gradients that several passes make are summed in f32. */
#include "backward.h"
#include "general.h"
#include "spans.h"
#include "workspace.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/status.h"
#include "runtime/cuda/hopper/hopper_gradient.h"
#include "runtime/rowset/walk.h"

bool backward_makes_lse(const backward_run *b) {
  return !combine_is_additive(b->kernel->table) && !b->call->forward.lse.data;
}

bool backward_has_saved(const backward_run *b) {
  const dil_call *call = &b->call->forward;
  return call->saved && kernel_saved_bytes(b->kernel, call);
}

static bool backward_has_states(const backward_run *b) {
  bool asks = backward_asks_states(b->kernel->table) && !backward_has_saved(b);
  return asks || backward_makes_lse(b);
}

/* ---- checking ------------------------------------------------------------ */

void backward_see_calls(backward_run *b) {
  b->again = b->seen = b->call->forward;
  b->seen.o = b->call->output;
  if (!b->again.o.data) b->again.o = b->call->output;
  b->run.call = &b->seen;
  b->run.turns = b->call->dk.data || b->call->dv.data;
}

dil_status backward_refuse(const dil_cuda_kernel *kernel) {
  const dil_table *t = kernel->table;
  for (int32_t p = 0; t->detached && p < t->pass_count; p++)
    if (t->passes[p].branches & (t->passes[p].branches - 1))
      return dil_fail(DIL_UNSUPPORTED,
                      "'%s' says `gradient detached`, and pass %d of it was "
                      "forced to have several branches: on a GPU each branch "
                      "needs a pass of its own then",
                      t->name, p);
  return DIL_OK;
}

dil_status backward_check(dil_cuda_kernel *kernel,
                          const dil_backward_call *call, backward_run *b) {
  *b = (backward_run){.kernel = kernel, .call = call, .seen = call->forward};
  dil_status status = kernel_check_call(kernel, &call->forward, NULL, &b->run);
  if (!status) status = backward_refuse(kernel);
  backward_see_calls(b);
  return status;
}

bool backward_wants_scores(const backward_run *b) {
  const dil_table *t = b->kernel->table;
  for (int32_t i = 0; i < t->input_count; i++)
    if (b->call->inputs[i].data && t->inputs[i].in_scores) return true;
  return false;
}

bool backward_wants_inputs(const backward_run *b) {
  for (int32_t i = 0; i < b->kernel->table->input_count; i++)
    if (b->call->inputs[i].data) return true;
  return false;
}

/* Returns whether a call whose fast codes are there may do without the general
 * kernels. Sums of several passes are rounded by these, unless the fast ones do. */
static bool backward_spares_general(const backward_run *b) {
  bool rounds = b->kernel->table->pass_count > 1;
  return !backward_wants_inputs(b) && !backward_fast_refusal(b) &&
         (!rounds || backward_settles(b));
}

static dil_status backward_have_codes(backward_run *b) {
  cuda_codes *codes = &b->kernel->codes;
  backward_codes *of = &b->codes;
  dil_status status = DIL_OK;
  if (backward_wants_scores(b))
    status = codes_take_gradient(codes, GRADIENT_INPUTS, true, &of->inputs);
  if (!status) status = backward_have_fast_codes(b);
  if (!status)
    status = backward_have_general_codes(b, !backward_spares_general(b));
  cuda_run forward = backward_forward_run(b);
  if (!status && backward_has_states(b))
    status = kernel_load_passes(b->kernel, &forward);
  if (!status && (backward_has_states(b) || cuda_bounds_bytes(&b->run)))
    status = codes_take_last(codes, &of->general);
  return status;
}

/* ---- workspace ----------------------------------------------------------- */

/* f32 sums of a gradient of 16-bit elements to which several passes add, or
 * the fused form. */
static int64_t backward_sums_bytes(const backward_run *b,
                                   const dil_tensor *to) {
  bool several = b->kernel->table->pass_count > 1;
  if (!to->data || to->dtype == DIL_F32) return 0;
  int64_t bytes = several ? dil_tensor_count(to) * 4 : 0;
  if (to == &b->call->dq) bytes = maximum(bytes, backward_fused_bytes(b));
  return round_up(bytes, 256);
}

/* Of the passes that run forward, as a shard. */
static dil_status backward_forward_bytes(const backward_run *b,
                                         int64_t *bytes) {
  cuda_run r = backward_forward_run(b);
  kernel_layout at;
  *bytes = 0;
  if (!backward_has_states(b)) return DIL_OK;
  dil_status status = kernel_lay_out(b->kernel, &r, &at);
  if (!status) *bytes = at.end - at.pass;
  return status;
}

/* States of o: one that passes take in turn, unless all begin with sinks. */
static int32_t backward_outputs(const dil_table *t) {
  return t->sinks ? run_states(t) : 1;
}

/* States of lse: those of the passes, and of a branch beside the joint one. */
static int32_t backward_lses(const backward_run *b) {
  const dil_table *t = b->kernel->table;
  if (!backward_has_states(b)) return 0;
  return run_states(t) + (t->detached && backward_makes_lse(b));
}

/* The general kernels, which may have to make the gradients of all passes again,
 * keep the facts of each. */
static int32_t backward_facts_count(const backward_run *b) {
  const dil_table *t = b->kernel->table;
  bool again = backward_asks_states(t) && !backward_fast_refusal(b);
  return again ? t->pass_count : 1;
}

static dil_status backward_lay_out(backward_run *b) {
  const dil_table *t = b->kernel->table;
  const dil_backward_call *c = b->call;
  const dil_tensor *const to[] = {&c->dq, &c->dk, &c->dv};
  backward_layout *at = &b->at;
  int64_t rows = cuda_rows(&b->run) * t->heads, pass;
  int64_t states = backward_has_states(b) ? rows : 0;
  dil_status status = backward_forward_bytes(b, &pass);
  at->facts = 0;
  at->fast = round_up(backward_facts_count(b) * rows * DIL_FACTS * 4, 256);
  at->lists = at->fast + round_up(hopper_gradient_bytes(&b->run), 256);
  at->documents = at->lists + round_up(backward_list_bytes(b), 256);
  at->state_o = at->documents + backward_documents_bytes(b);
  at->state_lse =
      at->state_o +
      round_up(states * backward_outputs(t) * t->value_dim * 4, 256);
  int64_t next = at->state_lse + round_up(rows * backward_lses(b) * 4, 256);
  for (int32_t i = 0; i < 3; i++) {
    at->sums[i] = next;
    next += backward_sums_bytes(b, to[i]);
  }
  at->inputs = next;
  input_sums_plan(&b->run, c->inputs,
                  b->codes.inputs ? b->codes.inputs->about.threads / 32 : 1,
                  &b->inputs);
  at->bounds = at->inputs + input_sums_bytes(&b->inputs);
  at->pass = at->bounds + cuda_bounds_bytes(&b->run);
  at->end = at->pass + pass;
  return status;
}

static gradient_target backward_target_of(const backward_run *b, char *base,
                                          int32_t i, const dil_tensor *to) {
  bool has_sums = backward_sums_bytes(b, to) > 0;
  float *sums = has_sums ? (float *)(base + b->at.sums[i]) : NULL;
  return (gradient_target){.to = to, .sums = sums};
}

void gradient_take_lse(gradient_run *g, const dil_tensor *lse) {
  g->lse = lse->data;
  g->lse_stride[0] = lse->stride[0];
  g->lse_stride[1] = lse->stride[2];
  g->lse_stride[2] = lse->stride[1];
}

static void backward_place(backward_run *b, char *base) {
  const dil_backward_call *c = b->call;
  gradient_run *g = &b->gradient;
  *g = (gradient_run){.of = &b->run,
                      .o = c->forward.o,
                      .lse_gradient = &c->lse,
                      .facts = (float *)(base + b->at.facts),
                      .fact_states = 1,
                      .q = backward_target_of(b, base, 0, &c->dq),
                      .k = backward_target_of(b, base, 1, &c->dk),
                      .v = backward_target_of(b, base, 2, &c->dv)};
  gradient_take_lse(g, &c->forward.lse);
  if (cuda_bounds_bytes(&b->run)) b->run.bounds = base + b->at.bounds;
  b->sums = base + b->at.inputs;
  b->run.workspace = base + b->at.pass;
  b->run.state_o = (float *)(base + b->at.state_o);
  b->run.state_lse = (float *)(base + b->at.state_lse);
}

/* ---- states -------------------------------------------------------------- */

cuda_run backward_forward_run(const backward_run *b) {
  cuda_run r = b->run;
  r.call = &b->again;
  r.shard = &b->whole;
  r.weight = 1;
  r.resumes = true;
  return r;
}

dil_status backward_advance(const backward_run *b, cuda_run *r,
                                   int32_t p) {
  const cuda_code *code = codes_choose(&b->kernel->codes, r, p);
  if (!code)
    return dil_fail(DIL_UNSUPPORTED,
                    "no kernel here runs pass %d of '%s' as a "
                    "shard",
                    p, b->kernel->table->name);
  return code->family->launch(r, p, code);
}

/* The lse of the one softmax of a row, by all passes. */
static dil_status backward_make_lse(backward_run *b) {
  cuda_run r = backward_forward_run(b);
  dil_status status = general_begin(&r, b->codes.general);
  for (int32_t p = 0; p < b->kernel->table->pass_count && !status; p++)
    status = backward_advance(b, &r, p);
  return status;
}

void backward_take_lse(backward_run *b, const float *lse) {
  const cuda_run *r = &b->run;
  gradient_run *g = &b->gradient;
  g->lse = lse;
  g->lse_stride[0] = r->N * r->table->heads;
  g->lse_stride[1] = r->table->heads;
  g->lse_stride[2] = 1;
}

void backward_take_o(backward_run *b, float *o) {
  const cuda_run *r = &b->run;
  bool packed = r->call->packed.queries;
  const int64_t shape[4] = {packed ? 1 : r->B, packed ? cuda_rows(r) : r->N,
                            r->table->heads, r->table->value_dim};
  b->gradient.o = dil_tensor_make(o, DIL_F32, 4, shape);
}

/* ---- passes -------------------------------------------------------------- */

static dil_status backward_run_code(backward_run *b, int32_t p, bool first,
                                    const cuda_code *code) {
  cuda_spans *spans = b->run.device->spans;
  int32_t span = spans_begin(spans, b->run.stream);
  dil_status status = gradient_pass(&b->gradient, p, first, code);
  spans_end(spans, span, b->run.stream, "pass", code->about.variant, p);
  return status;
}

/* Adds a pass to the gradients of inputs, but for sinks. */
static dil_status backward_run_inputs(backward_run *b, int32_t p) {
  cuda_spans *spans = b->run.device->spans;
  const cuda_code *code = b->codes.inputs;
  if (!code) return DIL_OK;
  int32_t span = spans_begin(spans, b->run.stream);
  dil_status status = input_sums_pass(&b->gradient, &b->inputs, p, code);
  spans_end(spans, span, b->run.stream, "pass", code->about.variant, p);
  return status;
}

static dil_status backward_clear_keys(const backward_run *b,
                                      const cuda_code *code) {
  const gradient_run *g = &b->gradient;
  dil_status status = gradient_clear(g, &g->k, true, code);
  return status ? status : gradient_clear(g, &g->v, true, code);
}

dil_status backward_run_pass(backward_run *b, int32_t p, bool first) {
  const backward_codes *codes = &b->codes;
  bool listed = cuda_list_room(&b->run, p, true) >= 0; /* writes listed keys alone */
  bool opens = first && !listed;
  dil_status status =
      first && listed ? backward_clear_keys(b, codes->q) : DIL_OK;
  if (!status) status = backward_run_code(b, p, opens, codes->k);
  if (!status && codes->v != codes->k)
    status = backward_run_code(b, p, opens, codes->v);
  if (!status) status = backward_run_code(b, p, first, codes->q);
  return status ? status : backward_run_inputs(b, p);
}

dil_status backward_run_sinks(backward_run *b, bool own,
                                     uint64_t branches) {
  return input_sums_sinks(&b->gradient, &b->inputs, own, branches, b->codes.q);
}

dil_status backward_make_facts(backward_run *b) {
  return gradient_delta(&b->gradient, b->codes.q);
}

/* Sinks need the facts of the rows in any case, which the fast kernels keep in
 * another order. */
static dil_status backward_run_joint(backward_run *b) {
  gradient_run *g = &b->gradient;
  bool ended = false;
  dil_status status = backward_run_fast(b);
  if (!status) status = backward_end_without_general(b, &ended);
  if (status || ended) return status;
  const unsigned *only_if = g->only_if;
  if (b->run.bounds && backward_reads_lists_alone(b))
    status = general_tables(&b->run, only_if, b->codes.general);
  if (backward_wants_inputs(b)) g->only_if = NULL;
  if (!status) status = backward_make_facts(b);
  g->only_if = only_if;
  for (int32_t p = 0; p < b->kernel->table->pass_count && !status; p++)
    status = backward_run_pass(b, p, p == 0);
  g->only_if = NULL;
  return status ? status : backward_run_sinks(b, true, UINT64_MAX);
}

/* Makes the gradients where a row has one softmax. */
static dil_status backward_run_softmax(backward_run *b) {
  bool makes_lse = backward_makes_lse(b);
  dil_status status = makes_lse ? backward_make_lse(b) : DIL_OK;
  if (makes_lse) backward_take_lse(b, b->run.state_lse);
  if (status) return status;
  return b->kernel->table->detached ? backward_run_apart(b)
                                    : backward_run_joint(b);
}

/* Rows behind the last document have gradients of 0. The fast kernels see to that. */
static dil_status backward_clear(const backward_run *b, const cuda_code *code) {
  dil_status status = gradient_clear(&b->gradient, &b->gradient.q, false, code);
  return status ? status : backward_clear_keys(b, code);
}

static dil_status backward_run_all(backward_run *b) {
  const gradient_run *g = &b->gradient;
  const cuda_code *const *round = &b->codes.q; /* it may come late */
  bool clears = b->run.call->packed.queries && backward_fast_refusal(b);
  dil_status status = clears ? backward_clear(b, *round) : DIL_OK;
  if (!status && b->run.bounds)
    status = (backward_reads_lists_alone(b) ? general_choose : general_bounds)(
        &b->run, b->codes.general);
  if (!status) status = input_sums_begin(g, b->sums, *round, &b->inputs);
  if (!status)
    status = combine_is_additive(b->kernel->table) ? backward_run_apart(b)
                                                   : backward_run_softmax(b);
  if (!status) status = gradient_round(g, &g->q, *round);
  if (!status) status = gradient_round(g, &g->k, *round);
  if (!status) status = gradient_round(g, &g->v, *round);
  return status ? status : input_sums_end(g, &b->inputs, *round);
}

/* ---- a call -------------------------------------------------------------- */

dil_status backward_prepare(backward_run *b) {
  const cuda_run *r = &b->run;
  b->whole = (dil_shard){.queries = {r->M - r->N, 1, r->N},
                         .keys = {0, 1, r->M},
                         .B = r->B,
                         .N = r->N,
                         .M = r->M};
  dil_status status = backward_have_codes(b);
  return status ? status : backward_lay_out(b);
}

static dil_status backward_run_in_workspace(backward_run *b) {
  const dil_cuda *device = b->kernel->device;
  workspace w = {0};
  if (b->call->workspace) {
    if (b->call->workspace_bytes < b->at.end)
      return dil_fail(
          DIL_USAGE, "the workspace has %lld bytes, fewer than %lld",
          (long long)b->call->workspace_bytes, (long long)b->at.end);
    backward_place(b, b->call->workspace);
    return backward_run_all(b);
  }
  dil_status status = workspace_take(device, b->run.stream, b->at.end, &w);
  if (status) return status;
  backward_place(b, w.memory);
  status = backward_run_all(b);
  dil_status given = workspace_give(device, b->run.stream, &w);
  return status ? status : given;
}

/* A call that is checked and entered, up to its workspace or to its end. */
static dil_status backward_start(dil_cuda_kernel *kernel,
                                 const dil_backward_call *call, void *stream,
                                 bool runs, int64_t *bytes) {
  backward_run b;
  dil_status status = backward_check(kernel, call, &b);
  *bytes = 0;
  if (status) return status;
  status = cuda_enter(kernel->device);
  if (status) return status;
  b.run.stream = stream;
  status = backward_prepare(&b);
  *bytes = b.at.end;
  if (!status && runs) status = backward_run_in_workspace(&b);
  cuda_leave(kernel->device);
  return status;
}

dil_status kernel_backward(dil_cuda_kernel *kernel,
                           const dil_backward_call *call, void *stream) {
  int64_t bytes;
  return backward_start(kernel, call, stream, true, &bytes);
}

dil_status kernel_backward_workspace(dil_cuda_kernel *kernel,
                                     const dil_backward_call *call,
                                     int64_t *bytes) {
  return backward_start(kernel, call, NULL, false, bytes);
}

typedef struct timed_backward {
  dil_cuda_kernel *kernel;
  const dil_backward_call *call;
} timed_backward;

static dil_status backward_run_timed(void *context) {
  const timed_backward *t = context;
  return kernel_backward(t->kernel, t->call, NULL);
}

dil_status kernel_backward_time(dil_cuda_kernel *kernel,
                                const dil_backward_call *call,
                                double *seconds) {
  timed_backward timed = {kernel, call};
  return kernel_time_work(kernel->device, backward_run_timed, &timed, seconds);
}
