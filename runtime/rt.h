/* rt.h - what the parts of the run time share, and what a compiler fills in.
 *
 * A CPU kernel is a dil_table (the plan as plain data) and a dil_code (entry
 * points of its machine code). The walk over cells, classes and tiles is C, in
 * runtime/; only what depends on the pattern's sizes and expressions is
 * generated. Prototypes stand under the file that defines them. */
#ifndef DIL_RT_H
#define DIL_RT_H

#include "dilrt.h"
#include <stdbool.h>

enum {
  DIL_BRANCH_MAX = 64,  /* branches of a pattern: bits of a mask */
  DIL_INPUT_MAX = 16,   /* declared inputs */
  DIL_PART_MAX = 64,    /* distinct predicates, and distinct score chains */
  DIL_PERIOD_MAX = 4096, /* largest common period of branches in one pass */
  DIL_HEADS_MAX = 4096,
  DIL_HEAD_DIM_MAX = 256,
  DIL_LANES_MAX = 64,   /* query rows of a tile */
};
#define DIL_ENDLESS INT64_MAX /* a window bound or segment without end */

typedef enum dil_combine {
  DIL_COMBINE_SOFTMAX, DIL_COMBINE_UNION, DIL_COMBINE_MEAN, DIL_COMBINE_SUM
} dil_combine;

/* ---- the plan as data ---------------------------------------------------- */

typedef struct dil_branch {
  int64_t segment;      /* positions; 0: one segment that holds all */
  int64_t dilation;
  int32_t head_first, head_last; /* inclusive */
  int32_t predicate;    /* index of dil_table.predicates; -1: keeps all */
  int32_t chain;        /* score chain: index of dil_code.modify */
  const int32_t *phase; /* [heads], each 0 <= phase < dilation */
} dil_branch;

/* A condition on (t, j), shared by the branches that have the same one: the
 * window -left <= j - t <= right (DIL_ENDLESS: no bound; causal is right =
 * min(right, 0)) and, when `masked`, the generated mask expressions. */
typedef struct dil_predicate {
  int64_t left, right;
  bool masked;
} dil_predicate;

/* Branches that run in one loop with one running softmax. */
typedef struct dil_pass {
  uint64_t branches; /* mask */
  int64_t period;    /* least common multiple of their dilations */
} dil_pass;

typedef struct dil_input {
  const char *name;
  dil_dtype dtype;
  int32_t rank;
  bool masks;           /* some mask reads it: worth knowing its bounds */
} dil_input;

typedef struct dil_table {
  const char *name;
  int32_t heads, kv_heads, head_dim, value_dim;
  dil_dtype dtype;          /* of q, k, v, o in memory */
  dil_combine combine;
  bool dedup;               /* visit a key once for all branches that agree */
  bool general;             /* forced: every pass by rows */
  bool runtime_scale;
  double scale;             /* when not runtime_scale */
  double dropout;           /* probability; 0: none */
  int32_t tile_keys;        /* keys a tile: 32..128 */
  int32_t branch_count, pass_count, input_count;
  int32_t predicate_count;
  int32_t chain_count;      /* distinct score chains, at least 1 */
  bool scored;              /* some chain rewrites scores */
  bool lse_allowed;
  const dil_branch *branches;
  const dil_pass *passes;
  const dil_predicate *predicates;
  const dil_input *inputs;
} dil_table;

/* ---- the generated code -------------------------------------------------- */

/* What expressions may see besides i and j. `inputs` have the sizes of the
 * call; an index outside of them reads 0. */
typedef struct dil_env_input {
  const void *data;
  int64_t dim[DIL_RANK_MAX];
  int64_t stride[DIL_RANK_MAX]; /* elements */
} dil_env_input;

typedef struct dil_env {
  int32_t batch, head;          /* b, h */
  int32_t B, N, M;              /* M is this batch row's own length */
  uint32_t seed_low, seed_high; /* dropout's key */
  float scale;                  /* the softmax scale c */
  const dil_env_input *inputs;
  /* Smallest and largest element of input `index` over positions first..last
   * (clipped to the dimension `axis`; an out-of-range position reads 0), with
   * the other indices as given in at[]. Integers are exact in double. */
  void (*range)(const struct dil_env *env, int32_t index, int32_t axis,
                const int32_t *at, int32_t first, int32_t last, double *low,
                double *high);
} dil_env;

typedef enum dil_cover { DIL_EMPTY, DIL_PARTIAL, DIL_FULL } dil_cover;

/* Entry points of a tile kernel: `lanes` query rows by up to `tile_keys`
 * keys; queries are in the vector lanes. L = lanes, n = keys of this tile,
 * P = pack: 1 when it computes in f32, 2 when in bf16 pairs.
 *   qt  [ceil(D/P)][L][P]   the queries, transposed
 *   k   [n][ceil(D/P)*P]    packed keys; may be read up to the next multiple
 *                           of `key_block` rows, whatever stands there
 *   v   f32 [n][Dv]; bf16 [ceil(n/2)][Dv][2], the odd place zero
 *   s   f32 [tile_keys + key_block][L] scores, later weights (f32 case)
 *   p   weights as pv wants them: f32 [n][L] (may be s itself);
 *       bf16 [ceil(n/2)][L][2], the odd place zero
 *   o   f32 [Dv][L] running sums     m, l, mx, alpha  f32 [L]
 * All buffers are 64-byte aligned but k and v (4-byte aligned).
 * m is in units of log2: the largest of c2 * score so far; -inf at first. */
