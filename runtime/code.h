/* code.h - the interface of generated code: a dil_code has the entry points of
 * a kernel. The walk over cells, classes and tiles is C, in runtime/cpu; only
 * what depends on the sizes and expressions of a pattern is generated. */
#ifndef DIL_RUNTIME_CODE_H
#define DIL_RUNTIME_CODE_H

#include "plan_table.h"

#pragma GCC visibility push(default)

/* The values that expressions may see besides i and j. `inputs` have the sizes
 * of the call; an index outside of them reads 0. */
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

/* The constants that generated code and the walk around it agree on. */
enum {
  DIL_CODE_ALIGN = 64, /* bytes, of all buffers but k and v */
  DIL_CODE_CELL = 4,   /* bytes of an f32 or of a pair of bf16 */
  DIL_CODE_ROOM = 16   /* elements of s that a row kernel has room for past n */
};
/* The layouts of packed rows of keys, values, queries and weights. The value is
 * the number of elements that share a cell. */
typedef enum dil_pack {
  DIL_PACK_F32 = 1,       /* row by row */
  DIL_PACK_BF16_PAIRS = 2 /* two neighbours along the sum in a cell */
} dil_pack;
/* m is in units of log2, lse in those of the natural logarithm. */
#define DIL_LOG2_E 1.44269504088896340736f
#define DIL_LN_2 0.69314718055994530942f
/* Cells of a packed row of `width` elements with `pack` of them in a cell. */
static inline int64_t dil_code_cells(int64_t width, int32_t pack) {
  return (width + pack - 1) / pack;
}

/* Floats of a row of dK or dV while it is summed, and cells of a row of Q or dO
 * beside it. */
static inline int64_t dil_code_outer(int64_t width) {
  return (width + 15) / 16 * 16;
}

/* Whether dp, dq and dv are the functions qk, pv and dk: then the variant
 * DIL_GRADIENTS lacks them, and the run time takes these in their stead. */
static inline bool dil_code_shares(int64_t head_dim, int64_t value_dim) {
  return head_dim == value_dim;
}

/* Whether rows of these widths fill the tiles of processors that multiply by tiles. */
static inline bool dil_code_fits_tiles(int64_t head_dim, int64_t value_dim) {
  return head_dim % 32 == 0 && value_dim % 32 == 0;
}

/* Whose word it is: a number of the counter of dropout. */
typedef enum dil_dropout_side {
  DIL_DROPOUT_ROW, DIL_DROPOUT_KEY
} dil_dropout_side;

/* Bits of dil_code.keeps: a keep beside the choice holds the block; the keeps of
 * the other level let it through. */
enum { DIL_KEEPS_HELD = 1, DIL_KEEPS_LET = 2 };

typedef enum dil_cover { DIL_EMPTY, DIL_PARTIAL, DIL_FULL } dil_cover;

