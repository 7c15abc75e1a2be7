/* rank.h - one rank of a rank group. Internal to the files behind
 * ranks.h. */
#ifndef DIL_RUNTIME_RING_RANK_H
#define DIL_RUNTIME_RING_RANK_H

#include "ranks.h"
#include <pthread.h>

typedef struct group_rank {
  struct rank_group *group;
  int32_t rank;
  int32_t original;      /* its rank before any shrinking: it chose its GPU */
  head_partition share;
  partition_mask mask;   /* for its heads; bounds NULL: the task has no mask */
  dil_table table;       /* of its heads */
  void *branches;        /* the branches of `table` */
  cpu_kernel *kernel;    /* on the processor; NULL: the rank is on a GPU */
  ring_device *device;   /* on the processor; a GPU's device is in `resident` */
  resident resident;     /* on a GPU */
  ring_routes routes;
  ring_gradients sums;   /* of the last run backward, in `sum_memory` of the
                            device */
  void *sum_memory;
  void *fetched;         /* a GPU's sums on the host, in `sums`; or NULL */
  dil_tensor held_output[PROGRESSIONS_MOST], /* copies of dO and dlse in */
      held_lse[PROGRESSIONS_MOST];           /* `gradient_store`; a rank that */
  void *gradient_store;                      /* does not hold them has views */
  bool holds; /* rank_group_hold has been called: `held` has its rows */
  ring_rows held;        /* copies in `store`, but for q, k and v on a GPU:
                            these are views of the call */
  void *store;
  dil_link *link;        /* of the run; on threads NULL between runs */
  dil_nccl *comm;        /* NULL: not made yet, or NCCL is not used */
  pthread_t thread;
  bool started, lost;    /* its thread has started; it cannot go on after the
                            last run */
  bool shrunk; /* the rank group has shrunk, so `comm` may be missing */
  rank_report report;
} group_rank;

struct rank_group {
  rank_group_task task;
  const dil_call *call;  /* of the run; NULL: rank_group_join runs */
  const dil_backward_call *backward; /* of a run backward; else NULL */
  struct {               /* machine code, of which each kernel gets a copy */
    void *bytes;
    size_t size;
    dil_code code;
  } made[DIL_VARIANT_COUNT];
  group_rank *rank[];    /* by rank */
};

void rank_close(group_rank *m);
/* The rank's heads have changed: it gets a new kernel if it has one. */
dil_status rank_reopen(group_rank *m);
/* ranks_shrink.c, after a failed run: asks the rank's link whether this rank
 * is lost. In a process that is one rank, the answer covers all ranks. */
void rank_ask_lost(group_rank *m);

/* The batch rows that a rank takes. */
dil_progression rank_batch(const group_rank *m, const dil_call *call);
/* The sequence of its ring. */
ring_shape rank_shape(const group_rank *m, const dil_call *call);
/* Views of the rank's rows: of the rows that it holds, or else of the call's
 * tensors; rank_view_call always takes the call's tensors. */
void rank_view(const group_rank *m, const dil_call *call, ring_rows *out);
void rank_view_call(const group_rank *m, const dil_call *call, ring_rows *out);
/* The rows of rank_view with their positions in the whole call. */
resident_shard rank_shard(const group_rank *m, const dil_call *call);

/* ranks_backward.c: before a run backward of a rank, its views and cleared sums;
 * after all ranks' runs, the sums to the call's gradients. The memory is freed
 * with the rank's device. */
dil_status rank_gradients_begin(group_rank *m, bool opens);
dil_status rank_gradients_store(rank_group *c);
void rank_gradients_free(group_rank *m);
/* ranks.c: the device that holds the rank's rows. */
ring_device *rank_device(const group_rank *m);
/* ranks_rows.c: views of the rows of tensors [B, N, H, D] that are not q, k, v
 * or o: like q (`keys`: like k), of lse [B, H, N], for each progression. */
void rank_view_rows(const group_rank *m, const dil_call *call,
                    const dil_tensor *whole, bool keys,
                    dil_tensor views[PROGRESSIONS_MOST]);
void rank_view_lse(const group_rank *m, const dil_call *call,
                   const dil_tensor *whole, dil_tensor views[PROGRESSIONS_MOST]);

/* ranks_hold.c: copies of these rows at `to`, or random numbers where they have no
 * data: those of `place`. */
dil_status rank_hold_rows(dil_threads *threads, const dil_normal_place *place,
                          const dil_tensor *from, const dil_tensor *to);
/* ranks_collect.c: a message from `rank` to rank 0; rank 0's own stays here. */
dil_status rank_send_first(dil_link *world, int32_t rank, char *message,
                           int64_t bytes);

/* A row of o among a rank's own rows. */
typedef struct row_place {
  int32_t progression;
  int64_t b, row;
  int32_t h;
} row_place;

/* False: the row is another rank's. */
bool rank_find(const group_rank *m, const dil_call *call, output_row row,
               row_place *found);
/* ranks_partition.c: copies o and lse, or a row of them, from a rank's GPU. */
dil_status rank_fetch(group_rank *m, const dil_call *call);
dil_status rank_fetch_row(group_rank *m, const dil_call *call,
                          const row_place *row);

#endif
