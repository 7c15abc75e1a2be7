/* rows_link.h - what dilrt-nccl.so offers: messages of device memory by NCCL,
 * beside a link that moves the host's. The module is the only user of NCCL,
 * which it opens at run time, when a topology says `link nccl`. */
#ifndef DIL_NCCL_ROWS_LINK_H
#define DIL_NCCL_ROWS_LINK_H

#include "../link.h"

typedef struct dil_nccl dil_nccl; /* a communicator of this rank's device */

/* Each with the context of the rank's device current on its thread. */
typedef struct dil_nccl_module {
  int32_t version;       /* DIL_INTERFACE, of interface.h */
  /* Collective over the link: a communicator of its ranks, one a GPU. What NCCL
   * needs to find them goes over the link. DIL_ENVIRONMENT: there is no NCCL,
   * or it cannot; DIL_PEER: a rank does not come in the link's time. */
  dil_status (*join)(dil_link *host, dil_nccl **made);
  /* A link that moves the host's memory by `host`, which it borrows, and a
   * device's by NCCL. Once it fails the communicator is aborted; with `shrinks`,
   * and a host that tells whom it has lost, it becomes one of those left. */
  dil_status (*link)(dil_nccl *comm, dil_link *host, bool shrinks,
                     dil_link **made);
  /* Whether a run of so many ranks may use it. */
  bool (*serves)(const dil_nccl *comm, int32_t ranks);
  void (*leave)(dil_nccl *comm);
} dil_nccl_module;

typedef const dil_nccl_module *(*dil_nccl_init)(void);
#define DIL_NCCL_SYMBOL "dil_nccl_module_init"

#endif
