/* link_socket_lost.c - who is left of ranks whose net has failed. In: a guess who
 * is lost, and where all listen. Out: the same answer on all that are left.
 *
 * The lowest rank that is not thought lost waits until all others that are not
 * have returned to it, and tells them who has; where it is gone as well, the next
 * one does. Ranks that cannot hear each other may each think so of the others: so
 * many go on only as are more than half of those that may still run. Who ends is
 * known to: its host refuses its port. */
#include "link_socket.h"
#include "clock.h"
#include <string.h>
#include <unistd.h>

/* Somebody calls: a rank that returns, or nobody of ours. */
static void take_one(net *n) {
  frame f;
  int called = net_answer(n, clock_seconds() + 0.05, &f);
  if (called < 0) return;
  if (!net_returns(n, called, &f)) net_send_away(n, called, &f);
}

static bool all_are_here(const net *n) {
  for (int32_t i = 0; i < n->ranks; i++)
    if (i != n->rank && !n->lost[i] && n->peer[i].returned < 0) return false;
  return true;
}

bool net_may_run(const net *n, int32_t rank) {
  bool refused;
  int file = net_connect(&n->place[rank], clock_seconds() + 1, &refused);
  if (file >= 0) close(file);
  return !refused;
}

static bool is_enough(const net *n) {
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

static bool lead(net *n, double end) {
  while (!all_are_here(n) && clock_seconds() < end) take_one(n);
  for (int32_t i = 0; i < n->ranks; i++)
    n->lost[i] = i != n->rank && n->peer[i].returned < 0;
  bool enough = is_enough(n);
  const char *why = dil_last_error();
  frame f = net_frame(n, enough ? REMAINS : FAILED,
                      enough ? n->ranks : (int64_t)strlen(why));
  for (int32_t i = 0; i < n->ranks; i++) {
    int file = n->peer[i].returned;
    if (file < 0) continue;
    if (net_say(file, &f, sizeof f))
      net_say(file, enough ? (const void *)n->lost : why, (size_t)f.size);
    close(file);
    n->peer[i].returned = -1;
  }
  return enough;
}

/* Whether that rank has answered, and then whether it knows. */
static bool ask(net *n, int32_t first, double end, bool *known) {
  char why[REASON] = "";
  bool refused, answered = false;
  frame f = net_frame(n, RETURNS, 0);
  int file = net_connect(&n->place[first], end, &refused);
  if (file < 0) return false;
  net_limit(file, end);
  if (net_say(file, &f, sizeof f) && net_hear(file, &f, sizeof f) &&
      net_is_ours(&f) && f.ranks == n->ranks) {
    *known = f.kind == REMAINS && f.size == n->ranks;
    answered = *known ? net_hear(file, n->lost, (size_t)f.size)
                      : net_hear_reason(file, &f, why);
  }
  if (answered && !*known) dil_fail(DIL_PEER, "%s", why);
  close(file);
  return answered;
}

bool net_agree(net *n, double timeout) {
  double patience = timeout + 2; /* seconds: who computes comes late */
  bool known = false;
  int32_t culprit = n->culprit;
  if (culprit >= 0) /* a connection may end with who only tells of another */
    n->lost[culprit] = culprit == n->rank || n->silent || !net_may_run(n, culprit);
  if (culprit == n->rank) return true; /* it knows that it cannot go on */
  for (int32_t i = 0; i < n->rank; i++) {
    if (n->lost[i]) continue;
    if (ask(n, i, clock_seconds() + patience + 2, &known)) return known;
    n->lost[i] = true;
  }
  return lead(n, clock_seconds() + patience);
}
