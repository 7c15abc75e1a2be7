/* link.h - a link: the transport between the ranks of a ring, with one table of
 * functions for each kind of link (threads, file, sockets, MPI, NCCL).
 *
 * A link moves whole messages between ranks 0..ranks-1. Messages between two
 * ranks keep their order. A rank posts a transfer to a slot and waits for that
 * slot; every wait has the link's deadline. Once a link has failed, every later
 * call on it fails with the same reason, on all its ranks. */
#ifndef DIL_RUNTIME_LINK_LINK_H
#define DIL_RUNTIME_LINK_LINK_H

#include "runtime/base/clock.h"
#include "runtime/dilrt.h"
#include <stdbool.h>

typedef struct dil_link dil_link;

/* The calls by which a link copies device memory in stream order: a wait for
 * such a message only enqueues the copy on a stream, and does not wait until it
 * is made. */
typedef struct link_order {
  void *user;
  void *stream;     /* for a link that moves device memory itself (NCCL) */
  /* The receiver calls this: it enqueues a copy behind the sender's event
   * `ready`, and records the end of the copy in *done. Both events stay valid
   * until the run is over. */
  dil_status (*copy)(void *user, int32_t slot, void *to, const void *from,
                     int64_t bytes, const void *ready, const void **done);
  /* The sender calls this: its stream waits for the end of the copy. */
  dil_status (*follow)(void *user, const void *done);
} link_order;

/* A message to one rank and a message from another; a rank of -1 means that
 * there is none. The caller keeps both buffers until it has waited for the
 * slot. */
typedef struct link_transfer {
  int32_t to, from;
  const void *send;
  void *receive;
  int64_t send_bytes, receive_bytes; /* exact: another size is an error */
  const link_order *order; /* of device memory; NULL: the memory is the host's,
                              and the link copies it at once */
  const void *ready;       /* the event after which `send` is complete */
} link_transfer;

typedef struct link_calls {
  const char *name;
  /* A message of device memory is on its stream once it is posted (NCCL); in other
   * links once it has been waited for. */
  bool orders_at_post;
  /* Starts a transfer. `slot` is 0..ranks, and no transfer uses it. */
  dil_status (*post)(dil_link *link, int32_t slot, const link_transfer *t);
  /* Completes the transfer. DIL_PEER: a rank is silent, is gone, or has sent a
   * message of another size. */
  dil_status (*wait)(dil_link *link, int32_t slot);
  /* Fails if the link has failed by now; it waits for no other rank. */
  dil_status (*check)(dil_link *link);
  /* Finds the silent rank after `peer` has let a wait time out: that peer may
   * wait for another rank itself. NULL: the silent rank is the peer. */
  int32_t (*find_silent_rank)(dil_link *link, int32_t peer);
  /* Sends a heartbeat: the timeouts of the others' waits for this rank begin
   * anew. NULL: this kind of link sends no heartbeats. */
  void (*heartbeat)(dil_link *link);
  /* See link_dismiss. NULL: rank 0 sends a message to each rank. */
  dil_status (*dismiss)(dil_link *link);
  /* This rank cannot go on: every wait of every rank fails. */
  void (*revoke)(dil_link *link, const char *why);
  void (*free)(dil_link *link);
  /* Failure agreement: these two are NULL in links that cannot tell which ranks
   * a failure has cost. `report_failure` makes the link fail over `rank`, which
   * cannot go on as this rank has seen by other means; -1: over no single rank.
   * */
  void (*report_failure)(dil_link *link, int32_t rank, const char *why);
  /* After a failure: sets lost[i] for each rank that cannot go on, alike on all
   * ranks that can. Collective over the ranks that can; it may take as long as
   * a wait. False: the failure has cost no rank, or the ranks cannot agree. */
  bool (*failed_ranks)(dil_link *link, bool *lost);
  /* Makes a link of the remaining ranks, which keep their order. Collective
   * over these ranks. NULL: the caller has to make a new link itself. */
  dil_status (*shrink)(dil_link *link, const bool *lost, dil_link **smaller);
} link_calls;

