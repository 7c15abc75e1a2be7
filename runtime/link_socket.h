/* link_socket.h - ranks that are joined by connections, for the files that make
 * them: what they share, and how they come together. */
#ifndef DIL_LINK_SOCKET_H
#define DIL_LINK_SOCKET_H

#include "link.h"
#include <stddef.h>
#include <sys/socket.h>

#define NET_MAGIC "dilnet1"
enum { REASON = 256 };
enum { MESSAGE = 1, FAILED, LEFT, WAITS }; /* kinds of frames */

typedef struct frame {
  char magic[8];
  int32_t kind;
  int32_t rank, ranks;       /* WAITS: for that rank */
  int32_t port;              /* where others reach this rank */
  int64_t size;              /* of what follows */
} frame;

typedef struct peer {
  int file;                  /* -1: this rank itself */
  frame head;                /* of what comes; `got` bytes of it are there */
  size_t got;
  bool left, gone, sending;  /* in peace; not so; a message has begun */
  int32_t waits_for;         /* and has done so for too long; -1: for nobody */
} peer;

typedef struct net {
  int32_t rank, ranks, links; /* that use it */
  bool failed;
  char reason[REASON];
  struct sockaddr_storage *place; /* [ranks]: where each listens */
  peer peer[];
} net;

frame net_frame(const net *n, int32_t kind, int64_t size);
/* Tells all that are there; the first reason stays. */
void net_fail(net *n, const char *why);

/* link_socket_meet.c: connects each two ranks within so many seconds. */
dil_status net_meet(net *n, const char *address, double patience);

#endif