/* Entry points of a tile kernel: `lanes` query rows by up to `tile_keys`
 * keys; queries are in the vector lanes. L = lanes, n = keys of this tile,
 * P = pack, a dil_pack: 1 when it computes in f32, 2 when in bf16 pairs.
 *   qt  [ceil(D/P)][L][P]   the queries, transposed
 *   k   [n][ceil(D/P)*P]    packed keys; may be read up to the next multiple
 *                           of `key_block` rows, whatever stands there
 *   v   f32 [n][Dv]; bf16 [ceil(n/2)][Dv][2], the odd place zero
 *   s   f32 [tile_keys + key_block][L] scores, later weights (f32 case)
 *   p   weights as pv wants them: f32 [n][L] (may be s itself);
 *       bf16 [ceil(n/2)][L][2], the odd place zero
 *   o   f32 [Dv][L] running sums     m, l, mx, alpha  f32 [L]
 * All buffers are aligned to DIL_CODE_ALIGN but k and v (to DIL_CODE_CELL).
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
  /* s = -inf where bit `lane` of kept[key] is 0; recomputes mx. NULL: the plan
   * has no grid. */
  void (*hide)(float *s, float *mx, int64_t n, const uint32_t *kept);
  /* m' = max(m, c2 * mx); alpha = 2^(m - m'); l = alpha * l + sum of
   * 2^(c2 * s + bias - m'); p gets those weights. m' = -inf gives weights 0
   * and alpha 1. */
  void (*softmax)(const float *s, void *p, int64_t n, float c2, float bias,
                  const float *mx, float *m, float *l, float *alpha);
  /* The same with dropout: l sums all weights, p gets those that stay,
   * divided by 1 - P. rows [L] and keys [n] are words of dropout_words. NULL
   * when the pattern has no dropout. */
  void (*softmax_drop)(const float *s, void *p, int64_t n, float c2,
                       float bias, const float *mx, float *m, float *l,
                       float *alpha, const uint32_t *rows,
                       const uint32_t *keys);
  /* o = alpha * o + V^T P. */
  void (*pv)(const void *v, const void *p, float *o, const float *alpha,
             int64_t n);
  /* ---- gradients: the variant DIL_GRADIENTS, beside the functions above. The
   * widths of rows with 16 in them are dil_code_outer. dO and Q stand in two
   * layouts: qt and dot transposed, q and d as rows of f32 [L][width]; or of
   * bf16 pairs [L/2][width][2]. */
  /* s = V dO^T, as qk; mx has no meaning. V is packed like keys. */
  void (*dp)(const void *v, const void *dot, float *s, float *mx, int64_t n);
  /* dq = alpha dq + K^T dS, as pv. K is packed like values. */
  void (*dq)(const void *k, const void *ds, float *dq, const float *alpha,
             int64_t n);
  /* dk[n][width] += dS Q, dv[n][width] += P dO. */
  void (*dk)(const void *ds, const void *q, float *dk, int64_t n);
  void (*dv)(const void *p, const void *d, float *dv, int64_t n);
  /* From final scores s and dp, both f32 [n][L]:
   *   p      weights, m 2^min(0, c2 * s - lse), with dropout's factor; bias is
   *          log2 m. f32 or bf16 [n][L] (may be s)
   *   ds     P (W dP - delta) slope in the same form (may be dp)
   *   pairs  the same as pv takes weights; f32: not used
   *   plain  f32 [n][L], ds before the slope; NULL: not wanted
   * slope f32 [n][L], NULL: all are 1. lse (in units of log2, +inf: the lane
   * has no weight) and delta f32 [L]. A weight of 0 has ds 0, whatever else
   * stands there. */
  void (*ds)(const float *s, const float *dp, void *p, void *ds, void *pairs,
             float *plain, const float *slope, int64_t n, float c2, float bias,
             const float *lse, const float *delta);
  void (*ds_drop)(const float *s, const float *dp, void *p, void *ds,
                  void *pairs, float *plain, const float *slope, int64_t n,
                  float c2, float bias, const float *lse, const float *delta,
                  const uint32_t *rows, const uint32_t *keys);
  /* As sink, but the sinks of `branches` alone. NULL when no branch has any. */
  void (*branch_sink)(uint64_t branches, const int32_t *t, int64_t n,
                      const dil_env *env, float *s);
  /* The sums of inputs grow by what the sinks of n rows give: those of
   * `branches` and, where `own` is not 0, the pattern's. lse in units of log2;
   * +inf: the row gives nothing. NULL when sinks or gradients are missing. */
  void (*sink_inputs)(int32_t own, uint64_t branches, const int32_t *t,
                      int64_t n, const dil_env *env, const float *lse,
                      const float *delta, double *const *sums);
  /* As modify, and slope[n][L] becomes the derivative of the chain. */
  void (*slope[DIL_PART_MAX])(float *s, float *mx, int64_t n, const int32_t *t,
                              const int32_t *j, uint64_t predicates,
                              const dil_env *env, uint64_t *seen, float *slope);
  /* sums[x] grows by the gradient of input x, row-major in its shape; NULL: not
   * wanted. raw are the scores that qk made, plain is as above. */
  void (*inputs[DIL_PART_MAX])(const float *raw, const float *plain, int64_t n,
                               const int32_t *t, const int32_t *j,
                               const dil_env *env, double *const *sums);

  /* The cover by mask predicate p of the box of positions t0..t1 x j0..j1
   * (inclusive); windows included. */
  int32_t (*cover)(int32_t predicate, const dil_env *env, int32_t t0,
                   int32_t t1, int32_t j0, int32_t j1);
  /* Dimension `axis` of input `index` as the call must bring it. */
  int64_t (*dimension)(int32_t index, int32_t axis, const dil_env *env);
  /* Whether other keeps of the branch of choice `choice` hold the blocks of i and
   * j (bits DIL_KEEPS_...). NULL when no choice asks. */
  int32_t (*keeps)(int32_t choice, const dil_env *env, int32_t i, int32_t j);
  /* The random words of dropout for n positions, of rows or of keys. */
  void (*dropout_words)(const int32_t *at, int64_t n, dil_dropout_side side,
                        const dil_env *env, uint32_t *words);
  /* s[i] = log of the sum of e^sink for the row at position t[i], over the
   * pattern's sinks and those of `branches`. NULL when there are none. */
  void (*sink)(uint64_t branches, const int32_t *t, int64_t n,
               const dil_env *env, float *s);

  /* The row kernel, for few queries: one query row, keys read in place.
   * q f32 [D]; k and v in the stored dtype at byte strides; s f32 [n],
   * aligned to DIL_CODE_ALIGN, with DIL_CODE_ROOM; acc f32 [Dv]. */
  void (*row_qk)(const float *q, const void *k, int64_t stride, float *s,
                 int64_t n);
  void (*row_modify[DIL_PART_MAX])(float *s, int64_t n, int32_t t,
                                   const int32_t *j, uint64_t predicates,
                                   const dil_env *env);
  /* state[0] = m (log2), state[1] = l; returns alpha, leaves weights in s. */
  float (*row_softmax)(float *s, int64_t n, float c2, float bias,
                       float *state);
  float (*row_softmax_drop)(float *s, int64_t n, float c2, float bias,
                            float *state, uint32_t row, const uint32_t *keys);
  /* acc = alpha * acc + sum over n of s * v; a weight of exactly 0 does not
   * read its row (it may hold NaN). */
  void (*row_pv)(const float *s, const void *v, int64_t stride, float *acc,
                 float alpha, int64_t n);
} dil_code;

