/* kernel.c - a plan on a device. It loads the codes, checks a call, of a whole
 * sequence or of a shard, and puts the call on a stream, pass by pass. In: a
 * table, codes, a call whose data are device memory. Out: launches. The call's
 * sizes and the device alone decide which code a pass takes. A run does not
 * wait for the device. */
#include "documents.h"
#include "general.h"
#include "kernel.h"
#include "spans.h"
#include "workspace.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/lists.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/cpu_run.h"
#include "runtime/rowset/walk.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making -------------------------------------------------------------- */

void kernel_count_passes(dil_cuda_kernel *k) {
  for (int32_t h = 0; h < k->table->heads; h++) {
    int32_t passes = cuda_passes(k->table, h);
    k->chained[h] = passes > 1;
    k->stateful |= passes > 1;
    k->leaves_out |= passes == 0;
  }
}

dil_status kernel_new(dil_cuda *device, const dil_table *table,
                      const dil_cuda_code *code, int32_t count, dil_more more,
                      dil_dimension dimension, const void *context,
                      dil_cuda_kernel **kernel) {
  if (count > CODES_MAX)
    return dil_fail(DIL_UNSUPPORTED, "a kernel has at most %d codes, got %d",
                    CODES_MAX, count);
  dil_cuda_kernel *k = calloc(1, sizeof *k);
  bool *chained = calloc((size_t)table->heads, sizeof *chained);
  if (!k || !chained) {
    free(k);
    free(chained);
    return dil_fail(DIL_MEMORY, "no memory for a kernel of %d codes", count);
  }
  k->device = device;
  k->table = table;
  k->dimension = dimension;
  k->context = context;
  k->chained = chained;
  kernel_count_passes(k);
  dil_status status = cuda_enter(device);
  bool entered = !status;
  if (entered) {
    status = codes_open(&k->codes, device, table, code, count, more, context);
    cuda_leave(device);
  }
  if (status) kernel_free(k);
  else *kernel = k;
  return status;
}

void kernel_free(dil_cuda_kernel *k) {
  if (!k) return;
  if (!cuda_enter(k->device)) {
    codes_close(&k->codes);
    cuda_leave(k->device);
  }
  free(k->chained);
  free(k);
}

int64_t kernel_workspace(const dil_cuda_kernel *kernel) {
  return atomic_load(&kernel->workspace);
}

/* ---- checking ------------------------------------------------------------ */

static dil_status kernel_check_input(const dil_cuda_kernel *k,
                                     const cuda_run *r, int32_t index) {
  const dil_input *want = &k->table->inputs[index];
  const dil_tensor *have = &r->call->inputs[index];
  const dil_shard *shard = r->shard;
  if (have->dtype != want->dtype || have->rank != want->rank)
    return dil_fail(DIL_USAGE, "input '%s' must be %s of %d dimensions, got "
                    "%s of %d", want->name, dil_dtype_name(want->dtype),
                    want->rank, dil_dtype_name(have->dtype), have->rank);
  for (int32_t axis = 0; axis < want->rank; axis++) {
    int64_t size = k->dimension(k->context, index, axis,
                                (int32_t)(shard ? shard->B : r->B),
                                (int32_t)(shard ? shard->N : r->N),
                                (int32_t)(shard ? shard_longest(shard)
                                               : r->M));
    if (size != DIL_ANY_SIZE && have->shape[axis] != size)
      return dil_fail(DIL_USAGE, "dimension %d of input '%s' must be %lld, "
                      "got %lld", axis, want->name, (long long)size,
                      (long long)have->shape[axis]);
  }
  if (!have->data && dil_tensor_count(have) > 0)
    return dil_fail(DIL_USAGE, "input '%s' is not given", want->name);
  return DIL_OK;
}

