/* bind.h - from options to a call: sizes, arrays, random numbers, inputs.
 *
 * Sizes come from arrays and options; where both speak and disagree, the
 * message names both. Everything a binding allocates is its own. */
#ifndef DIL_BIND_H
#define DIL_BIND_H

#include "command.h"
#include "npy.h"

typedef enum bind_size { BIND_B, BIND_N, BIND_M, BIND_SIZE_COUNT } bind_size;

typedef struct binding {
  arena *arena;
  const options *options;
  const pattern *pattern;
  dil_context *context; /* the processor */
  dil_threads *threads; /* the context's */
  int64_t size[BIND_SIZE_COUNT];
  const char *claimed[BIND_SIZE_COUNT]; /* who said so; NULL: nobody yet */
  dil_call call;                        /* filled as far as was asked */
  dil_tensor inputs[DIL_INPUT_MAX];
  /* q, k and v have no data: standard normals, too many to hold here. Pages of
   * o and lse are there once a row is brought. */
  bool absent;
  /* This process is one rank of several: q, k and v are mapped files, for every
   * rank to take its own rows of, or random numbers without data; o and lse
   * have room on rank 0 alone. */
  bool apart;
  dil_status (*bring)(void *owner, int64_t b, int64_t n, int64_t h);
  void *owner;                          /* bring NULL: all rows are here */
  size_t sparse[2];                     /* bytes of o and lse; 0: a buffer */
  void *buffer[DIL_INPUT_MAX + 8]; /* everything to free */
  int32_t buffer_count;
  dil_npy mapped[3];               /* q, k, v of a streamed call */
  dil_npy_output out, lse;         /* its outputs that are written in place */
} binding;

/* Threads as the options want them; nothing else yet. */
dil_status binding_open(arena *a, const options *o, const pattern *p,
                        binding *b);
void binding_free(binding *b);

/* Sizes from --batch, --seq and --keys; `seq` stands in for --seq when it is
 * not given, unless it is negative. */
dil_status binding_sizes(binding *b, int64_t seq);
/* The declared inputs: all of them, or only those that decide which pairs are
 * kept. After the sizes. */
dil_status binding_inputs(binding *b, bool all);
/* q, k and v from arrays or random numbers (which settles the sizes), o and
 * lse full of NaN, lengths, scale, dropout. With --stream arrays are mapped as
 * they are, o and lse too where they are asked for, o as f32. */
dil_status binding_tensors(binding *b, int64_t seq);
/* A later process of a job: the sizes are rank 0's, which options and arrays
 * must not contradict; o and lse have shapes alone. */
dil_status binding_follow(binding *b, const int64_t size[BIND_SIZE_COUNT]);
/* Again full of NaN, so that what a run leaves out is seen; not what is written
 * in place, which would be written twice. */
void binding_wipe(binding *b);

/* Before a check: q, k and v of a process among others are made here after all,
 * where they are few. */
dil_status binding_complete(binding *b);

/* Gives o and lse that are written in place their names; a streamed run is over,
 * and what it has kept goes. */
dil_status binding_publish(binding *b);

/* What a mask sees in batch row b_row; bounds of N and M as in the call. */
expr_point binding_point(const binding *b, int64_t b_row);
int64_t binding_keys(const binding *b, int64_t b_row); /* its M or length */

/* Who says that a size is this; DIL_INPUT: somebody has said otherwise. */
dil_status bind_claim(binding *b, bind_size which, int64_t size,
                      const char *who);
/* Whether masks or keeps of the pattern read that input. */
bool bind_decides(const pattern *p, int32_t input);
static inline bool bind_is_float(dil_dtype dtype) { return dtype <= DIL_F16; }
/* What an array holds and what is wanted, in NumPy's words; its wider integers
 * were read as i32. */
dil_status bind_wrong_type(const char *path, dil_dtype holds, dil_dtype wanted);
/* A file's elements as a tensor of `dtype`; kinds do not mix. */
dil_status bind_array(binding *b, const char *path, dil_dtype dtype,
                      const dil_npy *file, dil_tensor *tensor);

/* ---- bind_rows.c: q, k and v --------------------------------------------- */

/* Those that files hold, before the sizes are known; all, after. */
dil_status bind_load(binding *b, dil_tensor loaded[3]);
dil_status bind_rows(binding *b, const dil_tensor loaded[3]);
/* Whether a check finds them here, or will (binding_complete); the same in
 * every process of a job. */
bool bind_has_rows(const binding *b);

/* ---- bind_output.c: o and lse -------------------------------------------- */

/* Before anything is computed: no output takes the place of another or of an
 * array of the call, and each can be written. */
dil_status bind_check_outputs(const options *o);
dil_status bind_outputs(binding *b);
/* Files that were not published go, unless a state is there to go on with. */
void bind_discard(binding *b);

/* ---- bind_fill.c: tensors from files and from random numbers ------------- */

/* A zeroed tensor of the binding's own. */
dil_status bind_reserve(binding *b, dil_dtype dtype, int32_t rank,
                        const int64_t *shape, dil_tensor *tensor);
/* Whether the ranks of a topology make their own rows on their GPUs. */
bool bind_is_absent(const binding *b);
/* Room for o and lse that takes memory only where it is written; whether only
 * rows that are looked at come there. */
dil_status bind_sparse(binding *b);
bool bind_is_sparse(const binding *b);
void bind_sparse_free(binding *b);
/* Elements of `to` from those of `from`, rounded; both row-major and of the
 * same count. */
dil_status bind_convert(binding *b, const dil_tensor *from, dil_tensor *to);
/* Floats: standard normals of tensor `number`; i32: 0..7; u8: 0 or 1. */
dil_status bind_random(binding *b, uint32_t seed, uint32_t number,
                       dil_tensor *tensor);
/* "[1, 2048, 12, 64]" */
const char *bind_shape_text(arena *a, const dil_tensor *tensor);

/* ---- measure.c: counts of a call, and this machine's peak ---------------- */

/* What cover counts, summed over the batch rows. */
void measure_cover(const binding *b, int32_t tile_rows, int32_t tile_keys,
                   cover_count *count);
/* Nothing but pairs, in a fraction of the time. */
void measure_pairs(const binding *b, cover_count *count);
/* Operations a second that the binding's threads reach together in registers,
 * in the arithmetic that `isa` has for the pattern's dtype. */
dil_status measure_peak(const binding *b, const char *isa, double seconds,
                        double *peak);

#endif
