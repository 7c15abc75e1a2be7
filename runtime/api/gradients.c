/* gradients.c - from a host's dil_gradients to a call for gradients.
 *
 * In: dil_gradients. Out: a dil_backward_call, or an error that names the
 * tensor and what is wrong with it. Shapes, types and memory of all gradients
 * are checked here, for every kind of device; what ran forward is checked as
 * any call is. Nothing is read through the data pointers. */
#include "context.h"
#include "usage.h"
#include "runtime/base/pages.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
#include <stdio.h>
#include <string.h>

/* A workspace is as far as a GPU's kernels want their memory aligned. */
enum { WORKSPACE_ALIGN = 256 };

/* ---- one gradient -------------------------------------------------------- */

/* A gradient as messages name it, and the tensor that it belongs to. */
typedef struct gradient {
  const char *name, *of;
  const dil_tensor *like;
  bool rows; /* its last dimension must be contiguous */
} gradient;

static dil_status check_type(const gradient *g, const dil_tensor *t,
                             dil_dtype also) {
  dil_dtype own = g->like->dtype;
  if (t->dtype == own || t->dtype == also) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s must be %s%s%s, got %s", g->name,
                  dil_dtype_name(own), own == also ? "" : " or ",
                  own == also ? "" : dil_dtype_name(also),
                  dil_dtype_name(t->dtype));
}

static dil_status check_shape(const gradient *g, const dil_tensor *t) {
  char want[DIL_TENSOR_TEXT], got[DIL_TENSOR_TEXT];
  bool same = t->rank == g->like->rank;
  for (int32_t axis = 0; same && axis < t->rank; axis++)
    same = t->shape[axis] == g->like->shape[axis];
  if (!same)
    return dil_fail(DIL_USAGE, "%s must have the shape of %s, %s, got %s",
                    g->name, g->of, dil_tensor_text(g->like, want),
                    dil_tensor_text(t, got));
  int64_t count = dil_tensor_count(t);
  if (count && !t->data)
    return dil_fail(DIL_USAGE, "%s has no memory", g->name);
  int64_t stride = t->rank ? t->stride[t->rank - 1] : 1;
  if (count && g->rows && t->shape[t->rank - 1] > 1 && stride != 1)
    return dil_fail(DIL_USAGE,
                    "the last dimension of %s must be contiguous, "
                    "its stride is %lld",
                    g->name, (long long)stride);
  return DIL_OK;
}

/* In its own type or, where that is another, in `also`. */
static dil_status read_gradient(const dil_kernel *k, const gradient *g,
                                dil_dtype also, const DLTensor *from,
                                dil_tensor *to) {
  dil_status status =
      arguments_read_tensor(k->context, g->name, g->like->dtype, from, to);
  if (!status) status = check_type(g, to, also);
  return status ? status : check_shape(g, to);
}

/* ---- those of q, k, v, o and lse ----------------------------------------- */

static dil_status read_dlse(const dil_kernel *k, const dil_gradients *given,
                            dil_backward_call *call) {
  const dil_tensor *q = &call->forward.q;
  const dil_table *table = k->source.table;
  if (!given->dlse) return DIL_OK;
  if (!table->lse_allowed)
    return dil_fail(DIL_USAGE,
                    "kernel '%s' has no lse, and none of its "
                    "gradient: its branches are combined after their own "
                    "softmax",
                    table->name);
  const int64_t shape[] = {q->shape[0], table->heads, q->shape[1]};
  const dil_tensor like = dil_tensor_make(NULL, DIL_F32, 3, shape);
  const gradient dlse = {"dlse", "lse", &like, false};
  return read_gradient(k, &dlse, DIL_F32, given->dlse, &call->lse);
}