/* The functions of a dil_code but for those that stand once a score chain:
 * X(variant that has it, name). */
#define DIL_CODE_FUNCTIONS(X)                                                  \
  X(TILES, qk) X(TILES, softmax) X(TILES, softmax_drop) X(TILES, pv)           \
  X(TILES, cover) X(TILES, dimension) X(TILES, dropout_words) X(TILES, sink)   \
  X(TILES, keeps) X(ROWS, keeps) X(TILES, hide)                                \
  X(ROWS, row_qk) X(ROWS, row_softmax) X(ROWS, row_softmax_drop)               \
  X(ROWS, row_pv) X(ROWS, cover) X(ROWS, dimension)                            \
  X(ROWS, dropout_words) X(ROWS, sink)                                         \
  X(GRADIENTS, dp) X(GRADIENTS, dq) X(GRADIENTS, dk) X(GRADIENTS, dv)          \
  X(GRADIENTS, ds) X(GRADIENTS, ds_drop)                                       \
  X(GRADIENTS, branch_sink) X(GRADIENTS, sink_inputs)
/* Those that stand once a score chain: their names end in its number. */
#define DIL_CODE_CHAINS(X)                                                     \
  X(TILES, modify) X(ROWS, row_modify) X(GRADIENTS, slope) X(GRADIENTS, inputs)

/* ---- how a kernel comes by its code --------------------------------------- */

/* The kinds of machine code that a kernel may ask for on the CPU: forward by
 * tiles or by rows, and what backward has besides the tiles' functions. */
typedef enum dil_variant {
  DIL_TILES, DIL_ROWS, DIL_GRADIENTS, DIL_VARIANT_COUNT
} dil_variant;
/* The number of variants that a kernel has: the first ones of the list. */
static inline int32_t dil_variant_count(dil_direction direction) {
  return direction == DIL_BACKWARD ? DIL_VARIANT_COUNT : DIL_GRADIENTS;
}
static inline const char *dil_variant_name(dil_variant variant) {
  static const char *const names[] = {"tiles", "rows", "gradients"};
  return names[variant];
}
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

/* Code number `index` of those of a kernel on a GPU, which had no cubin yet
 * when the kernel was made. Its cubin is malloced and the caller's; NULL: it is
 * still being compiled, which `waits` waits for. DIL_UNSUPPORTED: there is no
 * such code after all. */
struct dil_cuda_code; /* runtime/cuda.h */
typedef dil_status (*dil_more)(const void *context, int32_t index, bool waits,
                               struct dil_cuda_code *code);

#pragma GCC visibility pop
#endif