/* The checks of every device; lengths are out of the host's reach here. */
dil_status kernel_check_call(const dil_cuda_kernel *k, const dil_call *call,
                             const dil_shard *shard, cuda_run *r) {
  dil_call seen = *call;
  cpu_run checked = {.table = k->table, .call = &seen, .shard = shard};
  dil_status status = dil_grid_check_lengths(k->table, call);
  if (status) return status;
  seen.lengths = NULL;
  status = shard ? dil_shard_check(&checked) : dil_run_check(&checked);
  if (status) return status;
  *r = (cuda_run){.device = k->device,
                  .table = k->table,
                  .call = call,
                  .shard = shard,
                  .opening = -1,
                  .state_stride = 1,
                  .B = checked.B,
                  .N = checked.N,
                  .M = checked.M,
                  .scale = checked.scale,
                  .weight = checked.weight,
                  .drop = checked.drop,
                  .chained = k->chained};
  status = dil_input_check_count(k->table, call->input_count);
  for (int32_t i = 0; !status && i < call->input_count; i++)
    status = kernel_check_input(k, r, i);
  bool apart = shard || call->packed.queries;
  if (!status && apart && k->table->made_count)
    status = dil_lists_refuse(k->table, k->table->input_count);
  return status ? status : cuda_choices_check(r);
}

/* ---- the code of each pass ----------------------------------------------- */

/* Returns whether every row of the call sees a key by this branch: its own. */
static bool kernel_branch_sees_itself(const cuda_run *r, const dil_branch *b) {
  const dil_table *t = r->table;
  const dil_progression q = cuda_queries(r), k = cuda_keys(r);
  const dil_predicate *p =
      b->predicate < 0 ? NULL : &t->predicates[b->predicate];
  return dil_branch_selects_all(b) && !b->shift && b->head_first == 0 &&
         b->head_last == t->heads - 1 &&
         (!p || dil_predicate_holds_row(p)) && q.step == 1 &&
         k.step == 1 && k.first <= q.first &&
         q.first + q.count <= k.first + k.count;
}

/* A pass that has keys for every row, so that no state need stand before it,
 * where all passes are of kernels that know of that; -1: there is none. Which
 * rows of shorter batch rows have any, the device alone knows. */
static int32_t kernel_opening_pass(const dil_cuda_kernel *k,
                                   const cuda_run *r) {
  const dil_table *t = k->table;
  uint64_t seeing = 0;
  int32_t opening = -1;
  if (combine_is_additive(t) || r->call->lengths || r->call->packed.queries)
    return -1;
  for (int32_t b = 0; b < t->branch_count; b++)
    if (kernel_branch_sees_itself(r, &t->branches[b])) seeing |= 1ull << b;
  for (int32_t p = t->pass_count - 1; seeing && p >= 0; p--) {
    const cuda_code *code = codes_choose(&k->codes, r, p);
    if (!code || !code->family->state_stride) return -1;
    if (t->passes[p].branches & seeing) opening = p;
  }
  return opening;
}

void kernel_find_opening(const dil_cuda_kernel *k, cuda_run *r) {
  r->opening = kernel_opening_pass(k, r);
  r->opened = r->opening >= 0;
  if (!r->opened) return;
  const cuda_code *code = codes_choose(&k->codes, r, r->opening);
  r->state_stride = code->family->state_stride(r);
}

/* ---- running ------------------------------------------------------------- */

/* Returns whether a call needs kernels that only the last code has: see
 * codes_take_last. */
static bool kernel_takes_last(const dil_cuda_kernel *k, const cuda_run *r) {
  bool stateful = k->stateful && !r->opened;
  bool own = (stateful || k->leaves_out) && !r->shard;
  return own || r->call->packed.queries || cuda_bounds_bytes(r) > 0;
}

dil_status kernel_load_passes(dil_cuda_kernel *k, cuda_run *r) {
  const cuda_code *code;
  dil_status status = DIL_OK;
  for (int32_t p = 0; p < k->table->pass_count && !status; p++)
    status = codes_take(&k->codes, r, p, &code);
  return status;
}

/* Whether no pass reads the tables of lists that choices make. */
static bool kernel_reads_lists_alone(const dil_cuda_kernel *k, const cuda_run *r) {
  if (!k->table->choice_count) return false; /* most calls are not asked further */
  for (int32_t p = 0; p < k->table->pass_count; p++) {
    const cuda_code *code = codes_choose(&k->codes, r, p);
    if (!code || !code->family->lists_alone) return false;
  }
  return true;
}

