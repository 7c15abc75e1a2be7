/* gpu_gradients.h - backward calls on a GPU. */
#ifndef DIL_TESTS_SUPPORT_GPU_GRADIENTS_H
#define DIL_TESTS_SUPPORT_GPU_GRADIENTS_H

#include "gpu.h"
#include "gradients.h"

/* The gradients of a call on the device; they come back into its tensors.
 * own_workspace: in memory of the caller's, which has just enough bytes; one
 * byte less must be refused. */
dil_status gpu_backward(gradient_data *g, dil_cuda_kernel *made,
                        bool own_workspace);
/* The names of the kernels that the last call took. */
const char *gpu_gradient_kernels(void);
/* The kernel of a pattern and a call of that shape, run twice on the device, the
 * second time in workspace of the caller's; "" or what is wrong with a gradient,
 * or that the second run has other bits. The
 * text lives until the next call. `force`: plan_force bits. */
const char *gpu_gradient_problem(const tested_pattern *s, unsigned force,
                                 gradient_shape shape);
/* The same of a kernel for whole sequences alone, which the fast kernels may take. */
const char *gpu_gradient_problem_whole(const tested_pattern *s, unsigned force,
                                       gradient_shape shape);
/* The same with `gradient_order any`: both runs are right, and may have other
 * bits. */
const char *gpu_gradient_problem_any_order(const tested_pattern *s,
                                           unsigned force,
                                           gradient_shape shape);

#endif
