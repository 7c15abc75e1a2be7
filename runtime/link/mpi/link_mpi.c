/* link_mpi.c - ranks are processes of one MPI job. In: posted messages. Out:
 * the same bytes in another process. No call blocks in MPI: a wait polls until
 * its deadline, so that a frozen peer becomes an error.
 *
 * A message goes in pieces whose sizes both sides know; a piece of another size
 * is an error before it is received. MPI makes progress only inside its calls,
 * so a progress thread calls it while the rank computes. */
#include "link_mpi.h"
#include "runtime/base/status.h"
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* In bytes: small enough that no thread holds the lock for long, and that a
 * slow message shows progress where a stuck one does not. */
static const int64_t PIECE = 4 << 20;

pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;

double mpi_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void mpi_fail(mpi_link *l, const char *format, ...) {
  va_list list;
  if (l->failed) return;
  va_start(list, format);
  vsnprintf(l->reason, sizeof l->reason, format, list);
  va_end(list);
  l->failed = true;
}

bool mpi_good(mpi_link *l, int code, const char *what) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (code == MPI_SUCCESS) return true;
  MPI_Error_string(code, text, &length);
  mpi_fail(l, "cannot %s in step %d: %.120s", what, l->link.step, text);
  return false;
}

static dil_status mpi_verdict(const mpi_link *l) {
  return l->failed ? dil_fail(DIL_PEER, "%s", l->reason) : DIL_OK;
}

/* ---- pieces -------------------------------------------------------------- */

static int mpi_next_piece(const mpi_half *h) {
  return (int)(h->left < PIECE ? h->left : PIECE);
}

static bool mpi_has_more(const mpi_half *h) {
  return h->peer >= 0 && (h->left > 0 || h->empty);
}

static void mpi_piece_begun(mpi_half *h, int bytes) {
  h->at += bytes;
  h->left -= bytes;
  h->empty = false;
}

static void mpi_send_piece(mpi_link *l, mpi_half *h) {
  int bytes = mpi_next_piece(h);
  if (mpi_good(l,
               MPI_Isend(h->at, bytes, MPI_BYTE, h->peer, h->tag, l->comm,
                         &h->request),
               "send"))
    mpi_piece_begun(h, bytes);
}

/* Begins to receive a piece that has come; another size is an error. */
static void mpi_receive_piece(mpi_link *l, mpi_half *h) {
  MPI_Message message;
  MPI_Status status;
  int here = 0, bytes = 0, due = mpi_next_piece(h);
  if (!mpi_good(l,
                MPI_Improbe(h->peer, h->tag, l->comm, &here, &message, &status),
                "look for a message") ||
      !here)
    return;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes != due)
    mpi_fail(l, "rank %d sent %d bytes to rank %d in step %d, %d were due",
             link_number(&l->link, h->peer), bytes,
             link_number(&l->link, l->link.rank), l->link.step, due);
  else if (mpi_good(l,
                    MPI_Imrecv(h->at, bytes, MPI_BYTE, &message, &h->request),
                    "receive"))
    mpi_piece_begun(h, bytes);
}

/* Moves one direction on. True: it is not done yet. *moved is set when a piece
 * has ended. */
static bool mpi_is_busy(mpi_link *l, mpi_half *h,
                        void (*begin)(mpi_link *, mpi_half *), bool *moved) {
  int done = 1;
  if (h->request == MPI_REQUEST_NULL && mpi_has_more(h)) begin(l, h);
  if (h->request != MPI_REQUEST_NULL) {
    mpi_good(l, MPI_Test(&h->request, &done, MPI_STATUS_IGNORE),
             "move a message");
    *moved |= done;
  }
  return !done || mpi_has_more(h);
}

static void mpi_carry_slot(mpi_link *l, mpi_slot *s) {
  bool moved = false;
  bool sending = mpi_is_busy(l, &s->send, mpi_send_piece, &moved);
  bool receiving = mpi_is_busy(l, &s->receive, mpi_receive_piece, &moved);
  s->active = sending || receiving;
  if (moved) s->moved = mpi_seconds();
}

/* Moves all posted transfers on. True: some are not done yet. */
static bool mpi_carry(mpi_link *l) {
  bool any = false;
  for (int32_t i = 0; i < l->slots && !l->failed; i++)
    if (l->slot[i].active) {
      mpi_carry_slot(l, &l->slot[i]);
      any |= l->slot[i].active;
    }
  return any && !l->failed;
}

/* ---- the progress thread --------------------------------------------------
 */

