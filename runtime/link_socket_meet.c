/* link_socket_meet.c - how ranks come together: see link.h. In: HOST:PORT, where
 * rank 0 listens, and a number for each. Out: a connection of each two, or who
 * has not come, or does not fit. Every rank listens somewhere; rank 0 tells the
 * others where, and each calls on those below it. */
#include "link_socket.h"
#include "clock.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PORT_MOST = 65535 };

static bool is_ours(const frame *f) {
  return !memcmp(f->magic, NET_MAGIC, sizeof f->magic);
}

bool socket_is_address(const char *text) {
  return strchr(text, ':') && !strchr(text, '/');
}

/* "host:port", "[::1]:port". */
static dil_status resolve(const char *text, struct addrinfo **found) {
  char host[256];
  const char *colon = strrchr(text, ':');
  char *end;
  long port = strtol(colon + 1, &end, 10);
  size_t size = (size_t)(colon - text), skip = *text == '[' && size > 1;
  if (*end || end == colon + 1 || port < 1 || port > PORT_MOST || !size ||
      size >= sizeof host)
    return dil_fail(DIL_USAGE, "'%s' is no HOST:PORT, with a port of 1..%d (the "
                    "path of a file has a '/')", text, PORT_MOST);
  snprintf(host, sizeof host, "%.*s", (int)(size - 2 * skip), text + skip);
  const struct addrinfo how = {.ai_socktype = SOCK_STREAM};
  int code = getaddrinfo(host, colon + 1, &how, found);
  return code ? dil_fail(DIL_USAGE, "there is no host '%s': %s", host,
                         gai_strerror(code))
              : DIL_OK;
}

static void set_port(struct sockaddr_storage *at, int port) {
  if (at->ss_family == AF_INET6)
    ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
  else ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

static int port_of(const struct sockaddr_storage *at) {
  return ntohs(at->ss_family == AF_INET6
                   ? ((const struct sockaddr_in6 *)at)->sin6_port
                   : ((const struct sockaddr_in *)at)->sin_port);
}

/* On every address of this host. *port 0: any, and which. */
static int listen_at(int family, int *port) {
  struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
  socklen_t size = family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                      : sizeof(struct sockaddr_in);
  int yes = 1, file = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  set_port(&at, *port);
  if (file < 0) return -1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(file, (struct sockaddr *)&at, size) || listen(file, SOMAXCONN) ||
      getsockname(file, (struct sockaddr *)&at, &size)) {
    close(file);
    return -1;
  }
  *port = port_of(&at);
  return file;
}

static int connect_to(const struct sockaddr_storage *at, double end) {
  socklen_t size = at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                             : sizeof(struct sockaddr_in);
  for (; clock_seconds() < end; usleep(20000)) {
    int file = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0) return -1;
    if (!connect(file, (const struct sockaddr *)at, size)) return file;
    close(file);
  }
  return -1;
}

