/* arguments.c - from a host's DLPack tensors to a call.
 *
 * In: dil_arguments. Out: a dil_call, or an error that names the tensor and
 * what is wrong with it. Nothing is read through the data pointers but the
 * lengths and the seed, later, by whoever runs the call. */
#include "context.h"
#include "usage.h"
#include "runtime/base/lists.h"
#include "runtime/base/status.h"
#include "runtime/cpu/cpu.h"
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

static dil_status read_type(const char *name, DLDataType have, dil_dtype want,
                            dil_dtype *out) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (have.code == types[i].code && have.bits == types[i].bits &&
        have.lanes == 1) {
      *out = types[i].dtype;
      return DIL_OK;
    }
  static const char *const kinds[] = {"int",    "uint",    "float", "opaque",
                                      "bfloat", "complex", "bool"};
  enum { KIND_COUNT = sizeof kinds / sizeof *kinds };
  return dil_fail(DIL_USAGE, "%s must be %s, got %s%d (DLPack code %d, "
                  "lanes %d)", name, dil_dtype_name(want),
                  have.code < KIND_COUNT ? kinds[have.code] : "unknown",
                  have.bits, have.code, have.lanes);
}

DLDataType arguments_type(dil_dtype dtype) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (types[i].dtype == dtype)
      return (DLDataType){types[i].code, types[i].bits, 1};
  return (DLDataType){0};
}

/* Bytes from the first element to the furthest before and after it. */
static bool spans_of(const dil_tensor *t, int64_t *before, int64_t *after) {
  int64_t size = (int64_t)dil_dtype_size(t->dtype);
  *before = 0, *after = size;
  for (int32_t i = 0; i < t->rank; i++) {
    int64_t span = t->shape[i] ? t->shape[i] - 1 : 0;
    if (__builtin_mul_overflow(span, t->stride[i], &span) ||
        __builtin_mul_overflow(span, size, &span) || span == INT64_MIN)
      return false;
    int64_t *side = span < 0 ? before : after;
    if (__builtin_add_overflow(*side, span < 0 ? -span : span, side))
      return false;
  }
  return true;
}

static bool is_reachable(const dil_tensor *t) {
  int64_t before, after;
  void *end;
  if (dil_tensor_count(t) < 0 || !spans_of(t, &before, &after)) return false;
  return usage_offset(NULL, (uint64_t)before, &end) &&
         usage_offset(t->data, (uint64_t)after, &end) &&
         (!t->data || (uintptr_t)t->data >= (uint64_t)before);
}

static dil_status read_place(const char *name, const DLTensor *from,
                             dil_tensor *to) {
  void *data = NULL;
  if (from->data && !usage_offset(from->data, from->byte_offset, &data))
    return dil_fail(DIL_USAGE, "%s reaches further than memory does: its "
                    "byte_offset is %llu", name,
                    (unsigned long long)from->byte_offset);
  *to = dil_tensor_make(data, to->dtype, from->ndim, from->shape);
  if (from->strides && from->ndim)
    memcpy(to->stride, from->strides, (size_t)from->ndim * sizeof *to->stride);
  if (!is_reachable(to))
    return dil_fail(DIL_USAGE, "%s has a negative extent, or reaches further "
                    "than memory does", name);
  if (dil_tensor_count(to) && (uintptr_t)data % dil_dtype_size(to->dtype))
    return dil_fail(DIL_USAGE, "%s is not aligned to its elements", name);
  return DIL_OK;
}

/* As contexts call it, where they can be made for it. */
enum { DEVICE_NAME = 48 };
static const char *host_device_name(DLDevice device, char text[DEVICE_NAME]) {
  if (device.device_type == kDLCPU) return "cpu";
  if (device.device_type == kDLCUDA)
    snprintf(text, DEVICE_NAME, "cuda:%d", (int)device.device_id);
  else
    snprintf(text, DEVICE_NAME, "DLPack device %d:%d", (int)device.device_type,
             (int)device.device_id);
  return text;
}

static dil_status check_device(const dil_context *c, const char *name,
                               DLDevice have) {
  char device[DEVICE_NAME];
  if (c->kind->reaches(c, have)) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s is on %s, the kernel is on %s", name,
                  host_device_name(have, device), c->device);
}

