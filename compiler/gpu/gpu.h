/* gpu.h - dil-gpu.so: plans to CUDA C out of templates/ to cubins.
 *
 * The only user of NVRTC, which it opens at run time. In: a plan and a chip.
 * Out: dil_cuda_code, one a kernel that went through the gate. A *strategy* is
 * one way to write kernels for a plan (general.c, hopper.c); it brings members
 * (kernels for different calls, all compiled) and for each member attempts in
 * order of preference: one that the gate refuses gives way to the next. */
#ifndef DIL_GPU_H
#define DIL_GPU_H

#include "../schedule.h"
#include "../../runtime/cuda/cuda.h"
#include <stdatomic.h>

enum { GPU_CODES_MAX = 16 };

typedef struct source_text {
  char *text;              /* malloced, NUL-terminated */
  size_t length, room;
  bool lost;               /* memory ran out; told once at the end */
} source_text;

/* The variable that holds more options for NVRTC, words. */
#define NVRTC_WISHES "DIL_NVRTC_OPTIONS"

/* What NVRTC made of a source, whether or not the gate lets it pass. */
typedef struct gpu_made {
  char *log;               /* what ptxas reports; malloced */
  void *cubin;             /* malloced */
  size_t size;
} gpu_made;

/* Where cubins are kept by all that they are made of but NVRTC itself (options
 * and source in one text), so that plans with one source share one. Several
 * threads call `put` and, unless `only`, `find`. */
typedef struct gpu_shelf {
  void *context;
  bool only;               /* what is not there fails; NVRTC stays unopened */
  bool empty;              /* nothing is there: it is not asked */
  bool (*find)(void *context, const source_text *of, gpu_made *made);
  void (*put)(void *context, const source_text *of, const char *label,
              const gpu_made *made, double seconds);
} gpu_shelf;

typedef struct gpu_request {
  const plan *plan;
  int32_t arch;            /* 80, 86, 89, 90 (compiled as sm_90a) */
  const char *only;        /* a strategy's name; NULL: all that can */
  const knobs *knobs;      /* for the strategy that they choose; NULL: none */
  bool source_only;        /* first attempts to `cuda`, nothing compiled */
  FILE *cuda, *ptxas;      /* not NULL: source and report go there as well */
  bool whole;              /* no call is a part of a sequence */
  bool apart;              /* gpu_backend.apart are left without a cubin */
  const atomic_bool *stop; /* not NULL: set, it ends a compilation early */
  const gpu_shelf *shelf;  /* NULL: everything is compiled */
} gpu_request;

typedef struct gpu_codes {
  int32_t count;           /* most specific first; the general one is last */
  int32_t member[GPU_CODES_MAX]; /* which each is, for gpu_backend.member */
  dil_cuda_code code[GPU_CODES_MAX];
} gpu_codes;

/* A schedule that may be tried: the knobs, and the code but its cubin. */
typedef struct gpu_candidate {
  knobs knobs;
  dil_cuda_code code;
} gpu_candidate;
enum { GPU_CANDIDATES_MAX = 192 };

typedef struct gpu_backend {
  int32_t version;         /* DIL_INTERFACE */
  /* Every member of every strategy; of one that knobs speak of, the member
   * that they describe. On failure nothing is left to free. DIL_ENVIRONMENT: no
   * NVRTC, or it does not know the chip. DIL_UNSUPPORTED: the gate refused all
   * attempts of the general strategy. DIL_INPUT: no kernel has these knobs. */
  dil_status (*compile)(const gpu_request *request, gpu_codes *out);
  /* The members, bit by bit, that may come after a kernel: those that few of
   * its calls take, or calls of many rows alone. *beside: they are as likely as
   * the others, and not worth less haste. */
  uint32_t (*apart)(const gpu_request *request, bool *beside);
  /* One of them; DIL_UNSUPPORTED: the gate refused all attempts. Told to stop,
   * it fails. */
  dil_status (*member)(const gpu_request *request, int32_t member,
                       dil_cuda_code *code);
  /* The first attempts at all members, without cubins: what `compile` makes
   * where the gate lets each pass. NVRTC is not opened. */
  dil_status (*foresee)(const gpu_request *request, gpu_codes *out);
  /* Whether a pass is left to the general strategy whatever the call, and
   * why. */
  bool (*leaves)(const gpu_request *request, int32_t pass, char *reason,
                 size_t size);
  /* The schedules of a plan that the tuner may try, at most `room`, in no
   * order; the gate has not seen them. Returns how many. */
  int32_t (*candidates)(const gpu_request *request, gpu_candidate *list,
                        int32_t room);
  /* The chip's products and nothing else, of what the plan's kernels multiply
   * (tf32 for f32): what their speed is a share of. */
  dil_status (*peak)(const plan *p, int32_t arch, const gpu_shelf *shelf,
                     dil_cuda_code *code);
  /* What ranks of a ring do with rows on that chip, besides attention. */
  dil_status (*rows)(int32_t arch, const gpu_shelf *shelf,
                     dil_cuda_code *code);
  /* "NVRTC 13.0"; NULL with the reason in dil_last_error. */
  const char *(*versions)(void);
  /* The path of NVRTC's file; NULL: it cannot be told. */
  const char *(*origin)(void);
} gpu_backend;

