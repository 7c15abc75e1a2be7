/* link_socket.c - ranks are processes of any hosts; rank 0 listens at HOST:PORT.
 * In: that address, a rank for each process. Out: messages over one TCP
 * connection between each two ranks. A rank that fails tells all others why; a
 * rank whose connection just ends is gone. There is no encryption and no
 * authentication: the network must be trusted, as with NCCL's sockets. */
#include "link_socket.h"
#include "interface.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct half {        /* one direction of a transfer */
  int32_t peer;              /* number in the net; -1: there is no message */
  char *at;
  int64_t size, left;
  size_t head;               /* bytes of the frame that have moved */
} half;

typedef struct socket_link {
  dil_link link;
  net *net;
  struct slot {
    half send, receive;
  } slot[];                  /* [ranks + 1] */
} socket_link;

static socket_link *self(dil_link *link) { return (socket_link *)link; }

frame net_frame(const net *n, int32_t kind, int64_t size) {
  frame f = {.kind = kind, .rank = n->rank, .ranks = n->ranks,
             .culprit = n->culprit, .silent = n->silent,
             .process = n->peer[n->rank].process, .version = DIL_INTERFACE,
             .size = size};
  memcpy(f.magic, NET_MAGIC, sizeof f.magic);
  return f;
}

/* ---- failing ------------------------------------------------------------- */

/* Sends a frame with a text to all connected ranks. If a message to a rank is
 * partly sent, or there is no room, it ends that connection instead. */
static void tell(net *n, int32_t kind, const char *text) {
  char all[sizeof(frame) + REASON];
  size_t size = strlen(text);
  frame f = net_frame(n, kind, (int64_t)size);
  memcpy(all, &f, sizeof f);
  memcpy(all + sizeof f, text, size);
  for (int32_t i = 0; i < n->ranks; i++) {
    peer *p = &n->peer[i];
    if (p->file < 0 || p->left) continue;
    ssize_t sent = p->sending ? -1 : send(p->file, all, sizeof f + size,
                                          MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < (ssize_t)sizeof f) shutdown(p->file, SHUT_RDWR);
  }
}

/* Closes all sending sides. TCP resets a connection that is closed with unread
 * data, and the peer may lose the last frame, so this reads on for 0.2 s. */
