/* input.c - the declared inputs as kernels see them. In: a call. Out: addresses
 * and strides. Inputs that masks read also get room for the bounds of their
 * blocks (templates/shared/bounds.cuh). By these bounds, kernels know whole
 * tiles to be empty or full. */
#include "family.h"
#include "runtime/base/arithmetic.h"
#include "runtime/rowset/walk.h"

static bool input_has_bounds(const cuda_run *r, int32_t index) {
  const dil_tensor *t = &r->call->inputs[index];
  return r->table->inputs[index].masks && t->rank > 0 &&
         t->shape[t->rank - 1] > DIL_BOUNDS_BLOCK && dil_tensor_count(t) > 0;
}

static int64_t input_bounds_bytes(const cuda_run *r, int32_t index) {
  const dil_tensor *t = &r->call->inputs[index];
  int64_t blocks =
      (t->shape[t->rank - 1] + DIL_BOUNDS_BLOCK - 1) / DIL_BOUNDS_BLOCK;
  for (int32_t axis = 0; axis + 1 < t->rank; axis++) blocks *= t->shape[axis];
  return round_up(blocks * DIL_BOUND_BYTES, 256);
}

int64_t cuda_bounds_bytes(const cuda_run *r) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < r->call->input_count; i++)
    if (input_has_bounds(r, i)) bytes += input_bounds_bytes(r, i);
  return bytes;
}

void cuda_inputs_fill(const cuda_run *r, dil_device_input *out) {
  char *next = r->bounds;
  for (int32_t i = 0; i < r->call->input_count; i++) {
    const dil_tensor *t = &r->call->inputs[i];
    out[i].data = t->data;
    for (int32_t axis = 0; axis < t->rank; axis++) {
      out[i].dim[axis] = t->shape[axis];
      out[i].stride[axis] = t->stride[axis];
    }
    if (!next || !input_has_bounds(r, i)) continue;
    out[i].bounds = next;
    next += input_bounds_bytes(r, i);
  }
}
