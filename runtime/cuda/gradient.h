/* gradient.h - the launches of templates/general/gradient.cu, for backward.c
 * and input_sums.c. */
#ifndef DIL_RUNTIME_CUDA_GRADIENT_H
#define DIL_RUNTIME_CUDA_GRADIENT_H

#include "runtime/cuda/launch/gradient_run.h"

/* These families make gradients of query rows and of keys; no pass of a forward
 * call takes them. */
extern const cuda_family cuda_gradient, cuda_gradient_keys;

/* Computes the facts of all query rows. `code` makes dQ, here and below. */
dil_status gradient_delta(const gradient_run *g, const cuda_code *code);
/* Launches a code that makes gradients of a pass; passes after the first add to
 * them. */
dil_status gradient_pass(const gradient_run *g, int32_t pass, bool first,
                         const cuda_code *code);
/* Rounds the sums of a gradient to its elements, where it has sums. */
dil_status gradient_round(const gradient_run *g, const gradient_target *target,
                          const cuda_code *code);
/* Clears rows of queries or of keys of a gradient, or of its sums: in a packed call
 * those that no document has, else all. The launch obeys `only_if`. */
dil_status gradient_clear(const gradient_run *g, const gradient_target *target,
                          bool keys, const cuda_code *code);
/* Three launches for input_sums.c. The first adds the shares of a pass's pairs
 * to the sums of an input; its code makes gradients of inputs. The second adds
 * the shares of all rows' sinks. The third rounds the sums to the gradient. */
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