dil_status arguments_read_tensor(const dil_context *c, const char *name,
                                 dil_dtype want, const DLTensor *from,
                                 dil_tensor *to) {
  *to = (dil_tensor){0};
  if (!from) return dil_fail(DIL_USAGE, "%s is not given", name);
  dil_status place = check_device(c, name, from->device);
  if (place) return place;
  if (from->ndim < 0 || from->ndim > DIL_RANK_MAX ||
      (from->ndim && !from->shape))
    return dil_fail(DIL_USAGE, "%s must have 0 to %d dimensions with a shape, "
                    "got %d", name, DIL_RANK_MAX, (int)from->ndim);
  dil_status status = read_type(name, from->dtype, want, &to->dtype);
  return status ? status : read_place(name, from, to);
}

/* ---- outputs ------------------------------------------------------------- */

dil_status arguments_check_output(const char *name, const dil_tensor *t,
                                  uint64_t flags) {
  if (flags & DLPACK_FLAG_BITMASK_READ_ONLY)
    return dil_fail(DIL_USAGE, "%s is an output and is read-only", name);
  if (overlap_within(t))
    return dil_fail(DIL_USAGE, "%s is an output and its strides let elements "
                    "share memory", name);
  return DIL_OK;
}

dil_status arguments_check_apart(const char *name, const dil_tensor *output,
                                 const char *other, const dil_tensor *t) {
  if (!overlap_between(output, t)) return DIL_OK;
  return dil_fail(DIL_USAGE, "%s is an output and shares memory with %s", name,
                  other);
}

const char *arguments_input_name(const dil_kernel *k, int32_t index,
                                 char text[INPUT_NAME]) {
  snprintf(text, INPUT_NAME, "input '%.80s'",
           k->source.table->inputs[index].name);
  return text;
}

dil_tensor arguments_lengths(const dil_call *call) {
  int64_t rows = call->lengths ? call->q.shape[0] : 0;
  return dil_tensor_make((void *)(uintptr_t)call->lengths, DIL_I32, 1, &rows);
}

dil_tensor arguments_seed(const dil_call *call) {
  const int64_t words = call->seed_at ? 2 : 0;
  return dil_tensor_make((void *)(uintptr_t)call->seed_at, DIL_I32, 1, &words);
}

dil_status arguments_check_overlap(const dil_kernel *k, const arguments *a,
                                   const char *name, const dil_tensor *output) {
  char text[INPUT_NAME];
  const dil_call *c = &a->call;
  dil_status status = arguments_check_apart(name, output, "q", &c->q);
  if (!status) status = arguments_check_apart(name, output, "k", &c->k);
  if (!status) status = arguments_check_apart(name, output, "v", &c->v);
  for (int32_t i = 0; i < c->input_count && !status; i++)
    status = arguments_check_apart(
        name, output, arguments_input_name(k, i, text), &c->inputs[i]);
  dil_tensor lengths = arguments_lengths(c), seed = arguments_seed(c);
  dil_tensor pages = arguments_pages(c);
  if (!status) status = arguments_check_apart(name, output, "lengths", &lengths);
  if (!status) status = arguments_check_apart(name, output, "pages", &pages);
  if (!status)
    status = arguments_check_apart(name, output, "seed_tensor", &seed);
  dil_tensor queries = arguments_offsets(c, false);
  dil_tensor keys = arguments_offsets(c, true);
  if (!status)
    status = arguments_check_apart(name, output, "offsets_q", &queries);
  return status ? status
                : arguments_check_apart(name, output, "offsets_k", &keys);
}

static dil_status check_outputs(const dil_kernel *k, const dil_arguments *g,
                                const arguments *a) {
  const dil_call *c = &a->call;
  dil_status status = arguments_check_output("o", &c->o, g->o_flags);
  if (!status) status = arguments_check_overlap(k, a, "o", &c->o);
  if (!status && c->lse.data) {
    status = arguments_check_output("lse", &c->lse, g->lse_flags);
    if (!status) status = arguments_check_overlap(k, a, "lse", &c->lse);
    if (!status) status = arguments_check_apart("o", &c->o, "lse", &c->lse);
  }
  const dil_tensor saved = arguments_saved(k, c);
  if (saved.data) {
    if (!status) status = arguments_check_overlap(k, a, "saved", &saved);
    if (!status) status = arguments_check_apart("saved", &saved, "o", &c->o);
    if (!status) status = arguments_check_apart("saved", &saved, "lse", &c->lse);
  }
  return status ? status : arguments_check_selection(k, g, a);
}

