/* link_socket_accept.c - accepts connections at a rank's port. In: connections
 * of any process. Out: the connections on which a frame of dil has come. It
 * closes the other connections: at once if they send anything else or end, else
 * after HEARD_IN seconds. Ranks that come after the rendezvous get the reason
 * first. */
#include "link_socket.h"
#include "runtime/base/clock.h"
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HEARD_IN = 5 }; /* seconds: a rank sends its first frame at once */

static int caller_remove(net *n, int32_t index) {
  int file = n->caller[index].file;
  n->callers--;
  memmove(&n->caller[index], &n->caller[index + 1],
          (size_t)(n->callers - index) * sizeof *n->caller);
  return file;
}

/* Accepts a connection. If there are too many, the oldest caller goes. */
static void net_let_in(net *n) {
  int file = accept4(n->listening, NULL, NULL, SOCK_CLOEXEC);
  if (file < 0) return;
  if (n->callers == CALLERS) close(caller_remove(n, 0));
  n->caller[n->callers++] =
      (caller){.file = file, .end = clock_seconds() + HEARD_IN};
}

/* Returns whether the first frame is complete; for another version of dil the
 * magic is enough, because its frames may have another size. */
static bool caller_is_heard(const caller *c) {
  return c->got == sizeof c->first ||
         (c->got >= sizeof c->first.magic && !net_is_ours(&c->first));
}

/* False: the caller has closed the connection, is no rank of dil, or has taken
 * too long. */
static bool caller_is_welcome(caller *c) {
  ssize_t got = recv(c->file, (char *)&c->first + c->got,
                     sizeof c->first - c->got, MSG_DONTWAIT);
  bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (got > 0) c->got += (size_t)got;
  if (got <= 0 && !later) return false;
  if (c->got >= sizeof c->first.magic && !net_is_of_dil(&c->first))
    return false;
  return caller_is_heard(c) || clock_seconds() < c->end;
}

/* Waits for an event at any connection and accepts a new one. False: it is past
 * `end`, and nothing has happened. */
static bool net_await_callers(net *n, double end) {
  enum { TURN = 100 }; /* milliseconds */
  struct pollfd wait[1 + CALLERS] = {{n->listening, POLLIN, 0}};
  double left = 1e3 * (end - clock_seconds());
  for (int32_t i = 0; i < n->callers; i++)
    wait[1 + i] = (struct pollfd){n->caller[i].file, POLLIN, 0};
  int happened = poll(wait, 1 + (nfds_t)n->callers,
                      left <= 0 ? 0 : left < TURN ? (int)left + 1 : TURN);
  if (happened > 0 && wait[0].revents) net_let_in(n);
  return happened > 0 || left > 0;
}

int net_accept(net *n, double end, frame *first) {
  do {
    for (int32_t i = 0; i < n->callers;) {
      caller *c = &n->caller[i];
      bool welcome = caller_is_welcome(c);
      if (welcome && !caller_is_heard(c)) {
        i++;
        continue;
      }
      *first = net_is_ours(&c->first) ? c->first : (frame){.kind = FRAME_COMES};
      int file = caller_remove(n, i);
      if (welcome) return file;
      close(file);
    }
  } while (net_await_callers(n, end));
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

void net_reject(const net *n, int file, const char *why) {
  frame f = net_frame(n, FRAME_FAILED, (int64_t)strlen(why));
  char rest[256];
  if (net_send(file, &f, sizeof f)) net_send(file, why, strlen(why));
  recv(file, rest, sizeof rest, MSG_DONTWAIT); /* unread data would reset it */
  close(file);
}

void net_refuse(const net *n, int file, const frame *first) {
  char who[WHO], why[REASON];
  int32_t rank = first->rank;
  bool fits = first->ranks == n->ranks && rank >= 0 && rank < n->ranks;
  if (first->kind != FRAME_COMES) {
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
  net_reject(n, file, why);
}

bool net_returns(net *n, int file, const frame *first) {
  if (first->kind != FRAME_RETURNS || first->ranks != n->ranks ||
      first->rank < 0 || first->rank >= n->ranks || first->rank == n->rank)
    return false;
  peer *p = &n->peer[first->rank];
  if (p->returned >= 0) close(p->returned);
  p->returned = file;
  return true;
}

/* A rank that returns may know of a failure before this rank does. */
void net_serve_callers(net *n) {
  frame f;
  for (int file; (file = net_accept(n, 0, &f)) >= 0;)
    if (!net_returns(n, file, &f)) net_refuse(n, file, &f);
}
