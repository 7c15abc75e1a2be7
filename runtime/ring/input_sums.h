/* input_sums.h - the gradients of a call's inputs, from float64 sums: those of one
 * wanted gradient after the other. */
#ifndef DIL_RUNTIME_RING_INPUT_SUMS_H
#define DIL_RUNTIME_RING_INPUT_SUMS_H

#include "runtime/call.h"

/* Elements of all wanted gradients; `wanted` has one for each input of the call,
 * with data NULL where it is not wanted. */
int64_t input_sums_elements(const dil_call *call, const dil_tensor *wanted);
int64_t input_sums_count(const dil_backward_call *call);
/* Rounds the sums to the gradients. */
void input_sums_store(const dil_backward_call *call, const double *sums);

#endif
