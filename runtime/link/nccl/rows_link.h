/* rows_link.h - the interface of dilrt-nccl.so: NCCL moves messages of device
 * memory, beside a link that moves messages of the host. Only this module uses
 * NCCL. It opens NCCL at run time, when a topology says `link nccl` or when ranks
 * of a host are on GPUs. */
#ifndef DIL_RUNTIME_LINK_NCCL_ROWS_LINK_H
#define DIL_RUNTIME_LINK_NCCL_ROWS_LINK_H

#include "runtime/link/link.h"

typedef struct dil_nccl dil_nccl; /* a communicator of this rank's device */

/* The caller has the context of the rank's device current on its thread. */
typedef struct dil_nccl_module {
  int32_t version;       /* DIL_INTERFACE, of interface.h */
  /* Makes a communicator of the link's ranks, one rank on each GPU; NCCL's
   * unique id goes over the link. Collective over the link. DIL_ENVIRONMENT:
   * there is no NCCL, or it fails; DIL_PEER: a rank does not come in time. */
  dil_status (*join)(dil_link *host, dil_nccl **made);
  /* A link that moves the host's memory by `host` and device memory by NCCL. It
   * borrows `host` and `comm`. Its revoke aborts the communicator. With
   * `shrinks`, and a `host` that tells which ranks are lost, the communicator
   * shrinks to the remaining ranks instead. */
  dil_status (*link)(dil_nccl *comm, dil_link *host, bool shrinks,
                     dil_link **made);
  /* Returns whether a run of `ranks` ranks may use the communicator. */
  bool (*serves)(const dil_nccl *comm, int32_t ranks);
  void (*leave)(dil_nccl *comm);
} dil_nccl_module;

typedef const dil_nccl_module *(*dil_nccl_init)(void);
#define DIL_NCCL_SYMBOL "dil_nccl_module_init"

#endif