/* ---- all of them --------------------------------------------------------- */

static dil_status read_inputs(const dil_kernel *k, const dil_arguments *g,
                              arguments *a) {
  char text[INPUT_NAME];
  const dil_table *table = k->source.table;
  int32_t count = table->input_count;
  dil_status status = dil_input_check_count(table, g->input_count);
  if (!status) status = dil_usage_list("inputs", count, count, g->inputs);
  for (int32_t i = 0; i < count && !status; i++)
    status = arguments_read_tensor(k->context, arguments_input_name(k, i, text),
                                   table->inputs[i].dtype, g->inputs[i],
                                   &a->inputs[i]);
  a->call.inputs = a->inputs;
  a->call.input_count = count;
  return status;
}

static dil_status check_length_tensor(const dil_tensor *t, int64_t batch) {
  char got[DIL_TENSOR_TEXT];
  if (t->dtype != DIL_I32 || t->rank != 1 || t->shape[0] != batch)
    return dil_fail(DIL_USAGE, "lengths must be i32 [%lld], got %s",
                    (long long)batch, dil_tensor_text(t, got));
  if (batch > 1 && t->stride[0] != 1)
    return dil_fail(DIL_USAGE, "lengths must be contiguous, the stride is %lld",
                    (long long)t->stride[0]);
  if (t->data || !batch) return DIL_OK;
  return dil_fail(DIL_USAGE, "lengths has no memory");
}

static dil_status read_lengths(const dil_kernel *k, const dil_arguments *g,
                               dil_call *call) {
  dil_tensor t;
  if (!g->lengths) return DIL_OK;
  dil_status status =
      arguments_read_tensor(k->context, "lengths", DIL_I32, g->lengths, &t);
  if (!status) status = check_length_tensor(&t, call->q.shape[0]);
  if (!status) call->lengths = t.data;
  return status;
}

static dil_status check_seed_tensor(const DLTensor *t) {
  bool one = t->ndim >= 0 && t->ndim <= DIL_RANK_MAX && (!t->ndim || t->shape);
  for (int32_t i = 0; i < t->ndim && one; i++) one = t->shape[i] == 1;
  bool wide = (t->dtype.code == kDLInt || t->dtype.code == kDLUInt) &&
              t->dtype.bits == 64 && t->dtype.lanes == 1;
  if (one && wide) return DIL_OK;
  return dil_fail(DIL_USAGE, "seed_tensor must be one element of i64 or u64, "
                  "got %d dimensions of DLPack code %d, %d bits", (int)t->ndim,
                  t->dtype.code, t->dtype.bits);
}

static dil_status read_seed(const dil_kernel *k, const dil_arguments *g,
                            dil_call *call) {
  const DLTensor *t = g->seed_tensor;
  void *data = NULL;
  if (!t) return DIL_OK;
  dil_status status = check_device(k->context, "seed_tensor", t->device);
  if (!status) status = check_seed_tensor(t);
  if (status) return status;
  if (!t->data || !usage_offset(t->data, t->byte_offset, &data) ||
      (uintptr_t)data % sizeof(uint64_t))
    return dil_fail(DIL_USAGE, "seed_tensor has no memory that is aligned to "
                    "its element");
  call->seed_at = data;
  return DIL_OK;
}

static dil_status read_outputs(const dil_kernel *k, const dil_arguments *g,
                               dil_call *call) {
  dil_status status = arguments_read_tensor(
      k->context, "o", k->source.table->dtype, g->o, &call->o);
  if (status || !g->lse) return status;
  status =
      arguments_read_tensor(k->context, "lse", DIL_F32, g->lse, &call->lse);
  if (!status && !call->lse.data && dil_tensor_count(&call->lse))
    return dil_fail(DIL_USAGE, "lse has no memory");
  return status;
}

