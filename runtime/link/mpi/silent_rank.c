/* silent_rank.c - finds the silent rank behind a wait. In: a wait that has
 * timed out. Out: a failure that names the silent rank. A rank that waits
 * itself answers with the rank that it waits for. A rank that does not answer
 * is frozen, gone, or busy for longer than a timeout. This file also receives
 * revokes and sends and receives heartbeats. */
#include "link_mpi.h"

/* How long an answer may take, in seconds. */
static double patience(const mpi_link *l) {
  double share = l->link.timeout / 4;
  return share < 0.5 ? share : 0.5;
}

static bool has_come(mpi_link *l, int source, int tag, MPI_Status *status) {
  int here = 0;
  return link_good(l, MPI_Iprobe(source, tag, l->comm, &here, status),
                   "look for a message") &&
         here;
}

static void hear_revoke(mpi_link *l) {
  MPI_Status status;
  char words[LINK_REASON];
  if (!has_come(l, MPI_ANY_SOURCE, TAG_REVOKE, &status)) return;
  MPI_Recv(words, LINK_REASON, MPI_BYTE, status.MPI_SOURCE, TAG_REVOKE,
           l->comm, MPI_STATUS_IGNORE);
  words[LINK_REASON - 1] = 0;
  link_fail(l, "%s", words);
}

/* Sends a word and does not wait for its end: the receiver may be gone. */
static void send_word(mpi_link *l, int32_t to, int tag, const void *word,
                      int bytes) {
  MPI_Request request;
  if (link_good(l, MPI_Isend(word, bytes, MPI_BYTE, to, tag, l->comm, &request),
                "send"))
    MPI_Request_free(&request);
}

static void answer_question(mpi_link *l) {
  MPI_Status status;
  if (!has_come(l, MPI_ANY_SOURCE, TAG_QUESTION, &status)) return;
  int32_t from = status.MPI_SOURCE;
  MPI_Recv(NULL, 0, MPI_BYTE, from, TAG_QUESTION, l->comm, MPI_STATUS_IGNORE);
  l->answer[from] = l->here;
  send_word(l, from, TAG_ANSWER, &l->answer[from], sizeof(wait_word));
}

static void hear_lives(mpi_link *l) {
  MPI_Status status;
  while (has_come(l, MPI_ANY_SOURCE, TAG_LIVES, &status)) {
    MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_LIVES, l->comm,
             MPI_STATUS_IGNORE);
    l->lived[status.MPI_SOURCE] = link_seconds();
  }
}

void blame_live(mpi_link *l) {
  for (int32_t i = 0; i < l->link.ranks && !l->failed; i++)
    if (i != l->link.rank) send_word(l, i, TAG_LIVES, NULL, 0);
}

void blame_listen(mpi_link *l) {
  hear_revoke(l);
  if (!l->failed) hear_lives(l);
  if (!l->failed) answer_question(l);
}

static void give_up(mpi_link *l, int32_t silent, int32_t by, int32_t step) {
  link_fail(l, "rank %d is silent: rank %d waited for it in step %d, at most "
            "%g s", link_number(&l->link, silent), link_number(&l->link, by),
            step, l->link.timeout);
}

static bool hear_answer(mpi_link *l, int32_t suspect, wait_word *said) {
  MPI_Status status;
  if (!has_come(l, suspect, TAG_ANSWER, &status)) return false;
  MPI_Recv(said, sizeof *said, MPI_BYTE, suspect, TAG_ANSWER, l->comm,
           MPI_STATUS_IGNORE);
  return true;
}

/* Sends a question. First it drops answers that are still there: they belong to
 * an earlier inquiry, whose wait went on. */
static void ask(mpi_link *l, inquiry *q, int32_t suspect, int32_t by,
                int32_t step) {
  wait_word former;
  while (hear_answer(l, suspect, &former)) continue;
  q->asked = link_seconds();
  q->suspect = suspect;
  q->by = by;
  q->step = step;
  send_word(l, suspect, TAG_QUESTION, NULL, 0);
}

/* Follows an answer. If the waits form a circle, this rank names the rank that
 * it waits for. */
static void follow(mpi_link *l, inquiry *q, wait_word said) {
  if (said.target < 0) give_up(l, q->suspect, q->by, q->step);
  else if (said.target == l->link.rank || ++q->hops > l->link.ranks)
    give_up(l, l->here.target, l->link.rank, l->here.step);
  else ask(l, q, said.target, q->suspect, said.step);
}

void blame_pursue(mpi_link *l, inquiry *q) {
  wait_word said;
  if (q->asked == 0) {
    ask(l, q, l->here.target, l->link.rank, l->here.step);
    return;
  }
  if (hear_answer(l, q->suspect, &said))
    follow(l, q, said);
  else if (link_seconds() > q->asked + patience(l))
    give_up(l, q->suspect, q->by, q->step);
}