/* The structure of every kind of link begins with this. */
struct dil_link {
  const link_calls *calls;
  int32_t rank, ranks;
  int32_t step;     /* of the ring, for error messages; the ring sets it */
  double timeout;   /* seconds that a wait may take */
  int32_t first;    /* number of this link's rank 0 among the ranks of all
                       rings */
  bool is_awaited;  /* others wait for this rank for longer than a timeout, so
                       it sends heartbeats (link_heartbeat) */
  double
      last_heartbeat; /* when this rank sent its last heartbeat, by the clock */
  dil_link *above;  /* a ring's link: the link of all ranks, on which ranks of
                       other rings may wait for this one; NULL: there is none */
};

/* The number of a rank among the ranks of all rings: error messages use it. */
static inline int32_t link_number(const dil_link *link, int32_t rank) {
  return link->first + rank;
}

static inline void link_free(dil_link *link) {
  if (link) link->calls->free(link);
}

/* Sends a heartbeat if other ranks may wait for this rank and its last one is
 * old enough. Long loops of a rank call this, also its waits: ranks whose rings
 * are done wait for ranks that still run. */
static inline void link_heartbeat(dil_link *link) {
  enum { TIMES = 8 }; /* heartbeats in a timeout */
  dil_link *all = link->above ? link->above : link;
  if ((!link->above && !link->is_awaited) || !all->calls->heartbeat) return;
  double now = clock_seconds();
  if (now < all->last_heartbeat + all->timeout / TIMES) return;
  all->last_heartbeat = now;
  all->calls->heartbeat(all);
}

/* The new number of `rank` once the lost ranks are removed: how many ranks
 * below it remain. */
static inline int32_t link_left(const bool *lost, int32_t rank) {
  int32_t left = 0;
  for (int32_t i = 0; i < rank; i++) left += !lost[i];
  return left;
}

/* A barrier: it returns when every rank has called it. Collective. */
dil_status link_barrier(dil_link *link);
/* The end of a job: rank 0 tells all others that they may end, unless it knows
 * of a failure, and waits for none of them. The others wait for rank 0 alone.
 * Collective. */
dil_status link_dismiss(dil_link *link);
/* An all-reduce: the minimum of `mine` over all ranks. Collective. */
dil_status link_least(dil_link *link, int64_t mine, int64_t *least);

/* link_thread.c: ranks are threads of this process. A hub joins them; each
 * rank's own thread alone uses its link. The caller frees every link before
 * the hub. */
typedef struct thread_hub thread_hub;
dil_status thread_hub_new(int32_t ranks, double timeout, thread_hub **hub);
void thread_hub_free(thread_hub *hub);
dil_status thread_link_new(thread_hub *hub, int32_t rank, dil_link **link);

/* link_file.c: ranks are processes of one host, and a file is their rendezvous
 * and shared memory. They have half a minute to meet, or `timeout` seconds if
 * that is longer. */
dil_status file_link_new(const char *path, int32_t rank, int32_t ranks,
                         double timeout, dil_link **link);

/* link_socket.c: ranks are processes of any hosts. Rank 0 listens at the
 * address, "host:port"; the ranks have `patience` seconds to meet. DIL_USAGE:
 * the text is no such address. DIL_PEER: a rank has not come, or has another
 * number of ranks. */
dil_status socket_link_new(const char *address, int32_t rank, int32_t ranks,
                           double patience, double timeout, dil_link **link);
/* Returns whether a text looks like an address, and not like the path of a
 * file. */
bool socket_is_address(const char *text);
/* A link of ranks first..first+ranks-1, this rank among them, on the same
 * connections. The caller never has transfers posted to both links at once. */
dil_status socket_link_part(dil_link *whole, int32_t first, int32_t ranks,
                            double timeout, dil_link **link);

#endif
