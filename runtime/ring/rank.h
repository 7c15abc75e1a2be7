/* rank.h - a member: one rank of a crew. Internal to the files behind
 * crew.h. */
#ifndef DIL_RUNTIME_RING_RANK_H
#define DIL_RUNTIME_RING_RANK_H

#include "ranks.h"
#include <pthread.h>

typedef struct member {
  struct crew *crew;
  int32_t rank;
  int32_t seat;          /* its rank before any shrinking: it chose its GPU */
  head_share share;
  place_mask mask;       /* for its heads; judge NULL: the task has no mask */
  dil_table table;       /* of its heads */
  void *branches;        /* the branches of `table` */
  cpu_kernel *kernel;    /* on the processor; NULL: the member is on a GPU */
  ring_device *device;   /* on the processor; a GPU's device is in `resident` */
  resident resident;     /* on a GPU */
  ring_routes routes;
  bool holds;            /* crew_hold has been called: `held` has its rows */
  ring_rows held;        /* copies in `store`, but for q, k and v on a GPU:
                            these are views of the call */
  void *store;
  dil_link *link;        /* of the run */
  dil_nccl *comm;        /* NULL: not made yet, or NCCL is not used */
  pthread_t thread;
  bool started, lost;    /* its thread has started; it cannot go on after the
                            last run */
  bool shrunk;           /* the crew has shrunk, so `comm` may be missing */
  crew_report report;
} member;

struct crew {
  crew_task task;
  const dil_call *call;  /* of the run; NULL: crew_join runs */
  struct {               /* machine code, of which each kernel gets a copy */
    void *bytes;
    size_t size;
    dil_code code;
  } made[DIL_VARIANT_COUNT];
  member *member[];      /* by rank */
};

void member_close(member *m);
/* The member's heads have changed: it gets a new kernel if it has one. */
dil_status member_reopen(member *m);
/* crew_shrink.c, after a failed run: asks the member's link whether this rank
 * is lost. In a process that is one rank, the answer covers all ranks. */
void member_ask_lost(member *m);

/* The batch rows that a rank takes. */
dil_progression member_batch(const member *m, const dil_call *call);
/* The sequence of its ring. */
ring_shape member_shape(const member *m, const dil_call *call);
/* Views of the member's rows: of the rows that it holds, or else of the call's
 * tensors; member_view_call always takes the call's tensors. */
void member_view(const member *m, const dil_call *call, ring_rows *out);
void member_view_call(const member *m, const dil_call *call, ring_rows *out);
/* The rows of member_view with their positions in the whole call. */
resident_shard member_shard(const member *m, const dil_call *call);

/* A row of o among a member's own rows. */
typedef struct row_place {
  int32_t progression;
  int64_t b, row;
  int32_t h;
} row_place;

/* False: the row is another rank's. */
bool member_find(const member *m, const dil_call *call, crew_row row,
                 row_place *found);
/* crew_place.c: copies o and lse, or a row of them, from a member's GPU. */
dil_status member_fetch(member *m, const dil_call *call);
dil_status member_fetch_row(member *m, const dil_call *call,
                            const row_place *row);

#endif
