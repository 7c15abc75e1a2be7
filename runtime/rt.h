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

/* What is declared here is shared with the compiler and the loadable parts,
 * which lie in other files; hosts have no use for it and no promise of it. */
#pragma GCC visibility push(default)

/* Query and key rows of a call: differences of positions stay within 32 bits. */
enum { DIL_LENGTH_MAX = INT32_MAX / 2 };

/* ---- tensor.c: element types and views of memory ------------------------- */

typedef enum dil_dtype {
  DIL_F32, DIL_BF16, DIL_F16, DIL_I32, DIL_U8, DIL_DTYPE_COUNT
} dil_dtype;

size_t dil_dtype_size(dil_dtype dtype);      /* bytes an element */
const char *dil_dtype_name(dil_dtype dtype); /* "f32", ... */

/* A strided view of memory that somebody else owns. Strides count elements. */
typedef struct dil_tensor {
  void *data;
  dil_dtype dtype;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX];
  int64_t stride[DIL_RANK_MAX];
} dil_tensor;

/* A row-major tensor over `data`; rank at most DIL_RANK_MAX. */
dil_tensor dil_tensor_make(void *data, dil_dtype dtype, int32_t rank,
                           const int64_t *shape);
/* Elements; -1 when an extent is negative or the product does not fit. */
int64_t dil_tensor_count(const dil_tensor *tensor);
/* "f16 [2, 4, 5]", for messages; returns the text. */
enum { DIL_TENSOR_TEXT = 128 };
const char *dil_tensor_text(const dil_tensor *tensor,
                            char text[DIL_TENSOR_TEXT]);

uint16_t dil_f32_to_bf16(float value); /* round to nearest even */
uint16_t dil_f32_to_f16(float value);
float dil_bf16_to_f32(uint16_t bits);
float dil_f16_to_f32(uint16_t bits);
double dil_element_read(const void *data, dil_dtype dtype, int64_t index);
void dil_element_write(void *data, dil_dtype dtype, int64_t index,
                       double value);

/* One call as the run time sees it: dil_arguments with its tensors by value.
 * Everything is read-only but o and lse. */
typedef struct dil_call {
  size_t size;              /* sizeof(dil_call) */
  dil_tensor q;             /* [B, N, H, D] */
  dil_tensor k;             /* [B, M, Hkv, D] */
  dil_tensor v;             /* [B, M, Hkv, Dv] */
  dil_tensor o;             /* [B, N, H, Dv] */
  dil_tensor lse;           /* f32 [B, H, N]; data NULL: not wanted */
  const dil_tensor *inputs; /* the pattern's inputs in its own order */
  int32_t input_count;
  int32_t train;            /* not 0: dropout applies */
  uint64_t seed;            /* of the dropout */
  double scale;             /* read when the pattern says `scale runtime` */
  const int32_t *lengths;   /* [B], each row's own M_b <= M; NULL: M */
  uint32_t random;          /* q, k, v without data hold dil_normal of this
                               seed and 0, 1, 2: who computes makes them */
  struct dil_watch *watch;  /* how far the call is; NULL: nobody looks on */
} dil_call;

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

/* The functions of a dil_code but for modify and row_modify, which stand once
 * a score chain: X(variant that has it, name). */
#define DIL_CODE_FUNCTIONS(X)                                                  \
  X(TILES, qk) X(TILES, softmax) X(TILES, softmax_drop) X(TILES, pv)           \
  X(TILES, cover) X(TILES, dimension)                                          \
  X(ROWS, row_qk) X(ROWS, row_softmax) X(ROWS, row_softmax_drop)               \
  X(ROWS, row_pv) X(ROWS, cover) X(ROWS, dimension)

/* ---- status.c ------------------------------------------------------------ */

/* Records the text of a failure for dil_last_error and returns `status`. */
dil_status dil_fail(dil_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a text that is ready and may be long. */
dil_status dil_fail_text(dil_status status, const char *text);
/* What a public function does stands between these: whatever it recovers from,
 * dil_last_error keeps the failure before it, unless it fails itself. */
void dil_call_begin(void);
dil_status dil_call_end(dil_status status); /* returns it */

/* ---- cpu.c: a part of a sequence ----------------------------------------- */

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
   * [states][B, N, H]; see cpu_kernel_states. */
  float *o, *lse;
  int64_t apart;           /* > 0: o and lse of the call are kept up to date,
                              and only rows that others reach have a state, row
                              n at n / apart: N / apart of them, rounded up */
  int64_t longest;         /* M of the inputs' sizes, where a batch row is
                              shorter than the call has it; 0: M */
} dil_part;
static inline int64_t part_longest(const dil_part *p) {
  return p->longest ? p->longest : p->M;
}

/* ---- thread.c ------------------------------------------------------------ */

/* A pool of worker threads; the calling thread is one of them. Runs of one
 * pool are serialised. count 0 takes DIL_THREADS, or else the processors that
 * this process may use. NULL when memory or threads are lacking or DIL_THREADS
 * is not a number; the reason is at dil_last_error(). */
typedef struct dil_threads dil_threads;
dil_threads *dil_threads_new(int32_t count);
/* The same on the host's threads: `parallel` is asked to run `count` tasks. */
dil_threads *dil_threads_hosted(int32_t count, dil_parallel_hook parallel,
                                void *user);
void dil_threads_free(dil_threads *threads);
int32_t dil_threads_count(const dil_threads *threads);

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
 * build folder, in ../lib/dil and ../lib beside it, beside this library, and
 * in a folder `dil` beside or above it.
 * Tried once a process: DIL_ENVIRONMENT with the same reason ever after.
 * Thread-safe; what is opened stays open. */
