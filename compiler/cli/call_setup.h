/* call_setup.h - from options to a call: sizes, arrays, random numbers, inputs.
 *
 * Sizes come from arrays and options; where an array and an option disagree,
 * the message names both. A call setup owns all memory that it allocates. */
#ifndef DIL_COMPILER_CLI_CALL_SETUP_H
#define DIL_COMPILER_CLI_CALL_SETUP_H

#include "compiler/analysis/cost.h"
#include "command.h"
#include "compiler/analysis/cover.h"
#include "runtime/npy/npy.h"
#include "runtime/pool/threads.h"

typedef enum call_size { CALL_B, CALL_N, CALL_M, CALL_SIZE_COUNT } call_size;

/* Tensors of a call and of its gradients, and their copies for files. */
enum { CALL_BUFFERS = 3 * DIL_INPUT_MAX + 24 };

typedef struct call_setup {
  arena *arena;
  const options *options;
  const pattern *pattern;
  dil_context *context; /* the processor */
  dil_threads *threads; /* the context's */
  int64_t size[CALL_SIZE_COUNT];
  const char *claimed[CALL_SIZE_COUNT]; /* source of the size; NULL: none */
  dil_call call;                        /* filled step by step */
  dil_tensor inputs[DIL_INPUT_MAX];
  /* q, k and v are standard normals, too many to hold here, and have no data.
   * Pages of o and lse exist once a row is fetched. */
  bool absent;
  /* This process is one rank of several: q, k and v are mapped files, of which
   * each rank reads its own rows, or random numbers without data. Only rank 0
   * has room for o and lse. */
  bool is_rank;
  int64_t page_rows, page_keys; /* of --pages random: rows of a page, and M before
                                   it was rounded up to whole pages */
  dil_status (*bring)(void *owner, int64_t b, int64_t n, int64_t h);
  void *owner; /* of `bring`, which fetches a row; NULL: all rows are here */
  size_t sparse[2];                     /* mapped bytes of o and lse; or 0 */
  void *buffer[CALL_BUFFERS];           /* all memory to free */
  int32_t buffer_count;
  dil_npy mapped[3];               /* q, k, v of a streamed call */
  dil_npy_output out, lse;         /* outputs that are mapped files */
} call_setup;

/* Starts a call setup: the options' threads, seed and scale, no tensors yet. */
dil_status call_setup_open(arena *a, const options *o, const pattern *p,
                           call_setup *b);
void call_setup_free(call_setup *b);

/* Sizes from --batch, --seq and --keys, and tensors without data. `seq` is the
 * default of --seq, unless it is negative. */
dil_status call_setup_sizes(call_setup *b, int64_t seq);
/* The same for a command that runs nothing: with the inputs that decide which
 * pairs are kept, and with q and k where options give them, since blocks are
 * chosen by these. DIL_USAGE: they are given and nothing is chosen. */
dil_status call_setup_shapes(call_setup *b, int64_t seq);
/* The declared inputs, after the sizes. Not `all`: an input that masks and
 * keeps do not read may be missing. */
dil_status call_setup_inputs(call_setup *b, bool all);
/* q, k and v from arrays or random numbers, the sizes that follow from them,
 * inputs, lengths, and o and lse full of NaN. With --stream the arrays are
 * mapped files; so are o and lse where options ask for them, o as f32. */
dil_status call_setup_tensors(call_setup *b, int64_t seq);
/* For rank 1 and on of a job: the sizes are rank 0's, which options and arrays
 * must not contradict; o and lse have shapes alone. */
dil_status call_setup_follow(call_setup *b,
                             const int64_t size[CALL_SIZE_COUNT]);
/* Fills o and lse with NaN again, so that a check sees rows that a run leaves
 * out. Mapped output files stay, since they would be written twice. */
void call_setup_wipe(call_setup *b);

/* Before a check: a rank makes all of q, k and v here after all, where they
 * have few elements. */
dil_status call_setup_complete(call_setup *b);

/* Renames mapped outputs to their final names, and deletes the checkpoint of a
 * streamed run, which is over. */
dil_status call_setup_publish(call_setup *b);

/* The values that a mask sees in batch row b_row, or in that document of a packed
 * call; its M is the row's length. */
expr_point call_setup_point(const call_setup *b, int64_t b_row);
/* Its queries, N; its keys: its length, or M. */
int64_t call_setup_queries(const call_setup *b, int64_t b_row);
int64_t call_setup_keys(const call_setup *b, int64_t b_row);

/* Records that the source `who` sets a size. DIL_INPUT: another source has set
 * another size. */
dil_status call_claim_size(call_setup *b, call_size which, int64_t size,
                           const char *who);
/* Returns whether masks or keeps of the pattern read that input. */
bool call_input_decides(const pattern *p, int32_t input);
static inline bool call_type_is_float(dil_dtype dtype) {
  return dtype <= DIL_F16;
}
/* DIL_INPUT: the array's type is not the wanted one, in NumPy's terms. dil_npy
 * has read wider integers as i32. */
dil_status call_wrong_type(const char *path, dil_dtype holds, dil_dtype wanted);
/* Converts a file's elements to a tensor of `dtype`. DIL_INPUT: one type is a
 * float and the other an integer, or integers differ. */
dil_status call_take_array(call_setup *b, const char *path, dil_dtype dtype,
                           const dil_npy *file, dil_tensor *tensor);

/* Reads an array file into a new tensor of the shape and dtype of `want`; a
 * file may leave out a batch of one. DIL_INPUT: the array, which messages call
 * `what`, has another shape or type. */
dil_status call_load_array(call_setup *b, const char *what, const char *path,
                           const dil_tensor *want, dil_tensor *tensor);

