/* link_mpi.h - what the files of dilrt-mpi.so share: a link over one
 * communicator.
 *
 * MPI is called by one thread at a time, under mpi_lock: the rank's own thread
 * while it posts and waits, and the link's courier while the rank computes. */
#ifndef DIL_LINK_MPI_H
#define DIL_LINK_MPI_H

#include "job.h"
#include <mpi.h>
#include <pthread.h>

enum { TAG_REVOKE, TAG_QUESTION, TAG_ANSWER, TAG_LIVES, TAG_ROWS /* + slot */ };
enum { LINK_REASON = 256 };

typedef struct half { /* of a transfer: what one side moves */
  int32_t peer;       /* -1: nothing */
  int32_t tag;
  char *at;
  int64_t left;
  MPI_Request request;
  bool empty;         /* a message of no bytes is still a message */
} half;

typedef struct slot {
  half send, receive;
  bool active;
  double moved;       /* when a piece of it last began or ended */
} slot;

/* Whom a rank waits for, and in which step; -1: for nobody. */
typedef struct wait_word {
  int32_t target, step;
} wait_word;

/* A wait that has lasted too long: who is to blame for it. */
typedef struct inquiry {
  double asked;       /* when; 0: nobody has been */
  int32_t suspect;    /* who was */
  int32_t by, step;   /* who waits for him */
  int32_t hops;
} inquiry;

typedef struct mpi_link {
  dil_link link;
  MPI_Comm comm;
  bool failed;
  char reason[LINK_REASON];
  wait_word here;     /* this rank's own wait */
  wait_word *answer;  /* [ranks] what was told to each */
  double *lived;      /* [ranks] when each last said so */
  pthread_t courier;
  pthread_cond_t work; /* something for the courier */
  bool closing;
  int32_t slots;
  slot slot[];
} mpi_link;

extern pthread_mutex_t mpi_lock;

double link_seconds(void);
/* The first failure is the link's. */
void link_fail(mpi_link *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* False: MPI's own words become the link's failure. */
bool link_good(mpi_link *l, int code, const char *what);

/* link_mpi.c: a link with its courier. */
dil_status mpi_link_new(MPI_Comm comm, double timeout, dil_link **link);

/* blame.c: what ranks tell each other about their waits. Revokes and signs of
 * life are heard, questions answered; all without blocking. */
void blame_listen(mpi_link *l);
/* All others hear that this rank lives. */
void blame_live(mpi_link *l);
/* This rank's wait is over its time: asks whom it waits for, and whom that one
 * waits for, until one does not answer: that one fails the link. */
void blame_pursue(mpi_link *l, inquiry *q);

#endif
