/* link_socket_rendezvous.c - the rendezvous of ranks: see link.h. In: HOST:PORT
 * where rank 0 listens, and a rank for each process. Out: a connection between
 * each two ranks, or the rank that has not come or does not fit. Every rank
 * listens at some port. Rank 0 sends all ranks the table of these addresses,
 * and each rank connects to the ranks below it. */
#include "link_socket.h"
#include "interface.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <fcntl.h>
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

bool net_is_ours(const frame *f) {
  return !memcmp(f->magic, NET_MAGIC, sizeof f->magic);
}

bool net_is_of_dil(const frame *f) {
  enum { LETTERS = sizeof NET_MAGIC - 2 }; /* without its version digit */
  return !memcmp(f->magic, NET_MAGIC, LETTERS);
}

bool socket_is_address(const char *text) {
  return strchr(text, ':') && !strchr(text, '/');
}

/* "host:port", "[::1]:port". */
static dil_status address_resolve(const char *text, struct addrinfo **found) {
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

static void address_set_port(struct sockaddr_storage *at, int port) {
  if (at->ss_family == AF_INET6)
    ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
  else ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

static int address_port(const struct sockaddr_storage *at) {
  return ntohs(at->ss_family == AF_INET6
                   ? ((const struct sockaddr_in6 *)at)->sin6_port
                   : ((const struct sockaddr_in *)at)->sin_port);
}

static socklen_t address_size(int family) {
  return family == AF_INET6 ? sizeof(struct sockaddr_in6)
                            : sizeof(struct sockaddr_in);
}

static int net_listen_in(int family, int *port) {
  struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
  socklen_t size = address_size(family);
  int yes = 1, no = 0, file = socket(family, SOCK_STREAM | SOCK_CLOEXEC |
                                             SOCK_NONBLOCK, 0);
  address_set_port(&at, *port);
  if (file < 0) return -1;
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (family == AF_INET6)
    setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (bind(file, (struct sockaddr *)&at, size) || listen(file, SOMAXCONN) ||
      getsockname(file, (struct sockaddr *)&at, &size)) {
    int reason = errno;
    close(file);
    errno = reason;
    return -1;
  }
  *port = address_port(&at);
  return file;
}

/* Listens on every address of this host, also IPv4; a host may lack IPv6. With
 * *port 0 it takes any free port and says which. */
static int net_listen(int *port) {
  int file = net_listen_in(AF_INET6, port);
  return file >= 0 || errno == EADDRINUSE ? file : net_listen_in(AF_INET, port);
}

/* Turns a mapped IPv4 address into a plain one, for hosts without IPv6. */
static void address_unmap(struct sockaddr_storage *at) {
  const struct sockaddr_in6 six = *(const struct sockaddr_in6 *)at;
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six.sin6_port};
  if (at->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr))
    return;
  memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  *at = (struct sockaddr_storage){0};
  memcpy(at, &four, sizeof four);
}

static bool address_is_loopback(const struct sockaddr_storage *at) {
  if (at->ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
  return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
}

static bool net_connects(int file, const struct sockaddr_storage *at,
                         double end) {
  struct pollfd wait = {file, POLLOUT, 0};
  double left = end - clock_seconds();
  int code = 0;
  socklen_t size = sizeof code;
  if (!connect(file, (const struct sockaddr *)at, address_size(at->ss_family)))
    return true;
  if (errno != EINPROGRESS) return false;
  int ready = poll(&wait, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
  if (ready > 0) getsockopt(file, SOL_SOCKET, SO_ERROR, &code, &size);
  errno = ready > 0 ? code : ETIMEDOUT;
  return ready > 0 && !code;
}

int net_connect(const struct sockaddr_storage *at, double end, bool *refused) {
  int file = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    0);
  *refused = false;
  if (file < 0) return -1;
  if (net_connects(file, at, end)) {
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
    return file;
  }
  *refused = errno == ECONNREFUSED;
  close(file);
  return -1;
}

/* Tries all addresses of a host until one connects: it may not listen yet. */
static int net_connect_any(const struct addrinfo *found, double end,
                           struct sockaddr_storage *at) {
  bool refused;
  for (; clock_seconds() < end; usleep(20000))
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
      double soon = clock_seconds() + 1;
      memcpy(at, a->ai_addr, a->ai_addrlen);
      int file = net_connect(at, a->ai_next && soon < end ? soon : end,
                             &refused);
      if (file >= 0) return file;
    }
  return -1;
}

