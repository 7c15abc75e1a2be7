/* call_setup.h - from options to a call: sizes, arrays, random numbers, inputs.
 *
 * Sizes come from arrays and options; where an array and an option disagree,
 * the message names both. A binding owns all memory that it allocates. */
#ifndef DIL_COMPILER_CLI_CALL_SETUP_H
#define DIL_COMPILER_CLI_CALL_SETUP_H

#include "command.h"
#include "compiler/analysis/cover.h"
#include "runtime/base/threads.h"
#include "runtime/npy/npy.h"

typedef enum bind_size { BIND_B, BIND_N, BIND_M, BIND_SIZE_COUNT } bind_size;

typedef struct binding {
  arena *arena;
  const options *options;
  const pattern *pattern;
  dil_context *context; /* the processor */
  dil_threads *threads; /* the context's */
  int64_t size[BIND_SIZE_COUNT];
  const char *claimed[BIND_SIZE_COUNT]; /* source of the size; NULL: none */
  dil_call call;                        /* filled step by step */
  dil_tensor inputs[DIL_INPUT_MAX];
  /* q, k and v are standard normals, too many to hold here, and have no data.
   * Pages of o and lse exist once a row is fetched. */
  bool absent;
  /* This process is one rank of several: q, k and v are mapped files, of which
   * each rank reads its own rows, or random numbers without data. Only rank 0
   * has room for o and lse. */
  bool apart;
  dil_status (*bring)(void *owner, int64_t b, int64_t n, int64_t h);
  void *owner; /* of `bring`, which fetches a row; NULL: all rows are here */
  size_t sparse[2];                     /* mapped bytes of o and lse; or 0 */
  void *buffer[DIL_INPUT_MAX + 8]; /* all memory to free */
  int32_t buffer_count;
  dil_npy mapped[3];               /* q, k, v of a streamed call */
  dil_npy_output out, lse;         /* outputs that are mapped files */
} binding;

/* Starts a binding: the options' threads, seed and scale, no tensors yet. */
dil_status binding_open(arena *a, const options *o, const pattern *p,
                        binding *b);
void binding_free(binding *b);

/* Sizes from --batch, --seq and --keys, and tensors without data. `seq` is the
 * default of --seq, unless it is negative. */
dil_status binding_sizes(binding *b, int64_t seq);
/* The declared inputs, after the sizes. Not `all`: an input that masks and
 * keeps do not read may be missing. */
dil_status binding_inputs(binding *b, bool all);
/* q, k and v from arrays or random numbers, the sizes that follow from them,
 * inputs, lengths, and o and lse full of NaN. With --stream the arrays are
 * mapped files; so are o and lse where options ask for them, o as f32. */
dil_status binding_tensors(binding *b, int64_t seq);
/* For rank 1 and on of a job: the sizes are rank 0's, which options and arrays
 * must not contradict; o and lse have shapes alone. */
dil_status binding_follow(binding *b, const int64_t size[BIND_SIZE_COUNT]);
/* Fills o and lse with NaN again, so that a check sees rows that a run leaves
 * out. Mapped output files stay, since they would be written twice. */
void binding_wipe(binding *b);

/* Before a check: a rank makes all of q, k and v here after all, where they
 * have few elements. */
dil_status binding_complete(binding *b);

/* Renames mapped outputs to their final names, and deletes the checkpoint of a
 * streamed run, which is over. */
dil_status binding_publish(binding *b);

/* The values that a mask sees in batch row b_row; its M is the row's length. */
expr_point binding_point(const binding *b, int64_t b_row);
int64_t binding_keys(const binding *b, int64_t b_row); /* its length, or M */

/* Records that `who` sets a size. DIL_INPUT: another source has set another. */
dil_status bind_claim(binding *b, bind_size which, int64_t size,
                      const char *who);
/* Whether masks or keeps of the pattern read that input. */
bool bind_decides(const pattern *p, int32_t input);
static inline bool bind_is_float(dil_dtype dtype) { return dtype <= DIL_F16; }
/* DIL_INPUT: the array's type is not the wanted one, in NumPy's terms. dil_npy
 * has read wider integers as i32. */
dil_status bind_wrong_type(const char *path, dil_dtype holds, dil_dtype wanted);
/* Converts a file's elements to a tensor of `dtype`. DIL_INPUT: one type is a
 * float and the other an integer, or integers differ. */
dil_status bind_array(binding *b, const char *path, dil_dtype dtype,
                      const dil_npy *file, dil_tensor *tensor);

/* ---- bind_rows.c: q, k and v --------------------------------------------- */

/* bind_load reads the arrays of files, before the sizes are known; bind_rows
 * makes the others, after. */
dil_status bind_load(binding *b, dil_tensor loaded[3]);
dil_status bind_rows(binding *b, const dil_tensor loaded[3]);
/* Whether a check has q, k and v here, now or after binding_complete. The
 * answer is the same in every process of a job. */
bool bind_has_rows(const binding *b);

/* ---- bind_output.c: o and lse -------------------------------------------- */

/* Before any computation: no output overwrites another output or an array of
 * the call, and each can be written. */
dil_status bind_check_outputs(const options *o);
dil_status bind_outputs(binding *b);
/* Deletes unpublished output files, unless a checkpoint can resume the run. */
void bind_discard(binding *b);

/* ---- bind_fill.c: tensors from files and from random numbers ------------- */

/* A zeroed tensor of the binding's own. */
dil_status bind_reserve(binding *b, dil_dtype dtype, int32_t rank,
                        const int64_t *shape, dil_tensor *tensor);
/* Whether the ranks of a topology make their own rows on their GPUs. */
bool bind_is_absent(const binding *b);
/* Maps o and lse so that only written pages take memory. bind_is_sparse: only
 * rows that a check looks at come here. */
dil_status bind_sparse(binding *b);
bool bind_is_sparse(const binding *b);
void bind_sparse_free(binding *b);
/* Rounds the elements of `from` into `to`; both are row-major and have the same
 * count. */
dil_status bind_convert(binding *b, const dil_tensor *from, dil_tensor *to);
/* Floats: standard normals of tensor `number`; i32: 0..7; u8: 0 or 1. */
dil_status bind_random(binding *b, uint32_t seed, uint32_t number,
                       dil_tensor *tensor);
/* "[1, 2048, 12, 64]" */
const char *bind_shape_text(arena *a, const dil_tensor *tensor);

/* ---- measure.c: counts of a call, and this machine's peak ---------------- */

/* The counts of cover_pattern, summed over the batch rows. */
void measure_cover(const binding *b, int32_t tile_rows, int32_t tile_keys,
                   cover_count *count);
/* Counts only `pairs`, in a fraction of the time. */
void measure_pairs(const binding *b, cover_count *count);
/* Peak operations a second of all the binding's threads together, from
 * registers, in the arithmetic that `isa` has for the pattern's dtype. */
dil_status measure_peak(const binding *b, const char *isa, double seconds,
                        double *peak);

#endif
