/* gpu.h - dil-gpu.so: compiles plans to CUDA C, from templates/, and to cubins.
 *
 * This module is the only user of NVRTC and opens it at run time. In: a plan
 * and a chip. Out: one dil_cuda_code for each kernel that passes the gate
 * (nvrtc.c), a check of what ptxas reports.
 *
 * A *strategy* is one way to write kernels for a plan (general.c, hopper.c). It
 * has *members*: kernel variants for different calls, all of which are
 * compiled. Each member has *attempts* in order of preference, which are
 * fallbacks: when the gate refuses one, the next is tried. */
#ifndef DIL_COMPILER_CODEGEN_GPU_GPU_H
#define DIL_COMPILER_CODEGEN_GPU_GPU_H

#include "compiler/front/program.h"
#include "compiler/plan/plan.h"
#include "compiler/schedule/schedule.h"
#include "runtime/cuda/cuda.h"
#include <stdatomic.h>

enum { GPU_CODES_MAX = 16 };

typedef struct source_text {
  char *text;              /* malloced, NUL-terminated */
  size_t length, room;
  bool lost;               /* memory ran out; the error is reported at the
                              end */
} source_text;

/* The environment variable with further options for NVRTC, separated by
 * spaces. */
#define NVRTC_WISHES "DIL_NVRTC_OPTIONS"

/* The result of NVRTC for a source. The gate has not checked it yet. */
typedef struct gpu_made {
  char *log;               /* the report of ptxas; malloced */
  void *cubin;             /* malloced */
  size_t size;
} gpu_made;

/* A cubin cache. Its key is a text of compiler options and source, without the
 * version of NVRTC. Plans with equal source thus share a cubin. Several threads
 * may call `put`, and `find` too unless `only` is set. */
typedef struct gpu_shelf {
  void *context;
  bool only;               /* a cache miss is an error; NVRTC stays closed */
  bool empty;              /* the cache is empty: `find` is not called */
  bool (*find)(void *context, const source_text *of, gpu_made *made);
  void (*put)(void *context, const source_text *of, const char *label,
              const gpu_made *made, double seconds);
} gpu_shelf;

typedef struct gpu_request {
  const plan *plan;
  int32_t arch;            /* 80, 86, 89, 90 (compiled as sm_90a) */
  const char *only;        /* a strategy's name; NULL: every strategy */
  const knobs *knobs;      /* for the strategy that they select; NULL: none */
  bool source_only;        /* first attempts go to `cuda`; no compilation */
  FILE *cuda, *ptxas;      /* not NULL: receive the source and ptxas' report */
  bool whole;              /* every call holds its whole sequence (no
                              dil_shard) */
  bool apart;              /* deferred members (see gpu_backend.apart) get no
                              cubin */
  const atomic_bool *stop; /* not NULL: setting it cancels the compilation */
  const gpu_shelf *shelf;  /* NULL: no cache, everything is compiled */
} gpu_request;

typedef struct gpu_codes {
  int32_t count;           /* most specific first; the general one is last */
  int32_t member[GPU_CODES_MAX]; /* the member of each code, for
                                    gpu_backend.member */
  dil_cuda_code code[GPU_CODES_MAX];
} gpu_codes;

/* A schedule that the tuner may try: its knobs, and its code without a
 * cubin. */
typedef struct gpu_candidate {
  knobs knobs;
  dil_cuda_code code;
} gpu_candidate;
enum { GPU_CANDIDATES_MAX = 192 };

typedef struct gpu_backend {
  int32_t version;         /* DIL_INTERFACE */
  /* Compiles every member of every strategy. A strategy that the knobs select
   * has one member, the one that the knobs describe. On failure nothing is left
   * to free. Errors: DIL_ENVIRONMENT (NVRTC is missing or does not know the
   * chip), DIL_UNSUPPORTED (the gate refused every attempt of the general
   * strategy), DIL_INPUT (no kernel can have these knobs). */
  dil_status (*compile)(const gpu_request *request, gpu_codes *out);
  /* The deferred members, one bit each: their compilation may end after the
   * kernel is in use. Few calls take them, or only calls with many rows do.
   * *beside becomes true if calls take them as often as the others; their
   * compilation is then equally urgent. */
  uint32_t (*apart)(const gpu_request *request, bool *beside);
  /* Compiles one member. DIL_UNSUPPORTED: the gate refused every attempt. It
   * fails when request->stop is set. */
  dil_status (*member)(const gpu_request *request, int32_t member,
                       dil_cuda_code *code);
  /* The codes that `compile` makes if the gate accepts every first attempt,
   * without cubins. NVRTC stays closed. */
  dil_status (*foresee)(const gpu_request *request, gpu_codes *out);
  /* Whether the general strategy takes a pass in every call; `reason` says
   * why. */
  bool (*leaves)(const gpu_request *request, int32_t pass, char *reason,
                 size_t size);
  /* The schedules that the tuner may try, at most `room`, in no order. The gate
   * has not checked them. Returns their number. */
  int32_t (*candidates)(const gpu_request *request, gpu_candidate *list,
                        int32_t room);
  /* A kernel that only multiplies matrices, of the type that the plan's kernels
   * multiply (tf32 for f32). Its speed is the peak for the chip. */
  dil_status (*peak)(const plan *p, int32_t arch, const gpu_shelf *shelf,
                     dil_cuda_code *code);
  /* The kernels that ranks of a ring use besides attention:
   * templates/rows.cu. */
  dil_status (*rows)(int32_t arch, const gpu_shelf *shelf,
                     dil_cuda_code *code);
  /* "NVRTC 13.0"; NULL with the reason in dil_last_error. */
  const char *(*versions)(void);
  /* The path of NVRTC's library file; NULL: unknown. */
  const char *(*origin)(void);
} gpu_backend;

typedef const gpu_backend *(*gpu_backend_init)(void);
#define GPU_BACKEND_SYMBOL "dil_gpu_backend_init"

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
 *         the score after the chain, in natural units; s has its scale */
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
/* Whether a key that is visited once may count for several branches
 * (HOSTING). */
bool is_hosting(const dil_table *t);
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
   * attempt at one member. With knobs there is one member with one attempt.
   * False: there is no such attempt (attempt > 0) or no such member (attempt
   * 0). */
  bool (*write)(const gpu_request *r, int32_t member, int32_t attempt,
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

dil_status peak_compile(const plan *p, int32_t arch, const gpu_shelf *shelf,
                        dil_cuda_code *code);

/* ---- rows.c -------------------------------------------------------------- */

dil_status rows_compile(int32_t arch, const gpu_shelf *shelf,
                        dil_cuda_code *code);

/* ---- nvrtc.c: compile and gate ------------------------------------------- */

/* Compiles one source to the cubin of `code`, whose variant, chip and `lenient`
 * are set. The cubin comes from the cache `shelf` (or NULL) if it is there.
 * Setting *stop (or NULL) cancels the compilation with DIL_INTERNAL. Errors:
 * DIL_UNSUPPORTED (the gate refused ptxas' result; dil_last_error has the
 * reason), DIL_ENVIRONMENT (the cache has no such cubin and compilation is not
 * allowed). */
dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop,
                         const gpu_shelf *shelf);
const char *nvrtc_version(void);
const char *nvrtc_origin(void); /* the path of its library file, or NULL */

#endif
