/* link_socket_failure.c - failure agreement: which ranks remain after a net has
 * failed. In: a guess of the lost ranks, and where all ranks listen. Out: the
 * same answer on all remaining ranks.
 *
 * The lowest rank that is not thought lost leads. It waits until all other such
 * ranks have returned to it, and tells them which ranks have. If the leader is
 * gone as well, the next rank leads. Two groups that cannot reach each other
 * may each think the other lost. So a group goes on only if it is a majority of
 * the ranks that may run. A rank whose host refuses its port has ended. */
#include "link_socket.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <string.h>
#include <unistd.h>

/* Accepts one connection, of a rank that returns or of another process. */
static void net_take_one(net *n) {
  frame f;
  int called = net_accept(n, clock_seconds() + 0.05, &f);
  if (called < 0) return;
  if (!net_returns(n, called, &f)) net_refuse(n, called, &f);
}

static bool net_all_returned(const net *n) {
  for (int32_t i = 0; i < n->ranks; i++)
    if (i != n->rank && !n->lost[i] && n->peer[i].returned < 0) return false;
  return true;
}

bool net_may_run(const net *n, int32_t rank) {
  bool refused;
  int file = net_connect(&n->address[rank], clock_seconds() + 1, &refused);
  if (file >= 0) close(file);
  return !refused;
}

static bool net_is_majority(const net *n) {
  int32_t left = 0, perhaps = 0;
  for (int32_t i = 0; i < n->ranks; i++) {
    left += !n->lost[i];
    perhaps += n->lost[i] && net_may_run(n, i);
  }
  if (left > perhaps) return true;
  dil_fail(DIL_PEER, "%.120s; %d of %d ranks cannot tell whether the others are "
           "frozen or go on elsewhere, and end", n->reason, left, n->ranks);
  return false;
}

static bool net_agree_lead(net *n, double end) {
  while (!net_all_returned(n) && clock_seconds() < end) net_take_one(n);
  for (int32_t i = 0; i < n->ranks; i++)
    n->lost[i] = i != n->rank && n->peer[i].returned < 0;
  bool enough = net_is_majority(n);
  const char *why = dil_last_error();
  frame f = net_frame(n, enough ? FRAME_REMAINS : FRAME_FAILED,
                      enough ? n->ranks : (int64_t)strlen(why));
  for (int32_t i = 0; i < n->ranks; i++) {
    int file = n->peer[i].returned;
    if (file < 0) continue;
    if (net_send(file, &f, sizeof f))
      net_send(file, enough ? (const void *)n->lost : why, (size_t)f.size);
    close(file);
    n->peer[i].returned = -1;
  }
  return enough;
}

/* Asks the leader `first`. True: it has answered; *known: it has agreed with a
 * majority, and n->lost has the result. */
static bool net_agree_ask(net *n, int32_t first, double end, bool *known) {
  char why[REASON] = "";
  bool refused, answered = false;
  frame f = net_frame(n, FRAME_RETURNS, 0);
  int file = net_connect(&n->address[first], end, &refused);
  if (file < 0) return false;
  net_set_deadline(file, end);
  if (net_send(file, &f, sizeof f) && net_receive(file, &f, sizeof f) &&
      net_is_ours(&f) && f.ranks == n->ranks) {
    *known = f.kind == FRAME_REMAINS && f.size == n->ranks;
    answered = *known ? net_receive(file, n->lost, (size_t)f.size)
                      : net_receive_reason(file, &f, why);
  }
  if (answered && !*known) dil_fail(DIL_PEER, "%s", why);
  close(file);
  return answered;
}

bool net_agree(net *n, double timeout) {
  double patience = timeout + 2; /* seconds: a rank that computes comes late */
  bool known = false;
  int32_t culprit = n->culprit;
  if (culprit >= 0) /* the culprit may run, if it only reported another rank */
    n->lost[culprit] = culprit == n->rank || n->silent || !net_may_run(n, culprit);
  if (culprit == n->rank) return true; /* this rank itself cannot go on */
  for (int32_t i = 0; i < n->rank; i++) {
    if (n->lost[i]) continue;
    if (net_agree_ask(n, i, clock_seconds() + patience + 2, &known))
      return known;
    n->lost[i] = true;
  }
  return net_agree_lead(n, clock_seconds() + patience);
}