dil_status dil_module_open(const char *file, const char *symbol,
                           void **address);
/* Where such a file lies; nothing is opened. */
enum { DIL_PATH_MAX = 4096 };
dil_status dil_module_find(const char *file, char path[DIL_PATH_MAX]);

/* ---- peak.c -------------------------------------------------------------- */

/* "avx512bf16", "avx512" or "avx2", the best of this processor; NULL when it
 * lacks AVX2, FMA or F16C. */
const char *dil_host_isa(void);
/* Whether this processor has `isa` and DIL_CPU, where that is set, names it or
 * one that holds it: a limit for kernels of libraries. */
bool dil_isa_usable(const char *isa);
/* DIL_USAGE: there is no such instruction set; DIL_ENVIRONMENT: this processor
 * has not got it, or (isa NULL) has none of them. */
dil_status dil_isa_check(const char *isa);
/* GFLOP/s of multiply-adds (two operations) that one core reaches from
 * registers, the best round within about `seconds`; with bf16 and avx512bf16
 * those of bf16 pairs, else of f32. 0: this host does not know `isa`. */
double dil_peak_flops(const char *isa, bool bf16, double seconds);

/* ---- kernel.c ------------------------------------------------------------ */

/* The two families of machine code that a kernel may ask for on the CPU. */
typedef enum dil_variant { DIL_TILES, DIL_ROWS, DIL_VARIANT_COUNT } dil_variant;
/* A tile of queries is worth it from this many rows that share their keys. */
enum { DIL_TILE_ROWS_LEAST = 12 };

/* Makes a variant's object when a call first needs it. On success *bytes is
 * malloced and the kernel's, and `code` has lanes, pack, key_block and
 * tile_keys filled. */
typedef dil_status (*dil_make)(void *context, dil_variant variant,
                               void **bytes, size_t *size, dil_code *code);
/* Dimension `axis` of input `index` as a call of these sizes must bring it. */
typedef int64_t (*dil_dimension)(const void *context, int32_t index,
                                 int32_t axis, int32_t B, int32_t N,
                                 int32_t M);

/* Code number `index` of those of a kernel on a GPU, which had no cubin yet when
 * the kernel was made: waits for it. On success its cubin is malloced and the
 * caller's. DIL_UNSUPPORTED: there is no such code after all. */
struct dil_cuda_code;
typedef dil_status (*dil_more)(const void *context, int32_t index,
                               struct dil_cuda_code *code);

/* What a kernel is made of, however it was compiled. Table, codes' texts and
 * context are borrowed until `release`. */
typedef struct dil_kernel_source {
  const dil_table *table;
  uint64_t plan_hash;
  const char *target;          /* "avx512", "sm_90" */
  const char *schedule;        /* its knobs; NULL: none were given */
  bool remembered;             /* by wisdom */
  dil_make make;               /* on the processor; else NULL */
  const dil_code *const *ready; /* [DIL_VARIANT_COUNT], code that is there
                                  already, in place of make; or NULL */
  const struct dil_cuda_code *codes; /* on a GPU, see cuda/cuda.h */
  int32_t code_count;
  dil_more more;               /* NULL: each of them has its cubin */
  dil_dimension dimension;     /* NULL: the plan has no inputs */
  void *context;               /* of make, more and dimension */
  void (*release)(void *context); /* after the last use; NULL: nothing to do.
                                  Not called when dil_kernel_make fails. */
} dil_kernel_source;
dil_status dil_kernel_make(dil_context *context,
                           const dil_kernel_source *source,
                           dil_kernel **kernel);
/* Seconds that one run takes: the device's own time. */
dil_status dil_kernel_time(dil_kernel *kernel, const dil_call *call,
                           double *seconds);

/* ---- context.c ----------------------------------------------------------- */

/* The context of a kernel or program: one use more, one less. */
dil_context *dil_context_keep(dil_context *context);
void dil_context_drop(dil_context *context);
/* DIL_USAGE in a child forked after the context was made. */
dil_status dil_context_check(const dil_context *context);
/* Counts machine code that was made in `seconds`, after `opening` in which its
 * compiler was loaded. */
void dil_context_compiled(dil_context *context, double opening,
                          double seconds);
/* Why its device was chosen, in the host's place; before anything uses it. */
void dil_context_because(dil_context *context, const char *reason);
/* 0: the processor; else the chip of the GPU: 80, 90, ... */
int32_t dil_context_arch(const dil_context *context);
/* What is known of the context's GPU; NULL: it is the processor. */
const struct dil_cuda_facts *dil_context_facts(const dil_context *context);
/* Threads of a processor's context, for work beside its kernels. */
dil_threads *dil_context_workers(const dil_context *context);

/* ---- input.c: the tensors that a pattern declares ------------------------ */

/* DIL_USAGE, with the names of the inputs, unless `got` is their number. */
dil_status dil_input_check_count(const dil_table *table, int32_t got);

/* ---- random.c ------------------------------------------------------------ */

/* Philox 4x32-10 (Salmon et al., SC 2011). */
void dil_philox(const uint32_t counter[4], const uint32_t key[2],
                uint32_t out[4]);
/* Element e of tensor n: a standard normal by Box-Muller of Philox with
 * counter (e low, e high, 0, 0) and key (seed, n), rounded to f32: that is what
 * GPUs make, and narrower types are rounded from it everywhere. */
double dil_normal(uint32_t seed, uint32_t tensor, uint64_t element);
/* `count` elements from `start` on of a call's q, k or v that has no data, as
 * the tensor would store them. */
void dil_normal_row(const dil_call *call, const dil_tensor *tensor,
                    int64_t start, int64_t count, double *to);

#pragma GCC visibility pop
#endif