/* ---- call_rows.c: q, k and v --------------------------------------------- */

/* call_rows_load reads the arrays of files, before the sizes are known;
 * call_rows_make makes the others, after. */
dil_status call_rows_load(call_setup *b, dil_tensor loaded[3]);
dil_status call_rows_make(call_setup *b, const dil_tensor loaded[3]);
/* Returns whether a check has q, k and v here, now or after
 * call_setup_complete. The answer is the same in every process of a job. */
bool call_has_rows(const call_setup *b);

/* ---- call_packed.c: documents -------------------------------------------- */

/* Refuses options that packed calls cannot go with. */
dil_status call_packed_check(const options *o);
/* --offsets and --key-offsets, after the arrays and before the sizes. */
dil_status call_packed_load(call_setup *b);
/* Of a packed call: the document that has query row n, as a call of its own, and
 * its number. False: no document has the row. */
bool call_packed_row(const call_setup *b, int64_t n, dil_call *document,
                     int64_t *number);

/* ---- call_lists.c: lists of blocks --------------------------------------- */

/* The table that an input is a list of, or -1. */
int32_t call_lists_of(const pattern *p, int32_t input);
/* The entries of random lists, where the call is to say how many. */
int64_t call_lists_length(const call_setup *b, int32_t input);
/* Fills an input with random lists; false where it is no list. */
bool call_lists_random(call_setup *b, int32_t input, uint32_t number);
/* The tables that lists stand for, behind the inputs. DIL_USAGE: an entry is no
 * block. */
dil_status call_lists_make(call_setup *b);
/* Makes room for the table number `made` of these lists. */
dil_status call_lists_table(call_setup *b, int32_t made,
                            const dil_tensor *rows);

/* ---- call_choices.c: blocks chosen by their scores ----------------------- */

bool call_has_choices(const pattern *p);
/* Room for the lists of the call, which a run fills. */
dil_status call_choices_make(call_setup *b);
/* The file of --selection FILE that rows or cols are written to; `of` names the
 * choice where there are several. */
const char *call_choice_file(arena *a, const char *file, const char *of,
                             bool cols);
/* Writes the lists where options ask for them. */
dil_status call_choices_write(const call_setup *b);
/* DIL_USAGE: --selection of a pattern that chooses nothing. */
dil_status call_choices_check(const call_setup *b);
/* After a run: the tables of these lists. */
dil_status call_choices_take(call_setup *b);
/* Without a run: lists by q and k, or such as are to be expected; and tables. */
dil_status call_choices_expect(call_setup *b);

/* ---- call_pages.c: --pages ----------------------------------------------- */

bool call_pages_are_random(const options *o);
bool call_pages_of_file(const options *o);
/* Refuses options that --pages does not go with, and --pages without its arrays. */
dil_status call_pages_check(const options *o);
/* Reads pages from a file and claims sizes; before the sizes are known. */
dil_status call_pages_load(call_setup *b, const dil_tensor loaded[3]);
/* M of random pages; after the sizes. */
dil_status call_pages_size(call_setup *b);
/* The pages of the call, after its rows and lengths. */
dil_status call_pages_make(call_setup *b);

/* ---- call_output.c: o and lse -------------------------------------------- */

/* Before any computation: no output overwrites another output or an array of
 * the call, and each can be written. */
dil_status call_outputs_check(arena *a, const options *o);
dil_status call_outputs_make(call_setup *b);
/* Deletes unpublished output files, unless a checkpoint can resume the run. */
void call_outputs_discard(call_setup *b);

/* ---- call_fill.c: tensors from files and from random numbers ------------- */

/* A zeroed tensor of the call setup's own. */
dil_status call_tensor_new(call_setup *b, dil_dtype dtype, int32_t rank,
                           const int64_t *shape, dil_tensor *tensor);
/* Returns whether the ranks of a topology make their own rows on their GPUs. */
bool call_is_absent(const call_setup *b);
/* Maps o and lse so that only written pages take memory. call_is_sparse: only
 * rows that a check looks at come here. */
dil_status call_sparse_map(call_setup *b);
bool call_is_sparse(const call_setup *b);
void call_sparse_free(call_setup *b);
/* Rounds the elements of `from` into `to`; both are row-major and have the same
 * count. */
dil_status call_tensor_convert(call_setup *b, const dil_tensor *from,
                               dil_tensor *to);
/* Writes a tensor of floats as a float32 array file. */
dil_status call_write_wide(call_setup *b, const char *path,
                           const dil_tensor *tensor);
/* Floats: standard normals of tensor `number`; i32: 0..7; u8: 0 or 1. */
dil_status call_tensor_random(call_setup *b, uint32_t seed, uint32_t number,
                              dil_tensor *tensor);
/* "[1, 2048, 12, 64]" */
const char *call_tensor_shape_text(arena *a, const dil_tensor *tensor);

/* ---- measure.c: counts of a call, and this machine's peak ---------------- */

/* The counts of cover_pattern, summed over the batch rows. */
void measure_cover(const call_setup *b, int32_t tile_rows, int32_t tile_keys,
                   cover_count *count);
/* The same without tiles. */
void measure_rows(const call_setup *b, cover_count *count);
/* Counts only `pairs`, in a fraction of the time. */
void measure_pairs(const call_setup *b, cover_count *count);
/* How a kernel for `isa` multiplies. */
cost_products measure_products(const pattern *p, const char *isa);
/* Peak operations a second of all the call setup's threads together, from
 * registers, in the arithmetic that `isa` has for the pattern's dtype. */
dil_status measure_peak(const call_setup *b, const char *isa, double seconds,
                        double *peak);

#endif
