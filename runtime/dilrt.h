/* dilrt.h - the run time of dil: contexts, kernels, calls.
 *
 * All that a host of a ready-made kernel needs; dil.h adds the compiler. No
 * function prints, exits or installs a handler. Each returns a dil_status, and
 * the text of this thread's last failure is at dil_last_error(). Every function
 * may be called from any thread at any time, unless it says otherwise; a
 * `..._free` takes NULL, and must not overlap another use of what it frees.
 * NULL for an object, a text or a place for a result is DIL_USAGE, unless a
 * comment allows it; a function without a status returns 0, "" or NULL then, as
 * its comment says. A call that fails makes nothing and sets the pointer that
 * it was to fill to NULL.
 * Structs that the host fills open with their size and have an initialiser:
 * they may grow at their end. A size of fewer than 8 or more than 4096 bytes
 * is DIL_USAGE: the struct is not initialised. */
#ifndef DILRT_H
#define DILRT_H

#include "dlpack.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __GNUC__
#define DIL_API __attribute__((visibility("default")))
#else
#define DIL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DIL_VERSION "0.1.0"
#define DIL_VERSION_NUM 100 /* 10000 * major + 100 * minor + patch */

/* DIL_VERSION_NUM and DIL_VERSION of the library that is loaded. */
DIL_API int32_t dil_version(void);
DIL_API const char *dil_version_text(void);

/* ---- statuses ------------------------------------------------------------ */

typedef enum dil_status {
#define X(name, number, text) DIL_##name = number,
#include "status.def"
#undef X
} dil_status;

/* "DIL_USAGE", and "the call is wrong"; never NULL. */
DIL_API const char *dil_status_name(dil_status status);
DIL_API const char *dil_status_text(dil_status status);
/* The message of this thread's last failing call; "" before any. A call that
 * succeeds leaves it as it was, whatever it recovered from. Valid until the
 * next failing call of this thread. */
DIL_API const char *dil_last_error(void);

/* ---- contexts ------------------------------------------------------------ */

/* A device with its threads, its memory and the host's hooks. Programs and
 * kernels belong to one and keep it alive: the order in which they are freed
 * does not matter. A context does not survive a fork: in the child every
 * function but dil_context_free returns DIL_USAGE. */
typedef struct dil_context dil_context;

enum { DIL_LOG_ERROR = 1, DIL_LOG_WARNING, DIL_LOG_INFO, DIL_LOG_DEBUG };

/* Memory of the host, `alignment` a power of two; NULL when there is none. From
 * any thread, one at a time for each context, whose functions, but for
 * dil_last_error, neither may call. */
typedef void *(*dil_allocate_hook)(void *user, size_t size, size_t alignment);
typedef void (*dil_release_hook)(void *user, void *memory, size_t size);
/* One line without its end. */
typedef void (*dil_log_hook)(void *user, int32_t level, const char *text);
/* Calls task(context, index) once for each index of 0..count-1, on any threads
 * in any order, and returns when all have returned. */
typedef void (*dil_task)(void *context, int32_t index);
typedef void (*dil_parallel_hook)(void *user, int32_t count, dil_task task,
                                  void *context);