static void hang_up(const net *n) {
  char unread[4096];
  double end = clock_seconds() + 0.2;
  for (int32_t i = 0; i < n->ranks; i++)
    if (n->peer[i].file >= 0) shutdown(n->peer[i].file, SHUT_WR);
  for (int32_t i = 0; i < n->ranks; i++)
    while (n->peer[i].file >= 0 && clock_seconds() < end) {
      ssize_t got =
          recv(n->peer[i].file, unread, sizeof unread, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
      if (got < 0) usleep(1000);
    }
}

void net_fail(net *n, int32_t culprit, const char *why) {
  if (n->failed) return;
  n->failed = true;
  n->culprit = culprit;
  snprintf(n->reason, sizeof n->reason, "%s", why);
  tell(n, FAILED, n->reason);
  hang_up(n);
}

static bool has_head(socket_link *l, int32_t rank);

/* A rank that does not run any more: `rank`, or another whose connection still
 * holds unread rows before its end; `rank` if all may run. */
static int32_t who_is_gone(const net *n, int32_t rank) {
  if (!net_may_run(n, rank)) return rank;
  for (int32_t i = 0; i < n->ranks; i++) {
    const peer *p = &n->peer[i];
    if (p->file >= 0 && !p->left && !net_may_run(n, i)) return i;
  }
  return rank;
}

/* The connection to a rank has ended, perhaps because the rank failed in the
 * middle of a message. The others may know why, so this rank listens for a
 * while first. It listens longer if a lower rank has never sent a frame: that
 * rank may have failed before it accepted this rank's connection. */
static void be_gone(socket_link *l, int32_t rank) {
  char why[REASON];
  bool knew = l->net->peer[rank].head.kind || rank > l->net->rank;
  double end = clock_seconds() + (knew ? 0.2 : NET_MOMENT);
  if (l->net->peer[rank].gone) return;
  l->net->peer[rank].gone = true;
  while (!l->net->failed && clock_seconds() < end) {
    for (int32_t i = 0; i < l->net->ranks; i++) has_head(l, i);
    clock_rest(INT64_MAX);
  }
  if (!l->net->failed) rank = who_is_gone(l->net, rank);
  snprintf(why, sizeof why, "rank %d is gone: its connection has ended, rank %d "
           "was in step %d", rank, l->net->rank, l->link.step);
  net_fail(l->net, rank, why);
}

/* ---- messages ------------------------------------------------------------ */

/* The number of bytes received; 0: none are there; -1: the connection ended. */
static ssize_t take(int file, void *to, size_t size) {
  ssize_t got = recv(file, to, size, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return 0;
  return got > 0 ? got : -1;
}

static ssize_t give(int file, const void *from, size_t size) {
  ssize_t sent = send(file, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return 0;
  return sent;
}

/* Receives the reason of a rank that has failed; it blocks, because the text is
 * short and comes with its frame. */
static void hear_failure(socket_link *l, peer *p) {
  char why[REASON];
  if (!net_hear_reason(p->file, &p->head, why))
    be_gone(l, (int32_t)(p - l->net->peer));
  if (!l->net->failed) l->net->silent = p->head.silent;
  net_fail(l->net, p->head.culprit, why);
}

/* Whether the frame of a message is there; it treats all other frames. */
static bool has_head(socket_link *l, int32_t rank) {
  peer *p = &l->net->peer[rank];
  if (p->file < 0 || p->left || p->gone || l->net->failed) return false;
  if (p->got == sizeof p->head) return true;
  ssize_t got = take(p->file, (char *)&p->head + p->got,
                     sizeof p->head - p->got);
  if (got < 0) be_gone(l, rank);
  if (got > 0) p->got += (size_t)got;
  if (got <= 0 || p->got < sizeof p->head) return false;
  if (p->head.kind == FAILED) hear_failure(l, p);
  p->left = p->head.kind == LEFT;
  if (p->head.kind == WAITS) {
    p->waits_for = p->head.rank;
    p->got = 0;
  }
  if (p->head.kind == LIVES) {
    p->lived = clock_seconds();
    p->got = 0;
  }
  return p->head.kind == MESSAGE;
}

static dil_status check(dil_link *link) {
  socket_link *l = self(link);
  for (int32_t i = 0; i < l->net->ranks; i++) has_head(l, i);
  if (l->net->rank == 0 && !l->net->failed) net_look_out(l->net);
  return l->net->failed ? dil_fail(DIL_PEER, "%s", l->net->reason) : DIL_OK;
}

/* Sends a frame to all ranks. It leaves out ranks to which a message is partly
 * sent and full buffers. A frame that is partly sent ends its connection. */
static void say_to_all(net *n, int32_t kind, int32_t rank) {
  frame f = net_frame(n, kind, 0);
  f.rank = rank;
  for (int32_t i = 0; i < n->ranks; i++) {
    const peer *p = &n->peer[i];
    if (p->file < 0 || p->sending) continue;
    ssize_t sent = send(p->file, &f, sizeof f, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0 && sent < (ssize_t)sizeof f) shutdown(p->file, SHUT_RDWR);
  }
}

static void heartbeat(dil_link *link) {
  net *n = self(link)->net;
  say_to_all(n, LIVES, n->rank);
}

/* A rank that waits for another rank is not the silent one. So each rank with a
 * timed-out wait sends WAITS and listens to the others for a while. Then it
 * follows the chain of waits to its end. */
static int32_t find_silent_rank(dil_link *link, int32_t silent) {
  socket_link *l = self(link);
  net *n = l->net;
  int32_t rank = link_number(link, silent);
  double end = clock_seconds() + 0.2 + link->timeout / 20;
  say_to_all(n, WAITS, rank);
  while (clock_seconds() < end && !check(link)) clock_rest(INT64_MAX);
  for (int32_t i = 0; i < n->ranks && n->peer[rank].waits_for >= 0; i++)
    rank = n->peer[rank].waits_for;
  return rank - link->first;
}

static void revoke_link(dil_link *link, const char *why) {
  char text[REASON];
  net *n = self(link)->net;
  snprintf(text, sizeof text, "rank %d failed in step %d: %.180s", n->rank,
           link->step, why);
  net_fail(n, n->rank, text);
}

static void report_failure(dil_link *link, int32_t rank, const char *why) {
  net_fail(self(link)->net, rank < 0 ? -1 : link_number(link, rank), why);
}

/* The ranks of a net agree once; all its links share the answer. */
static bool failed_ranks(dil_link *link, bool *lost) {
  const socket_link *l = self(link);
  net *n = l->net;
  bool any = false;
  if (!n->failed) return false;
  if (!n->asked) n->known = net_agree(n, link->timeout);
  if (!n->asked && !n->known)
    snprintf(n->reason, sizeof n->reason, "%s", dil_last_error());
  n->asked = true;
  if (!n->known) dil_fail(DIL_PEER, "%s", n->reason);
  for (int32_t i = 0; i < link->ranks && n->known; i++)
    any |= lost[i] = n->lost[link_number(link, i)];
  return any;
}

static half half_of(const dil_link *link, int32_t with, const void *at,
                    int64_t bytes) {
  return (half){with < 0 ? -1 : link_number(link, with), (char *)(uintptr_t)at,
                bytes, bytes, 0};
}

static dil_status post(dil_link *link, int32_t index, const link_transfer *t) {
  socket_link *l = self(link);
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "sockets move memory of the host alone");
  l->slot[index].send = half_of(link, t->to, t->send, t->send_bytes);
  l->slot[index].receive = half_of(link, t->from, t->receive, t->receive_bytes);
  return DIL_OK;
}

static bool is_done(const half *h) {
  return h->peer < 0 || (h->head == sizeof(frame) && !h->left);
}

static void advance(half *h, bool head, ssize_t bytes) {
  if (head) h->head += (size_t)bytes;
  else h->at += bytes, h->left -= bytes;
}

static bool send_some(socket_link *l, half *h) {
  peer *p = &l->net->peer[h->peer];
  frame f = net_frame(l->net, MESSAGE, h->size);
  bool head = h->head < sizeof f;
  ssize_t sent = head ? give(p->file, (char *)&f + h->head, sizeof f - h->head)
                      : give(p->file, h->at, (size_t)h->left);
  if (sent < 0) be_gone(l, h->peer);
  if (sent <= 0) return false;
  advance(h, head, sent);
  p->sending = !is_done(h);
  return true;
}

static bool receive_some(socket_link *l, half *h) {
  peer *p = &l->net->peer[h->peer];
  char why[REASON];
  if (!has_head(l, h->peer)) {
    if (p->left && !l->net->failed) be_gone(l, h->peer);
    return false;
  }
  if (p->head.size != h->size) {
    snprintf(why, sizeof why, "rank %d sent %lld bytes to rank %d in step %d, "
             "%lld were due", h->peer, (long long)p->head.size,
             l->net->rank, l->link.step, (long long)h->size);
    net_fail(l->net, -1, why);
    return false;
  }
  h->head = sizeof p->head;
  ssize_t got = h->left ? take(p->file, h->at, (size_t)h->left) : 0;
  if (got < 0) be_gone(l, h->peer);
  if (got > 0) advance(h, false, got);
  if (is_done(h)) p->got = 0;
  return got > 0 || is_done(h);
}

static bool is_over(const struct slot *s) {
  return is_done(&s->send) && is_done(&s->receive);
}

/* The rank that a slot waits for; -1: none. */
static int32_t awaited_by(const struct slot *s) {
  return is_over(s) ? -1 : is_done(&s->receive) ? s->send.peer : s->receive.peer;
}

/* No byte has moved up to `end`, and the last heartbeat is a timeout old. */
static bool is_late(const socket_link *l, int32_t whom, double end) {
  if (whom < 0) return false;
  double lived = l->net->peer[whom].lived + l->link.timeout;
  return clock_seconds() > (lived > end ? lived : end);
}

static void be_silent(socket_link *l, int32_t whom) {
  char why[REASON];
  dil_link *link = &l->link;
  int32_t silent =
      link_number(link, find_silent_rank(link, whom - link->first));
  snprintf(why, sizeof why, "rank %d is silent: rank %d waited for it in step "
           "%d, at most %g s", silent, l->net->rank, link->step, link->timeout);
  if (!l->net->failed) l->net->silent = true;
  net_fail(l->net, silent, why);
}

static dil_status wait_slot(dil_link *link, int32_t index) {
  enum { LOOKS = 64 }; /* turns between two checks of all connections */
  socket_link *l = self(link);
  struct slot *s = &l->slot[index];
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0;; turns++) {
    int32_t whom = awaited_by(s);
    bool late = is_late(l, whom, end); /* a last try and check follow */
    bool moved = !is_done(&s->send) && send_some(l, &s->send);
    if (!is_done(&s->receive)) moved |= receive_some(l, &s->receive);
    if (is_over(s)) return DIL_OK;
    link_heartbeat(link);
    if (moved) {
      end = clock_seconds() + link->timeout; /* no peer is silent */
      continue;
    }
    bool looks = turns % LOOKS == 0 || late || l->net->failed;
    dil_status status = looks ? check(link) : DIL_OK;
    if (status) return status;
    if (late && is_late(l, whom, end)) be_silent(l, whom);
    clock_rest(turns);
  }
}

/* ---- nets ---------------------------------------------------------------- */

static void net_free(net *n) {
  if (!n || --n->links > 0) return;
  if (!n->failed) tell(n, LEFT, "");
  for (int32_t i = 0; i < n->ranks; i++) {
    if (n->peer[i].file >= 0) close(n->peer[i].file);
    if (n->peer[i].returned >= 0) close(n->peer[i].returned);
  }
  for (int32_t i = 0; i < n->callers; i++) close(n->caller[i].file);
  if (n->listening >= 0) close(n->listening);
  free(n->place);
  free(n->lost);
  free(n);
}

static dil_status net_new(int32_t rank, int32_t ranks, net **made) {
  net *n = calloc(1, sizeof *n + (size_t)ranks * sizeof(peer));
  if (!n) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  n->rank = rank;
  n->ranks = ranks;
  n->listening = n->culprit = -1;
  n->place = calloc((size_t)ranks, sizeof *n->place);
  n->lost = calloc((size_t)ranks, sizeof *n->lost);
  for (int32_t i = 0; i < ranks; i++)
    n->peer[i].file = n->peer[i].returned = n->peer[i].waits_for = -1;
  n->peer[rank].process = (int32_t)getpid();
  *made = n;
  if (n->place && n->lost) return DIL_OK;
  n->ranks = 0;
  net_free(n);
  return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
}

static void free_link(dil_link *link) {
  net_free(self(link)->net);
  free(link);
}

static dil_status shrink(dil_link *link, const bool *lost, dil_link **smaller);

static const link_calls socket_calls = {.name = "socket",
                                        .post = post,
                                        .wait = wait_slot,
                                        .check = check,
                                        .find_silent_rank = find_silent_rank,
                                        .heartbeat = heartbeat,
                                        .revoke = revoke_link,
                                        .free = free_link,
                                        .report_failure = report_failure,
                                        .failed_ranks = failed_ranks,
                                        .shrink = shrink};

static dil_status link_on(net *n, int32_t first, int32_t ranks, double timeout,
                          dil_link **link) {
  socket_link *l =
      calloc(1, sizeof *l + ((size_t)ranks + 1) * sizeof(struct slot));
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  l->link = (dil_link){.calls = &socket_calls, .rank = n->rank - first,
                       .ranks = ranks, .timeout = timeout, .first = first};
  l->net = n;
  n->links++;
  *link = &l->link;
  return DIL_OK;
}

/* The remaining ranks connect anew at their known listening ports. */
static dil_status shrink(dil_link *link, const bool *lost, dil_link **smaller) {
  enum { PATIENCE = 10 }; /* seconds: all ranks have just agreed */
  net *n = self(link)->net, *m;
  int32_t left = link_left(lost, n->ranks);
  dil_status status = net_new(link_left(lost, n->rank), left, &m);
  if (status) return status;
  for (int32_t i = 0; i < n->ranks; i++)
    if (!lost[i]) m->place[link_left(lost, i)] = n->place[i];
  m->listening = n->listening;
  n->listening = -1;
  status = net_rejoin(m, link->timeout > PATIENCE ? link->timeout : PATIENCE);
  if (!status) return link_on(m, 0, left, link->timeout, smaller);
  net_free(m);
  return status;
}

dil_status socket_link_new(const char *address, int32_t rank, int32_t ranks,
                           double patience, double timeout, dil_link **link) {
  net *n;
  char why[REASON];
  dil_status status = net_new(rank, ranks, &n);
  if (status) return status;
  status = net_meet(n, address, patience);
  snprintf(why, sizeof why, "%s", dil_last_error());
  if (!status) return link_on(n, 0, ranks, timeout, link);
  net_free(n);
  return status == DIL_PEER ? dil_fail(status, "ranks do not meet at '%s': %s",
                                       address, why)
                            : status;
}

dil_status socket_link_part(dil_link *whole, int32_t first, int32_t ranks,
                            double timeout, dil_link **link) {
  return link_on(self(whole)->net, first, ranks, timeout, link);
}
