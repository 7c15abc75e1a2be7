/* gradient.h - the gradients of a call: one run, its worker, its passes. */
#ifndef DIL_RUNTIME_CPU_GRADIENT_H
#define DIL_RUNTIME_CPU_GRADIENT_H

#include "query_tile.h"
#include "runtime/rowset/walk.h"

/* Where a gradient goes: the caller's tensor, or f32 sums of several passes,
 * which are added to. data NULL: it is not wanted. */
typedef struct cpu_gradient_target {
  dil_tensor to;
  bool add;
} cpu_gradient_target;

/* One run backward: the run forward, and the facts that follow from it. */
typedef struct cpu_gradient_run {
  cpu_run *run;
  const dil_backward_call *call;
  const dil_code *code;     /* the gradients' own functions */
  dil_tensor lse;           /* the call's, or the one made again */
  cpu_gradient_target dq, dk, dv;
  bool own_lse;             /* each branch has a softmax of its own */
  bool detached;            /* a delta for each branch: `gradient detached` */
  bool weighs;              /* these deltas come from the joint weights, in one
                             * walk for all branches of a pass */
  /* The table's passes; joined where the deltas allow that. */
  dil_pass passes[DIL_BRANCH_MAX];
  int32_t pass_count;
  /* Sums of the inputs' gradients: `copies` of them, each as long as all inputs
   * with a wanted gradient; at[x] is the first of input x, -1: not wanted. */
  double *sums;
  int32_t copies;
  int64_t sums_length, at[DIL_INPUT_MAX];
  const struct cpu_gradient_run *packed; /* whose sums a document adds to */
  int32_t pass;             /* under way; of a shard the number of its states */
} cpu_gradient_run;

/* ---- backward.c ---------------------------------------------------------- */

/* Checks the call and the run's own; then its scratch bytes; then the gradients,
 * with that much memory. The run has its code by then. */
dil_status gradient_run_check(cpu_run *r, const dil_backward_call *call);
int64_t gradient_run_bytes(cpu_run *r, const dil_backward_call *call);
dil_status gradient_run_all(cpu_run *r, const dil_backward_call *call,
                            char *memory);

/* The gradients of a document of the packed run `of`, and the scratch bytes for
 * them. */
int64_t gradient_document_bytes(const cpu_gradient_run *of, cpu_run *document,
                                const dil_backward_call *call);
dil_status gradient_document_run(const cpu_gradient_run *of, cpu_run *document,
                                 const dil_backward_call *call, char *memory);
/* Fills in the facts that follow from a checked call. */
void gradient_run_open(cpu_gradient_run *g);
/* Writes the gradients of inputs from their sums. */
void gradient_store_inputs(const cpu_gradient_run *g);

/* ---- gradient_shard.c: a shard of a sequence ----------------------------- */

/* As gradient_run_bytes and gradient_run_all, of a run whose shard is checked. */
int64_t gradient_shard_bytes(cpu_run *r, const dil_backward_call *call);
dil_status gradient_shard_run(cpu_run *r, const dil_backward_call *call,
                              char *memory);
/* Row n of a head in the state of the pass under way: its lse in units of log2,
 * or the joint one under `gradient detached`; and delta. spare: as above. */
void gradient_shard_row(const cpu_gradient_run *g, int64_t b, int64_t n,
                        int32_t head, float *spare, float *lse, float *delta);
/* Writes lse and delta of each row and state: see cpu_kernel_row_numbers. */
dil_status gradient_shard_numbers(cpu_run *r, const dil_backward_call *call,
                                  float *numbers);
/* The numbers of a row in one of its states, if the shard brings them. */
static inline bool gradient_known_row(const cpu_gradient_run *g, int64_t b,
                                      int64_t n, int32_t head, int32_t state,
                                      float *lse, float *delta) {
  const cpu_run *r = g->run;
  if (!r->shard || !r->shard->numbers) return false;
  int64_t row = (b * r->N + n) * r->table->heads + head;
  row = row * backward_states(r->table) + state;
  *lse = r->shard->numbers[2 * row];
  *delta = r->shard->numbers[2 * row + 1];
  return true;
}

/* ---- packed_gradient.c --------------------------------------------------- */

int64_t packed_gradient_bytes(const cpu_gradient_run *g);
dil_status packed_gradient_run(cpu_gradient_run *g, char *memory);

/* ---- gradient_tile.c ----------------------------------------------------- */

/* What backward has of a query tile beside its query_tile. */
typedef struct gradient_rows {
  void *q, *d;         /* rows of q and dO as dk and dv take them */
  void *dot;           /* dO, transposed as qt */
  float *dq, *dq_sum;  /* f32 [D][L]: of a part of the keys, of those before */
  float *lse, *delta;  /* f32 [L]; lse in units of log2 */
  /* f64 [branches][L], where the run weighs: the sums of a branch's weights, and
   * of dP times them; then `dots` is the branch's delta. */
  double *weights, *dots;
  bool finite;         /* no NaN or Inf among q and dO */
} gradient_rows;

/* The keys of a block, in the packed order of its walk: K and V in both
 * layouts, two of which are one in f32. */
typedef struct packed_keys {
  char *k_keys, *k_values, *v_keys, *v_values;
  uint8_t *marks; /* for MARK_ROWS packed rows each: what is not finite */
} packed_keys;
enum { MARK_ROWS = 64, MARK_KEYS = 1, MARK_VALUES = 2 };