/* From here on all codes that the call takes are there. */
static dil_status kernel_load_codes(dil_cuda_kernel *k, cuda_run *r) {
  const cuda_code *code;
  dil_status status = kernel_load_passes(k, r);
  r->lists_alone = !status && kernel_reads_lists_alone(k, r);
  if (status || !kernel_takes_last(k, r)) return status;
  return codes_take_last(&k->codes, &code);
}

int64_t kernel_rows_of_state(const cuda_run *r) {
  if (r->call->packed.queries) return cuda_rows(r) * r->table->heads;
  return r->B * cuda_state_rows(r) * r->table->heads;
}

dil_status kernel_lay_out(const dil_cuda_kernel *k, const cuda_run *r,
                          kernel_layout *at) {
  bool own = k->stateful && !r->shard; /* a shard brings its state */
  int64_t count = own ? kernel_rows_of_state(r) : 0, most = 0;
  for (int32_t p = 0; p < k->table->pass_count; p++) {
    const cuda_code *code = codes_choose(&k->codes, r, p);
    if (!code)
      return dil_fail(DIL_UNSUPPORTED, "no kernel here runs pass %d of '%s'", p,
                      k->table->name);
    most = maximum(most, code->family->workspace(r, p, code));
  }
  at->state_lse = round_up(count * k->table->value_dim * 4, 256);
  at->bounds = at->state_lse + round_up(count * 4, 256);
  at->pass = at->bounds + cuda_bounds_bytes(r);
  at->documents = at->pass + round_up(most, 256);
  at->end = at->documents + documents_forward_bytes(&k->codes, r);
  return DIL_OK;
}

/* Points `state_o` and `state_lse` at the state of pass p of a shard. */
static void kernel_choose_state(cuda_run *r, int32_t p) {
  bool apart = combine_is_additive(r->table) || r->shard->by_pass;
  int64_t before = apart ? p * kernel_rows_of_state(r) : 0;
  r->state_o = r->shard->o + before * r->table->value_dim;
  r->state_lse = r->shard->lse + before;
}

static dil_status kernel_run_pass(const dil_cuda_kernel *k, cuda_run *r,
                                  int32_t p) {
  const cuda_code *code = codes_choose(&k->codes, r, p);
  int32_t span = spans_begin(k->device->spans, r->stream);
  r->later &= ~k->table->passes[p].branches;
  if (r->shard) kernel_choose_state(r, p);
  if (r->opened && !code->family->state_stride)
    return dil_fail(DIL_INTERNAL, "an opening pass came before pass %d, and %s "
                    "does not know of it", p, code->about.variant);
  dil_status status = code->family->launch(r, p, code);
  spans_end(k->device->spans, span, r->stream, "pass", code->about.variant, p);
  return status;
}

static dil_status kernel_run_passes(const dil_cuda_kernel *k, cuda_run *r) {
  const dil_table *t = k->table;
  dil_status status = DIL_OK;
  for (int32_t p = 0; p < t->pass_count; p++) r->later |= t->passes[p].branches;
  if (r->opening >= 0) status = kernel_run_pass(k, r, r->opening);
  for (int32_t p = 0; p < t->pass_count && !status; p++)
    if (p != r->opening) status = kernel_run_pass(k, r, p);
  return status;
}

static dil_status kernel_run_all(dil_cuda_kernel *k, cuda_run *r) {
  const cuda_code *general = NULL;
  bool stateful = k->stateful && !r->opened;
  dil_status status =
      kernel_takes_last(k, r) ? codes_take_last(&k->codes, &general) : DIL_OK;
  if (r->call->packed.queries && !r->shard && !status)
    status = general_clear(r, general);
  if (status || r->B == 0 || r->N == 0) return status;
  if (r->documents) status = documents_forward(&k->codes, r);
  if (r->bounds && !status) status = general_bounds(r, general);
  if (stateful && !r->shard && !status) status = general_begin(r, general);
  if (!status) status = kernel_run_passes(k, r);
  if ((stateful || k->leaves_out) && !r->shard && !status)
    status = general_end(r, general);
  return status;
}