static dil_status read_rows(const dil_kernel *k, const dil_gradients *given,
                            dil_backward_call *call) {
  const dil_call *c = &call->forward;
  const gradient d_o = {"do", "o", &c->o, true};
  const struct {
    gradient gradient;
    const DLTensor *from;
    dil_tensor *to;
  } wanted[] = {{{"dq", "q", &c->q, true}, given->dq, &call->dq},
                {{"dk", "k", &c->k, true}, given->dk, &call->dk},
                {{"dv", "v", &c->v, true}, given->dv, &call->dv}};
  dil_status status =
      read_gradient(k, &d_o, d_o.like->dtype, given->d_o, &call->output);
  if (!status) status = read_dlse(k, given, call);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !status; i++)
    if (wanted[i].from)
      status = read_gradient(k, &wanted[i].gradient, DIL_F32, wanted[i].from,
                             wanted[i].to);
  return status;
}

/* ---- those of inputs ------------------------------------------------------
 */

enum { GRADIENT_NAME = INPUT_NAME + 16 };

static const char *gradient_name(const dil_kernel *k, int32_t index,
                                 char text[GRADIENT_NAME]) {
  char input[INPUT_NAME];
  snprintf(text, GRADIENT_NAME, "the gradient of %s",
           arguments_input_name(k, index, input));
  return text;
}

static dil_status check_gradient_input(const dil_kernel *k, int32_t index) {
  const dil_input *input = &k->source.table->inputs[index];
  if (input->gradient) return DIL_OK;
  if (!dil_dtype_is_real(input->dtype))
    return dil_fail(DIL_USAGE,
                    "input '%s' of kernel '%s' is %s and has no "
                    "gradient",
                    input->name, k->source.table->name,
                    dil_dtype_name(input->dtype));
  return dil_fail(DIL_USAGE,
                  "input '%s' of kernel '%s' has no gradient: its "
                  "declaration would end with `gradient;`",
                  input->name, k->source.table->name);
}

static dil_status read_input_gradient(const dil_kernel *k, const DLTensor *from,
                                      int32_t index, dil_backward_call *call) {
  char name[GRADIENT_NAME], of[INPUT_NAME];
  const gradient wanted = {gradient_name(k, index, name),
                           arguments_input_name(k, index, of),
                           &call->forward.inputs[index], false};
  dil_status status = check_gradient_input(k, index);
  if (status) return status;
  return read_gradient(k, &wanted, DIL_F32, from, &call->inputs[index]);
}

static dil_status read_input_gradients(const dil_kernel *k,
                                       const dil_gradients *given,
                                       dil_backward_call *call) {
  int32_t count = given->input_count;
  if (count == 0) return DIL_OK;
  dil_status status = dil_input_check_count(k->source.table, count);
  if (!status)
    status = dil_usage_list("gradients of inputs", count, count, given->inputs);
  for (int32_t i = 0; i < count && !status; i++)
    if (given->inputs[i])
      status = read_input_gradient(k, given->inputs[i], i, call);
  return status;
}

/* ---- memory ---------------------------------------------------------------
 */

static dil_status read_workspace(const dil_gradients *given,
                                 dil_backward_call *call) {
  dil_status status =
      dil_usage_bytes("workspace", given->workspace, given->workspace_bytes);
  if (status) return status;
  if (!given->workspace && given->workspace_bytes)
    return dil_fail(DIL_USAGE, "workspace is NULL and has %lld bytes",
                    (long long)given->workspace_bytes);
  if ((uintptr_t)given->workspace % WORKSPACE_ALIGN)
    return dil_fail(DIL_USAGE, "workspace is not aligned to %d bytes",
                    WORKSPACE_ALIGN);
  call->workspace = given->workspace;
  call->workspace_bytes = given->workspace_bytes;
  return DIL_OK;
}

/* The tensors of a call in a row, each with its name: first those that are
 * written, then those that are read. */
typedef struct member {
  char name[GRADIENT_NAME];
  dil_tensor tensor;
  uint64_t flags;
} member;
enum { MEMBERS = 3 + DIL_INPUT_MAX + 1 + 12 + DIL_INPUT_MAX };

typedef struct members {
  int32_t count, written;
  member member[MEMBERS];
} members;

static void add_member(members *all, const char *name, const dil_tensor *t,
                       uint64_t flags) {
  if (!t->data) return;
  member *m = &all->member[all->count++];
  snprintf(m->name, sizeof m->name, "%s", name);
  m->tensor = *t;
  m->flags = flags;
}