/* Buffers of one worker. The first member makes it a tile_worker. */
typedef struct gradient_worker {
  tile_worker tile;
  const cpu_gradient_run *of;
  gradient_rows rows[TILE_GROUP];
  packed_keys keys;      /* of the block */
  bool range_finite;     /* no NaN or Inf among the range's keys and values */
  /* Rows of the block that are packed and stored; only ranges that begin at
   * one of them are visited. */
  int64_t from, to;
  bool wants_dq, wants_keys; /* dQ; dK, dV and the inputs */
  /* dQ is a sum over parts of the block, of part_rows packed rows each, which
   * are summed from 0: the bits are the same where workers share the parts. */
  int64_t parts, part_rows, part; /* `part` is under way */
  dil_tensor part_dq;    /* f32: where dQ of one part goes; no data: to dQ */
  float *dk, *dv;        /* f32 sums of the block, a packed row each */
  double *sums[DIL_INPUT_MAX]; /* of the inputs; NULL: not wanted */
  float *dp, *raw, *slope, *plain, *ones, *zeros;
  void *p, *ds, *pairs;
} gradient_worker;

int64_t gradient_worker_bytes(const cpu_gradient_run *g, const dil_pass *pass);
void gradient_worker_init(gradient_worker *wk, const cpu_gradient_run *g,
                          const dil_pass *pass, char *memory);
/* Adds what rows n0..n1-1 (at most TILE_GROUP * lanes) of class c of the held
 * cell give to the sums of the keys, and writes their dQ. */
void gradient_tile_run(gradient_worker *wk, segment_cell held, int32_t c,
                       int64_t n0, int64_t n1, int64_t b);
/* Adds dQ of the part under way to the sums of all tiles. */
void gradient_end_part(gradient_worker *wk);
/* Sums the parts of such rows' dQ, which stand one after the other from part_dq
 * on, and writes it. */
void gradient_sum_parts(gradient_worker *wk, segment_cell held, int32_t c,
                        int64_t n0, int64_t n1, int64_t b);
/* A row of sums, times `factor`, to its place. */
void gradient_store_row(const cpu_gradient_target *target, float *sum,
                        float factor, char *to);

/* ---- gradient_sink.c ----------------------------------------------------- */

/* Query row n of a head: its lse in units of log2, +inf where the row has no
 * keys, and delta. spare: two rows of values. */
void gradient_row(const cpu_gradient_run *g, int64_t b, int64_t n, int32_t head,
                  float *spare, float *lse, float *delta);
/* The gradient of its lse. */
float gradient_of_lse(const cpu_gradient_run *g, int64_t b, int64_t n,
                      int32_t head);
/* The sums of inputs of copy `copy`: NULL for those that are not wanted. */
void gradient_sums(const cpu_gradient_run *g, int64_t copy,
                   double *sums[DIL_INPUT_MAX]);
/* Adds what the sinks of a joint softmax give. */
dil_status gradient_sinks_run(const cpu_gradient_run *g);
/* Adds what the pattern's sinks give to a row that the branch of its head does
 * not select: the softmax is theirs alone. */
void gradient_bare_row(const cpu_gradient_run *g, const dil_env *env, int64_t b,
                       int64_t n, int32_t head, double *const *sums);

/* ---- gradient_keys.c ----------------------------------------------------- */

/* Bytes of the packed keys of a block of so many packed rows, and where they
 * stand in that memory. */
int64_t packed_keys_bytes(const cpu_run *r, int64_t rows);
packed_keys packed_keys_at(const cpu_run *r, int64_t rows, char *memory);
/* Packs the rows of a class that the worker's from..to-1 hold, for the block
 * whose keys and values are k and v. wk->from is a multiple of MARK_ROWS. */
void packed_keys_fill(const gradient_worker *wk, packed_range of,
                      const row_view *k, const row_view *v);
/* The marks of packed rows first..end-1, together. */
uint8_t packed_keys_marks(const packed_keys *keys, int64_t first, int64_t end);

/* ---- gradient_visit.c ---------------------------------------------------- */

/* Settles which rows of a range are visited, and whether all are finite. Where
 * a part begins, dQ of the part before joins the sum. */
bool gradient_enter(tile_worker *wk, packed_range *keys);
/* Adds up the weights of a tile's pairs and dP times them, for each branch of
 * the visit. */
void gradient_weigh(tile_worker *wk, const packed_range *keys,
                    uint64_t predicates, int32_t chain, int32_t copies);
/* One tile of keys, as key_visit_forward. */
void gradient_visit(tile_worker *wk, const packed_range *keys,
                    uint64_t predicates, int32_t chain, int32_t copies);

/* ---- gradient_pass.c ----------------------------------------------------- */

/* Scratch bytes of a pass, and the pass. */
int64_t gradient_pass_bytes(const cpu_gradient_run *g, const dil_pass *pass);
dil_status gradient_pass_run(cpu_gradient_run *g, const dil_pass *pass);
/* How often a pass adds to the rows of a K/V head: 1, or the query heads of it
 * where they select different rows. */
int32_t gradient_pass_turns(const cpu_run *r, const dil_pass *pass);

#endif