/* With workspace taken and given back in the order of the stream. */
dil_status kernel_run_on_stream(dil_cuda_kernel *k, cuda_run *r) {
  workspace w;
  kernel_layout at = {0};
  dil_status status = kernel_load_codes(k, r);
  if (!status) status = kernel_lay_out(k, r, &at);
  if (!status) status = workspace_take(k->device, r->stream, at.end, &w);
  if (status) return status;
  char *base = w.memory;
  if (at.state_lse) r->state_o = (float *)base;
  if (at.state_lse) r->state_lse = (float *)(base + at.state_lse);
  if (at.pass > at.bounds) r->bounds = base + at.bounds;
  r->workspace = base + at.pass;
  if (at.end > at.documents) r->documents = base + at.documents;
  status = kernel_run_all(k, r);
  dil_status given = workspace_give(k->device, r->stream, &w);
  if (!status) status = given;
  atomic_store(&k->workspace, at.end);
  return status;
}

/* Finds the pass that opens the rows, if there is one. */
static dil_status kernel_load_opening(dil_cuda_kernel *k, cuda_run *r) {
  dil_status status = kernel_load_passes(k, r);
  if (status) return status;
  kernel_find_opening(k, r);
  return DIL_OK;
}

static dil_status kernel_run_whole(dil_cuda_kernel *k, cuda_run *r) {
  if (cuda_rows(r) == 0) return cuda_choose_nothing(r);
  if (r->call->saved && kernel_saved_bytes(k, r->call)) return kernel_run_saving(k, r);
  dil_status status = k->stateful ? kernel_load_opening(k, r) : DIL_OK;
  return status ? status : kernel_run_on_stream(k, r);
}

/* A call that is checked, entered and put on a stream by `work`. */
static dil_status
kernel_run_entered(dil_cuda_kernel *kernel, cuda_run *r, void *stream,
                   dil_status (*work)(dil_cuda_kernel *kernel, cuda_run *r)) {
  if (cuda_rows(r) == 0 && !r->call->made) return DIL_OK;
  dil_status status = cuda_enter(kernel->device);
  if (status) return status;
  r->stream = stream;
  status = work(kernel, r);
  cuda_leave(kernel->device);
  return status;
}

dil_status kernel_run(dil_cuda_kernel *kernel, const dil_call *call,
                      void *stream) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, NULL, &r);
  return status ? status
                : kernel_run_entered(kernel, &r, stream, kernel_run_whole);
}

/* ---- a shard of a sequence ----------------------------------------------- */

int32_t kernel_states(const dil_cuda_kernel *kernel) {
  return run_states(kernel->table);
}

dil_status kernel_begin_states(dil_cuda_kernel *k, cuda_run *r) {
  const cuda_code *general;
  bool alone = r->shard->by_pass && !combine_is_additive(r->table);
  dil_status status = codes_take_last(&k->codes, &general);
  kernel_choose_state(r, 0);
  if (status || !alone) return status ? status : general_begin(r, general);
  for (int32_t p = 0; p < r->table->pass_count && !status; p++) {
    kernel_choose_state(r, p);
    status = general_begin_alone(r, p, general);
  }
  return status;
}

dil_status kernel_end_states(dil_cuda_kernel *k, cuda_run *r) {
  const cuda_code *general;
  dil_status status = codes_take_last(&k->codes, &general);
  kernel_choose_state(r, 0);
  return status ? status : general_end(r, general);
}

dil_status kernel_begin(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_shard *shard, void *stream) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  return status ? status
                : kernel_run_entered(kernel, &r, stream, kernel_begin_states);
}

dil_status kernel_advance(dil_cuda_kernel *kernel, const dil_call *call,
                          const dil_shard *shard, void *stream) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  if (status || shard->keys.count == 0) return status;
  r.weight = 1; /* states are weighted when they are added */
  r.opened = shard->state_stride > 0;
  if (r.opened) r.state_stride = shard->state_stride;
  return kernel_run_entered(kernel, &r, stream, kernel_run_on_stream);
}