/* Nothing is waited for beyond the end. */
static void limit(int file, double end) {
  double left = end - clock_seconds();
  int yes = 1;
  if (left < 0.01) left = 0.01;
  struct timeval t = {(time_t)left,
                      (suseconds_t)((left - (double)(time_t)left) * 1e6)};
  setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static bool say(int file, const void *what, size_t size) {
  return send(file, what, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool hear(int file, void *what, size_t size) {
  return recv(file, what, size, MSG_WAITALL) == (ssize_t)size;
}

/* A rank comes to who listens; others that call are sent away. */
static dil_status welcome(net *n, int listening, double end) {
  struct pollfd wait = {listening, POLLIN, 0};
  struct sockaddr_storage from;
  socklen_t size = sizeof from;
  frame f;
  int left = (int)((end - clock_seconds()) * 1e3);
  if (left <= 0 || poll(&wait, 1, left) <= 0) return DIL_OK; /* asked again */
  int file = accept4(listening, (struct sockaddr *)&from, &size, SOCK_CLOEXEC);
  if (file < 0) return DIL_OK;
  limit(file, end);
  if (!hear(file, &f, sizeof f) || !is_ours(&f)) {
    close(file);
    return DIL_OK;
  }
  bool fits = f.ranks == n->ranks && f.rank > 0 && f.rank < n->ranks;
  if (fits && n->peer[f.rank].file < 0) {
    n->peer[f.rank].file = file;
    set_port(&from, f.port);
    n->place[f.rank] = from;
    return DIL_OK;
  }
  if (fits) dil_fail(DIL_PEER, "two processes are rank %d", f.rank);
  else
    dil_fail(DIL_PEER, "a process is rank %d of %d, here are %d", f.rank,
             f.ranks, n->ranks);
  net_fail(n, dil_last_error());
  frame no = net_frame(n, FAILED, (int64_t)strlen(n->reason));
  if (say(file, &no, sizeof no)) say(file, n->reason, strlen(n->reason));
  close(file);
  return DIL_PEER;
}

static dil_status welcome_all(net *n, int listening, int32_t first,
                              double end) {
  dil_status status = DIL_OK;
  int32_t here = 0;
  while (!status && clock_seconds() < end) {
    here = 0;
    for (int32_t i = first; i < n->ranks; i++) here += n->peer[i].file >= 0;
    if (here == n->ranks - first) return DIL_OK;
    status = welcome(n, listening, end);
  }
  return status ? status
                : dil_fail(DIL_PEER, "%d of %d ranks have come in time",
                           here + first, n->ranks);
}

/* Rank 0 answers with where all are, or with what is wrong. */
static dil_status hear_places(net *n, int file) {
  char why[REASON] = "";
  frame f;
  if (!hear(file, &f, sizeof f) || !is_ours(&f))
    return dil_fail(DIL_PEER, "rank 0 has not answered in time");
  if (f.kind == FAILED) {
    hear(file, why, f.size < REASON ? (size_t)f.size : REASON - 1);
    return dil_fail(DIL_PEER, "%s", why);
  }
  return hear(file, n->place, (size_t)f.size)
             ? DIL_OK
             : dil_fail(DIL_PEER, "rank 0 has ended while ranks met");
}

static dil_status call_on(net *n, int32_t to, int port, double end) {
  frame f = net_frame(n, MESSAGE, 0);
  int file = n->peer[to].file = connect_to(&n->place[to], end);
  f.port = port;
  if (file >= 0) limit(file, end);
  if (file >= 0 && say(file, &f, sizeof f)) return DIL_OK;
  return dil_fail(DIL_PEER, "rank %d does not listen where it is said to be",
                  to);
}

static dil_status lead(net *n, int port, double end) {
  size_t size = (size_t)n->ranks * sizeof *n->place;
  int listening = listen_at(n->place[0].ss_family, &port);
  if (listening < 0)
    return dil_fail(DIL_ENVIRONMENT, "rank 0 cannot listen at port %d: %s",
                    port, strerror(errno));
  dil_status status = welcome_all(n, listening, 1, end);
  close(listening);
  if (status) net_fail(n, dil_last_error());
  frame f = net_frame(n, MESSAGE, (int64_t)size);
  for (int32_t i = 1; i < n->ranks && !status; i++)
    if (!say(n->peer[i].file, &f, sizeof f) ||
        !say(n->peer[i].file, n->place, size))
      status = dil_fail(DIL_PEER, "rank %d has ended while ranks met", i);
  return status;
}

/* Calls on the ranks below its own, and is called by those above. */
static dil_status follow(net *n, double end) {
  int port = 0, listening = listen_at(n->place[0].ss_family, &port);
  if (listening < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot listen: %s", strerror(errno));
  dil_status status = call_on(n, 0, port, end);
  if (!status) status = hear_places(n, n->peer[0].file);
  for (int32_t i = 1; i < n->rank && !status; i++)
    status = call_on(n, i, port, end);
  if (!status) status = welcome_all(n, listening, n->rank + 1, end);
  close(listening);
  return status;
}

dil_status net_meet(net *n, const char *address, double patience) {
  double end = clock_seconds() + patience;
  struct addrinfo *found;
  dil_status status = resolve(address, &found);
  if (status) return status;
  memcpy(&n->place[0], found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return n->rank ? follow(n, end) : lead(n, port_of(&n->place[0]), end);
}

