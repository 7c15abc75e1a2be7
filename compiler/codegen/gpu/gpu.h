/* gpu.h - dil-gpu.so: compiles plans to CUDA C, from templates/, and to cubins.
 *
 * This module is the only user of NVRTC and opens it at run time. In: a plan
 * and a chip. Out: one dil_cuda_code for each kernel that passes the gate
 * (nvrtc.c), a check of what ptxas reports.
 *
 * A *strategy* is one way to write kernels for a plan (general.c, hopper.c). It
 * has *variants*: kernel variants for different calls, all of which are
 * compiled. Each variant has *configurations* of tiles in order of preference:
 * when the gate refuses one, the next is tried. `fallback` numbers them; 0 is
 * the preferred one. */
#ifndef DIL_COMPILER_CODEGEN_GPU_GPU_H
#define DIL_COMPILER_CODEGEN_GPU_GPU_H

#include "compiler/codegen/gpu_backend.h"

/* ---- emit.c: growing source text ----------------------------------------- */

void put(source_text *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends a template, which was embedded when the module was built. A #line
 * directive stands before it, so that compiler errors name the template's own
 * lines. NVRTC resolves includes of other templates ("x.cuh") from the same
 * embedded set. */
void put_template(source_text *s, const char *name);

/* ---- expr.c, cover.c, bits.c, tables.c: shared by strategies ------------- */

/* Device functions for the plan's expressions, see templates/shared/pair.cuh:
 *
 *   bool  dil_mask(int predicate, int i, int j, const dil_pair &at)
 *         the masks of one predicate
 *   float dil_chain(int chain, float s, int i, int j, const dil_pair &at)
 *         the score after the chain, in natural units; s has its scale
 *   float dil_sink(int branch, int i, const dil_pair &at)
 *         the sum of a branch's sinks (of the pattern's: BRANCHES), where it has
 *         some */
void put_expressions(source_text *s, const plan *p);
/*   dil_range dil_cover(int predicate, dil_range i, dil_range j, dil_range h,
 *                       const dil_pair &at)
 *         the masks over a whole tile by interval arithmetic; see
 *         templates/shared/cover.cuh */
void put_cover(source_text *s, const plan *p);
/*   dil_bits dil_mask_bits(int predicate, const dil_block &x,
 *                          const dil_pair &at)
 *         the masks over a block of keys, see templates/shared/bits.cuh
 *   unsigned dil_known(dil_range i, dil_range j, dil_range h,
 *                      const dil_pair &at)
 *         which mask terms have one value over these ranges */
void put_mask_bits(source_text *s, const plan *p);
/* Append one condition as an expression of CUDA C: at one pair, or over ranges.
 * The functions above return these expressions. */
void put_condition(source_text *s, const plan *p, const expr *e);
void put_condition_range(source_text *s, const plan *p, const expr *e);
/* The plan's numbers as macros and __constant__ tables
 * (templates/shared/plan.cuh): HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM, ELEMENT (0
 * f32, 1 bf16, 2 f16), branches, passes, predicates, phases. */
void put_tables(source_text *s, const plan *p);
/* Whether a key that is visited once may count several times (MULTIPLICITY). */
bool has_multiplicity(const dil_table *t);
/* Whether score chains may make a score -inf although s and the inputs that do
 * not depend on the key are finite. Chains can hide pairs that way without a
 * mask. */
bool is_hiding(const plan *p);

/* ---- strategies ---------------------------------------------------------- */

typedef struct gpu_strategy {
  const char *name;        /* = cuda_family.name */
  unsigned knobs;          /* bit k: this strategy has knob k */
  /* Whether the strategy has kernels for this plan on this chip, with the
   * request's knobs. If not, `reason` is filled (for `dil print` and `dil
   * doctor`). */
  bool (*can)(const gpu_request *r, char *reason, size_t size);
  /* Writes the source and the facts (dil_cuda_code without its cubin) of one
   * configuration at one variant. With knobs there is one variant with one
   * configuration. False: there is no such configuration (fallback > 0) or no
   * such variant (fallback 0). */
  bool (*write)(const gpu_request *r, int32_t variant, int32_t fallback,
                dil_cuda_code *code, source_text *text);
  /* Sets the knobs of candidate number `index`, which need not fit the plan.
   * False: there are no more candidates. */
  bool (*propose)(int32_t index, knobs *k);
} gpu_strategy;

extern const gpu_strategy strategy_general, strategy_hopper,
    strategy_hopper_pair;

/* The fast family of a chip (see chips.def): what the module asks of it beyond
 * its strategies. */
typedef struct gpu_fast {
  const char *family;      /* = cuda_family.name */
  const gpu_strategy *plain;    /* for passes without masks and scores */
  const gpu_strategy *pairwise; /* for the others */
  /* Whether pass 0 of a plan needs `pairwise`. */
  bool (*is_pairwise)(const dil_table *t);
  /* Its way through templates/peak.cu: a macro that selects it, the launch of
   * a thread block, and the operations of one block in one round; `wide`: of
   * tf32. */
  const char *peak_macro;
  int32_t peak_threads, peak_shared;
  int32_t (*peak_operations)(bool wide);
} gpu_fast;

extern const gpu_fast fast_hopper;
/* Row `index` of the fast families; NULL: there are fewer. */
const gpu_fast *gpu_fast_row(int32_t index);
/* The fast family of a chip; NULL: it has none. */
const gpu_fast *gpu_fast_of(int32_t arch);

/* ---- peak.c -------------------------------------------------------------- */

dil_status peak_compile(const plan *p, int32_t arch,
                        const gpu_cubin_cache *cubins, dil_cuda_code *code);

/* ---- rows.c -------------------------------------------------------------- */

dil_status rows_compile(int32_t arch, const gpu_cubin_cache *cubins,
                        dil_cuda_code *code);

/* ---- nvrtc.c: compile and gate ------------------------------------------- */

/* Compiles one source to the cubin of `code`, whose variant, chip and `lenient`
 * are set. The cubin comes from the cache `cubins` (or NULL) if it is there.
 * Setting *stop (or NULL) cancels the compilation with DIL_INTERNAL. Errors:
 * DIL_UNSUPPORTED (the gate refused ptxas' result; dil_last_error has the
 * reason), DIL_ENVIRONMENT (the cache has no such cubin and compilation is not
 * allowed). */
dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop,
                         const gpu_cubin_cache *cubins);
const char *nvrtc_version(void);
const char *nvrtc_origin(void); /* the path of its library file, or NULL */

#endif
