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

typedef struct socket_half { /* one direction of a transfer */
  int32_t peer;              /* number in the net; -1: there is no message */
  char *at;
  int64_t size, left;
  size_t head;               /* bytes of the frame that have moved */
} socket_half;

typedef struct socket_link {
  dil_link link;
  net *net;
  struct socket_slot {
    socket_half send, receive;
  } slot[]; /* [ranks + 1] */
} socket_link;

static socket_link *socket_link_of(dil_link *link) {
  return (socket_link *)link;
}

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
static void net_tell(net *n, int32_t kind, const char *text) {
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
static void net_shut_down(const net *n) {
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
  net_tell(n, FRAME_FAILED, n->reason);
  net_shut_down(n);
}

static bool socket_has_frame(socket_link *l, int32_t rank);

/* A rank that does not run any more: `rank`, or another whose connection still
 * holds unread rows before its end; `rank` if all may run. */
static int32_t net_find_gone(const net *n, int32_t rank) {
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
static void socket_fail_gone(socket_link *l, int32_t rank) {
  char why[REASON];
  bool knew = l->net->peer[rank].head.kind || rank > l->net->rank;
  double end = clock_seconds() + (knew ? 0.2 : NET_MOMENT);
  if (l->net->peer[rank].gone) return;
  l->net->peer[rank].gone = true;
  while (!l->net->failed && clock_seconds() < end) {
    for (int32_t i = 0; i < l->net->ranks; i++) socket_has_frame(l, i);
    clock_rest(INT64_MAX);
  }
  if (!l->net->failed) rank = net_find_gone(l->net, rank);
  snprintf(why, sizeof why, "rank %d is gone: its connection has ended, rank %d "
           "was in step %d", rank, l->net->rank, l->link.step);
  net_fail(l->net, rank, why);
}

/* ---- messages ------------------------------------------------------------ */

/* The number of bytes received; 0: none are there; -1: the connection ended. */
static ssize_t net_take(int file, void *to, size_t size) {
  ssize_t got = recv(file, to, size, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return 0;
  return got > 0 ? got : -1;
}

static ssize_t net_give(int file, const void *from, size_t size) {
  ssize_t sent = send(file, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return 0;
  return sent;
}

/* Receives the reason of a rank that has failed; it blocks, because the text is
 * short and comes with its frame. */
static void socket_receive_failure(socket_link *l, peer *p) {
  char why[REASON];
  if (!net_receive_reason(p->file, &p->head, why))
    socket_fail_gone(l, (int32_t)(p - l->net->peer));
  if (!l->net->failed) l->net->silent = p->head.silent;
  net_fail(l->net, p->head.culprit, why);
}

/* Returns whether the frame of a message is there; it treats all other
 * frames. */
static bool socket_has_frame(socket_link *l, int32_t rank) {
  peer *p = &l->net->peer[rank];
  if (p->file < 0 || p->left || p->gone || l->net->failed) return false;
  if (p->got == sizeof p->head) return true;
  ssize_t got =
      net_take(p->file, (char *)&p->head + p->got, sizeof p->head - p->got);
  if (got < 0) socket_fail_gone(l, rank);
  if (got > 0) p->got += (size_t)got;
  if (got <= 0 || p->got < sizeof p->head) return false;
  if (p->head.kind == FRAME_FAILED) socket_receive_failure(l, p);
  p->left = p->head.kind == FRAME_LEFT;
  if (p->head.kind == FRAME_WAITS) {
    p->waits_for = p->head.rank;
    p->got = 0;
  }
  if (p->head.kind == FRAME_HEARTBEAT) {
    p->last_heartbeat = clock_seconds();
    p->got = 0;
  }
  return p->head.kind == FRAME_MESSAGE;
}

static dil_status socket_check(dil_link *link) {
  socket_link *l = socket_link_of(link);
  for (int32_t i = 0; i < l->net->ranks; i++) socket_has_frame(l, i);
  if (l->net->rank == 0 && !l->net->failed) net_serve_callers(l->net);
  return l->net->failed ? dil_fail(DIL_PEER, "%s", l->net->reason) : DIL_OK;
}

/* Sends a frame to all ranks. It leaves out ranks to which a message is partly
 * sent and full buffers. A frame that is partly sent ends its connection. */
static void net_send_all(net *n, int32_t kind, int32_t rank) {
  frame f = net_frame(n, kind, 0);
  f.rank = rank;
  for (int32_t i = 0; i < n->ranks; i++) {
    const peer *p = &n->peer[i];
    if (p->file < 0 || p->sending) continue;
    ssize_t sent = send(p->file, &f, sizeof f, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0 && sent < (ssize_t)sizeof f) shutdown(p->file, SHUT_RDWR);
  }
}

static void socket_heartbeat(dil_link *link) {
  net *n = socket_link_of(link)->net;
  net_send_all(n, FRAME_HEARTBEAT, n->rank);
}

/* A rank that waits for another rank is not the silent one. So each rank with a
 * timed-out wait sends FRAME_WAITS and listens to the others for a while. Then
 * it follows the chain of waits to its end. */
static int32_t socket_find_silent_rank(dil_link *link, int32_t silent) {
  socket_link *l = socket_link_of(link);
  net *n = l->net;
  int32_t rank = link_number(link, silent);
  double end = clock_seconds() + 0.2 + link->timeout / 20;
  net_send_all(n, FRAME_WAITS, rank);
  while (clock_seconds() < end && !socket_check(link)) clock_rest(INT64_MAX);
  for (int32_t i = 0; i < n->ranks && n->peer[rank].waits_for >= 0; i++)
    rank = n->peer[rank].waits_for;
  return rank - link->first;
}

static void socket_revoke(dil_link *link, const char *why) {
  char text[REASON];
  net *n = socket_link_of(link)->net;
  snprintf(text, sizeof text, "rank %d failed in step %d: %.180s", n->rank,
           link->step, why);
  net_fail(n, n->rank, text);
}

static void socket_report_failure(dil_link *link, int32_t rank,
                                  const char *why) {
  net_fail(socket_link_of(link)->net, rank < 0 ? -1 : link_number(link, rank),
           why);
}

/* The ranks of a net agree once; all its links share the answer. */
static bool socket_failed_ranks(dil_link *link, bool *lost) {
  const socket_link *l = socket_link_of(link);
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

static socket_half socket_half_new(const dil_link *link, int32_t with,
                                   const void *at, int64_t bytes) {
  return (socket_half){with < 0 ? -1 : link_number(link, with),
                       (char *)(uintptr_t)at, bytes, bytes, 0};
}

static dil_status socket_post(dil_link *link, int32_t index,
                              const link_transfer *t) {
  socket_link *l = socket_link_of(link);
  if (t->order)
    return dil_fail(DIL_UNSUPPORTED, "sockets move memory of the host alone");
  l->slot[index].send = socket_half_new(link, t->to, t->send, t->send_bytes);
  l->slot[index].receive =
      socket_half_new(link, t->from, t->receive, t->receive_bytes);
  return DIL_OK;
}

static bool socket_half_is_done(const socket_half *h) {
  return h->peer < 0 || (h->head == sizeof(frame) && !h->left);
}

static void socket_half_advance(socket_half *h, bool head, ssize_t bytes) {
  if (head) h->head += (size_t)bytes;
  else h->at += bytes, h->left -= bytes;
}

static bool socket_send_some(socket_link *l, socket_half *h) {
  peer *p = &l->net->peer[h->peer];
  frame f = net_frame(l->net, FRAME_MESSAGE, h->size);
  bool head = h->head < sizeof f;
  ssize_t sent =
      head ? net_give(p->file, (char *)&f + h->head, sizeof f - h->head)
           : net_give(p->file, h->at, (size_t)h->left);
  if (sent < 0) socket_fail_gone(l, h->peer);
  if (sent <= 0) return false;
  socket_half_advance(h, head, sent);
  p->sending = !socket_half_is_done(h);
  return true;
}

static bool socket_receive_some(socket_link *l, socket_half *h) {
  peer *p = &l->net->peer[h->peer];
  char why[REASON];
  if (!socket_has_frame(l, h->peer)) {
    if (p->left && !l->net->failed) socket_fail_gone(l, h->peer);
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
  ssize_t got = h->left ? net_take(p->file, h->at, (size_t)h->left) : 0;
  if (got < 0) socket_fail_gone(l, h->peer);
  if (got > 0) socket_half_advance(h, false, got);
  if (socket_half_is_done(h)) p->got = 0;
  return got > 0 || socket_half_is_done(h);
}

static bool socket_slot_is_done(const struct socket_slot *s) {
  return socket_half_is_done(&s->send) && socket_half_is_done(&s->receive);
}

/* The rank that a slot waits for; -1: none. */
static int32_t socket_awaited(const struct socket_slot *s) {
  return socket_slot_is_done(s)             ? -1
         : socket_half_is_done(&s->receive) ? s->send.peer
                                            : s->receive.peer;
}

/* No byte has moved up to `end`, and the last heartbeat is a timeout old. */
static bool socket_is_late(const socket_link *l, int32_t whom, double end) {
  if (whom < 0) return false;
  double until = l->net->peer[whom].last_heartbeat + l->link.timeout;
  return clock_seconds() > (until > end ? until : end);
}

static void socket_fail_silent(socket_link *l, int32_t whom) {
  char why[REASON];
  dil_link *link = &l->link;
  int32_t silent =
      link_number(link, socket_find_silent_rank(link, whom - link->first));
  snprintf(why, sizeof why, "rank %d is silent: rank %d waited for it in step "
           "%d, at most %g s", silent, l->net->rank, link->step, link->timeout);
  if (!l->net->failed) l->net->silent = true;
  net_fail(l->net, silent, why);
}

static dil_status socket_wait(dil_link *link, int32_t index) {
  enum { CHECK_EVERY = 64 }; /* turns between two checks of all connections */
  socket_link *l = socket_link_of(link);
  struct socket_slot *s = &l->slot[index];
  double end = clock_seconds() + link->timeout;
  for (int64_t turns = 0;; turns++) {
    int32_t whom = socket_awaited(s);
    bool late = socket_is_late(l, whom, end); /* a last try and check follow */
    bool moved =
        !socket_half_is_done(&s->send) && socket_send_some(l, &s->send);
    if (!socket_half_is_done(&s->receive))
      moved |= socket_receive_some(l, &s->receive);
    if (socket_slot_is_done(s)) return DIL_OK;
    link_heartbeat(link);
    if (moved) {
      end = clock_seconds() + link->timeout; /* no peer is silent */
      continue;
    }
    bool looks = turns % CHECK_EVERY == 0 || late || l->net->failed;
    dil_status status = looks ? socket_check(link) : DIL_OK;
    if (status) return status;
    if (late && socket_is_late(l, whom, end)) socket_fail_silent(l, whom);
    clock_rest(turns);
  }
}

/* ---- nets ---------------------------------------------------------------- */

static void net_free(net *n) {
  if (!n || --n->links > 0) return;
  if (!n->failed) net_tell(n, FRAME_LEFT, "");
  for (int32_t i = 0; i < n->ranks; i++) {
    if (n->peer[i].file >= 0) close(n->peer[i].file);
    if (n->peer[i].returned >= 0) close(n->peer[i].returned);
  }
  for (int32_t i = 0; i < n->callers; i++) close(n->caller[i].file);
  if (n->listening >= 0) close(n->listening);
  free(n->address);
  free(n->lost);
  free(n);
}

static dil_status net_new(int32_t rank, int32_t ranks, net **made) {
  net *n = calloc(1, sizeof *n + (size_t)ranks * sizeof(peer));
  if (!n) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  n->rank = rank;
  n->ranks = ranks;
  n->listening = n->culprit = -1;
  n->address = calloc((size_t)ranks, sizeof *n->address);
  n->lost = calloc((size_t)ranks, sizeof *n->lost);
  for (int32_t i = 0; i < ranks; i++)
    n->peer[i].file = n->peer[i].returned = n->peer[i].waits_for = -1;
  n->peer[rank].process = (int32_t)getpid();
  *made = n;
  if (n->address && n->lost) return DIL_OK;
  n->ranks = 0;
  net_free(n);
  return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
}

static void socket_free(dil_link *link) {
  net_free(socket_link_of(link)->net);
  free(link);
}

static dil_status socket_shrink(dil_link *link, const bool *lost,
                                dil_link **smaller);

static const link_calls socket_calls = {.name = "socket",
                                        .post = socket_post,
                                        .wait = socket_wait,
                                        .check = socket_check,
                                        .find_silent_rank =
                                            socket_find_silent_rank,
                                        .heartbeat = socket_heartbeat,
                                        .revoke = socket_revoke,
                                        .free = socket_free,
                                        .report_failure = socket_report_failure,
                                        .failed_ranks = socket_failed_ranks,
                                        .shrink = socket_shrink};

static dil_status socket_link_on(net *n, int32_t first, int32_t ranks,
                                 double timeout, dil_link **link) {
  socket_link *l =
      calloc(1, sizeof *l + ((size_t)ranks + 1) * sizeof(struct socket_slot));
  if (!l) return dil_fail(DIL_MEMORY, "no memory for a link of %d ranks", ranks);
  l->link = (dil_link){.calls = &socket_calls, .rank = n->rank - first,
                       .ranks = ranks, .timeout = timeout, .first = first};
  l->net = n;
  n->links++;
  *link = &l->link;
  return DIL_OK;
}

/* The remaining ranks connect anew at their known listening ports. */
static dil_status socket_shrink(dil_link *link, const bool *lost,
                                dil_link **smaller) {
  enum { PATIENCE = 10 }; /* seconds: all ranks have just agreed */
  net *n = socket_link_of(link)->net, *m;
  int32_t left = link_left(lost, n->ranks);
  dil_status status = net_new(link_left(lost, n->rank), left, &m);
  if (status) return status;
  for (int32_t i = 0; i < n->ranks; i++)
    if (!lost[i]) m->address[link_left(lost, i)] = n->address[i];
  m->listening = n->listening;
  n->listening = -1;
  status = net_rejoin(m, link->timeout > PATIENCE ? link->timeout : PATIENCE);
  if (!status) return socket_link_on(m, 0, left, link->timeout, smaller);
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
  if (!status) return socket_link_on(n, 0, ranks, timeout, link);
  net_free(n);
  return status == DIL_PEER ? dil_fail(status, "ranks do not meet at '%s': %s",
                                       address, why)
                            : status;
}

dil_status socket_link_part(dil_link *whole, int32_t first, int32_t ranks,
                            double timeout, dil_link **link) {
  return socket_link_on(socket_link_of(whole)->net, first, ranks, timeout,
                        link);
}
