/* link_mpi.h - a link over one MPI communicator. Internal to dilrt-mpi.so.
 *
 * One thread at a time calls MPI, under mpi_lock. The rank's own thread does so
 * while it posts and waits. While the rank computes, the link's progress thread
 * does. */
#ifndef DIL_RUNTIME_LINK_MPI_LINK_MPI_H
#define DIL_RUNTIME_LINK_MPI_LINK_MPI_H

#include "job.h"
#include <mpi.h>
#include <pthread.h>

enum {
  TAG_REVOKE,
  TAG_QUESTION,
  TAG_ANSWER,
  TAG_HEARTBEAT,
  TAG_ROWS /* + slot */
};
enum { LINK_REASON = 256 };

typedef struct mpi_half { /* one direction of a transfer */
  int32_t peer;       /* -1: this direction has no message */
  int32_t tag;
  char *at;           /* the next piece */
  int64_t left;       /* bytes in pieces that have not begun */
  MPI_Request request;
  bool empty;         /* a message of no bytes, which has not begun */
} mpi_half;

typedef struct mpi_slot {
  mpi_half send, receive;
  bool active;
  double moved;       /* when it was posted, or a piece of it last ended */
} mpi_slot;

/* The rank that a rank waits for, and the step of the wait; -1: it waits for
 * none. */
typedef struct wait_report {
  int32_t target, step;
} wait_report;

/* The search for the rank to blame for a wait that has timed out. */
typedef struct inquiry {
  double asked;       /* when the last question was sent; 0: none was */
  int32_t suspect;    /* the rank that was asked */
  int32_t by, step;   /* the rank that waits for the suspect, and the step */
  int32_t hops;       /* questions after the first */
} inquiry;

/* The answer to a rank's question. One is on its way at a time; a question that
 * comes meanwhile is answered after it. */
typedef struct mpi_answer {
  wait_report report;   /* MPI reads it until `request` has ended */
  MPI_Request request;
  bool owed;            /* a question has come that nobody has answered */
} mpi_answer;

typedef struct mpi_link {
  dil_link link;
  MPI_Comm comm;
  bool failed;
  char reason[LINK_REASON];
  MPI_Request *revokes; /* [ranks]: sends of the reason; no wait ends them */
  wait_report here;     /* this rank's own wait */
  mpi_answer *answer;   /* [ranks]: to each rank */
  double *last_heartbeat; /* [ranks]: when the last heartbeat of each came */
  pthread_t progress;
  pthread_cond_t work;  /* the progress thread has something to do */
  bool closing;
  int32_t slots;
  mpi_slot slot[];
} mpi_link;

extern pthread_mutex_t mpi_lock;

double mpi_seconds(void);
/* Marks the link as failed; the first failure's reason stays. */
void mpi_fail(mpi_link *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* False: an MPI call has failed, and MPI's text is the link's failure. */
bool mpi_good(mpi_link *l, int code, const char *what);

/* link_mpi.c: a link with its progress thread. The link frees the communicator,
 * unless it has failed; so does this function when it fails. */
dil_status mpi_link_new(MPI_Comm comm, double timeout, dil_link **link);

/* silent_rank.c: receives revokes and heartbeats and answers questions about
 * this rank's wait, without blocking. */
void mpi_listen(mpi_link *l);
/* Sends a heartbeat to all other ranks. */
void mpi_send_heartbeats(mpi_link *l);
/* For a wait that has timed out; called again and again. It asks the awaited
 * rank which rank it waits for itself, then asks that rank, and so on. The link
 * fails over the rank that does not answer, or that waits for none. */
void mpi_pursue(mpi_link *l, inquiry *q);

#endif
