/* strategy.h - one way to write the kernels of a plan, and the fast family of a
 * chip: what the module asks of each, and the list of them. See gpu.h. */
#ifndef DIL_COMPILER_CODEGEN_GPU_EMIT_STRATEGY_H
#define DIL_COMPILER_CODEGEN_GPU_EMIT_STRATEGY_H

#include "compiler/codegen/gpu_backend.h"

typedef struct gpu_strategy {
  const char *name;        /* = cuda_family.name */
  unsigned knobs;          /* bit k: this strategy has knob k */
  /* Returns whether the strategy has kernels for this plan on this chip, with
   * the request's knobs. If it has none, `reason` is filled (for `dil print`
   * and `dil doctor`). */
  bool (*can)(const gpu_request *r, char *reason, size_t size);
  /* Writes the source and the facts (dil_cuda_code without its cubin) of one
   * configuration at one variant. With knobs a variant has one configuration.
   * False: there is no such configuration (fallback > 0) or no
   * such variant (fallback 0). */
  bool (*write)(const gpu_request *r, int32_t variant, int32_t fallback,
                dil_cuda_code *code, source_text *text);
  /* Sets the knobs of candidate number `index`, which need not fit the plan.
   * False: there are no more candidates. */
  bool (*propose)(int32_t index, knobs *k);
} gpu_strategy;

extern const gpu_strategy strategy_general, strategy_hopper,
    strategy_hopper_pair, strategy_hopper_grid, strategy_hopper_gather,
    strategy_hopper_block_list, strategy_hopper_documents,
    strategy_decode;
/* For backward plans alone, beside those of the forward call: gradient.c,
 * hopper/hopper_gradient.c, hopper/hopper_gather.c, hopper/hopper_block_list.c,
 * hopper/hopper_grid.c and hopper/hopper_documents.c. */
extern const gpu_strategy strategy_gradient, strategy_hopper_gradient,
    strategy_gather_gradient, strategy_list_gradient, strategy_grid_gradient,
    strategy_documents_gradient;

/* The fast family of a chip (see chips.def): what the module asks of it beyond
 * its strategies. */
typedef struct gpu_fast {
  const char *family;      /* = cuda_family.name */
  const gpu_strategy *plain;    /* for passes without masks and scores */
  const gpu_strategy *pairwise; /* for the others */
  /* Returns whether pass 0 of a plan needs `pairwise`. */
  bool (*is_pairwise)(const dil_table *t);
  /* Its way through templates/peak.cu: a macro that selects it, the launch of
   * a thread block, and the operations of one block in one round; `wide`: of
   * tf32. */
  const char *peak_macro;
  int32_t peak_threads, peak_shared;
  int32_t (*peak_operations)(bool wide);
} gpu_fast;

extern const gpu_fast fast_hopper;

#endif