/* 50 us: shorter than a piece takes, and rare enough to leave the processor to
 * the threads that compute. */
static void mpi_nap(void) {
  struct timespec moment = {0, 50000};
  nanosleep(&moment, NULL);
}

static void *progress_thread(void *context) {
  mpi_link *l = context;
  pthread_mutex_lock(&mpi_lock);
  while (!l->closing) {
    bool waiting = l->here.target >= 0; /* then the rank's thread calls carry */
    if (waiting || !mpi_carry(l)) {
      pthread_cond_wait(&l->work, &mpi_lock);
      continue;
    }
    pthread_mutex_unlock(&mpi_lock);
    mpi_nap();
    pthread_mutex_lock(&mpi_lock);
  }
  pthread_mutex_unlock(&mpi_lock);
  return NULL;
}

/* ---- the link ------------------------------------------------------------ */

static mpi_half mpi_half_new(int32_t index, int32_t peer, const void *at,
                             int64_t bytes) {
  return (mpi_half){peer,  TAG_ROWS + index, (char *)(uintptr_t)at,
                    bytes, MPI_REQUEST_NULL, peer >= 0 && bytes == 0};
}

static dil_status mpi_post(dil_link *link, int32_t index,
                           const link_transfer *t) {
  mpi_link *l = (mpi_link *)link;
  mpi_slot *s = &l->slot[index];
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "MPI moves memory of the host alone");
  pthread_mutex_lock(&mpi_lock);
  if (!l->failed) {
    *s = (mpi_slot){mpi_half_new(index, t->to, t->send, t->send_bytes),
                    mpi_half_new(index, t->from, t->receive, t->receive_bytes),
                    true, mpi_seconds()};
    mpi_carry_slot(l, s);
    pthread_cond_signal(&l->work);
  }
  dil_status status = mpi_verdict(l);
  pthread_mutex_unlock(&mpi_lock);
  return status;
}

/* It yields at first, without sleep: most messages are there already. */
static void mpi_rest(int64_t turns) {
  if (turns < 2000) sched_yield();
  else
    mpi_nap();
}

/* Returns the time at which this rank's transfer last moved, or at which the
 * awaited rank's last heartbeat came. */
static double mpi_last_sign(const mpi_link *l, const mpi_slot *s,
                            double begun) {
  double sign = l->last_heartbeat[l->here.target];
  double since = s->moved > begun ? s->moved : begun;
  return since > sign ? since : sign;
}

/* Waits until the slot is done or the link has failed. The caller holds the
 * lock; the rests release it. */
static void mpi_wait_active(mpi_link *l, mpi_slot *s) {
  inquiry q = {0};
  double begun = mpi_seconds();
  for (int64_t turns = 0; !l->failed; turns++) {
    mpi_carry(l);
    if (!s->active)
      mpi_listen(l); /* a rank that fails sends its revoke
                          before it reuses its send buffers */
    if (!s->active || l->failed) return;
    bool receiving =
        mpi_has_more(&s->receive) || s->receive.request != MPI_REQUEST_NULL;
    l->here =
        (wait_report){receiving ? s->receive.peer : s->send.peer, l->link.step};
    mpi_listen(l);
    bool late = mpi_seconds() > mpi_last_sign(l, s, begun) + l->link.timeout;
    if (!late) q = (inquiry){0};
    else if (!l->failed)
      mpi_pursue(l, &q);
    pthread_mutex_unlock(&mpi_lock);
    link_heartbeat(&l->link);
    mpi_rest(turns);
    pthread_mutex_lock(&mpi_lock);
  }
}

static dil_status mpi_wait(dil_link *link, int32_t index) {
  mpi_link *l = (mpi_link *)link;
  pthread_mutex_lock(&mpi_lock);
  mpi_wait_active(l, &l->slot[index]);
  l->here.target = -1;
  pthread_cond_signal(&l->work);
  dil_status status = mpi_verdict(l);
  pthread_mutex_unlock(&mpi_lock);
  return status;
}

static dil_status mpi_check(dil_link *link) {
  mpi_link *l = (mpi_link *)link;
  pthread_mutex_lock(&mpi_lock);
  if (!l->failed) mpi_listen(l);
  dil_status status = mpi_verdict(l);
  pthread_mutex_unlock(&mpi_lock);
  return status;
}

static void mpi_heartbeat(dil_link *link) {
  mpi_link *l = (mpi_link *)link;
  pthread_mutex_lock(&mpi_lock);
  if (!l->failed) mpi_send_heartbeats(l);
  pthread_mutex_unlock(&mpi_lock);
}

