/* ranks.h - the ranks of a device mesh: a rank group splits a call by sequence,
 * heads and batch rows, and runs it with a kernel and a ring for each rank. The
 * ranks are threads of this process, or this process is one rank of the
 * mesh. */
#ifndef DIL_RUNTIME_RING_RANKS_H
#define DIL_RUNTIME_RING_RANKS_H

#include "ranks_gpu.h"
#include "runtime/link/nccl/rows_link.h"

/* A mesh of ring * heads * batch ranks. Rank (b * heads + h) * ring + r takes
 * share b of the batch rows, share h of the heads, shard r of the sequence. */
typedef struct mesh {
  int32_t ring, heads, batch; /* the number of ranks along each dimension */
  dil_layout layout;
  uint64_t gathered;          /* branches that gather (ring.h), as bits */
  double timeout;             /* seconds that a wait may take */
  bool way_given;             /* `queries` are the branches whose queries come */
  uint64_t queries;           /* backward (way.h); else bytes decide */
} mesh;

static inline int32_t mesh_ranks(const mesh *m) {
  return m->ring * m->heads * m->batch;
}

/* All ranks share this. The rank group copies it, and borrows what it points
 * to. */
typedef struct rank_group_task {
  mesh mesh;
  const dil_table *table;
  uint64_t plan_hash;
  dil_make make; /* makes the machine code; rank_group_new calls it */
  void *context;
  bool backward;              /* rank_group_backward may be called */
  int32_t threads;            /* of each rank */
  const partition_mask *mask; /* NULL: rows travel as if there were no masks */
  const rank_group_gpu *gpu;  /* not NULL: the ranks are on GPUs, and `make` and
                                 `threads` are unused */
  ring_checkpoint checkpoint;
  void (*stepped)(void *watcher); /* every rank here calls it after each step */
  void *watcher;
  /* Not NULL: this process is rank `rank` of the mesh alone, and this link
   * joins it to the other ranks of its ring. */
  dil_link *link;
  int32_t rank;
  const dil_nccl_module *nccl; /* moves rows of GPUs; NULL: the link does */
  bool shrinks; /* rank_group_shrink may follow a run that failed */
  /* For tests: changes a rank's ring before each run; NULL: unused. */
  void (*spoil)(dil_ring *ring, int32_t rank);
} rank_group_task;

typedef struct rank_report {   /* the outcome of one rank's last run */
  dil_status status;
  char text[256];              /* of its failure; "": it has not failed */
  ring_facts facts;
} rank_report;

typedef struct rank_group rank_group;
/* DIL_USAGE: more ranks than heads. */
dil_status rank_group_new(const rank_group_task *task, rank_group **made);
void rank_group_free(rank_group *c);
/* Makes the NCCL communicators of ranks on GPUs before the first run; without
 * NCCL it does nothing. Collective. */
dil_status rank_group_join(rank_group *c);
/* Ranks on GPUs: rank_group_load copies each rank's rows to its device before
 * the first run of a call; rank_group_fetch copies o and lse back after the
 * last. On the processor both do nothing. */
dil_status rank_group_load(rank_group *c, const dil_call *call);
dil_status rank_group_fetch(rank_group *c, const dil_call *call);
/* The same as rank_group_fetch for one row of o and its lse. */
typedef struct output_row {
  int64_t b, n;
  int32_t h;
} output_row;
dil_status rank_group_fetch_row(rank_group *c, const dil_call *call,
                                output_row row);
/* Runs a call, of which each rank computes its own rows. If several ranks fail,
 * it returns a failure of a rank's own before a DIL_PEER. */
dil_status rank_group_run(rank_group *c, const dil_call *call);
/* The gradients of a call that rank_group_run has run, with its o and lse: the
 * ranks write dq, dk, dv and the gradients of inputs, f32 or in their own type.
 * Where several ranks add to one element, they do so in the order of ranks. Ranks
 * on GPUs have dO and dlse from rank_group_load_gradients, and leave their sums on
 * the devices until rank_group_fetch_gradients. */
dil_status rank_group_backward(rank_group *c, const dil_backward_call *call);
/* Ranks on GPUs: the first copies dO and dlse of each rank's rows to its device
 * after rank_group_load; dO without data stands for random numbers, of tensor
 * `number`. The second adds up the sums of the last run and writes the call's
 * gradients; in a process that is one rank, rank_group_collect_gradients does. On
 * the processor both do nothing. */
dil_status rank_group_load_gradients(rank_group *c,
                                     const dil_backward_call *call,
                                     uint32_t number);
dil_status rank_group_fetch_gradients(rank_group *c);
const rank_report *rank_group_report(const rank_group *c, int32_t rank);
/* For a process that is one rank. q, k and v of the call, of any float type,
 * are memory that every rank can read (mapped files); without data they stand
 * for random numbers. The rank copies or makes its own rows of them, and
 * allocates its rows of o and lse; on a GPU, rank_group_load does so for q, k
 * and v. Called once, before rank_group_load; the call must outlive
 * rank_group_load. */
dil_status rank_group_hold(rank_group *c, const dil_call *call);

/* The same for dO and dlse of a run backward: dO without data stands for random
 * numbers, of tensor `number`; dlse has data, or is 0. On a GPU
 * rank_group_load_gradients does so. */
dil_status rank_group_hold_gradients(rank_group *c,
                                     const dil_backward_call *call,
                                     uint32_t number);

/* The rows of o and lse to collect; the same on every rank. */
typedef struct wanted_rows {
  int64_t count;          /* negative: all rows */
  void (*row)(const void *owner, int64_t index, output_row *row);
  const void *owner;
} wanted_rows;
/* A gather, for ranks that are processes: sends these rows of every rank, and
 * its report, to rank 0 of `world`, the link of all ranks. Called after the
 * last run; collective. */
dil_status rank_group_collect(rank_group *c, dil_link *world,
                              const dil_call *call, const wanted_rows *wanted);
/* The same for gradients, which rank 0 alone has room for: it adds up the sums of
 * all ranks in their order, and writes the gradients of the call. */
dil_status rank_group_collect_gradients(rank_group *c, dil_link *world,
                                        const dil_backward_call *call);
/* Sets lost[i] for each rank that the last run has lost, which cannot go on.
 * False: the run has lost no rank, or its links cannot tell. */
bool rank_group_lost(const rank_group *c, bool *lost);
/* Makes one ring of the remaining ranks, which keep their order and take all
 * heads and batch rows each. The caller then calls rank_group_hold (processes),
 * rank_group_load and rank_group_join again. Checkpoints are of the whole mesh,
 * so the new ring does not resume from them. `link` joins ranks that are
 * processes; the caller frees the old link. Collective over the remaining
 * ranks. */
dil_status rank_group_shrink(rank_group *c, const bool *lost, dil_link *link);

#endif
