/* ranks.h - the ranks of a device mesh: a crew splits a call by sequence, heads
 * and batch rows, and runs it with a kernel and a ring for each rank. The ranks
 * are threads of this process, or this process is one rank of the mesh. */
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
} mesh;

static inline int32_t mesh_ranks(const mesh *m) {
  return m->ring * m->heads * m->batch;
}

/* All ranks share this. The crew copies it, and borrows what it points to. */
typedef struct crew_task {
  mesh mesh;
  const dil_table *table;
  uint64_t plan_hash;
  dil_make make;              /* makes the machine code; crew_new calls it */
  void *context;
  int32_t threads;            /* of each rank */
  const place_mask *mask;     /* NULL: rows travel as if there were no masks */
  const crew_gpu *gpu;        /* not NULL: the ranks are on GPUs, and `make` and
                                 `threads` are unused */
  ring_checkpoint checkpoint;
  void (*stepped)(void *watcher); /* every rank here calls it after each step */
  void *watcher;
  /* Not NULL: this process is rank `rank` of the mesh alone, and this link
   * joins it to the other ranks of its ring. */
  dil_link *link;
  int32_t rank;
  const dil_nccl_module *nccl; /* moves rows of GPUs; NULL: the link does */
  bool shrinks;               /* crew_shrink may follow a run that failed */
  /* For tests: changes a rank's ring before each run; NULL: unused. */
  void (*spoil)(dil_ring *ring, int32_t rank);
} crew_task;

typedef struct crew_report {   /* the outcome of one rank's last run */
  dil_status status;
  char text[256];              /* of its failure; "": it has not failed */
  ring_facts facts;
} crew_report;

typedef struct crew crew;
/* DIL_USAGE: more ranks than heads. */
dil_status crew_new(const crew_task *task, crew **made);
void crew_free(crew *c);
/* Makes the NCCL communicators of ranks on GPUs before the first run; without
 * NCCL it does nothing. Collective. */
dil_status crew_join(crew *c);
/* Ranks on GPUs: crew_place copies each rank's rows to its device before the
 * first run of a call; crew_fetch copies o and lse back after the last. On the
 * processor both do nothing. */
dil_status crew_place(crew *c, const dil_call *call);
dil_status crew_fetch(crew *c, const dil_call *call);
/* The same as crew_fetch for one row of o and its lse. */
typedef struct crew_row {
  int64_t b, n;
  int32_t h;
} crew_row;
dil_status crew_fetch_row(crew *c, const dil_call *call, crew_row row);
/* Runs a call, of which each rank computes its own rows. If several ranks fail,
 * it returns a failure of a rank's own before a DIL_PEER. */
dil_status crew_run(crew *c, const dil_call *call);
const crew_report *crew_of(const crew *c, int32_t rank);
/* For a process that is one rank. q, k and v of the call, of any float type,
 * are memory that every rank can read (mapped files); without data they stand
 * for random numbers. The rank copies or makes its own rows of them, and
 * allocates its rows of o and lse; on a GPU, crew_place does so for q, k and v.
 * Called once, before crew_place; the call must outlive crew_place. */
dil_status crew_hold(crew *c, const dil_call *call);

/* The rows of o and lse to collect; the same on every rank. */
typedef struct crew_wanted {
  int64_t count;          /* negative: all rows */
  void (*row)(const void *owner, int64_t index, crew_row *row);
  const void *owner;
} crew_wanted;
/* A gather, for ranks that are processes: sends these rows of every rank, and
 * its report, to rank 0 of `world`, the link of all ranks. Called after the
 * last run; collective. */
dil_status crew_collect(crew *c, dil_link *world, const dil_call *call,
                        const crew_wanted *wanted);
/* Sets lost[i] for each rank that the last run has lost, which cannot go on.
 * False: the run has lost no rank, or its links cannot tell. */
bool crew_lost(const crew *c, bool *lost);
/* Makes one ring of the remaining ranks, which keep their order and take all
 * heads and batch rows each. The caller then calls crew_hold (processes),
 * crew_place and crew_join again. Checkpoints are of the whole mesh, so the new
 * ring does not resume from them. `link` joins ranks that are processes; the
 * caller frees the old link. Collective over the remaining ranks. */
dil_status crew_shrink(crew *c, const bool *lost, dil_link *link);

#endif
