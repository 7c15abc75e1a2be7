/* arguments.c - from a host's DLPack tensors to a call.
 *
 * In: dil_arguments. Out: a dil_call, or an error that names the tensor and
 * what is wrong with it. Nothing is read through the data pointers but the
 * lengths, later, by whoever runs the call. */
#include "context.h"
#include <stdio.h>
#include <string.h>

/* ---- one tensor ---------------------------------------------------------- */

static const struct {
  dil_dtype dtype;
  uint8_t code, bits;
} types[] = {{DIL_F32, kDLFloat, 32}, {DIL_BF16, kDLBfloat, 16},
             {DIL_F16, kDLFloat, 16}, {DIL_I32, kDLInt, 32},
             {DIL_U8, kDLUInt, 8},    {DIL_U8, kDLBool, 8}};
enum { TYPE_COUNT = sizeof types / sizeof *types };

static dil_status read_type(const char *name, DLDataType have, dil_dtype *out) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (have.code == types[i].code && have.bits == types[i].bits &&
        have.lanes == 1) {
      *out = types[i].dtype;
      return DIL_OK;
    }
  static const char *const kinds[] = {"int",    "uint",    "float", "opaque",
                                      "bfloat", "complex", "bool"};
  enum { KIND_COUNT = sizeof kinds / sizeof *kinds };
  return dil_fail(DIL_USAGE, "%s has an element type that no kernel takes: "
                  "%s%d (DLPack code %d, lanes %d)", name,
                  have.code < KIND_COUNT ? kinds[have.code] : "unknown",
                  have.bits, have.code, have.lanes);
}

DLDataType arguments_type(dil_dtype dtype) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (types[i].dtype == dtype)
      return (DLDataType){types[i].code, types[i].bits, 1};
  return (DLDataType){0};
}

static dil_status read_strides(const char *name, const DLTensor *from,
                               dil_tensor *to) {
  *to = dil_tensor_make(to->data, to->dtype, from->ndim, from->shape);
  if (from->strides && from->ndim)
    memcpy(to->stride, from->strides, (size_t)from->ndim * sizeof *to->stride);
  int64_t size = (int64_t)dil_dtype_size(to->dtype), reach = size;
  bool far = dil_tensor_count(to) < 0;
  for (int32_t i = 0; i < to->rank && !far; i++) {
    int64_t span = to->stride[i];
    far = span == INT64_MIN ||
          __builtin_mul_overflow(span < 0 ? -span : span, size, &span) ||
          __builtin_mul_overflow(span, to->shape[i] ? to->shape[i] - 1 : 0,
                                 &span) ||
          __builtin_add_overflow(reach, span, &reach);
  }
  if (!far) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s has a negative extent, or reaches further "
                  "than memory does", name);
}

/* As contexts call it, where they can be made for it. */
enum { DEVICE_NAME = 48 };
static const char *device_name(DLDevice device, char text[DEVICE_NAME]) {
  if (device.device_type == kDLCPU) return "cpu";
  if (device.device_type == kDLCUDA)
    snprintf(text, DEVICE_NAME, "cuda:%d", (int)device.device_id);
  else
    snprintf(text, DEVICE_NAME, "DLPack device %d:%d", (int)device.device_type,
             (int)device.device_id);
  return text;
}

static dil_status read_tensor(const dil_context *c, const char *name,
                              const DLTensor *from, dil_tensor *to) {
  *to = (dil_tensor){0};
  if (!from) return dil_fail(DIL_USAGE, "%s is not given", name);
  char device[DEVICE_NAME];
  if (!c->kind->reaches(c, from->device))
    return dil_fail(DIL_USAGE, "%s is on %s, the kernel is on %s", name,
                    device_name(from->device, device), c->device);
  if (from->ndim < 0 || from->ndim > DIL_RANK_MAX ||
      (from->ndim && !from->shape))
    return dil_fail(DIL_USAGE, "%s must have 0 to %d dimensions with a shape, "
                    "got %d", name, DIL_RANK_MAX, (int)from->ndim);
  dil_status status = read_type(name, from->dtype, &to->dtype);
  if (status) return status;
  if (from->data) to->data = (char *)from->data + from->byte_offset;
  status = read_strides(name, from, to);
  if (!status && dil_tensor_count(to) &&
      (uintptr_t)to->data % dil_dtype_size(to->dtype))
    return dil_fail(DIL_USAGE, "%s is not aligned to its elements", name);
  return status;
}

/* ---- outputs ------------------------------------------------------------- */