dil_status kernel_finish(dil_cuda_kernel *kernel, const dil_call *call,
                         const dil_shard *shard, void *stream) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  return status ? status
                : kernel_run_entered(kernel, &r, stream, kernel_end_states);
}

dil_status kernel_opens(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_shard *shard, int64_t *state_stride) {
  cuda_run r;
  *state_stride = 0;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  if (status || shard->keys.count == 0) return status;
  status = kernel_run_entered(kernel, &r, NULL, kernel_load_opening);
  if (!status && r.opened) *state_stride = r.state_stride;
  return status;
}

static dil_status kernel_open_rows(dil_cuda_kernel *k, cuda_run *r) {
  dil_status status = kernel_load_opening(k, r);
  if (!status && r->state_stride != r->shard->state_stride)
    return dil_fail(DIL_INTERNAL, "rows that open stand %lld apart, not %lld",
                    (long long)r->state_stride,
                    (long long)r->shard->state_stride);
  return status ? status : kernel_run_on_stream(k, r);
}

dil_status kernel_open(dil_cuda_kernel *kernel, const dil_call *call,
                       const dil_shard *shard, void *stream) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  if (status) return status;
  r.weight = 1;
  return kernel_run_entered(kernel, &r, stream, kernel_open_rows);
}

/* ---- questions ----------------------------------------------------------- */

/* Adds a name to a text of `size` bytes. False: there is no room. */
static bool kernel_add_name(const char *name, char *text, size_t size) {
  size_t length = strlen(text);
  int added = snprintf(text + length, size - length, "%s%s", length ? "+" : "", name);
  return added >= 0 && (size_t)added < size - length;
}

/* Returns whether a pass before this one takes the same code. */
static bool kernel_is_named(const dil_cuda_kernel *k, const cuda_run *r,
                            int32_t pass) {
  for (int32_t p = 0; p < pass; p++)
    if (codes_choose(&k->codes, r, p) == codes_choose(&k->codes, r, pass))
      return true;
  return false;
}

dil_status kernel_variants(dil_cuda_kernel *kernel, const dil_call *call,
                           const dil_shard *shard, char *text, size_t size) {
  cuda_run r;
  dil_status status = kernel_check_call(kernel, call, shard, &r);
  text[0] = 0;
  if (!status)
    status = kernel_run_entered(kernel, &r, NULL, kernel_load_passes);
  const cuda_code *documents = status ? NULL : documents_code(&kernel->codes, &r);
  bool room = true;
  for (int32_t p = 0; !status && room && p < kernel->table->pass_count; p++) {
    const cuda_code *code = codes_choose(&kernel->codes, &r, p);
    if (!kernel_is_named(kernel, &r, p))
      room = kernel_add_name(code ? code->about.variant : "none", text, size);
  }
  if (documents && room) kernel_add_name(documents->about.variant, text, size);
  return status;
}

typedef struct timed_call {
  dil_cuda_kernel *kernel;
  const dil_call *call;
} timed_call;

static dil_status kernel_run_timed(void *context) {
  const timed_call *t = context;
  return kernel_run(t->kernel, t->call, NULL);
}

/* Of a short call the way to an idle device is a good part: it is timed again,
 * behind one like it. */
#define SHORT 5e-3 /* seconds */

dil_status kernel_time_work(const dil_cuda *device,
                            dil_status (*work)(void *context), void *context,
                            double *seconds) {
  dil_status status = cuda_enter(device);
  if (status) return status;
  status = cuda_time(device, CLOCK_ALONE, work, context, seconds);
  if (!status && *seconds < SHORT)
    status = cuda_time(device, CLOCK_BEHIND, work, context, seconds);
  cuda_leave(device);
  return status;
}

dil_status kernel_time(dil_cuda_kernel *kernel, const dil_call *call,
                       double *seconds) {
  timed_call timed = {kernel, call};
  return kernel_time_work(kernel->device, kernel_run_timed, &timed, seconds);
}
