/* gradient_estimate.h - a dry run of a call's gradients: the kernels that make
 * them and why, their workspace, and a predicted time.
 *
 * In: a backward plan, a processor or a GPU that need not be present, a call's
 * sizes. Out: an estimate, as text and as JSON. */
#ifndef DIL_COMPILER_CLI_GRADIENT_ESTIMATE_H
#define DIL_COMPILER_CLI_GRADIENT_ESTIMATE_H

#include "gpu_estimate.h"

typedef struct gradient_estimate {
  cost_gradients cost;
  dil_backward_facts
      facts;          /* of a call with the o and lse of its run forward */
  const char *reason; /* why the Hopper kernels make none of them; NULL:
                         they do, or there is no GPU */
  double computed;    /* flops of the kernels on a GPU; 0: a processor */
  bool fused;         /* one kernel makes all gradients and adds dQ in any
                         order */
  double seconds;
} gradient_estimate;

/* On the processor: `spot` is the case of the run forward. */
dil_status gradient_estimate_cpu(const call_setup *b, const compilation *c,
                                 const plan *backward, const cost_case *spot,
                                 gradient_estimate *out);
/* On the chip of `forward`, an estimate of the run forward. */
dil_status gradient_estimate_gpu(const call_setup *b, const compilation *c,
                                 const plan *backward,
                                 const gpu_estimate *forward,
                                 gradient_estimate *out);
/* Returns why the Hopper kernels do not make the gradients of a call: the back
 * end's reason, about the pattern, or else `refusal`, the run time's. NULL
 * where `refusal` is. */
const char *gradient_estimate_reason(const compilation *c, const plan *backward,
                                     int32_t arch, const char *refusal);

void gradient_estimate_print(const gradient_estimate *e, FILE *out);
json_t *gradient_estimate_json(const gradient_estimate *e);

#endif
