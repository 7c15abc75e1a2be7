/* gradient_setup.h - from options to a call for gradients: dO and dlse from
 * arrays or random numbers, room for the gradients, and the files that they go
 * to. A call setup owns the memory. */
#ifndef DIL_COMPILER_CLI_GRADIENT_SETUP_H
#define DIL_COMPILER_CLI_GRADIENT_SETUP_H

#include "call_setup.h"

/* DIL_USAGE: an option of gradients without --backward. */
dil_status gradient_setup_check(const options *o);
/* Makes dO and dlse, and dq, dk, dv and the gradients of inputs full of NaN,
 * for a call setup that has its tensors. The gradients have the types of the
 * tensors that they belong to. The session fills call->forward. */
dil_status gradient_setup_make(call_setup *b, dil_backward_call *call);
/* Of ranks that are processes, dO stays without data where it is random: each
 * rank makes its rows, of tensor gradient_setup_number. Only rank 0 has room for
 * dq, dk and dv; gradient_setup_room makes it on a rank that has become it. */
uint32_t gradient_setup_number(void);
dil_status gradient_setup_room(call_setup *b, dil_backward_call *call);
/* Before a check: makes all of dO here. */
dil_status gradient_setup_complete(call_setup *b, dil_backward_call *call);
/* Writes the gradients that options ask for as float32 arrays. */
dil_status gradient_setup_write(call_setup *b, const dil_backward_call *call);
/* Calls `visit` for each gradient that the call has: "dq", "dk", "dv", and the
 * names of inputs. It stops at the first failure. */
typedef dil_status gradient_visit(void *context, const char *name,
                                  dil_tensor *gradient);
dil_status gradient_setup_each(const pattern *p, dil_backward_call *call,
                               gradient_visit *visit, void *context);

#endif
