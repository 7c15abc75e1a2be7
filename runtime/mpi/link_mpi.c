/* link_mpi.c - ranks are processes of one MPI job. In: messages posted. Out:
 * the same bytes in another process. Nothing blocks inside MPI: every wait
 * asks again until its deadline, so that a frozen peer is an error. A message
 * goes in chunks whose sizes both sides know; a chunk of another size is an
 * error before it is received. */
#include "job.h"
#include "interface.h"
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG_ROWS = 1, TAG_REVOKE = 2, REASON = 256 };
static const int64_t CHUNK = 1 << 30; /* bytes; an MPI count is an int */

typedef struct half { /* of a transfer: what one side moves */
  int32_t peer;       /* -1: nothing */
  char *at;
  int64_t left;
  MPI_Request request;
  bool empty;         /* a message of no bytes is still a message */
} half;

typedef struct slot {
  half send, receive;
} slot;

typedef struct mpi_link {
  dil_link link;
  MPI_Comm comm;
  bool failed;
  char reason[REASON];
  slot slot[];        /* [ranks + 1] */
} mpi_link;

static double clock_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dil_status fail(mpi_link *l) {
  return dil_fail(DIL_PEER, "%s", l->reason);
}

/* MPI's own words, once. */
static bool good(mpi_link *l, int code, const char *what) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (code == MPI_SUCCESS) return true;
  MPI_Error_string(code, text, &length);
  if (!l->failed)
    snprintf(l->reason, sizeof l->reason, "cannot %s in step %d: %.120s", what,
             l->link.step, text);
  l->failed = true;
  return false;
}

/* ---- chunks -------------------------------------------------------------- */

static int next_chunk(const half *h) {
  return (int)(h->left < CHUNK ? h->left : CHUNK);
}

static bool has_more(const half *h) {
  return h->peer >= 0 && (h->left > 0 || h->empty);
}

static void send_chunk(mpi_link *l, half *h) {
  int bytes = next_chunk(h);
  if (!good(l, MPI_Isend(h->at, bytes, MPI_BYTE, h->peer, TAG_ROWS, l->comm,
                         &h->request), "send"))
    return;
  h->at += bytes;
  h->left -= bytes;
  h->empty = false;
}

/* Begins to receive a chunk that has come, if it is the one that is due. */
static void receive_chunk(mpi_link *l, half *h) {
  MPI_Message message;
  MPI_Status status;
  int here = 0, bytes = 0, due = next_chunk(h);
  if (!good(l, MPI_Improbe(h->peer, TAG_ROWS, l->comm, &here, &message,
                           &status), "look for a message") || !here)
    return;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes != due) {
    snprintf(l->reason, sizeof l->reason, "rank %d sent %d bytes to rank %d in "
             "step %d, %d were due", h->peer, bytes, l->link.rank,
             l->link.step, due);
    l->failed = true;
    return;
  }
  good(l, MPI_Imrecv(h->at, bytes, MPI_BYTE, &message, &h->request),
       "receive");
  h->at += bytes;
  h->left -= bytes;
  h->empty = false;
}

/* True while the half has something to do. */
static bool is_busy(mpi_link *l, half *h, void (*begin)(mpi_link *, half *)) {
  int done = 1;
  if (h->request == MPI_REQUEST_NULL && has_more(h)) begin(l, h);
  if (h->request != MPI_REQUEST_NULL)
    good(l, MPI_Test(&h->request, &done, MPI_STATUS_IGNORE), "move a message");
  return !done || has_more(h);
}

/* ---- the link ------------------------------------------------------------ */

static dil_status post(dil_link *link, int32_t index, const link_transfer *t) {
  mpi_link *l = (mpi_link *)link;
  slot *s = &l->slot[index];
  s->send = (half){t->to, (char *)(uintptr_t)t->send, t->send_bytes,
                   MPI_REQUEST_NULL, t->to >= 0 && t->send_bytes == 0};
  s->receive = (half){t->from, t->receive, t->receive_bytes, MPI_REQUEST_NULL,
                      t->from >= 0 && t->receive_bytes == 0};
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "MPI moves memory of the host alone");
  if (l->failed) return fail(l);
  if (t->to >= 0) send_chunk(l, &s->send);
  return l->failed ? fail(l) : DIL_OK;
}