static void add_written(const dil_kernel *k, const dil_gradients *given,
                        const dil_backward_call *call, members *all) {
  char name[GRADIENT_NAME];
  add_member(all, "dq", &call->dq, given->dq_flags);
  add_member(all, "dk", &call->dk, given->dk_flags);
  add_member(all, "dv", &call->dv, given->dv_flags);
  for (int32_t i = 0; i < given->input_count; i++)
    add_member(all, gradient_name(k, i, name), &call->inputs[i],
               given->input_flags ? given->input_flags[i] : 0);
  const dil_tensor workspace =
      dil_tensor_make(call->workspace, DIL_U8, 1, &call->workspace_bytes);
  add_member(all, "workspace", &workspace, 0);
  all->written = all->count;
}

static void add_read(const dil_kernel *k, const dil_backward_call *call,
                     members *all) {
  char name[INPUT_NAME];
  const dil_call *c = &call->forward;
  const dil_tensor lengths = arguments_lengths(c);
  const dil_tensor seed = arguments_seed(c);
  add_member(all, "do", &call->output, 0);
  add_member(all, "dlse", &call->lse, 0);
  add_member(all, "q", &c->q, 0);
  add_member(all, "k", &c->k, 0);
  add_member(all, "v", &c->v, 0);
  add_member(all, "o", &c->o, 0);
  add_member(all, "lse", &c->lse, 0);
  const dil_tensor saved = arguments_saved(k, c);
  add_member(all, "saved", &saved, 0);
  add_member(all, "seed_tensor", &seed, 0);
  for (int32_t i = 0; i < c->input_count; i++)
    add_member(all, arguments_input_name(k, i, name), &c->inputs[i], 0);
  add_member(all, "lengths", &lengths, 0);
  const dil_tensor queries = arguments_offsets(c, false);
  const dil_tensor keys = arguments_offsets(c, true);
  add_member(all, "offsets_q", &queries, 0);
  add_member(all, "offsets_k", &keys, 0);
}

static dil_status check_memory(const dil_kernel *k, const dil_gradients *given,
                               const dil_backward_call *call) {
  members all = {0};
  dil_status status = DIL_OK;
  add_written(k, given, call, &all);
  add_read(k, call, &all);
  for (int32_t w = 0; w < all.written; w++) {
    const member *m = &all.member[w];
    if (!status) status = arguments_check_output(m->name, &m->tensor, m->flags);
    for (int32_t i = w + 1; i < all.count && !status; i++)
      status = arguments_check_apart(m->name, &m->tensor, all.member[i].name,
                                     &all.member[i].tensor);
  }
  return status;
}

/* ---- all of it ------------------------------------------------------------
 */

dil_status gradients_read(const dil_kernel *k, const dil_gradients *given,
                          gradients *out) {
  dil_gradients g;
  dil_backward_call *call = &out->call;
  dil_status status = dil_struct_read(&g, sizeof g, given, "dil_gradients");
  if (!status) status = dil_usage_given("forward call", g.forward, NULL);
  if (!status) status = arguments_read_again(k, g.forward, &out->forward);
  if (!status) status = dil_pages_refuse(&out->forward.call, "gradients");
  if (status) return status;
  *call =
      (dil_backward_call){.size = sizeof *call, .forward = out->forward.call};
  status = read_rows(k, &g, call);
  if (!status) status = read_input_gradients(k, &g, call);
  if (!status) status = read_workspace(&g, call);
  return status ? status : check_memory(k, &g, call);
}

dil_status gradients_of_sizes(const dil_kernel *k, const dil_sizes *sizes,
                              gradients *out) {
  dil_backward_call *call = &out->call;
  dil_status status = arguments_of_sizes(k, sizes, &out->forward);
  if (status) return status;
  *call = (dil_backward_call){.size = sizeof *call,
                              .forward = out->forward.call,
                              .output = out->forward.call.o,
                              .dq = out->forward.call.q,
                              .dk = out->forward.call.k,
                              .dv = out->forward.call.v};
  for (int32_t i = 0; i < k->source.table->input_count; i++)
    if (k->source.table->inputs[i].gradient)
      call->inputs[i] = out->forward.inputs[i];
  return DIL_OK;
}
