/* ring.h - one sequence on many ranks: each rank owns a shard of the queries
 * and of the keys, and sees the keys of the other ranks step by step; backward
 * it sees their keys or their queries, whichever are fewer bytes (way.h).
 *
 * This is ring attention (Liu et al. 2023, arXiv:2310.01889) with one change:
 * keys do not go from neighbour to neighbour. In step k, rank r gets the keys
 * that its queries need (partition.h) from rank r - k itself. Rows of branches
 * that rotate travel in one message a step, while the rank computes on the rows
 * of the step before. Rows of branches that gather are all posted before the
 * first step, in one message from each rank. The order of the passes is the
 * same either way: the rank's own keys, then the keys of ranks r-1, r-2, ... */
#ifndef DIL_RUNTIME_RING_RING_H
#define DIL_RUNTIME_RING_RING_H

#include "ring_device.h"

/* A rank's own rows: one view for each progression (dil_progression) of its
 * shards. */
typedef struct ring_rows {
  dil_tensor q[PROGRESSIONS_MOST], o[PROGRESSIONS_MOST], lse[PROGRESSIONS_MOST];
  ring_keys keys;
} ring_rows;

/* The rows that travel in each step. The first run of a shape makes the lists,
 * and later runs of the same shape use them again. */
typedef struct route_set {
  ring_shape shape;
  int32_t rank;
  route *list;     /* [ranks][EXCHANGE_PHASES][out, in]; NULL: not yet made */
  route *back;     /* the same in reverse: of `out` the rows that come back, of
                      `in` those that go back; NULL: no run was backward */
} route_set;

typedef struct ring_routes {
  route_set all;           /* keys of all branches */
  route_set keys, queries; /* of a run backward in which queries come */
  ring_shape counted;      /* of the choice `chosen` (way.h) */
  uint64_t chosen;
} ring_routes;
void ring_routes_free(ring_routes *routes, ring_device *device);

/* The tensors of a run backward, of the rank's own rows: one view for each
 * progression, as in ring_rows. The sums are f32 and begin at 0. With `opens` those
 * of rows hold nothing yet, each is contiguous, and the device opens sums. */
typedef struct ring_gradients {
  dil_tensor output[PROGRESSIONS_MOST]; /* dO */
  dil_tensor lse[PROGRESSIONS_MOST];    /* dlse; data NULL: 0 */
  bool lse_given;                       /* also on a rank without rows, where no
                                           view has data */
  dil_tensor dq[PROGRESSIONS_MOST];     /* sums */
  ring_keys keys;                       /* sums of dK and dV */
  bool opens;
  const dil_tensor *wanted; /* of each input: its gradient; data NULL: it is not
                               wanted */
  double *inputs;           /* sums of the wanted gradients of inputs, one after
                               the other; NULL: none is wanted */
} ring_gradients;

typedef struct ring_checkpoint {
  const char *prefix;  /* files PREFIX.NAME; NULL: none */
  int32_t name;        /* the rank's number among the ranks of all rings */
  int32_t every;       /* steps between two checkpoints */
  bool resume;         /* the run begins with the state in the rank's file */
} ring_checkpoint;

typedef struct dil_ring {
  ring_shape shape;          /* its table is the table of the rank's kernel */
  int64_t B;                 /* batch rows of the whole call */
  int32_t batch, head;       /* the rank's first batch row and first head,
                                numbered in the whole call */
  dil_link *link;            /* joins the ranks that share the sequence */
  ring_device *device;       /* where this rank's rows lie */
  ring_gradients *gradients; /* NULL: the run is forward */
  bool way_given;            /* the caller says which queries come backward; else
                                ring_run chooses by bytes (way.h) */
  uint64_t queries;          /* branches whose queries come, as bits */
  ring_routes *routes;       /* the caller keeps them; all 0 at first */
  const dil_call *call;      /* inputs, seed, scale, train; the sizes are those
                                of `rows` */
  ring_rows *rows;
  uint64_t plan_hash;        /* must be the same on all ranks */
  ring_checkpoint checkpoint;
  void (*stepped)(void *watcher); /* called after each step; NULL: never */
  void *watcher;
  ring_facts facts;          /* out */
} dil_ring;

/* Writes o and lse of this rank's rows; or, with `gradients`, reads them, and
 * adds to the sums. A key's gradient is summed by the rank that owns the key: its
 * own part first, then those of the ranks behind it, in the order of the ring, so
 * that its bits do not depend on timing. Collective over the link. On failure
 * every rank fails: with its own status, or with DIL_PEER and a text that names
 * the failed rank and the step. */
dil_status ring_run(dil_ring *ring);
/* Returns whether a run may begin the sums of all progressions of its rows. */
bool ring_opens_sums(const dil_ring *ring);

/* ring_handshake.c: the handshake of a run. Before any row moves, the ranks
 * compare all values that must be the same on every rank; `B` counts this
 * rank's batch rows. Collective. */
dil_status ring_handshake(const dil_ring *ring, int64_t B);
/* Which gradients a run backward makes, and of what, as bits; forward 0. */
int64_t ring_gradient_set(const dil_ring *ring);
/* Each rank tells its step to the others; steps[rank] of all ranks. Collective. */
dil_status ring_tell_step(const dil_ring *ring, int32_t step, int32_t *steps);

/* ---- heads on several ranks ---------------------------------------------- */

/* The heads that rank `index` of `ranks` takes: whole K/V groups if there are
 * as many groups as ranks, else some query heads of one group. */
typedef struct head_partition {
  int32_t head, heads, kv_head, kv_heads;
} head_partition;
/* heads 0: more ranks than heads. */
head_partition partition_heads(int32_t heads, int32_t kv_heads, int32_t ranks,
                               int32_t index);
/* The plan's table for these heads alone. Its branches lie in `memory`, which
 * has head_partition_size(table) bytes and must outlive the result. */
size_t head_partition_size(const dil_table *table);
dil_table head_partition_table(const dil_table *table, head_partition share,
                               void *memory);

#endif
