/* choices.h - how a choice of blocks is made on a GPU (templates/general/choose.cuh): what
 * launches and estimates of their time ask alike. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_CHOICES_H
#define DIL_RUNTIME_CUDA_LAUNCH_CHOICES_H
#include "runtime/plan_table.h"
#include "runtime/tensor.h"
#include "templates/shared/launch.h"
#include <stdbool.h>

/* Whether each row of a block of queries meets key blocks by matrix products. */
static inline bool cuda_choice_is_tall(const dil_choice *c, dil_dtype dtype) {
  bool each = c->estimate == DIL_ESTIMATE_EACH;
  return DIL_CHOOSE_IS_TALL(c->query_block, each, dil_dtype_size(dtype));
}

/* Whether estimates are made with coarse means first, where there are so many key blocks. */
static inline bool cuda_choice_is_coarse(const dil_choice *c, dil_dtype dtype,
                                         int64_t head_dim, int64_t keys) {
  return cuda_choice_is_tall(c, dtype) && c->share <= 0 && !c->shared &&
         DIL_CHOOSE_IS_COARSE(c->query_block, head_dim, keys);
}

#endif
