/* patches.h - tiles of the general kernels that are patches of a grid. */
#ifndef DIL_RUNTIME_CUDA_PATCHES_H
#define DIL_RUNTIME_CUDA_PATCHES_H

#include "runtime/cuda/launch/family.h"
#include "runtime/rowset/patch.h"

/* How a pass of a call is cut into patches of as many rows as the code's tiles have.
 * False: its tiles are linear. */
bool cuda_patches_plan(const cuda_run *r, int32_t pass, const cuda_code *code,
                       patch_plan *out);
/* Writes the patches of a pass into the parameters of a launch, with the space of
 * tiles of one head. Returns how many these are. */
int64_t cuda_patches_fill(const cuda_run *r, int32_t pass,
                          const patch_plan *patches, dil_params *p);
/* Tells of the patches of a pass and of the blocks of keys that they visit. */
void cuda_patches_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                           const patch_plan *patches, dil_cuda_pass *out);

#endif