/* Best effort: a rank that is gone never hears it, and a silent rank hears it
 * later. */
static void mpi_revoke(dil_link *link, const char *why) {
  mpi_link *l = (mpi_link *)link;
  pthread_mutex_lock(&mpi_lock);
  mpi_fail(l, "rank %d failed in step %d: %.180s",
           link_number(link, link->rank), link->step, why);
  for (int32_t i = 0; i < link->ranks; i++)
    if (i != link->rank && l->revokes[i] == MPI_REQUEST_NULL)
      MPI_Isend(l->reason, LINK_REASON, MPI_BYTE, i, TAG_REVOKE, l->comm,
                &l->revokes[i]);
  pthread_mutex_unlock(&mpi_lock);
}

/* MPI may still read a reason or an answer of the link: a rank that is gone
 * never takes a message. */
static bool mpi_is_read(mpi_link *l) {
  int sent = 1;
  MPI_Testall(l->link.ranks, l->revokes, &sent, MPI_STATUSES_IGNORE);
  for (int32_t i = 0; i < l->link.ranks && sent; i++)
    MPI_Test(&l->answer[i].request, &sent, MPI_STATUS_IGNORE);
  return !sent;
}

/* Frees the memory of a link that MPI does not read. Another lasts as long as
 * the process. */
static void mpi_release(mpi_link *l) {
  if (mpi_is_read(l)) return;
  free(l->answer);
  free(l->last_heartbeat);
  free(l->revokes);
  free(l);
}

static void mpi_free(dil_link *link) {
  mpi_link *l = (mpi_link *)link;
  pthread_mutex_lock(&mpi_lock);
  l->closing = true;
  pthread_cond_signal(&l->work);
  pthread_mutex_unlock(&mpi_lock);
  pthread_join(l->progress, NULL);
  pthread_mutex_lock(&mpi_lock);
  pthread_cond_destroy(&l->work);
  if (!l->failed) MPI_Comm_free(&l->comm);
  mpi_release(l);
  pthread_mutex_unlock(&mpi_lock);
}

static const link_calls mpi_calls = {.name = "mpi",
                                     .post = mpi_post,
                                     .wait = mpi_wait,
                                     .check = mpi_check,
                                     .heartbeat = mpi_heartbeat,
                                     .revoke = mpi_revoke,
                                     .free = mpi_free};

/* A link without its progress thread; NULL: there is no memory. */
static mpi_link *mpi_link_make(MPI_Comm comm, int rank, int ranks,
                               double timeout) {
  int32_t slots = ranks + 1;
  mpi_link *l = calloc(1, sizeof *l + (size_t)slots * sizeof(mpi_slot));
  mpi_answer *answer = calloc((size_t)ranks, sizeof *answer);
  double *last_heartbeat = calloc((size_t)ranks, sizeof *last_heartbeat);
  MPI_Request *revokes = calloc((size_t)ranks, sizeof *revokes);
  if (!l || !answer || !last_heartbeat || !revokes) {
    free(l);
    free(answer);
    free(last_heartbeat);
    free(revokes);
    return NULL;
  }
  l->link = (dil_link){
      .calls = &mpi_calls, .rank = rank, .ranks = ranks, .timeout = timeout};
  l->comm = comm;
  l->here.target = -1;
  l->answer = answer;
  l->last_heartbeat = last_heartbeat;
  l->revokes = revokes;
  for (int i = 0; i < ranks; i++)
    revokes[i] = answer[i].request = MPI_REQUEST_NULL;
  l->slots = slots;
  pthread_cond_init(&l->work, NULL);
  return l;
}

/* Undoes MPI_Comm_split and new_link; `l` may be NULL. */
static void mpi_discard(MPI_Comm comm, mpi_link *l) {
  pthread_mutex_lock(&mpi_lock);
  MPI_Comm_free(&comm);
  if (l) pthread_cond_destroy(&l->work);
  if (l) mpi_release(l);
  pthread_mutex_unlock(&mpi_lock);
}

dil_status mpi_link_new(MPI_Comm comm, double timeout, dil_link **link) {
  int rank = 0, ranks = 1;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);
  mpi_link *l = mpi_link_make(comm, rank, ranks, timeout);
  dil_status status = DIL_OK;
  if (!l)
    status = dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  else if (pthread_create(&l->progress, NULL, progress_thread, l))
    status = dil_fail(DIL_ENVIRONMENT, "no thread for the link of rank %d",
                      rank);
  if (status)
    mpi_discard(comm, l);
  else *link = &l->link;
  return status;
}
