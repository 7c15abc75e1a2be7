/* link_socket.h - ranks that are joined by connections, for the files that make
 * them: what they share, and how they come together. */
#ifndef DIL_LINK_SOCKET_H
#define DIL_LINK_SOCKET_H

#include "link.h"
#include <stddef.h>
#include <sys/socket.h>

#define NET_MAGIC "dilnet3" /* other versions begin with the same letters */
enum { REASON = 256 };
enum { NET_MOMENT = 2 };     /* seconds in which one says what all have to hear */
/* Kinds of frames. Who COMES to rank 0 hears where all are, and CALLS on them. */
enum { MESSAGE = 1, FAILED, LEFT, WAITS, RETURNS, REMAINS, LIVES, COMES, CALLS };

typedef struct frame {
  char magic[8];
  int32_t kind;
  int32_t rank, ranks;       /* WAITS: for that rank */
  int32_t port;              /* where others reach this rank */
  int32_t culprit, silent;   /* FAILED: see net */
  int32_t process;
  int32_t version;           /* of dil */
  int64_t size;              /* of what follows */
} frame;

typedef struct peer {
  int file;                  /* -1: this rank itself */
  int32_t process;
  int returned;              /* it RETURNS on this connection; -1: it does not */
  frame head;                /* of what comes; `got` bytes of it are there */
  size_t got;
  bool left, gone, sending;  /* in peace; not so; a message has begun */
  double lived;              /* when it last said so */
  int32_t waits_for;         /* and has done so for too long; -1: for nobody */
} peer;

/* Who has connected, and has not said yet who it is. */
enum { CALLERS = 64 };
typedef struct caller {
  int file;
  frame said;                /* `got` bytes of it are there */
  size_t got;
  double end;                /* it is not waited for any longer */
} caller;

typedef struct net {
  int32_t rank, ranks, links; /* that use it */
  bool failed;
  int32_t culprit;            /* over whom; -1: nobody */
  bool silent;                /* who still runs, and does not answer */
  char reason[REASON];
  double patience;            /* seconds they have to meet */
  struct sockaddr_storage *place; /* [ranks]: where each listens, */
  int listening;              /* as this one does; -1: not any more */
  int32_t callers;
  caller caller[CALLERS];     /* who has come first stands first */
  bool asked, known;          /* who is left */
  bool *lost;                 /* [ranks]; a guess until it is known */
  peer peer[];
} net;

frame net_frame(const net *n, int32_t kind, int64_t size);
/* Tells all that are there; the first reason stays, and over which rank. */
void net_fail(net *n, int32_t culprit, const char *why);

/* link_socket_door.c: the next who has said, in a frame of this program, who it
 * is: a connection; or -1: nobody has until the end, in seconds of the clock. Who
 * is silent, or something else, keeps nobody waiting. Another version of dil COMES,
 * as if it were of no ranks. */
int net_answer(net *n, double end, frame *said);
/* Tells who has said so why it is sent away. */
void net_turn_away(const net *n, int file, const char *why);
/* Of ranks that have met: that rank has come already; who returns is kept. */
void net_send_away(const net *n, int file, const frame *said);
void net_look_out(net *n);
bool net_returns(net *n, int file, const frame *said);
/* "process 4711 on 10.0.0.5", which is at the other end, or at this one. */
enum { WHO = 80 };
void net_print_who(int file, bool here, int32_t process, char words[WHO]);

/* link_socket_meet.c: connects each two ranks within so many seconds; again, of
 * ranks that know where all are. */
dil_status net_meet(net *n, const char *address, double patience);
dil_status net_rejoin(net *n, double patience);
/* A frame of this program, from who has connected. */
bool net_hear(int file, void *what, size_t size);
/* The words behind the head FAILED. */
bool net_hear_reason(int file, const frame *f, char why[REASON]);
bool net_say(int file, const void *what, size_t size);
bool net_is_ours(const frame *f);
bool net_is_of_dil(const frame *f); /* of whichever version */
/* Nothing is waited for beyond the end, in seconds of the clock. */
void net_limit(int file, double end);
/* A connection, or -1; *refused: nobody listens there. */
int net_connect(const struct sockaddr_storage *at, double end, bool *refused);

/* link_socket_lost.c: not where nobody listens at the rank's port any more. */
bool net_may_run(const net *n, int32_t rank);
/* After it has failed, all that are left find each other and agree on who they
 * are, in n->lost, within about twice so many seconds. False: they do not, with
 * the reason as the last error. */
bool net_agree(net *n, double timeout);

#endif
