/* backward_launch.h - the parameter of the Hopper kernels of gradients.
 *
 * Plain C, included by the run time and by the kernels. A tile *holds* rows of
 * two tensors and *streams* rows of two others: for dQ it holds Q and dO and
 * streams K and V, for dK and dV it holds K and V and streams Q and dO. In the
 * launch, `q` and `o` have the maps of the rows that are held, `k` and `v` those
 * of the rows that are streamed. Its rows are the rows that are held, and its
 * keys those that are streamed; windows are turned round for held keys. */
#ifndef DIL_TEMPLATES_HOPPER_BACKWARD_LAUNCH_H
#define DIL_TEMPLATES_HOPPER_BACKWARD_LAUNCH_H

#include "templates/hopper/hopper_launch.h"

/* All bits of an lse that no tile has written. An lse that is computed has not
 * all bits set: the chip's NaN is 0x7fffffff. */
enum { HOPPER_UNSEEN = -1 };
enum { HOPPER_BACKWARD_BYTES = 256 }; /* of hopper_backward_launch, behind `of` */

/* A gradient of 16-bit elements; where the plan has several passes, or the call is
 * a shard, sums in f32 to which each pass adds. Strides count elements. */
typedef struct hopper_gradient {
  void *data;                  /* NULL: it is not wanted */
  long long batch, row, head;
} hopper_gradient;

typedef struct hopper_backward_launch {
  hopper_launch of;
  hopper_gradient scored;      /* dQ, or dK */
  hopper_gradient weighted;    /* dV, where keys are held */
  hopper_gradient fused;       /* dQ of the fused form, at its end */
  float *query_sums;           /* of the fused form: see backward_fused.cuh */
  /* Facts of query rows, [batches, H, query_rows] of two floats: lse in units of
   * log2, +inf for a row without keys; delta. */
  const float *facts;
  int query_heads, query_rows;
  unsigned *spoiled;           /* set where a sum is not finite */
  const float *tops;           /* of f16, see hopper_facts_launch */
  /* With dropout the random words, [batches, H, rows], of rows that tiles hold
   * and of rows that they stream: */
  const unsigned *held_words, *streamed_words;
  int held_rows, streamed_rows;
  float scored_factor, weighted_factor; /* of the sums */
  /* Of a shard, [batches, heads, held_rows]: rows whose sums are not finite are
   * marked, and not added. */
  unsigned char *scored_marks, *weighted_marks;
  int opens;                   /* the sums hold nothing yet: tiles write them */
  /* Not 0: rows come again in later passes at positions that are of.live_phase[head]
   * modulo this, -1: none. All other rows are rounded at once, to where the last
   * launch rounds the sums: */
  int apart;
  hopper_gradient scored_end, weighted_end;
} hopper_backward_launch;

/* Blocks of 256 threads that make facts, on a processor at once. Wide rows of f16 take
 * more registers than six leave. */
#define HOPPER_FACT_BLOCKS(f16, size) ((f16) && (size) > 128 ? 4 : 6)

/* The parameter of the kernel that makes the facts. Strides count elements, in
 * the order batch row, row, head. */
typedef struct hopper_facts_launch {
  const void *o, *do_;         /* [B, N, H, Dv], of 16-bit elements */
  int o_wide;                  /* but o is of f32: the state of one pass */
  const float *lse, *dlse;     /* dlse NULL: 0 */
  /* The lse of that state, [B, N, H]: -inf where the row sees no key in the pass,
   * HOPPER_UNSEEN where no tile of the pass has the row. NULL: all passes have
   * the same facts. */
  const float *state_lse;
  long long o_stride[3], do_stride[3], lse_stride[3], dlse_stride[3];
  float *facts;                /* as above */
  float *general_facts;        /* the same, [B, N, H], for the general kernels:
                                  without `kept`; NULL: they make their own */
  float weight;                /* a factor of all gradients, but for dlse's */
  int batches, rows, heads;
  /* Thread blocks that make facts, then those that look at V (f16 alone); the
   * others draw the words of dropout. */
  int fact_blocks, value_blocks;
  float kept;                  /* the share of weights that dropout leaves; it is
                                  a factor of the deltas */
  const int *lengths;          /* [batches] or NULL: the keys of each batch row */
  const int *rows_end, *keys_end; /* NULL, or where the rows of documents end */
  const void *v;
  long long v_stride[3];
  int keys, key_heads;
  /* f16: what the gradients of scores follow from, 0 before the launch: the
   * greatest squares of the norms of a row of dO and of a row of V, and the
   * greatest delta. With state_lse: four times the first, and the greatest dlse
   * in place of a delta. */
  float *tops;
  unsigned *row_words, *key_words;
  const unsigned *seed_at;     /* in place of seed_low and seed_high, or NULL */
  unsigned seed_low, seed_high;
  int first, key_first;        /* positions of row 0, where all keys are there, and
                                  of key 0 */
  int batch, head;             /* numbers in the whole of the call's first */
  const float *numbers;        /* facts that came with the rows, [batches, rows,
                                  heads] of two: in place of o, lse and dlse */
} hopper_facts_launch;

#endif