void net_set_deadline(int file, double end) {
  double left = end - clock_seconds();
  int yes = 1;
  if (left < 0.01) left = 0.01;
  struct timeval t = {(time_t)left,
                      (suseconds_t)((left - (double)(time_t)left) * 1e6)};
  setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool net_send(int file, const void *what, size_t size) {
  return send(file, what, size, MSG_NOSIGNAL) == (ssize_t)size;
}

bool net_receive(int file, void *what, size_t size) {
  return recv(file, what, size, MSG_WAITALL) == (ssize_t)size;
}

bool net_receive_reason(int file, const frame *f, char why[REASON]) {
  bool fits = f->size >= 0 && f->size < REASON;
  memset(why, 0, REASON);
  return fits && net_receive(file, why, (size_t)f->size);
}

/* Returns whether a connected rank has left or failed; `why` is its reason, or
 * "". It only peeks, so that the frames before stay for their receiver. */
static bool net_peer_leaves(const net *n, int32_t rank, char why[REASON]) {
  char bytes[4096];
  frame f;
  enum { HEAD = sizeof f };
  struct pollfd ends = {n->peer[rank].file, POLLRDHUP, 0};
  bool hangs_up = poll(&ends, 1, 0) > 0;
  ssize_t at = 0,
          got = recv(ends.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  *why = 0;
  while (got >= at + HEAD) {
    memcpy(&f, bytes + at, HEAD);
    at += HEAD;
    if (f.kind == FRAME_LEFT) return true;
    if (f.size < 0 || f.size > got - at) break;
    at += (ssize_t)f.size;
    if (f.kind != FRAME_FAILED) continue;
    snprintf(why, REASON, "%.*s", (int)f.size, bytes + at - f.size);
    return true;
  }
  return hangs_up;
}

/* A rank is gone, perhaps because of a failure of which some rank informs all.
 * So this rank listens for the reason for NET_MOMENT seconds. */
static dil_status net_receive_why(const net *n, const char *otherwise) {
  char why[REASON];
  for (double end = clock_seconds() + NET_MOMENT; clock_seconds() < end;
       usleep(5000))
    for (int32_t i = 0; i < n->ranks; i++)
      if (n->peer[i].file >= 0 && net_peer_leaves(n, i, why) && *why)
        return dil_fail(DIL_PEER, "%s", why);
  return dil_fail(DIL_PEER, "%s", otherwise);
}

static void net_hang_up(net *n, int32_t rank) {
  if (n->peer[rank].file >= 0) close(n->peer[rank].file);
  n->peer[rank].file = -1;
}

/* While ranks come to rank 0, a rank that leaves frees its place for another
 * process. Later, a rank that leaves makes the rendezvous fail. */
static dil_status net_check_peers(net *n, int32_t kind) {
  char why[REASON];
  for (int32_t i = 0; i < n->ranks; i++) {
    if (n->peer[i].file < 0 || !net_peer_leaves(n, i, why)) continue;
    if (kind == FRAME_COMES)
      net_hang_up(n, i);
    else {
      snprintf(why, sizeof why, "rank %d has ended while ranks met", i);
      return net_receive_why(n, why);
    }
  }
  return DIL_OK;
}

/* Returns whether a caller cannot be one of the ranks that meet here, and
 * why. */
static bool net_is_misfit(const net *n, const frame *f, int file, char *why) {
  char it[WHO], other[WHO];
  bool fits = f->ranks == n->ranks && f->rank >= 0 && f->rank < n->ranks;
  const peer *p = &n->peer[fits ? f->rank : 0];
  net_print_who(file, false, f->process, it);
  if (f->version != DIL_INTERFACE)
    snprintf(why, REASON, "%s is of another version of dil", it);
  else if (!fits)
    snprintf(why, REASON, "a process is rank %d of %d, here are %d: %s", f->rank,
             f->ranks, n->ranks, it);
  else if (f->rank == n->rank || p->file >= 0) {
    bool here = f->rank == n->rank;
    net_print_who(here ? file : p->file, here, p->process, other);
    snprintf(why, REASON, "two processes are rank %d, %s and %s: each process "
             "has a rank of its own", f->rank, other, it);
  } else return false;
  return true;
}

/* Accepts a rank that sends FRAME_COMES to rank 0 or FRAME_CALLS to this rank,
 * if one does so before `end`. */
static dil_status net_welcome(net *n, int32_t kind, double end) {
  struct sockaddr_storage from;
  socklen_t size = sizeof from;
  char why[REASON];
  frame f;
  int file = net_accept(n, end, &f);
  if (file < 0) return DIL_OK; /* the caller tries again */
  bool gone = getpeername(file, (struct sockaddr *)&from, &size);
  if (f.kind != kind || gone) {
    net_refuse(n, file, &f);
    return DIL_OK;
  }
  if (kind == FRAME_COMES)
    net_check_peers(n, kind); /* may free the rank's place */
  if (net_is_misfit(n, &f, file, why)) {
    net_fail(n, -1, why);
    net_reject(n, file, why);
    return dil_fail(DIL_PEER, "%s", why);
  }
  net_set_deadline(file, end);
  n->peer[f.rank].file = file;
  n->peer[f.rank].process = f.process;
  address_unmap(&from);
  address_set_port(&from, f.port);
  n->address[f.rank] = from;
  return DIL_OK;
}

static dil_status net_welcome_all(net *n, int32_t kind, int32_t first,
                                  double end) {
  int32_t here = 0, missing = first;
  while (clock_seconds() < end) {
    double soon = clock_seconds() + 0.05;
    dil_status status = net_check_peers(n, kind);
    here = 0;
    for (int32_t i = n->ranks - 1; i >= first; i--)
      if (n->peer[i].file >= 0) here++;
      else missing = i;
    if (!status && here == n->ranks - first) return DIL_OK;
    if (!status) status = net_welcome(n, kind, soon < end ? soon : end);
    if (status) return status;
  }
  return dil_fail(DIL_PEER, "%d of %d ranks have come in %g s, and rank %d has "
                  "not", here + first, n->ranks, n->patience, missing);
}

/* Receives the answer of rank 0 and fails with its reason, or because another
 * program listens there. *gone: the connection has ended without an answer. */
static dil_status net_receive_answer(const net *n, int file, frame *f,
                                     bool *gone) {
  char why[REASON];
  enum { MAGIC = sizeof f->magic };
  ssize_t got = recv(file, f, MAGIC, MSG_WAITALL);
  *gone = got == 0 || (got < 0 && errno == ECONNRESET);
  if (*gone)
    return dil_fail(DIL_PEER, "rank 0 has not come in %g s: who listens there "
                    "hangs up", n->patience);
  if (got < 0)
    return dil_fail(DIL_PEER, "rank 0 has not answered in %g s", n->patience);
  if (got < MAGIC || !net_is_of_dil(f))
    return dil_fail(DIL_PEER, "what listens there is no rank of dil");
  if (!net_is_ours(f))
    return dil_fail(DIL_PEER, "rank 0 is of another version of dil");
  if (!net_receive(file, (char *)f + MAGIC, sizeof *f - MAGIC) ||
      (f->kind == FRAME_FAILED && !net_receive_reason(file, f, why)))
    return dil_fail(DIL_PEER, "rank 0 has ended while ranks met");
  return f->kind == FRAME_FAILED ? dil_fail(DIL_PEER, "%s", why) : DIL_OK;
}

/* Receives rank 0's table of addresses, or the reason why there is none. */
static dil_status net_receive_table(net *n, int file, bool *gone) {
  frame f;
  size_t size = (size_t)n->ranks * sizeof *n->address;
  dil_status status = net_receive_answer(n, file, &f, gone);
  if (status) return status;
  return f.size == (int64_t)size && net_receive(file, n->address, size)
             ? DIL_OK
             : dil_fail(DIL_PEER, "rank 0 has ended while ranks met");
}

/* Corrects the table for this host: rank 0 is at the address where this rank
 * has found it, and so are the ranks that rank 0 knows by a loopback address. */
static dil_status net_find_addresses(net *n, bool *gone) {
  struct sockaddr_storage first = n->address[0];
  dil_status status = net_receive_table(n, n->peer[0].file, gone);
  n->address[0] = first;
  for (int32_t i = 1; i < n->ranks && !status && !address_is_loopback(&first);
       i++) {
    int port = address_port(&n->address[i]);
    if (!address_is_loopback(&n->address[i])) continue;
    n->address[i] = first;
    address_set_port(&n->address[i], port);
  }
  return status;
}

/* Sends this rank's first frame on a connection to rank `to`. */
static dil_status net_introduce(net *n, int32_t kind, int32_t to, int file,
                                int port, double end) {
  frame f = net_frame(n, kind, 0);
  n->peer[to].file = file;
  f.port = port;
  if (file >= 0) net_set_deadline(file, end);
  if (file >= 0 && net_send(file, &f, sizeof f)) return DIL_OK;
  return dil_fail(DIL_PEER, "rank %d does not listen where it is said to be",
                  to);
}

static dil_status net_call(net *n, int32_t to, int port, double end) {
  bool refused;
  char why[REASON];
  int file = net_connect(&n->address[to], end, &refused);
  if (!net_introduce(n, FRAME_CALLS, to, file, port, end)) return DIL_OK;
  snprintf(why, sizeof why, "%s", dil_last_error());
  return net_receive_why(n, why);
}

/* Another process listens at rank 0's port. If it is another rank 0, its own
 * answer says so, and that is the failure. */
static dil_status net_knock(net *n, const struct addrinfo *found, int port) {
  enum { ANSWERS_IN = 2 }; /* seconds */
  double end = clock_seconds() + ANSWERS_IN;
  frame f = net_frame(n, FRAME_COMES, 0);
  struct sockaddr_storage at;
  int file = net_connect_any(found, end, &at);
  if (file >= 0) net_set_deadline(file, end);
  bool gone, told = file >= 0 && net_send(file, &f, sizeof f) &&
                    net_receive_answer(n, file, &f, &gone) &&
                    f.kind == FRAME_FAILED;
  if (file >= 0) close(file);
  return told ? DIL_PEER
              : dil_fail(DIL_ENVIRONMENT, "rank 0 cannot listen at port %d: %s",
                         port, strerror(EADDRINUSE));
}

/* Ranks that come within SOON seconds after a failure hear the reason, too. */
static void net_tell_late(net *n) {
  enum { SOON = 3 }; /* seconds */
  double end = clock_seconds() + SOON;
  bool told[n->ranks];
  int32_t untold = 0;
  frame f;
  for (int32_t i = 1; i < n->ranks; i++)
    untold += !(told[i] = n->peer[i].file >= 0);
  while (untold && clock_seconds() < end) {
    int file = net_accept(n, end, &f);
    if (file < 0) continue;
    net_reject(n, file, n->reason);
    if (f.rank < 1 || f.rank >= n->ranks || told[f.rank]) continue;
    told[f.rank] = true;
    untold--;
  }
}

static dil_status net_lead(net *n, const struct addrinfo *found, int port,
                           double end) {
  size_t size = (size_t)n->ranks * sizeof *n->address;
  n->listening = net_listen(&port);
  if (n->listening < 0 && errno == EADDRINUSE) return net_knock(n, found, port);
  if (n->listening < 0)
    return dil_fail(DIL_ENVIRONMENT, "rank 0 cannot listen at port %d: %s",
                    port, strerror(errno));
  dil_status status = net_welcome_all(n, FRAME_COMES, 1, end);
  if (n->failed) net_tell_late(n);
  frame f = net_frame(n, FRAME_MESSAGE, (int64_t)size);
  for (int32_t i = 1; i < n->ranks && !status; i++)
    if (!net_send(n->peer[i].file, &f, sizeof f) ||
        !net_send(n->peer[i].file, n->address, size))
      status = dil_fail(DIL_PEER, "rank %d has ended while ranks met", i);
  return status;
}

/* Comes to rank 0. A connection that ends without an answer belongs to an
 * earlier job, or to a proxy of a rank 0 that does not listen yet: this rank
 * then tries again. */
static dil_status net_come(net *n, const struct addrinfo *found, int port,
                           double end) {
  bool gone;
  dil_status status;
  do {
    int file = net_connect_any(found, end, &n->address[0]);
    if (file < 0)
      return dil_fail(DIL_PEER, "rank 0 has not come in %g s: %s", n->patience,
                      strerror(errno));
    gone = true;
    status = net_introduce(n, FRAME_COMES, 0, file, port, end);
    if (!status) status = net_find_addresses(n, &gone);
    if (!gone) break;
    net_hang_up(n, 0);
    usleep(100000);
  } while (clock_seconds() < end);
  return status;
}

/* Connects to the ranks below its own, and accepts the ranks above. */
static dil_status net_follow(net *n, const struct addrinfo *found, double end) {
  int port = 0;
  n->listening = net_listen(&port);
  if (n->listening < 0)
    return dil_fail(DIL_ENVIRONMENT, "cannot listen: %s", strerror(errno));
  dil_status status = net_come(n, found, port, end);
  for (int32_t i = 1; i < n->rank && !status; i++)
    status = net_call(n, i, port, end);
  return status ? status : net_welcome_all(n, FRAME_CALLS, n->rank + 1, end);
}

dil_status net_rejoin(net *n, double patience) {
  n->patience = patience;
  double end = clock_seconds() + patience;
  struct sockaddr_storage at = {0};
  socklen_t size = sizeof at;
  getsockname(n->listening, (struct sockaddr *)&at, &size);
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < n->rank && !status; i++)
    status = net_call(n, i, address_port(&at), end);
  if (!status) status = net_welcome_all(n, FRAME_CALLS, n->rank + 1, end);
  if (status) net_fail(n, -1, dil_last_error());
  return status;
}

dil_status net_meet(net *n, const char *address, double patience) {
  double end = clock_seconds() + patience;
  struct addrinfo *found;
  struct sockaddr_storage first = {0};
  n->patience = patience;
  dil_status status = address_resolve(address, &found);
  if (status) return status;
  memcpy(&first, found->ai_addr, found->ai_addrlen);
  status = n->rank ? net_follow(n, found, end)
                   : net_lead(n, found, address_port(&first), end);
  if (status) net_fail(n, -1, dil_last_error());
  freeaddrinfo(found);
  return status;
}
