/* link_socket_accept.c - accepts connections at a rank's port. In: connections
 * of any process. Out: the connections on which a frame of dil has come. It
 * closes the others: at once if they send anything else or end, else after
 * HEARD_IN seconds. Ranks that come after the rendezvous get the reason first.
 * */
#include "link_socket.h"
#include "runtime/base/clock.h"
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEARD_IN = 5 }; /* seconds: a rank sends its first frame at once */

static int take_out(net *n, int32_t index) {
  int file = n->caller[index].file;
  n->callers--;
  memmove(&n->caller[index], &n->caller[index + 1],
          (size_t)(n->callers - index) * sizeof *n->caller);
  return file;
}

/* Accepts a connection. If there are too many, the oldest caller goes. */
static void let_in(net *n) {
  int file = accept4(n->listening, NULL, NULL, SOCK_CLOEXEC);
  if (file < 0) return;
  if (n->callers == CALLERS) close(take_out(n, 0));
  n->caller[n->callers++] =
      (caller){.file = file, .end = clock_seconds() + HEARD_IN};
}

/* Whether the first frame is complete; for another version of dil the magic is
 * enough, because its frames may have another size. */
static bool is_heard(const caller *c) {
  return c->got == sizeof c->said ||
         (c->got >= sizeof c->said.magic && !net_is_ours(&c->said));
}

/* False: it has closed the connection, is no dil, or has taken too long. */
static bool is_welcome(caller *c) {
  ssize_t got = recv(c->file, (char *)&c->said + c->got,
                     sizeof c->said - c->got, MSG_DONTWAIT);
  bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (got > 0) c->got += (size_t)got;
  if (got <= 0 && !later) return false;
  if (c->got >= sizeof c->said.magic && !net_is_of_dil(&c->said)) return false;
  return is_heard(c) || clock_seconds() < c->end;
}

/* Waits for an event at any connection and accepts a new one. False: it is past
 * `end`, and nothing has happened. */
static bool await_callers(net *n, double end) {
  enum { TURN = 100 }; /* milliseconds */
  struct pollfd wait[1 + CALLERS] = {{n->listening, POLLIN, 0}};
  double left = 1e3 * (end - clock_seconds());
  for (int32_t i = 0; i < n->callers; i++)
    wait[1 + i] = (struct pollfd){n->caller[i].file, POLLIN, 0};
  int happened = poll(wait, 1 + (nfds_t)n->callers,
                      left <= 0 ? 0 : left < TURN ? (int)left + 1 : TURN);
  if (happened > 0 && wait[0].revents) let_in(n);
  return happened > 0 || left > 0;
}

int net_answer(net *n, double end, frame *said) {
  do {
    for (int32_t i = 0; i < n->callers;) {
      caller *c = &n->caller[i];
      bool welcome = is_welcome(c);
      if (welcome && !is_heard(c)) {
        i++;
        continue;
      }
      *said = net_is_ours(&c->said) ? c->said : (frame){.kind = COMES};
      int file = take_out(n, i);
      if (welcome) return file;
      close(file);
    }
  } while (await_callers(n, end));
  return -1;
}

void net_print_who(int file, bool here, int32_t process, char words[WHO]) {
  static const char mapped[] = "::ffff:"; /* prefix of a mapped IPv4 address */
  enum { MAPPED = sizeof mapped - 1 };
  struct sockaddr_storage at;
  socklen_t size = sizeof at;
  char host[56];
  int failed = here ? getsockname(file, (struct sockaddr *)&at, &size)
                    : getpeername(file, (struct sockaddr *)&at, &size);
  if (failed || getnameinfo((struct sockaddr *)&at, size, host, sizeof host,
                            NULL, 0, NI_NUMERICHOST))
    snprintf(host, sizeof host, "a host that is gone");
  const char *on = host + (strncmp(host, mapped, MAPPED) ? 0 : MAPPED);
  if (process) snprintf(words, WHO, "process %d on %s", process, on);
  else snprintf(words, WHO, "a process on %s", on);
}

void net_turn_away(const net *n, int file, const char *why) {
  frame f = net_frame(n, FAILED, (int64_t)strlen(why));
  char rest[256];
  if (net_say(file, &f, sizeof f)) net_say(file, why, strlen(why));
  recv(file, rest, sizeof rest, MSG_DONTWAIT); /* unread data would reset it */
  close(file);
}

void net_send_away(const net *n, int file, const frame *said) {
  char who[WHO], why[REASON];
  int32_t rank = said->rank;
  bool fits = said->ranks == n->ranks && rank >= 0 && rank < n->ranks;
  if (said->kind != COMES) {
    close(file);
    return;
  }
  snprintf(why, sizeof why, "all %d ranks have met there already", n->ranks);
  if (fits) {
    bool here = rank == n->rank;
    net_print_who(here ? file : n->peer[rank].file, here,
                  n->peer[rank].process, who);
    snprintf(why, sizeof why, "rank %d has come already, as %s: each process "
             "has a rank of its own", rank, who);
  }
  net_turn_away(n, file, why);
}

bool net_returns(net *n, int file, const frame *said) {
  if (said->kind != RETURNS || said->ranks != n->ranks || said->rank < 0 ||
      said->rank >= n->ranks || said->rank == n->rank)
    return false;
  peer *p = &n->peer[said->rank];
  if (p->returned >= 0) close(p->returned);
  p->returned = file;
  return true;
}

/* A rank that returns may know of a failure before this rank does. */
void net_look_out(net *n) {
  frame f;
  for (int file; (file = net_answer(n, 0, &f)) >= 0;)
    if (!net_returns(n, file, &f)) net_send_away(n, file, &f);
}