typedef const gpu_backend *(*gpu_backend_init)(void);
#define GPU_BACKEND_SYMBOL "dil_gpu_backend_init"

/* ---- emit.c: growing source text ----------------------------------------- */

void put(source_text *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A template by its name, embedded when the module was built; followed by
 * #line marks so that errors name the template's own lines. Includes of other
 * templates ("x.cuh") are resolved by NVRTC from the same embedded set. */
void put_template(source_text *s, const char *name);

/* ---- expr.c, cover.c, bits.c, tables.c: what strategies share ------------ */

/* Device functions of the plan's expressions, see templates/pair.cuh:
 *   bool  dil_keeps(int predicate, int i, int j, const dil_pair &at)
 *         window and masks of one predicate
 *   float dil_chain(int chain, float s, int i, int j, const dil_pair &at)
 *         score after scale and chain, natural units */
void put_expressions(source_text *s, const plan *p);
/*   dil_range dil_cover(int predicate, dil_range i, dil_range j, dil_range h,
 *                       const dil_pair &at)
 *         its masks over a whole tile, see templates/cover.cuh */
void put_cover(source_text *s, const plan *p);
/*   dil_bits dil_mask_bits(int predicate, const dil_block &x,
 *                          const dil_pair &at)
 *         its masks over a block of keys, see templates/bits.cuh
 *   unsigned dil_known(dil_range i, dil_range j, dil_range h,
 *                      const dil_pair &at)
 *         which parts of all masks ranges settle */
void put_mask_bits(source_text *s, const plan *p);
/* One condition, at a pair and over ranges: what these functions return. */
void put_condition(source_text *s, const plan *p, const expr *e);
void put_condition_range(source_text *s, const plan *p, const expr *e);
/* The plan's numbers as macros and __constant__ tables (templates/plan.cuh):
 * HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM, ELEMENT (0 f32, 1 bf16, 2 f16),
 * branches, passes, predicates, phases. */
void put_tables(source_text *s, const plan *p);
/* Whether a key that is visited once may count several times (HOSTING). */
bool is_hosting(const dil_table *t);
/* Whether scores may come out as -inf where s, and inputs that do not depend on
 * the key, are finite: pairs are hidden so without a mask. */
bool is_hiding(const plan *p);

/* ---- strategies ---------------------------------------------------------- */

typedef struct gpu_strategy {
  const char *name;        /* = cuda_family.name */
  unsigned knobs;          /* bit k: knob k is one of its own */
  /* Whether it has kernels for this plan on this chip, with the request's
   * knobs; else `reason` is filled (for `dil print` and `dil doctor`). */
  bool (*can)(const gpu_request *r, char *reason, size_t size);
  /* Source and facts (all of dil_cuda_code but the cubin) of one attempt at
   * one member; with knobs there is one of either. False: there is no such
   * attempt (attempt > 0) or no such member (attempt 0). */
  bool (*write)(const gpu_request *r, int32_t member, int32_t attempt,
                dil_cuda_code *code, source_text *text);
  /* Knobs number `index` that are worth a try, whether they fit or not. False:
   * there are no more. */
  bool (*propose)(int32_t index, knobs *k);
} gpu_strategy;

extern const gpu_strategy strategy_general, strategy_hopper,
    strategy_hopper_pair;

/* ---- peak.c -------------------------------------------------------------- */

dil_status peak_compile(const plan *p, int32_t arch, const gpu_shelf *shelf,
                        dil_cuda_code *code);

/* ---- rows.c -------------------------------------------------------------- */

dil_status rows_compile(int32_t arch, const gpu_shelf *shelf,
                        dil_cuda_code *code);

/* ---- nvrtc.c: compile and gate ------------------------------------------- */

/* One source to the cubin of `code`, whose name, chip and leniency are set.
 * DIL_UNSUPPORTED with the reason in dil_last_error: the gate refused what
 * ptxas made of it. `stop` (or NULL), once set, ends it with DIL_INTERNAL.
 * From `shelf` (or NULL), where it is there; DIL_ENVIRONMENT: it is not, and
 * must be. */
dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop,
                         const gpu_shelf *shelf);
const char *nvrtc_version(void);
const char *nvrtc_origin(void); /* the path of its file, or NULL */

#endif
