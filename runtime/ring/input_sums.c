/* input_sums.c - rounds the sums of ranks to the gradients of inputs; see
 * input_sums.h. */
#include "input_sums.h"
#include "runtime/base/random.h"

int64_t input_sums_elements(const dil_call *call, const dil_tensor *wanted) {
  int64_t count = 0;
  for (int32_t x = 0; x < call->input_count; x++)
    if (wanted[x].data) count += dil_tensor_count(&wanted[x]);
  return count;
}

int64_t input_sums_count(const dil_backward_call *call) {
  return input_sums_elements(&call->forward, call->inputs);
}

static void store_one(const dil_tensor *t, const double *sums) {
  int64_t count = dil_tensor_count(t);
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = i, at = 0;
    for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
      at += rest % t->shape[axis] * t->stride[axis];
      rest /= t->shape[axis];
    }
    dil_element_write(t->data, t->dtype, at, sums[i]);
  }
}

void input_sums_store(const dil_backward_call *call, const double *sums) {
  for (int32_t x = 0; x < call->forward.input_count; x++) {
    if (!call->inputs[x].data) continue;
    store_one(&call->inputs[x], sums);
    sums += dil_tensor_count(&call->inputs[x]);
  }
}
