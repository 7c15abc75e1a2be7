/* silent_rank.c - finds the silent rank behind a wait. In: a wait that has
 * timed out. Out: a failure that names the silent rank. A rank that waits
 * itself answers with the rank that it waits for. A rank that does not answer
 * is frozen, gone, or busy for longer than a timeout. This file also receives
 * revokes and sends and receives heartbeats. */
#include "link_mpi.h"

/* Returns the seconds that an answer may take. */
static double mpi_patience(const mpi_link *l) {
  double share = l->link.timeout / 4;
  return share < 0.5 ? share : 0.5;
}

static bool mpi_has_come(mpi_link *l, int source, int tag, MPI_Status *status) {
  int here = 0;
  return mpi_good(l, MPI_Iprobe(source, tag, l->comm, &here, status),
                  "look for a message") &&
         here;
}

static void mpi_receive_revoke(mpi_link *l) {
  MPI_Status status;
  char words[LINK_REASON];
  if (!mpi_has_come(l, MPI_ANY_SOURCE, TAG_REVOKE, &status)) return;
  MPI_Recv(words, LINK_REASON, MPI_BYTE, status.MPI_SOURCE, TAG_REVOKE,
           l->comm, MPI_STATUS_IGNORE);
  words[LINK_REASON - 1] = 0;
  mpi_fail(l, "%s", words);
}

/* Sends a message of no bytes and does not wait for its end: the receiver may
 * be gone. */
static void mpi_send_signal(mpi_link *l, int32_t to, int tag) {
  MPI_Request request;
  if (mpi_good(l, MPI_Isend(NULL, 0, MPI_BYTE, to, tag, l->comm, &request),
               "send"))
    MPI_Request_free(&request);
}

static void mpi_receive_question(mpi_link *l) {
  MPI_Status status;
  if (!mpi_has_come(l, MPI_ANY_SOURCE, TAG_QUESTION, &status)) return;
  int32_t from = status.MPI_SOURCE;
  MPI_Recv(NULL, 0, MPI_BYTE, from, TAG_QUESTION, l->comm, MPI_STATUS_IGNORE);
  l->answer[from].owed = true;
}

/* Answers a rank, unless MPI still reads the answer before. */
static void mpi_send_answer(mpi_link *l, int32_t to) {
  mpi_answer *a = &l->answer[to];
  int sent = 0;
  if (!mpi_good(l, MPI_Test(&a->request, &sent, MPI_STATUS_IGNORE), "answer") ||
      !sent)
    return;
  a->owed = false;
  a->report = l->here;
  mpi_good(l,
           MPI_Isend(&a->report, sizeof a->report, MPI_BYTE, to, TAG_ANSWER,
                     l->comm, &a->request),
           "answer");
}

static void mpi_answer_questions(mpi_link *l) {
  mpi_receive_question(l);
  for (int32_t i = 0; i < l->link.ranks && !l->failed; i++)
    if (l->answer[i].owed) mpi_send_answer(l, i);
}

static void mpi_receive_heartbeats(mpi_link *l) {
  MPI_Status status;
  while (mpi_has_come(l, MPI_ANY_SOURCE, TAG_HEARTBEAT, &status)) {
    MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_HEARTBEAT, l->comm,
             MPI_STATUS_IGNORE);
    l->last_heartbeat[status.MPI_SOURCE] = mpi_seconds();
  }
}

void mpi_send_heartbeats(mpi_link *l) {
  for (int32_t i = 0; i < l->link.ranks && !l->failed; i++)
    if (i != l->link.rank) mpi_send_signal(l, i, TAG_HEARTBEAT);
}

void mpi_listen(mpi_link *l) {
  mpi_receive_revoke(l);
  if (!l->failed) mpi_receive_heartbeats(l);
  if (!l->failed) mpi_answer_questions(l);
}

static void mpi_give_up(mpi_link *l, int32_t silent, int32_t by, int32_t step) {
  mpi_fail(l,
           "rank %d is silent: rank %d waited for it in step %d, at most "
           "%g s",
           link_number(&l->link, silent), link_number(&l->link, by), step,
           l->link.timeout);
}

static bool mpi_receive_answer(mpi_link *l, int32_t suspect,
                               wait_report *said) {
  MPI_Status status;
  if (!mpi_has_come(l, suspect, TAG_ANSWER, &status)) return false;
  MPI_Recv(said, sizeof *said, MPI_BYTE, suspect, TAG_ANSWER, l->comm,
           MPI_STATUS_IGNORE);
  return true;
}

/* Sends a question. First it drops answers that are still there: they belong to
 * an earlier inquiry, whose wait went on. */
static void mpi_ask(mpi_link *l, inquiry *q, int32_t suspect, int32_t by,
                    int32_t step) {
  wait_report former;
  while (mpi_receive_answer(l, suspect, &former)) continue;
  q->asked = mpi_seconds();
  q->suspect = suspect;
  q->by = by;
  q->step = step;
  mpi_send_signal(l, suspect, TAG_QUESTION);
}

/* Follows an answer. If the waits form a circle, this rank names the rank that
 * it waits for. */
static void mpi_follow(mpi_link *l, inquiry *q, wait_report said) {
  if (said.target < 0)
    mpi_give_up(l, q->suspect, q->by, q->step);
  else if (said.target == l->link.rank || ++q->hops > l->link.ranks)
    mpi_give_up(l, l->here.target, l->link.rank, l->here.step);
  else
    mpi_ask(l, q, said.target, q->suspect, said.step);
}

void mpi_pursue(mpi_link *l, inquiry *q) {
  wait_report said;
  if (q->asked == 0) {
    mpi_ask(l, q, l->here.target, l->link.rank, l->here.step);
    return;
  }
  if (mpi_receive_answer(l, q->suspect, &said))
    mpi_follow(l, q, said);
  else if (mpi_seconds() > q->asked + mpi_patience(l))
    mpi_give_up(l, q->suspect, q->by, q->step);
}