typedef struct dil_code {
  int32_t lanes, pack, key_block, tile_keys;
  /* s = K Q^T; mx[lane] = max over the n keys (NaN scores do not move it). */
  void (*qk)(const void *k, const void *qt, float *s, float *mx, int64_t n);
  /* One a score chain. Rewrites s to the final score in natural units
   * (env->scale * s, then the chain), -inf where no predicate of the bit set
   * `predicates` holds; recomputes mx. predicates 0: every pair is kept.
   * t[lane], j[key] are positions. Unless seen is NULL, bit i of it (64 a
   * word, all words written) tells whether some lane keeps key i. */
  void (*modify[DIL_PART_MAX])(float *s, float *mx, int64_t n,
                               const int32_t *t, const int32_t *j,
                               uint64_t predicates, const dil_env *env,
                               uint64_t *seen);
  /* m' = max(m, c2 * mx); alpha = 2^(m - m'); l = alpha * l + sum of
   * 2^(c2 * s + bias - m'); p gets those weights. m' = -inf gives weights 0
   * and alpha 1. */
  void (*softmax)(const float *s, void *p, int64_t n, float c2, float bias,
                  const float *mx, float *m, float *l, float *alpha);
  /* The same with dropout: l sums all weights, p gets those that stay,
   * divided by 1 - P. NULL when the pattern has no dropout. */
  void (*softmax_drop)(const float *s, void *p, int64_t n, float c2,
                       float bias, const float *mx, float *m, float *l,
                       float *alpha, const int32_t *t, const int32_t *j,
                       const dil_env *env);
  /* o = alpha * o + V^T P. */
  void (*pv)(const void *v, const void *p, float *o, const float *alpha,
             int64_t n);
  /* What mask predicate p makes of the box of positions t0..t1 x j0..j1
   * (inclusive); windows included. */
  int32_t (*cover)(int32_t predicate, const dil_env *env, int32_t t0,
                   int32_t t1, int32_t j0, int32_t j1);
  /* Dimension `axis` of input `index` as the call must bring it. */
  int64_t (*dimension)(int32_t index, int32_t axis, const dil_env *env);

  /* The row kernel, for few queries: one query row, keys read in place.
   * q f32 [D]; k and v in the stored dtype at byte strides; s f32 [n],
   * 64-byte aligned, room for 16 more; acc f32 [Dv]. */
  void (*row_qk)(const float *q, const void *k, int64_t stride, float *s,
                 int64_t n);
  void (*row_modify[DIL_PART_MAX])(float *s, int64_t n, int32_t t,
                                   const int32_t *j, uint64_t predicates,
                                   const dil_env *env);
  /* state[0] = m (log2), state[1] = l; returns alpha, leaves weights in s. */
  float (*row_softmax)(float *s, int64_t n, float c2, float bias,
                       float *state);
  float (*row_softmax_drop)(float *s, int64_t n, float c2, float bias,
                            float *state, int32_t t, const int32_t *j,
                            const dil_env *env);
  /* acc = alpha * acc + sum over n of s * v; a weight of exactly 0 does not
   * read its row (it may hold NaN). */
  void (*row_pv)(const float *s, const void *v, int64_t stride, float *acc,
                 float alpha, int64_t n);
} dil_code;

/* ---- status.c ------------------------------------------------------------ */

