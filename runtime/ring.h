/* ring.h - one sequence on many ranks: each owns a shard of the queries and of
 * the keys, and sees the others' keys step by step.
 *
 * In step k rank r computes on what its queries need of the keys of rank r - k
 * (place.h). Rows of branches that rotate come in one message a step, while it
 * computes on what came before; those of branches that gather are all sent
 * before anything is computed, in one message from each rank. The order of the
 * passes is the same either way: own keys, then those of ranks r-1, r-2, ... */
#ifndef DIL_RING_H
#define DIL_RING_H

#include "ring_device.h"

/* A rank's own rows, a view for each comb of its shards. */
typedef struct ring_rows {
  dil_tensor q[SHARD_COMBS], o[SHARD_COMBS], lse[SHARD_COMBS];
  ring_keys keys;
} ring_rows;

/* What travels, listed by the first run of a shape and kept for the next. */
typedef struct ring_routes {
  ring_shape shape;
  int32_t rank;
  route *list;     /* [ranks][PLACE_PARTS][out, in]; NULL: not yet made */
} ring_routes;
void ring_routes_free(ring_routes *routes, ring_device *device);

typedef struct ring_checkpoint {
  const char *prefix;  /* files PREFIX.NAME; NULL: none */
  int32_t name;        /* the rank's number among all */
  int32_t every;       /* steps */
  bool resume;         /* begin with what the files hold */
} ring_checkpoint;

typedef struct dil_ring {
  ring_shape shape;          /* its table is the kernel's own */
  int64_t B;                 /* batch rows of the whole */
  int32_t batch, head;       /* numbers in the whole of the first ones here */
  dil_link *link;            /* joins the ranks that share the sequence */
  ring_device *device;       /* where this rank's rows lie */
  ring_routes *routes;       /* kept by the caller, all 0 at first */
  const dil_call *call;      /* inputs, seed, scale, train; sizes from rows */
  ring_rows *rows;
  uint64_t plan_hash;        /* ranks must agree on it */
  ring_checkpoint checkpoint;
  void (*stepped)(void *watcher); /* after each step; NULL: nobody looks */
  void *watcher;
  ring_facts facts;          /* out */
} dil_ring;

/* Collective over the link: writes o and lse of this rank's rows. On failure
 * every rank fails: DIL_PEER names the rank and the step, or this rank's own
 * status. */
dil_status ring_run(dil_ring *ring);

/* ring_agree.c: ranks compare all that they must have alike, before any row
 * moves. Collective. */
dil_status ring_agree(const dil_ring *ring, int64_t B);

/* ---- heads on several ranks ---------------------------------------------- */

/* The heads that rank `index` of `ranks` takes: whole K/V groups where there
 * are enough, else query heads of one group. */
typedef struct head_share {
  int32_t head, heads, kv_head, kv_heads;
} head_share;
/* heads 0: more ranks than heads. */
head_share share_heads(int32_t heads, int32_t kv_heads, int32_t ranks,
                       int32_t index);
/* The same plan for these heads alone; branches and phases are taken from
 * `memory`, share_size(table) bytes that must outlive the result. */
size_t share_size(const dil_table *table);
dil_table share_table(const dil_table *table, head_share share, void *memory);

#endif
