/* crew_member.h - one rank of a crew, for the files that make up crew.h. */
#ifndef DIL_CREW_MEMBER_H
#define DIL_CREW_MEMBER_H

#include "crew.h"
#include <pthread.h>

typedef struct member {
  struct crew *crew;
  int32_t rank;
  int32_t seat;          /* the rank that it began as, which has its device */
  head_share share;
  place_mask mask;       /* for its heads; judge NULL: not looked at */
  dil_table table;       /* of its heads */
  void *branches;        /* in it */
  cpu_kernel *kernel;    /* on the processor */
  ring_device *device;   /* there; a GPU's is the resident's */
  resident resident;     /* on a GPU */
  ring_routes routes;
  bool holds;            /* a process: rows of its own, and none of the call's, */
  ring_rows held;        /* but for those that go straight to its GPU; */
  void *store;           /* in here */
  dil_link *link;        /* of the run */
  dil_nccl *comm;        /* beside it; NULL: none yet, or none wanted */
  pthread_t thread;
  bool started, lost;    /* the last run was lost over it */
  bool shrunk;           /* and its communicator may have been */
  crew_report report;
} member;

struct crew {
  crew_task task;
  const dil_call *call;  /* of the run; NULL: ranks only join */
  struct {               /* machine code, the same for every rank */
    void *bytes;
    size_t size;
    dil_code code;
  } made[DIL_VARIANT_COUNT];
  member *member[];      /* by rank */
};

void member_close(member *m);
/* Its heads are others now: a kernel for them, where it has one. */
dil_status member_reopen(member *m);
/* crew_shrink.c: after a failed run, whether its link has lost this rank; a
 * process alone learns it of all. */
void member_ask_lost(member *m);

/* Batch rows of a rank. */
dil_comb member_batch(const member *m, const dil_call *call);
/* The sequence as its ring has it. */
ring_shape member_shape(const member *m, const dil_call *call);
/* Its own rows, wherever they are; those of the call's tensors. */
void member_view(const member *m, const dil_call *call, ring_rows *out);
void member_view_call(const member *m, const dil_call *call, ring_rows *out);
/* The first, and where they stand in the whole. */
resident_part member_part(const member *m, const dil_call *call);

/* A row of o among a member's. */
typedef struct row_place {
  int32_t comb;
  int64_t b, row;
  int32_t h;
} row_place;

/* False: it is another's. */
bool member_find(const member *m, const dil_call *call, crew_row row,
                 row_place *found);
/* crew_place.c: o and lse, or a row of them, from a member's GPU. */
dil_status member_fetch(member *m, const dil_call *call);
dil_status member_fetch_row(member *m, const dil_call *call,
                            const row_place *row);

#endif
