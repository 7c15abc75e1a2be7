/* gradient.h - the launches of templates/general/gradient.cu, for backward.c.
 */
#ifndef DIL_RUNTIME_CUDA_GRADIENT_H
#define DIL_RUNTIME_CUDA_GRADIENT_H

#include "runtime/cuda/launch/gradient_run.h"

/* The facts of all query rows. `code` makes dQ, here and below. */
dil_status gradient_delta(const gradient_run *g, const cuda_code *code);
/* Launches a code that makes gradients of a pass; passes after the first add to
 * them. */
dil_status gradient_pass(const gradient_run *g, int32_t pass, bool first,
                         const cuda_code *code);
/* Rounds the sums of a gradient, where it has such. */
dil_status gradient_round(const gradient_run *g, const gradient_target *target,
                          const cuda_code *code);
/* For input_sums.c: what the pairs of a pass give to the sums of an input, by a
 * code that makes gradients of inputs; what the sinks of all rows give; and the
 * sums rounded to the gradient. */
dil_status gradient_input_pass(const gradient_run *g, int32_t pass,
                               const dil_input_sums *sums,
                               const cuda_code *code);
dil_status gradient_input_sinks(const gradient_run *g,
                                const dil_input_sums *sums,
                                const cuda_code *code);
dil_status gradient_input_end(const gradient_run *g,
                              const dil_input_sums *sums,
                              const cuda_code *code);

#endif
