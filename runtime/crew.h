/* crew.h - all ranks of a mesh as threads of this process: sequence, heads and
 * batch rows dealt out, a kernel and a ring for each rank. */
#ifndef DIL_CREW_H
#define DIL_CREW_H

#include "crew_gpu.h"
#include "nccl/rows_link.h"

/* ring * heads * batch ranks; rank = (batch * heads + head) * ring + place. */
typedef struct mesh {
  int32_t ring, heads, batch;
  dil_layout layout;
  uint64_t gathered;          /* branches whose rows all come first */
  double timeout;             /* seconds that a wait may take */
} mesh;

static inline int32_t mesh_ranks(const mesh *m) {
  return m->ring * m->heads * m->batch;
}

/* What all ranks share. Borrowed: it must outlive the crew. */
typedef struct crew_task {
  mesh mesh;
  const dil_table *table;
  uint64_t plan_hash;
  dil_make make;              /* called when the crew is made */
  void *context;
  int32_t threads;            /* of each rank */
  const place_mask *mask;     /* NULL: masks are not looked at */
  const crew_gpu *gpu;        /* in place of make and threads; NULL: none */
  ring_checkpoint checkpoint;
  void (*stepped)(void *watcher); /* by every rank here, after each step */
  void *watcher;
  /* Not NULL: this process is one rank of the mesh alone, and this link joins
   * it to the others of its ring. */
  dil_link *link;
  int32_t rank;
  const dil_nccl_module *nccl; /* rows of GPUs travel by it; NULL: by the link */
  bool shrinks;               /* crew_shrink may follow a run that failed */
  /* Tests: rewrites a rank's ring before each run; NULL: as it is. */
  void (*spoil)(dil_ring *ring, int32_t rank);
} crew_task;

typedef struct crew_report {   /* of one rank's last run */
  dil_status status;
  char text[256];              /* of its failure */
  ring_facts facts;
} crew_report;

typedef struct crew crew;
/* DIL_USAGE: more ranks than heads. */
dil_status crew_new(const crew_task *task, crew **made);
void crew_free(crew *c);
/* Before the first run: communicators of ranks on GPUs. Collective. */
dil_status crew_join(crew *c);
/* Before the first run of a call whose ranks are on GPUs, and after its last:
 * each rank's rows to its device, and o and lse back. Others need neither. */
dil_status crew_place(crew *c, const dil_call *call);
dil_status crew_fetch(crew *c, const dil_call *call);
/* One row of o and lse alone. */
typedef struct crew_row {
  int64_t b, n;
  int32_t h;
} crew_row;
dil_status crew_fetch_row(crew *c, const dil_call *call, crew_row row);
/* Runs a whole call, whose memory all ranks see. Fails with what a rank
 * itself says before what others say of it. */
dil_status crew_run(crew *c, const dil_call *call);
const crew_report *crew_of(const crew *c, int32_t rank);
/* This process is a rank alone: q, k and v of the call, of any float type, are
 * there for every rank to read its own rows of (mapped files), or have no data
 * and are random numbers, of which each makes its own. Those rows are the
 * rank's from now on, and so is room for o and lse; on a GPU crew_place takes
 * them there. Once, before crew_place; the call outlives that. */
dil_status crew_hold(crew *c, const dil_call *call);

/* Which rows of o and lse are wanted; the same on every rank. */
typedef struct crew_wanted {
  int64_t count;          /* negative: all */
  void (*row)(const void *owner, int64_t index, crew_row *row);
  const void *owner;
} crew_wanted;
/* Ranks that are processes: brings these rows of every rank, and its report,
 * to rank 0 of `world`, which joins all of them. After the last run;
 * collective. */
dil_status crew_collect(crew *c, dil_link *world, const dil_call *call,
                        const crew_wanted *wanted);
/* Whom the last run has lost: lost[ranks], those that cannot go on. False: it
 * has lost nobody, or its links do not tell. */
bool crew_lost(const crew *c, bool *lost);
/* The ranks that are left go on as one ring, numbered anew in their order, each
 * with all heads and batch rows: crew_hold (of processes), crew_place and
 * crew_join are due as at first. States that were kept are of the whole mesh, and
 * are not resumed. `link` joins ranks that are processes; the former one is the
 * caller's. Collective over those left. */
dil_status crew_shrink(crew *c, const bool *lost, dil_link *link);

#endif