static dil_status check_fixed_scale(const dil_table *table, double scale) {
  if (table->runtime_scale || scale == 0) return DIL_OK;
  return dil_fail(DIL_USAGE, "kernel '%s' fixes its scale, got %g: that wants "
                  "`scale runtime;` in its pattern", table->name, scale);
}

/* `g` gets the host's struct. */
static dil_status read_arguments(const dil_kernel *k,
                                 const dil_arguments *given, dil_arguments *g,
                                 arguments *out) {
  const dil_context *c = k->context;
  const dil_table *table = k->source.table;
  dil_status status = dil_struct_read(g, sizeof *g, given, "dil_arguments");
  if (!status) status = check_fixed_scale(table, g->scale);
  if (status) return status;
  *out = (arguments){.stream = g->stream,
                     .call = {.size = sizeof(dil_call),
                              .train = g->train != 0,
                              .seed = g->seed,
                              .scale = g->scale}};
  dil_call *call = &out->call;
  status = arguments_read_tensor(c, "q", table->dtype, g->q, &call->q);
  if (!status)
    status = arguments_read_tensor(c, "k", table->dtype, g->k, &call->k);
  if (!status)
    status = arguments_read_tensor(c, "v", table->dtype, g->v, &call->v);
  if (!status) status = read_outputs(k, g, call);
  if (!status) status = read_inputs(k, g, out);
  if (!status) status = read_seed(k, g, call);
  if (!status) status = packed_read(k, g, call);
  if (!status) status = read_lengths(k, g, call);
  if (!status) status = arguments_read_pages(k, g->pages, call);
  return status ? status : arguments_read_saved(k, g, out);
}

dil_status arguments_read(const dil_kernel *k, const dil_arguments *given,
                          arguments *out) {
  dil_arguments g;
  dil_status status = read_arguments(k, given, &g, out);
  if (!status) status = arguments_read_selection(k, &g, out);
  return status ? status : check_outputs(k, &g, out);
}

dil_status arguments_read_again(const dil_kernel *k, const dil_arguments *given,
                                arguments *out) {
  dil_arguments g;
  dil_status status = read_arguments(k, given, &g, out);
  out->call.chosen = !status && out->call.made;
  return status;
}

/* ---- without memory ------------------------------------------------------ */

/* The address stands for memory that nobody looks at; aligned to anything. */
static dil_tensor input_tensor(const dil_kernel *k, int32_t index,
                               const dil_sizes *s, void *data) {
  const dil_input *input = &k->source.table->inputs[index];
  int64_t shape[DIL_RANK_MAX];
  for (int32_t axis = 0; axis < input->rank; axis++)
    shape[axis] = k->source.dimension(k->source.context, index, axis,
                                      (int32_t)s->batch, (int32_t)s->queries,
                                      (int32_t)s->keys);
  if (shape[input->rank - 1] == DIL_ANY_SIZE) shape[input->rank - 1] = 0;
  return dil_tensor_make(data, input->dtype, input->rank, shape);
}

/* The tensor that tensor `index` is the gradient of; else `index` itself. */
static int32_t gradient_of(int32_t index) {
  static const struct {
    int32_t gradient, of;
  } pairs[] = {{DIL_TENSOR_DO, DIL_TENSOR_O},
               {DIL_TENSOR_DLSE, DIL_TENSOR_LSE},
               {DIL_TENSOR_DQ, DIL_TENSOR_Q},
               {DIL_TENSOR_DK, DIL_TENSOR_K},
               {DIL_TENSOR_DV, DIL_TENSOR_V}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (pairs[i].gradient == index) return pairs[i].of;
  return index;
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
  if (index >= DIL_TENSOR_SELECTION) {
    int32_t list = index - DIL_TENSOR_SELECTION;
    return dil_choice_list(&t->choices[list / 2], t->heads, s->batch, s->keys,
                           list % 2, nowhere);
  }
  if (index >= DIL_TENSOR_INPUT_GRADIENT)
    return input_tensor(k, index - DIL_TENSOR_INPUT_GRADIENT, s, nowhere);
  if (index >= DIL_TENSOR_INPUT)
    return input_tensor(k, index - DIL_TENSOR_INPUT, s, nowhere);
  index = gradient_of(index);
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
  dil_status status = dil_usage_sizes(sizes);
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