static dil_status check_output(const char *name, const dil_tensor *t,
                               uint64_t flags) {
  if (flags & DLPACK_FLAG_BITMASK_READ_ONLY)
    return dil_fail(DIL_USAGE, "%s is an output and is read-only", name);
  if (overlap_within(t))
    return dil_fail(DIL_USAGE, "%s is an output and its strides let elements "
                    "share memory", name);
  return DIL_OK;
}

static dil_status check_apart(const char *name, const dil_tensor *output,
                              const char *other, const dil_tensor *t) {
  if (!overlap_between(output, t)) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s is an output and shares memory with %s", name,
                  other);
}

static const char *input_name(const dil_kernel *k, int32_t i, char text[96]) {
  snprintf(text, 96, "input '%.80s'", k->source.table->inputs[i].name);
  return text;
}

static dil_status check_overlap(const dil_kernel *k, const arguments *a,
                                const char *name, const dil_tensor *output) {
  char text[96];
  const dil_call *c = &a->call;
  dil_status status = check_apart(name, output, "q", &c->q);
  if (!status) status = check_apart(name, output, "k", &c->k);
  if (!status) status = check_apart(name, output, "v", &c->v);
  for (int32_t i = 0; i < c->input_count && !status; i++)
    status = check_apart(name, output, input_name(k, i, text), &c->inputs[i]);
  int64_t rows = c->lengths ? c->q.shape[0] : 0;
  dil_tensor lengths =
      dil_tensor_make((void *)(uintptr_t)c->lengths, DIL_I32, 1, &rows);
  return status ? status : check_apart(name, output, "lengths", &lengths);
}

static dil_status check_outputs(const dil_kernel *k, const dil_arguments *g,
                                const arguments *a) {
  const dil_call *c = &a->call;
  dil_status status = check_output("o", &c->o, g->o_flags);
  if (!status) status = check_overlap(k, a, "o", &c->o);
  if (status || !c->lse.data) return status;
  status = check_output("lse", &c->lse, g->lse_flags);
  if (!status) status = check_overlap(k, a, "lse", &c->lse);
  return status ? status : check_apart("o", &c->o, "lse", &c->lse);
}

/* ---- all of them --------------------------------------------------------- */

static dil_status read_inputs(const dil_kernel *k, const dil_arguments *g,
                              arguments *a) {
  char text[96];
  int32_t want = k->source.table->input_count;
  if (g->input_count != want || (want && !g->inputs))
    return dil_fail(DIL_USAGE, "the kernel takes %d inputs, got %d", want,
                    g->inputs ? g->input_count : 0);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < want && !status; i++)
    status = read_tensor(k->context, input_name(k, i, text), g->inputs[i],
                         &a->inputs[i]);
  a->call.inputs = a->inputs;
  a->call.input_count = want;
  return status;
}

static dil_status read_lengths(const dil_kernel *k, const dil_arguments *g,
                               dil_call *call) {
  dil_tensor t;
  if (!g->lengths) return DIL_OK;
  dil_status status = read_tensor(k->context, "lengths", g->lengths, &t);
  if (status) return status;
  bool fits = t.dtype == DIL_I32 && t.rank == 1 &&
              t.shape[0] == call->q.shape[0] &&
              (t.shape[0] < 2 || t.stride[0] == 1) &&
              (uintptr_t)t.data % sizeof(int32_t) == 0 && t.data;
  if (!fits)
    return dil_fail(DIL_USAGE, "lengths must be i32 [%lld], contiguous and "
                    "aligned", (long long)call->q.shape[0]);
  call->lengths = t.data;
  return DIL_OK;
}

static dil_status read_outputs(const dil_kernel *k, const dil_arguments *g,
                               dil_call *call) {
  dil_status status = read_tensor(k->context, "o", g->o, &call->o);
  if (status || !g->lse) return status;
  status = read_tensor(k->context, "lse", g->lse, &call->lse);
  if (!status && !call->lse.data && dil_tensor_count(&call->lse))
    return dil_fail(DIL_USAGE, "lse has no memory");
  return status;
}

dil_status arguments_read(const dil_kernel *k, const dil_arguments *given,
                          arguments *out) {
  dil_arguments g;
  const dil_context *c = k->context;
  dil_status status = dil_struct_read(&g, sizeof g, given, "dil_arguments");
  if (status) return status;
  *out = (arguments){.stream = g.stream,
                     .call = {.size = sizeof(dil_call),
                              .train = g.train != 0,
                              .seed = g.seed,
                              .scale = g.scale}};
  dil_call *call = &out->call;
  status = read_tensor(c, "q", g.q, &call->q);
  if (!status) status = read_tensor(c, "k", g.k, &call->k);
  if (!status) status = read_tensor(c, "v", g.v, &call->v);
  if (!status) status = read_outputs(k, &g, call);
  if (!status) status = read_inputs(k, &g, out);
  if (!status) status = read_lengths(k, &g, call);
  return status ? status : check_outputs(k, &g, out);
}

