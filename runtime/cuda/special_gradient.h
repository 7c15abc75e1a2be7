/* special_gradient.h - what Hopper kernels of gradients share that do not hold and stream
 * neighbouring rows (gather_gradient.c, list_gradient.c, grid_gradient.c): a cache between
 * launches, and a parameter that is hopper_backward_launch and what stands behind it. */
#ifndef DIL_RUNTIME_CUDA_SPECIAL_GRADIENT_H
#define DIL_RUNTIME_CUDA_SPECIAL_GRADIENT_H

#include "runtime/cuda/hopper/hopper_gradient.h"
#include "runtime/cuda/hopper/maps.h"

enum { SPECIAL_REST_MOST = 10240 }; /* bytes behind hopper_backward_launch, at most */

/* `open`, `close` and `refusal` of such a family: no pass of a forward call takes it. */
dil_status special_open(const dil_table *table, cuda_code *code);
void special_close(cuda_code *code);
const char *special_refuses_forward(const cuda_run *r, int32_t pass,
                                    const cuda_code *code);

/* Where a family keeps what is its own alone; NULL at first. It closes that itself. */
void **special_own(const cuda_code *code);

/* Whether tiles of a code hold keys, or queries. */
bool special_holds_keys(const cuda_code *code);
/* Fills a parameter of so many bytes that begins with `l`, but for maps and what a family
 * adds. */
void special_fill(const gradient_run *g, const hopper_gradient_space *space,
                  const cuda_code *code, hopper_backward_launch *l, int64_t bytes);
/* Finds the maps of some views, each of all rows. */
dil_status special_find_maps(const cuda_run *r, const cuda_code *code, int32_t count,
                             const map_view *views, hopper_maps *const *maps);
/* Launches a function with a parameter of so many bytes that begins with `l`. */
dil_status special_start(const cuda_run *r, const cuda_code *code, int32_t entry,
                         int64_t blocks, int32_t threads, int32_t shared,
                         const hopper_backward_launch *l, int64_t bytes);
/* Returns why these kernels cannot read or write the tensors of a call; NULL: they
 * can. */
const char *special_tensor_refusal(const gradient_run *g);

#endif
