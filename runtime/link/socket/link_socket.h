/* link_socket.h - ranks joined by TCP connections: the state that the files
 * link_socket*.c share. A *net* is all connections of one rank; several links
 * may use it. */
#ifndef DIL_RUNTIME_LINK_SOCKET_LINK_SOCKET_H
#define DIL_RUNTIME_LINK_SOCKET_LINK_SOCKET_H

#include "runtime/link/link.h"
#include <stddef.h>
#include <sys/socket.h>

#define NET_MAGIC "dilnet3" /* other versions begin with the same letters */
enum { REASON = 256 };
enum { NET_MOMENT = 2 };     /* seconds in which a rank that knows the cause of
                                a failure tells the others */
/* Kinds of frames. A rendezvous: a rank sends COMES to rank 0, receives the
 * addresses of all ranks, and sends CALLS to the ranks below its own. A failure
 * agreement: a rank sends RETURNS to the leader, which answers REMAINS. */
enum {
  FRAME_MESSAGE = 1, /* a message, or rank 0's table of addresses */
  FRAME_FAILED,      /* the sender's net has failed */
  FRAME_LEFT,        /* the sender has closed its links without a failure */
  FRAME_WAITS,       /* the sender has waited too long for a rank */
  FRAME_RETURNS,
  FRAME_REMAINS,
  FRAME_HEARTBEAT,
  FRAME_COMES,
  FRAME_CALLS
};

typedef struct frame {
  char magic[8];
  int32_t kind;
  int32_t rank, ranks; /* of the sender; in FRAME_WAITS the awaited rank */
  int32_t port;              /* where the sender listens */
  int32_t culprit, silent;   /* of FRAME_FAILED: see net */
  int32_t process;           /* the sender's process id */
  int32_t version;           /* DIL_INTERFACE of the sender */
  int64_t size;              /* bytes that follow the frame */
} frame;

typedef struct peer {
  int file;                  /* the connection; -1: none, or this rank itself */
  int32_t process;
  int returned;              /* its connection after FRAME_RETURNS; -1: none */
  frame head;                /* the frame being received: `got` bytes so far */
  size_t got;
  bool left, gone, sending;  /* it has closed its links in peace; its connection
                                has broken; a message to it is partly sent */
  double last_heartbeat;     /* when its last heartbeat came */
  int32_t waits_for;         /* the rank in its last FRAME_WAITS; -1: none */
} peer;

/* A connection whose first frame has not come yet. */
enum { CALLERS = 64 };
typedef struct caller {
  int file;
  frame first; /* `got` bytes so far */
  size_t got;
  double end;                /* when it is closed for its silence */
} caller;

typedef struct net {
  int32_t rank, ranks, links; /* links: how many links use this net */
  bool failed;
  int32_t culprit;            /* the rank that the failure has cost; -1: none */
  bool silent;                /* the culprit's process may run, but is silent */
  char reason[REASON];
  double patience;            /* seconds that the ranks have to meet */
  struct sockaddr_storage *address; /* [ranks]: where each rank listens */
  int listening;              /* this rank's listening socket; -1: closed */
  int32_t callers;
  caller caller[CALLERS];     /* oldest first */
  bool asked, known;          /* net_agree has run; the ranks have agreed */
  bool *lost;                 /* [ranks]; a guess until `known` */
  peer peer[];
} net;

frame net_frame(const net *n, int32_t kind, int64_t size);
/* Makes the net fail and tells all connected ranks. The first call decides the
 * reason and the culprit. */
void net_fail(net *n, int32_t culprit, const char *why);

/* link_socket_accept.c, the accepting side: returns the next connection whose
 * first frame is complete; -1: none is until `end`, in seconds of the clock.
 * Silent and foreign connections delay no rank. A frame of another version of
 * dil comes back as FRAME_COMES with ranks = 0. */
int net_accept(net *n, double end, frame *first);
/* Sends the reason as FRAME_FAILED and closes the connection. */
void net_reject(const net *n, int file, const char *why);
/* After the rendezvous: rejects a caller, because all ranks have met. */
void net_refuse(const net *n, int file, const frame *first);
/* After the rendezvous: serves all callers that are there, without waiting. */
void net_serve_callers(net *n);
/* Keeps the connection if the frame is FRAME_RETURNS of a rank. */
bool net_returns(net *n, int file, const frame *first);
/* "process 4711 on 10.0.0.5", at this end (here) or at the other end. */
enum { WHO = 80 };
void net_print_who(int file, bool here, int32_t process, char words[WHO]);

/* link_socket_rendezvous.c, the rendezvous: connects each two ranks within
 * `patience` seconds. net_rejoin does so for ranks whose addresses are known
 * already. */
dil_status net_meet(net *n, const char *address, double patience);
dil_status net_rejoin(net *n, double patience);
/* Blocking receive of exactly `size` bytes. */
bool net_receive(int file, void *what, size_t size);
/* Receives the text that follows FRAME_FAILED. */
bool net_receive_reason(int file, const frame *f, char why[REASON]);
bool net_send(int file, const void *what, size_t size);
bool net_is_ours(const frame *f);   /* of this version of the protocol */
bool net_is_of_dil(const frame *f); /* of any version */
/* Blocking receives on this connection give up at `end`. */
void net_set_deadline(int file, double end);
/* A connection, or -1; *refused: no process listens there. */
int net_connect(const struct sockaddr_storage *at, double end, bool *refused);

/* link_socket_failure.c: false if the host refuses connections to the rank's
 * port, so that its process has ended. */
bool net_may_run(const net *n, int32_t rank);
/* After a failure, the remaining ranks find each other and agree on n->lost,
 * within about 2 * timeout seconds. False: they do not agree, and the last
 * error says why. */
bool net_agree(net *n, double timeout);

#endif