static void hear_revoke(mpi_link *l) {
  MPI_Status status;
  int here = 0;
  if (!good(l, MPI_Iprobe(MPI_ANY_SOURCE, TAG_REVOKE, l->comm, &here, &status),
            "look for a message") || !here)
    return;
  MPI_Recv(l->reason, REASON, MPI_BYTE, status.MPI_SOURCE, TAG_REVOKE, l->comm,
           MPI_STATUS_IGNORE);
  l->reason[REASON - 1] = 0;
  l->failed = true;
}

/* First without sleep: most messages are there. */
static void rest(int64_t turns) {
  struct timespec moment = {0, 50000};
  if (turns < 2000) sched_yield();
  else nanosleep(&moment, NULL);
}

static dil_status wait_slot(dil_link *link, int32_t index) {
  mpi_link *l = (mpi_link *)link;
  slot *s = &l->slot[index];
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0; !l->failed; turns++) {
    bool sending = is_busy(l, &s->send, send_chunk);
    bool receiving = is_busy(l, &s->receive, receive_chunk);
    if (!sending && !receiving) return l->failed ? fail(l) : DIL_OK;
    hear_revoke(l);
    if (!l->failed && clock_seconds() > end) {
      snprintf(l->reason, sizeof l->reason, "rank %d is silent: rank %d waited "
               "%g s for it in step %d",
               receiving ? s->receive.peer : s->send.peer, link->rank,
               link->timeout, link->step);
      l->failed = true;
    }
    rest(turns);
  }
  return fail(l);
}

static dil_status check(dil_link *link) {
  mpi_link *l = (mpi_link *)link;
  if (!l->failed) hear_revoke(l);
  return l->failed ? fail(l) : DIL_OK;
}

/* Best effort: who is gone hears nothing, who is silent hears it later. */
static void revoke(dil_link *link, const char *why) {
  mpi_link *l = (mpi_link *)link;
  static char word[REASON]; /* must outlive the messages */
  bool heard = l->failed;
  if (heard) snprintf(word, sizeof word, "%s", l->reason);
  else
    snprintf(word, sizeof word, "rank %d failed in step %d: %.180s",
             link->rank, link->step, why);
  for (int32_t i = 0; i < link->ranks; i++) {
    MPI_Request request;
    if (i == link->rank) continue;
    if (!MPI_Isend(word, REASON, MPI_BYTE, i, TAG_REVOKE, l->comm, &request))
      MPI_Request_free(&request);
  }
  snprintf(l->reason, sizeof l->reason, "%s", word);
  l->failed = true;
}

static void free_link(dil_link *link) {
  mpi_link *l = (mpi_link *)link;
  if (!l->failed) MPI_Comm_free(&l->comm);
  free(l);
}

static const link_calls mpi_calls = {"mpi", post,   wait_slot,
                                     check, revoke, free_link};

/* ---- the module ---------------------------------------------------------- */

static dil_status open_job(int32_t *rank, int32_t *ranks) {
  int begun = 0, level = 0, number = 0, count = 1;
  MPI_Initialized(&begun);
  int code = begun ? MPI_SUCCESS
                   : MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
  if (code != MPI_SUCCESS)
    return dil_fail(DIL_ENVIRONMENT, "MPI cannot begin (error %d)", code);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  *rank = number;
  *ranks = count;
  return DIL_OK;
}

static dil_status new_link(int32_t color, double timeout, dil_link **link) {
  MPI_Comm comm;
  int rank = 0, ranks = 1;
  if (MPI_Comm_split(MPI_COMM_WORLD, color, 0, &comm) != MPI_SUCCESS)
    return dil_fail(DIL_ENVIRONMENT, "MPI cannot split its ranks");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  mpi_link *l = calloc(1, sizeof *l + ((size_t)ranks + 1) * sizeof(slot));
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  l->link = (dil_link){&mpi_calls, rank, ranks, 0, timeout};
  l->comm = comm;
  for (int32_t i = 0; i <= ranks; i++)
    l->slot[i].send.request = l->slot[i].receive.request = MPI_REQUEST_NULL;
  *link = &l->link;
  return DIL_OK;
}

static void close_job(void) {
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended) MPI_Finalize();
}

DIL_API const dil_mpi_module *dil_mpi_module_init(void);
const dil_mpi_module *dil_mpi_module_init(void) {
  static const dil_mpi_module module = {DIL_INTERFACE, open_job, new_link,
                                        close_job};
  return &module;
}