typedef struct dil_context_options {
  size_t size;
  const char *device;  /* "cpu", "cuda" or "cuda:1"; NULL: "cpu" */
  int32_t threads;     /* 0: DIL_THREADS, or the processors at hand */
  int32_t log_level;   /* the log hook hears of this level and below; 0: none */
  dil_allocate_hook allocate; /* scratch memory; both or neither */
  dil_release_hook release;
  void *memory_user;
  dil_log_hook log;    /* from any thread */
  void *log_user;
  dil_parallel_hook parallel; /* instead of own threads */
  void *parallel_user;
} dil_context_options;
#define DIL_CONTEXT_OPTIONS_INIT \
  {sizeof(dil_context_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* options NULL: the processor with all its defaults. DIL_ENVIRONMENT with the
 * reason where the device cannot be opened. */
DIL_API dil_status dil_context_new(const dil_context_options *options,
                                   dil_context **context);
DIL_API void dil_context_free(dil_context *context);
/* Its name, "cuda:1"; of NULL "". */
DIL_API const char *dil_context_device(const dil_context *context);
/* Threads of its own on the processor; on a GPU, and of NULL, 0. */
DIL_API int32_t dil_context_threads(const dil_context *context);
/* Waits for the work of a stream (CUstream; NULL: the default one); on the
 * processor there is never any left. */
DIL_API dil_status dil_context_wait(dil_context *context, void *stream);

typedef struct dil_stats {
  size_t size;
  int64_t kernels;        /* alive now */
  int64_t calls;          /* of dil_kernel_run that succeeded */
  int64_t compiles;       /* machine code made anew */
  double compile_seconds; /* spent on that */
  int64_t pool_bytes;     /* scratch memory held, in use or not */
  int64_t pool_in_use;
  int64_t pool_peak;      /* the most that was ever in use */
  int64_t pool_takes;     /* blocks handed out */
  int64_t pool_fresh;     /* of those, allocated for it */
  int64_t pool_cached;    /* bytes held for the next, in nobody's use */
  double pool_reuse_rate; /* 1 - fresh / takes */
  double pool_fragmentation; /* of what is in use, the part not asked for */
  int64_t cache_hits;     /* entries found in memory or on disk */
  int64_t cache_misses;
  int64_t cache_refused;  /* entries that were damaged, stale or not ours */
  int64_t cache_evictions;
  double cache_hit_rate;  /* hits / (hits + misses); 0 before the first */
  int64_t cache_memory_bytes;
  int64_t cache_disk_bytes; /* as far as was looked at */
  double cache_seconds_saved; /* of compilers, less the time to read */
  double open_seconds;    /* loading compilers, before what they compiled */
} dil_stats;
#define DIL_STATS_INIT                                                       \
  {sizeof(dil_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0, 0, 0}
/* Fills `stats` as far as its size goes. */
DIL_API dil_status dil_context_stats(const dil_context *context,
                                     dil_stats *stats);

/* Memory of the context's device, for hosts that have no library of their own
 * for it; 256-byte aligned. `bytes` may be 0. */
DIL_API dil_status dil_memory_take(dil_context *context, int64_t bytes,
                                   void **memory);
/* Takes NULL. Memory that this context did not hand out, or that was given back
 * before, stays as it is: dil_last_error() and the log (DIL_LOG_ERROR) say so. */
DIL_API void dil_memory_give(dil_context *context, void *memory);
/* Between the host's memory and the device's; done when they return. Both may
 * be NULL where `bytes` is 0. */
DIL_API dil_status dil_memory_write(dil_context *context, void *device,
                                    const void *host, int64_t bytes);
DIL_API dil_status dil_memory_read(dil_context *context, void *host,
                                   const void *device, int64_t bytes);

/* ---- calls --------------------------------------------------------------- */

/* One attention call. B batch rows, N query rows, M key rows; the heads H and
 * Hkv and the head sizes D and Dv are the kernel's. Strides may be any, zero
 * and negative ones included, but the last dimension of q, k, v and o must be
 * contiguous; the outputs' elements must be apart from each other and from all
 * that is read. Memory is aligned to the tensor's elements. All tensors are on
 * the context's device (the processor also takes pinned and managed memory). */
typedef struct dil_arguments {
  size_t size;
  const DLTensor *q;             /* [B, N, H, D] */
  const DLTensor *k;             /* [B, M, Hkv, D] */
  const DLTensor *v;             /* [B, M, Hkv, Dv] */
  DLTensor *o;                   /* [B, N, H, Dv], written */
  DLTensor *lse;                 /* f32 [B, H, N], written; NULL: not wanted */
  const DLTensor *const *inputs; /* the pattern's inputs in its own order */
  int32_t input_count;
  int32_t train;                 /* not 0: dropout applies */
  const DLTensor *lengths;       /* i32 [B], each row's own M_b; NULL: M. One
                                    outside 0..M is refused on the processor; on
                                    a GPU, where nothing waits to look, it
                                    counts as the nearer of the two */
  uint64_t seed;                 /* of the dropout */
  double scale;                  /* of a pattern that says `scale runtime`, which
                                    wants one: 0 weighs all keys alike. For any
                                    other pattern it must be 0 */
  void *stream;                  /* CUstream; NULL: the default one */
  uint64_t o_flags, lse_flags;   /* of the DLManagedTensorVersioned that they
                                    came in: read-only ones are refused */
  const DLTensor *seed_tensor;   /* i64 or u64 of one element, the seed; NULL:
                                    `seed`. On a GPU the kernels read it, so
                                    that a captured graph draws by what it then
                                    holds */
  /* A packed call: q [1, T, H, D], k and v [1, U, ..] hold B documents one after
   * the other, and lse is [1, H, T]. Document b has the rows offsets[b] to
   * offsets[b + 1] - 1; in it all is as in a call of its own, and it is batch row
   * b of expressions, dropout and inputs. Rows behind the last document get 0,
   * and an lse of -inf. */
  const DLTensor *offsets_q;     /* i32 [B + 1], from 0 on, never falling; NULL:
                                    the call is not packed. The processor refuses
                                    wrong ones. On a GPU, where nothing waits to
                                    look, a document that falls or ends behind
                                    the rows counts as one without rows */
  const DLTensor *offsets_k;     /* the same of k and v; NULL: offsets_q */
  int64_t longest_q, longest_k;  /* rows of the longest document; inputs have
                                    these sizes for N and M. longest_k may be 0
                                    without offsets_k. What a document has
                                    behind them is refused on the processor, and
                                    left out on a GPU; 0 for rows whose offsets
                                    are there is refused */
  const DLTensor *pages;         /* i32 [B, n]: k and v are a cache of pages,
                                    [pages, rows, Hkv, D], rows a power of two.
                                    Key j of batch row b stands in page
                                    pages[b, j / rows], in its row j % rows. M
                                    is n * rows, and lengths must be given. Pages
                                    behind a length are not looked at. Another
                                    one outside of k and v is refused on the
                                    processor; on a GPU its keys do not count.
                                    Rows may share pages. Neither dropout nor
                                    gradients go with it. NULL: no pages */
  /* The blocks that each `keep top` and `keep mass` chose, written as two lists in
   * the form CSR. The lists of choice c, in the order of the branches, are
   * selection[2c], its rows, i32 [B, H, nbq + 1], and selection[2c + 1], its cols,
   * i32 [B, H, nbq * K']. Query block r of a head has the key blocks cols[rows[r]]
   * to cols[rows[r + 1] - 1], in their order; the rest of cols is -1. K' is K, or
   * what the diagonal needs, and at most nb: dil_kernel_tensor tells it. Both lists
   * are contiguous, and can be the inputs of `keep from rows, cols`. */
  DLTensor *const *selection;    /* NULL in it: a list that is not wanted.
                                    Gradients do not look at it */
  int32_t selection_count;       /* two for each choice; 0: none is wanted */
  const uint64_t *selection_flags; /* [selection_count], as o_flags; NULL: all
                                      0 */
  /* Memory on the context's device, aligned to 64 bytes, of at least the bytes that
   * dil_kernel_saved tells. A run leaves there what gradients would have to make
   * again: the blocks that it chose; and on a GPU the outputs of all branches, under
   * `gradient detached` and with `combine mean` and `sum`. dil_kernel_backward reads it
   * in the forward call: nothing but the run may have written it. NULL: gradients make
   * all that again. It goes neither with offsets, nor with pages or a selection. */
  void *saved;
  int64_t saved_bytes;
} dil_arguments;
#define DIL_ARGUMENTS_INIT                                                  \
  {sizeof(dil_arguments), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0, 0, 0, 0, 0, 0, 0, 0}

/* The sizes that decide all shapes of a call. */
typedef struct dil_sizes {
  int64_t batch, queries, keys; /* B, N, M: from 0 to 2^30 - 1, B to 2^31 - 1 */
} dil_sizes;

/* ---- kernels ------------------------------------------------------------- */

/* A compiled pattern on a context's device. */
typedef struct dil_kernel dil_kernel;
DIL_API void dil_kernel_free(dil_kernel *kernel);

/* Writes o and lse. On the processor it returns when that is done, and the
 * result does not depend on threads; on a GPU the call is put on the stream.
 * In a call with fewer than 64 queries, a batch row has the same bits alone, in
 * any batch and at any place of it, with `lengths` or with its own keys alone.
 * The layout of tensors must allow the same kernel. For calls with more queries
 * nothing is promised beyond equal calls having equal bits.
 * Re-entrant; allocates nothing after the first call of a shape (or its
 * dil_kernel_prepare) unless more calls run at once than before. DIL_USAGE:
 * the text names the tensor and what is wrong with it; nothing was started.
 * DIL_MEMORY: there is no scratch memory; DIL_ENVIRONMENT: a GPU, or a compiler
 * that is needed for the first call of a kind, failed, with its own words. */
DIL_API dil_status dil_kernel_run(dil_kernel *kernel,
                                  const dil_arguments *arguments);
/* Compiles, waits for and allocates what a call of these sizes needs, and its
 * gradients where the kernel has them. */
DIL_API dil_status dil_kernel_prepare(dil_kernel *kernel,
                                      const dil_sizes *sizes);
/* Bytes of scratch memory that a call takes from the context. On the processor
 * they follow from the sizes and the threads; the function first compiles the
 * code that such a call needs. A call packs keys and values block by block: see
 * "Scratch memory" in README.md. A kernel of a GPU checks the sizes and uses
 * them no further. It returns the bytes of device memory that its last call
 * took, and 0 before its first call. */
DIL_API dil_status dil_kernel_workspace(dil_kernel *kernel,
                                        const dil_sizes *sizes, int64_t *bytes);
/* Bytes of `saved` in the arguments of a call of these sizes: 0 where gradients make
 * nothing again. DIL_USAGE for a kernel without gradients. */
DIL_API dil_status dil_kernel_saved(dil_kernel *kernel, const dil_sizes *sizes,
                                    int64_t *bytes);
/* The code that a call of these sizes runs, "tiles" or "general 64x64 d64", when
 * it does not train: cut to `room` bytes with its NUL. text may be NULL where
 * room is 0. */
DIL_API dil_status dil_kernel_variant(dil_kernel *kernel,
                                      const dil_sizes *sizes, char *text,
                                      size_t room);

typedef struct dil_kernel_info {
  size_t size;
  const char *name;    /* this and all text: valid as long as the kernel */
  const char *device;  /* "cpu", "cuda:0" */
  const char *target;  /* "avx512", "sm_90" */
  uint64_t plan_hash;
  DLDataType dtype;    /* of q, k, v and o */
  int32_t heads, kv_heads, head_dim, value_dim;
  int32_t input_count;
  int32_t has_lse;     /* lse may be asked for */
  int32_t takes_scale; /* the pattern says `scale runtime` */
  int32_t has_dropout;
  const char *schedule; /* the knobs that it was made with, "stages 3;"; "": all
                           are the compiler's choice */
  int32_t remembered;   /* these are what `dil tune` found */
  const char *device_reason; /* why this device, where dil chose: "the first
                                GPU", "no GPU: ..."; "": the host named it */
  int32_t has_backward;      /* it computes gradients as well */
  int32_t selection_count;   /* lists of the blocks that it chooses */
} dil_kernel_info;
#define DIL_KERNEL_INFO_INIT                                                 \
  {sizeof(dil_kernel_info), 0, 0, 0, 0, {0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0, 0, 0, 0}
DIL_API dil_status dil_kernel_describe(const dil_kernel *kernel,
                                       dil_kernel_info *info);

enum { DIL_RANK_MAX = 4 };

/* The tensors of a call by number: q, k, v, o and lse, and input i of the
 * pattern at DIL_TENSOR_INPUT + i. A kernel with gradients also has those that
 * dil_gradients takes: DO, DQ, DK, DV, DLSE, and the gradient of input i at
 * DIL_TENSOR_INPUT_GRADIENT + i. List i of the blocks that a kernel chooses is
 * DIL_TENSOR_SELECTION + i. The other numbers are reserved, so that hosts built now
 * keep working: no kernel has such a tensor yet. */
enum {
  DIL_TENSOR_Q, DIL_TENSOR_K, DIL_TENSOR_V, DIL_TENSOR_O, DIL_TENSOR_LSE,
  DIL_TENSOR_LENGTHS, DIL_TENSOR_SEED, DIL_TENSOR_OFFSETS_Q,
  DIL_TENSOR_OFFSETS_K, DIL_TENSOR_PAGES, DIL_TENSOR_DO = DIL_TENSOR_PAGES + 2,
  DIL_TENSOR_DQ, DIL_TENSOR_DK, DIL_TENSOR_DV, DIL_TENSOR_DLSE,
  DIL_TENSOR_DELTA, DIL_TENSOR_LSE_LOW,
  DIL_TENSOR_INPUT = 64,
  DIL_TENSOR_INPUT_GRADIENT = 128,
  DIL_TENSOR_SELECTION = 192
};

typedef struct dil_tensor_info {
  size_t size;
  const char *name;   /* "q", or an input's; valid as long as the kernel */
  DLDataType dtype;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX]; /* of `rank` dimensions, the rest is 0 */
} dil_tensor_info;
#define DIL_TENSOR_INFO_INIT \
  {sizeof(dil_tensor_info), 0, {0, 0, 0}, 0, {0, 0, 0, 0}}
/* The type and shape that tensor `index` of a call of these sizes must have:
 * DIL_TENSOR_Q and so on, DIL_TENSOR_INPUT + i for input i. A gradient may also
 * be f32 where this type is another. DIL_USAGE where there is no such tensor.
 */
DIL_API dil_status dil_kernel_tensor(const dil_kernel *kernel, int32_t index,
                                     const dil_sizes *sizes,
                                     dil_tensor_info *info);

/* ---- gradients ----------------------------------------------------------- */

/* The gradients of one call, for a kernel that was made with `backward`. L is a
 * number that follows from o and lse: the host brings dL/do and dL/dlse, and
 * gets dL/dq and so on, exact for the pattern. A gradient has the shape of the
 * tensor that it belongs to. It is written, not added to; all of it, with exact
 * zeros for keys that no row sees and for rows without keys. Tensors are bound
 * by the rules of dil_arguments; the outputs must be apart from each other and
 * from all that is read. */
typedef struct dil_gradients {
  size_t size;
  const dil_arguments *forward; /* the call that ran, with the o that it wrote.
                                   lse: the one that it wrote, or NULL, then it
                                   is computed again. Both are only read. Seeds,
                                   train and lengths as in that call; its stream
                                   is the one that this call is put on */
  const DLTensor *d_o;          /* dL/do, in the kernel's dtype */
  const DLTensor *dlse;         /* dL/dlse, f32 [B, H, N]; NULL: 0 */
  DLTensor *dq, *dk, *dv;       /* in the kernel's dtype or f32; NULL: not
                                   wanted */
  DLTensor *const *inputs;      /* the gradients of the pattern's inputs, in the
                                   order of these; NULL for one that is not
                                   wanted. Only an input that is declared with
                                   `gradient` has one, in its own dtype or
                                   f32 */
  int32_t input_count;          /* as many as the pattern has inputs; 0: none of
                                   these gradients is wanted */
  uint64_t dq_flags, dk_flags, dv_flags; /* as o_flags of dil_arguments */
  const uint64_t *input_flags;           /* [input_count]; NULL: all 0 */
  void *workspace; /* scratch memory on the context's device,
                      aligned to 256 bytes, for this call alone
                      until it is done; NULL: the context's */
  int64_t workspace_bytes;
} dil_gradients;
#define DIL_GRADIENTS_INIT                                                     \
  {sizeof(dil_gradients), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Writes the gradients that are wanted. On the processor it returns when that
 * is done; on a GPU the call is put on the stream, and waits for the stream while
 * some of the kernel's code is still being compiled. The bits depend neither on
 * threads nor on the moment. Re-entrant. DIL_USAGE: the text names the tensor
 * and what is wrong with it, and nothing is written; so for a kernel without
 * gradients, and for a workspace that is too small. Others as
 * dil_kernel_run. */
DIL_API dil_status dil_kernel_backward(dil_kernel *kernel,
                                       const dil_gradients *gradients);
/* Bytes of workspace that are enough for any dil_kernel_backward of these sizes
 * (and of dil_context_threads); they may be 0. It first compiles what such a
 * call needs. */
DIL_API dil_status dil_kernel_backward_workspace(dil_kernel *kernel,
                                                 const dil_sizes *sizes,
                                                 int64_t *bytes);

/* ---- ranks --------------------------------------------------------------- */

/* One sequence on several processes: each is a rank that owns a shard of the
 * queries and of the keys, and calls with its own rows. Ranks are on processors,
 * or each on a GPU of its own, and rows travel by NCCL then. The functions below
 * are collective: every rank calls them, in the same order. Where a rank
 * fails, is gone or is silent for `timeout`, every rank's call fails, and later
 * calls with it; the text names the rank. */
typedef struct dil_rank dil_rank;

enum {
  DIL_RANKS_CONTIGUOUS, /* one block of rows a rank */
  DIL_RANKS_ZIGZAG,     /* blocks r and 2 * ranks - 1 - r: balances causal masks */
  DIL_RANKS_STRIPED     /* rows r, r + ranks, ... */
};

typedef struct dil_rank_options {
  size_t size;
  const char *meet; /* the ranks' own: HOST:PORT, where rank 0 listens, or the
                       path of a file that all ranks of one host can make */
  int32_t rank, ranks;
  int32_t layout;   /* DIL_RANKS_... */
  int32_t gather;   /* not 0: all rows travel before the first step; else they
                       travel step by step, behind the computation */
  double timeout;   /* seconds that a wait for another rank may take; 0: 60 */
} dil_rank_options;
#define DIL_RANK_OPTIONS_INIT {sizeof(dil_rank_options), 0, 0, 1, 0, 0, 0}

/* Joins a process to the other ranks, for calls of a kernel, which must outlive
 * the rank. On a GPU it was made with `ranks` in its options; a call waits for the
 * work on its stream, and for its own. One thread at a time uses a rank. */
DIL_API dil_status dil_rank_new(dil_kernel *kernel,
                                const dil_rank_options *options,
                                dil_rank **rank);
/* Not collective. */
DIL_API void dil_rank_free(dil_rank *rank);
/* Which rows of a sequence of that length this rank owns: their number, and if
 * `positions` is not NULL their places there, in the order in which the rank's
 * tensors have them. Not collective. */
DIL_API dil_status dil_rank_positions(const dil_rank *rank, int64_t length,
                                      int64_t *positions, int64_t *count);
/* dil_kernel_run of the rank's rows. `whole` has the sizes of the sequence; the
 * inputs are those of the whole. Queries are aligned with the end of the keys.
 * The bits depend on ranks and layout, and not on timing. */
DIL_API dil_status dil_rank_run(dil_rank *rank, const dil_sizes *whole,
                                const dil_arguments *arguments);
/* dil_kernel_backward of the rank's rows. lse must be given on all ranks, or on
 * none; the workspace is not used. Gradients of inputs are those of the whole, on
 * every rank. On a GPU all gradients are row-major, and dq, dk and dv are f32. */
DIL_API dil_status dil_rank_backward(dil_rank *rank, const dil_sizes *whole,
                                     const dil_gradients *gradients);

#ifdef __cplusplus
}
#endif
#endif