/* ---- without memory ------------------------------------------------------ */

dil_status arguments_check_sizes(const dil_sizes *s) {
  if (!s) return dil_fail(DIL_USAGE, "there are no sizes");
  bool fits = s->batch >= 0 && s->batch <= INT32_MAX && s->queries >= 0 &&
              s->queries <= DIL_LENGTH_MAX && s->keys >= 0 &&
              s->keys <= DIL_LENGTH_MAX;
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "batch %lld, queries %lld and keys %lld must be "
                  "within 0 and %d", (long long)s->batch,
                  (long long)s->queries, (long long)s->keys, DIL_LENGTH_MAX);
}

/* The address stands for memory that nobody looks at; aligned to anything. */
static dil_tensor input_tensor(const dil_kernel *k, int32_t index,
                               const dil_sizes *s, void *data) {
  const dil_input *input = &k->source.table->inputs[index];
  int64_t shape[DIL_RANK_MAX];
  for (int32_t axis = 0; axis < input->rank; axis++)
    shape[axis] = k->source.dimension(k->source.context, index, axis,
                                      (int32_t)s->batch, (int32_t)s->queries,
                                      (int32_t)s->keys);
  return dil_tensor_make(data, input->dtype, input->rank, shape);
}

dil_tensor arguments_tensor(const dil_kernel *k, int32_t index,
                            const dil_sizes *s) {
  const dil_table *t = k->source.table;
  void *nowhere = (void *)(uintptr_t)4096;
  const int64_t shape[][4] = {
      [DIL_TENSOR_Q] = {s->batch, s->queries, t->heads, t->head_dim},
      [DIL_TENSOR_K] = {s->batch, s->keys, t->kv_heads, t->head_dim},
      [DIL_TENSOR_V] = {s->batch, s->keys, t->kv_heads, t->value_dim},
      [DIL_TENSOR_O] = {s->batch, s->queries, t->heads, t->value_dim},
      [DIL_TENSOR_LSE] = {s->batch, t->heads, s->queries, 1}};
  if (index >= DIL_TENSOR_INPUT)
    return input_tensor(k, index - DIL_TENSOR_INPUT, s, nowhere);
  bool lse = index == DIL_TENSOR_LSE;
  return dil_tensor_make(nowhere, lse ? DIL_F32 : t->dtype, lse ? 3 : 4,
                         shape[index]);
}

/* Bytes of scratch memory are a few times those of tensors: no sum of them
 * wraps. */
static bool is_counted(const dil_tensor *t) {
  int64_t count = dil_tensor_count(t);
  return count >= 0 && count < INT64_MAX / 64;
}

static dil_status check_reach(const dil_call *c, const dil_sizes *s) {
  bool fits = is_counted(&c->q) && is_counted(&c->k) && is_counted(&c->v) &&
              is_counted(&c->o);
  for (int32_t i = 0; i < c->input_count; i++) fits &= is_counted(&c->inputs[i]);
  if (fits) return DIL_OK;
  return dil_fail(DIL_USAGE, "with batch %lld, queries %lld and keys %lld some "
                  "tensor has a negative extent, or reaches further than "
                  "memory does", (long long)s->batch, (long long)s->queries,
                  (long long)s->keys);
}

dil_status arguments_of_sizes(const dil_kernel *k, const dil_sizes *sizes,
                              arguments *out) {
  dil_status status = arguments_check_sizes(sizes);
  if (status) return status;
  int32_t inputs = k->source.table->input_count;
  *out = (arguments){.call = {.size = sizeof(dil_call),
                              .scale = 1,
                              .q = arguments_tensor(k, DIL_TENSOR_Q, sizes),
                              .k = arguments_tensor(k, DIL_TENSOR_K, sizes),
                              .v = arguments_tensor(k, DIL_TENSOR_V, sizes),
                              .o = arguments_tensor(k, DIL_TENSOR_O, sizes),
                              .inputs = out->inputs,
                              .input_count = inputs}};
  for (int32_t i = 0; i < inputs; i++)
    out->inputs[i] = arguments_tensor(k, DIL_TENSOR_INPUT + i, sizes);
  return check_reach(&out->call, sizes);
}
