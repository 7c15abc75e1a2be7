/* link_socket_door.c - who comes to the port of a rank. In: connections of anybody.
 * Out: those on which a frame of this program has come. The others are sent away:
 * at once if they say something else or go, else in a while. */
#include "link_socket.h"
#include "clock.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { HEARD_IN = 5 }; /* seconds: ranks say at once who they are */

static int take_out(net *n, int32_t index) {
  int file = n->caller[index].file;
  n->callers--;
  memmove(&n->caller[index], &n->caller[index + 1],
          (size_t)(n->callers - index) * sizeof *n->caller);
  return file;
}

/* Where there are too many, who has said nothing for the longest goes. */
static void let_in(net *n) {
  int file = accept4(n->listening, NULL, NULL, SOCK_CLOEXEC);
  if (file < 0) return;
  if (n->callers == CALLERS) close(take_out(n, 0));
  n->caller[n->callers++] =
      (caller){.file = file, .end = clock_seconds() + HEARD_IN};
}

/* False: it has gone, or is nobody of ours, or has taken too long. */
static bool is_welcome(caller *c) {
  ssize_t got = recv(c->file, (char *)&c->said + c->got,
                     sizeof c->said - c->got, MSG_DONTWAIT);
  bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (got > 0) c->got += (size_t)got;
  if (got <= 0 && !later) return false;
  if (c->got >= sizeof c->said.magic && !net_is_ours(&c->said)) return false;
  return c->got == sizeof c->said || clock_seconds() < c->end;
}

/* Something has happened: who has come is let in. */
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
      if (welcome && c->got < sizeof c->said) {
        i++;
        continue;
      }
      *said = c->said;
      int file = take_out(n, i);
      if (welcome) return file;
      close(file);
    }
  } while (await_callers(n, end));
  return -1;
}
