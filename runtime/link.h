/* link.h - what joins the ranks of a ring: one small table a kind of link.
 *
 * A link moves whole messages between ranks 0..ranks-1, in order between any
 * two. Transfers are posted to slots and waited for; every wait has the link's
 * deadline. A link that has failed once fails ever after, with the same
 * reason, on all its ranks. */
#ifndef DIL_LINK_H
#define DIL_LINK_H

#include "clock.h"
#include "rt.h"

typedef struct dil_link dil_link;

/* Memory of a device, whose copies are made in the order of a stream: waiting
 * for such a message only puts the copy there. */
typedef struct link_order {
  void *user;
  void *stream;     /* for links that move such memory by themselves */
  /* The receiver: puts a copy behind what the sender has marked, and marks
   * where it ends. The marks stay valid until the run is over. */
  dil_status (*copy)(void *user, int32_t slot, void *to, const void *from,
                     int64_t bytes, const void *ready, const void **done);
  /* The sender: what it puts there next comes after the copy. */
  dil_status (*follow)(void *user, const void *done);
} link_order;

/* A message to one rank and one from another; -1: none. The bytes stay in
 * place until the slot has been waited for. */
typedef struct link_transfer {
  int32_t to, from;
  const void *send;
  void *receive;
  int64_t send_bytes, receive_bytes; /* the very sizes: others are an error */
  const link_order *order; /* NULL: memory of the host, copied at once */
  const void *ready;       /* where the message is whole, in that order */
} link_transfer;

typedef struct link_calls {
  const char *name;
  /* Starts a transfer; slot is below `slots` and free. */
  dil_status (*post)(dil_link *link, int32_t slot, const link_transfer *t);
  /* Ends it. DIL_PEER: a rank is silent, gone, or sent another size. */
  dil_status (*wait)(dil_link *link, int32_t slot);
  /* Whether it has failed, by now; nothing is waited for. */
  dil_status (*check)(dil_link *link);
  /* Whom to name when `peer` has been silent for too long; NULL: the peer. */
  int32_t (*blame)(dil_link *link, int32_t peer);
  /* Tells all others that this rank lives: their waits for it begin anew. NULL:
   * of ranks that are threads, which bring no rows to the first. */
  void (*live)(dil_link *link);
  /* See link_dismiss; NULL: by a message to each. */
  dil_status (*dismiss)(dil_link *link);
  /* Makes every wait of every rank fail: this rank cannot go on. */
  void (*revoke)(dil_link *link, const char *why);
  void (*free)(dil_link *link);
  /* Links that tell who was lost; NULL of those that do not. The others are
   * told that a rank (-1: none of these) cannot go on, by one that has seen it
   * elsewhere. */
  void (*accuse)(dil_link *link, int32_t rank, const char *why);
  /* After it failed: the ranks that cannot go on, the same on all that can.
   * Collective over those; it may take as long as a wait. False: it failed over
   * none, or they cannot tell. */
  bool (*lost)(dil_link *link, bool *lost);
  /* A link of those left, ranked as before. Collective over them. NULL: there
   * is none, or whoever made this one makes another. */
  dil_status (*shrink)(dil_link *link, const bool *lost, dil_link **smaller);
} link_calls;

/* Every link begins with this. */
struct dil_link {
  const link_calls *calls;
  int32_t rank, ranks;
  int32_t step;     /* of the ring, for messages; the ring sets it */
  double timeout;   /* seconds that a wait may take */
  int32_t first;    /* a ring of several: how many ranks are before its own */
  bool awaited;     /* by others, for longer than a wait may take: they hear that */
  double told;      /* it lives, from its own waits too; when they last did */
  dil_link *above;  /* of a ring: that of all ranks, on which others may wait for
                       this one meanwhile; NULL: there is none */
};

/* The number of a rank among those of all rings, which people know. */
static inline int32_t link_number(const dil_link *link, int32_t rank) {
  return link->first + rank;
}

static inline void link_free(dil_link *link) {
  if (link) link->calls->free(link);
}

/* For a rank that is awaited, wherever it does something else; who waits in its
 * ring is, by those whose rings are done. */
static inline void link_live(dil_link *link) {
  enum { TIMES = 8 }; /* in a timeout */
  dil_link *all = link->above ? link->above : link;
  if ((!link->above && !link->awaited) || !all->calls->live) return;
  double now = clock_seconds();
  if (now < all->told + all->timeout / TIMES) return;
  all->told = now;
  all->calls->live(all);
}

/* How many of the ranks below `rank` are left, which is its rank then. */
static inline int32_t link_left(const bool *lost, int32_t rank) {
  int32_t left = 0;
  for (int32_t i = 0; i < rank; i++) left += !lost[i];
  return left;
}

/* Returns when every rank has come here. Collective. */
dil_status link_meet(dil_link *link);
/* Rank 0 tells all others that they may go, unless it knows that one of them has
 * failed, and waits for none of them; they wait for its word, and for nobody
 * else's. Collective. */
dil_status link_dismiss(dil_link *link);
/* The least of what all ranks say. Collective. */
dil_status link_least(dil_link *link, int64_t mine, int64_t *least);

/* link_thread.c: ranks are threads of this process. A hub joins them; each
 * rank's link is used by its own thread alone. Every link is freed before the
 * hub is. */
typedef struct thread_hub thread_hub;
dil_status thread_hub_new(int32_t ranks, double timeout, thread_hub **hub);
void thread_hub_free(thread_hub *hub);
dil_status thread_link_new(thread_hub *hub, int32_t rank, dil_link **link);

/* link_file.c: ranks are processes of this host that meet in a file, each with
 * its number; they have half a minute for it, or the timeout if that is more. */
dil_status file_link_new(const char *path, int32_t rank, int32_t ranks,
                         double timeout, dil_link **link);

/* link_socket.c: ranks are processes of any hosts, and rank 0 listens at the
 * address, "host:port"; they have `patience` seconds to come. DIL_USAGE: it is
 * none; DIL_PEER: who has not come, or counts the ranks otherwise. */
dil_status socket_link_new(const char *address, int32_t rank, int32_t ranks,
                           double patience, double timeout, dil_link **link);
/* Whether it looks like one, and not like the path of a file. */
bool socket_is_address(const char *text);
/* Some of its ranks, this one among them, on the same connections. The two
 * links take turns: nothing is posted to both at once. */
dil_status socket_link_part(dil_link *whole, int32_t first, int32_t ranks,
                            double timeout, dil_link **link);

#endif
