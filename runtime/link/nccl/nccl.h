/* nccl.h - the part of NCCL that the run time uses, declared here so that the
 * build needs no NCCL header. */
#ifndef DIL_RUNTIME_LINK_NCCL_NCCL_H
#define DIL_RUNTIME_LINK_NCCL_NCCL_H

#include "runtime/dilrt.h"

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 0 };
enum { NCCL_SHRINK_ABORT = 1 }; /* aborts outstanding operations first */

typedef struct nccl_comm *nccl_comm;
typedef struct nccl_id {
  char bytes[128];
} nccl_id;

/* ncclConfig_t of NCCL 2.14; later versions read `size` and `version` to know
 * which fields it has. */
typedef struct nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking;
} nccl_config;
#define NCCL_CONFIG \
  (nccl_config) { sizeof(nccl_config), 0xcafebeef, 21400, 0 }

/* X(name here, symbol of libnccl.so.2, arguments); each returns an int. */
#define NCCL_FUNCTIONS(X)                                                  \
  X(version, ncclGetVersion, (int *))                                      \
  X(id, ncclGetUniqueId, (nccl_id *))                                      \
  X(join, ncclCommInitRankConfig,                                          \
    (nccl_comm *, int ranks, nccl_id, int rank, nccl_config *))            \
  X(state, ncclCommGetAsyncError, (nccl_comm, int *))                      \
  X(abort, ncclCommAbort, (nccl_comm))                                     \
  X(begin, ncclGroupStart, (void))                                         \
  X(end, ncclGroupEnd, (void))                                             \
  X(send, ncclSend,                                                        \
    (const void *, size_t, int type, int to, nccl_comm, void *stream))     \
  X(receive, ncclRecv,                                                     \
    (void *, size_t, int type, int from, nccl_comm, void *stream))

/* The same for a function that NCCL has since 2.27. */
#define NCCL_SHRINK(X)                                                       \
  X(shrink, ncclCommShrink,                                                  \
    (nccl_comm, int *lost, int lost_count, nccl_comm *, nccl_config *,       \
     int how))
enum { NCCL_SHRINKS_SINCE = 22700 };

typedef struct nccl_functions {
#define X(name, symbol, arguments) int(*name) arguments;
  NCCL_FUNCTIONS(X)
  NCCL_SHRINK(X)           /* NULL: this NCCL is older */
#undef X
  const char *(*text)(int);        /* ncclGetErrorString */
  const char *(*last)(nccl_comm);  /* ncclGetLastError */
} nccl_functions;

/* nccl_open.c: opens NCCL once. DIL_ENVIRONMENT: there is no usable NCCL; later
 * calls fail with the same reason. */
dil_status nccl_open(const nccl_functions **functions);

#endif