/* Records the text of a failure for dil_last_error and returns `status`. */
dil_status dil_fail(dil_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- kernel.c: a part of a sequence --------------------------------------- */

/* Positions first, first + step, ...: the rows that a rank owns, or some of
 * them. */
typedef struct dil_comb {
  int64_t first, step, count; /* step >= 1 */
} dil_comb;

/* What a call holds of a longer sequence: its query rows stand at these
 * positions, its key rows at those; they need not overlap. */
typedef struct dil_part {
  dil_comb queries, keys;
  int64_t B, N, M;       /* of the whole */
  int32_t batch, head;   /* numbers in the whole of the call's first */
  /* The running state of the call's query rows, [states][B, N, H, Dv] and
   * [states][B, N, H]; see dil_kernel_states. */
  float *o, *lse;
} dil_part;

/* ---- thread.c ------------------------------------------------------------ */

/* Calls work(context, index, worker) for each index of 0..count-1, handed out
 * in rising order, each once; worker is 0..threads-1 and held by one thread at
 * a time. Returns when all are done. A work item may wait for lower indices.
 * DIL_USAGE, nothing done: in a child forked after the pool was made, or from
 * a work item of the same pool. */
dil_status dil_threads_run(dil_threads *threads, int64_t count,
                           void (*work)(void *context, int64_t index,
                                        int32_t worker),
                           void *context);

/* ---- load.c -------------------------------------------------------------- */

/* A relocatable x86-64 ELF object mapped for execution: sections are copied
 * to fresh pages, relocated, then made read-execute (never both writable and
 * executable), and told to gdb (JIT interface) and, with DIL_PERF_MAP=1, to
 * perf (/tmp/perf-PID.map). Undefined symbols are an error that names them. */
typedef struct dil_object dil_object;
dil_status dil_object_load(const void *bytes, size_t size, const char *name,
                           dil_object **object);
void *dil_object_symbol(const dil_object *object, const char *name); /* NULL */
void dil_object_free(dil_object *object);

/* ---- image.c ------------------------------------------------------------- */

/* A plan as one run of bytes without pointers; *bytes is malloced. The same
 * plan gives the same bytes. */
dil_status dil_image_write(const dil_table *table, void **bytes, size_t *size);
/* The table of an image, all in one block that free() gives back. DIL_INPUT
 * for whatever dil_image_write has not written: no damage gets through. */
dil_status dil_image_read(const void *bytes, size_t size, dil_table **table);

/* ---- module.c ------------------------------------------------------------ */

/* Opens the loadable part `file` ("dil-cpu.so") and finds `symbol` in it. Looks
 * in DIL_MODULE_DIR alone when that is set, else beside the program, in its
 * build folder, in ../lib/dil beside it, beside this library and in DIL_LIBDIR.
 * Tried once a process: DIL_ENVIRONMENT with the same reason ever after.
 * Thread-safe; what is opened stays open. */
dil_status dil_module_open(const char *file, const char *symbol,
                           void **address);

/* ---- peak.c -------------------------------------------------------------- */

/* "avx512bf16", "avx512" or "avx2", the best of this processor; NULL when it
 * lacks AVX2, FMA or F16C. */
const char *dil_host_isa(void);
/* GFLOP/s of multiply-adds (two operations) that one core reaches from
 * registers, the best round within about `seconds`; with bf16 and avx512bf16
 * those of bf16 pairs, else of f32. 0: this host does not know `isa`. */
double dil_peak_flops(const char *isa, bool bf16, double seconds);

/* ---- kernel.c ------------------------------------------------------------ */

/* The two families of machine code a kernel may ask for. */
typedef enum dil_variant { DIL_TILES, DIL_ROWS, DIL_VARIANT_COUNT } dil_variant;

/* Makes a variant's object when a call first needs it. On success *bytes is
 * malloced and the kernel's, and `code` has lanes, pack, key_block and
 * tile_keys filled. */
typedef dil_status (*dil_make)(void *context, dil_variant variant,
                               void **bytes, size_t *size, dil_code *code);

/* The kernel borrows table (and all in it) and context: they must outlive it. */
dil_status dil_kernel_new(const dil_table *table, dil_make make, void *context,
                          dil_kernel **kernel);
/* Compiles what a call of this shape will need, so that timing can leave it
 * out; dil_kernel_run does it by itself. */
dil_status dil_kernel_prepare(dil_kernel *kernel, const dil_call *call);
/* States a row of a part has: one, or with `mean` and `sum` one a pass. */
int32_t dil_kernel_states(const dil_kernel *kernel);
/* An empty state; the state advanced over the keys of the call (each key of
 * the sequence may come in one call only; the order decides the rounding); the
 * state rounded to the call's o and lse. `lengths` are refused. */
dil_status dil_kernel_begin(dil_kernel *kernel, dil_threads *threads,
                            const dil_call *call, const dil_part *part);
dil_status dil_kernel_advance(dil_kernel *kernel, dil_threads *threads,
                              const dil_call *call, const dil_part *part);
dil_status dil_kernel_finish(dil_kernel *kernel, dil_threads *threads,
                             const dil_call *call, const dil_part *part);
/* "tiles" or "rows": what a call of this shape runs. */
const char *dil_kernel_variant(const dil_kernel *kernel, const dil_call *call);

/* ---- tensor.c ------------------------------------------------------------ */

uint16_t dil_f32_to_bf16(float value); /* round to nearest even */
uint16_t dil_f32_to_f16(float value);
float dil_bf16_to_f32(uint16_t bits);
float dil_f16_to_f32(uint16_t bits);
double dil_element_read(const void *data, dil_dtype dtype, int64_t index);
void dil_element_write(void *data, dil_dtype dtype, int64_t index,
                       double value);

/* ---- random.c ------------------------------------------------------------ */

/* Philox 4x32-10 (Salmon et al., SC 2011). */
void dil_philox(const uint32_t counter[4], const uint32_t key[2],
                uint32_t out[4]);
/* Element e of tensor n: a standard normal by Box-Muller of Philox with
 * counter (e low, e high, 0, 0) and key (seed, n). */
double dil_normal(uint32_t seed, uint32_t tensor, uint64_t element);

#endif
