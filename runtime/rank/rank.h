/* rank.h - one rank of a host, as the files of this folder share it: rank.c makes
 * it and runs calls, rank_backward.c makes gradients, rank_gpu.c has what a rank
 * on a GPU needs besides. */
#ifndef DIL_RUNTIME_RANK_RANK_H
#define DIL_RUNTIME_RANK_RANK_H

#include "runtime/api/context.h"
#include "runtime/ring/rows_module.h"
#include "runtime/ring/ring.h"

struct dil_rank {
  dil_kernel *kernel;      /* the host's */
  dil_link *link;          /* moves memory of the host */
  ring_device *device;
  ring_routes routes;      /* of the last shape */
  dil_layout layout;
  bool gathers;
  /* On a GPU: */
  dil_cuda_code rows;      /* of templates/rows.cu */
  const dil_nccl_module *nccl;
  dil_nccl *comm;          /* NULL: the only rank */
};

/* A run: the ring, and the views that it borrows. */
typedef struct rank_run {
  dil_ring ring;
  ring_rows rows;
  ring_gradients gradients;
  void *sums, *again;      /* memory of the device: of gradients; o and lse made
                              again */
} rank_run;

/* Views of the rows of each progression, which stand one after the other along
 * an axis. */
void rank_slices(const dil_tensor *t, int32_t axis, const positions *p,
                 dil_tensor parts[PROGRESSIONS_MOST]);
/* A rank that cannot even begin tells the others. Returns the status. */
dil_status rank_give_up(const dil_rank *r, dil_status status);
/* The first of a call, whose end is dil_call_end. */
dil_status rank_call_begin(const dil_rank *r, const dil_sizes *whole);
/* Makes a run of a call that was read with `status`; a failure of either is for
 * all ranks. On a GPU it waits for the work on the host's stream. */
dil_status rank_run_make(dil_rank *r, const dil_sizes *whole,
                         const dil_call *call, void *stream, dil_status status,
                         rank_run *run);
dil_status rank_run_ring(dil_rank *r, rank_run *run);

/* ---- rank_gpu.c ---------------------------------------------------------- */

/* Behind the link of the host: the device of a rank on a GPU, and when all ranks
 * have one the communicator for memory of devices. */
dil_status rank_gpu_open(dil_rank *r);
dil_status rank_gpu_join(dil_rank *r);
void rank_gpu_close(dil_rank *r);
/* ring_run with rows that travel by NCCL, in the device's context. */
dil_status rank_gpu_run(dil_rank *r, dil_ring *ring);
/* Whether the gradients are such as a GPU adds up in place: dq, dk and dv f32,
 * and all of them row-major. */
dil_status rank_gpu_check(const dil_backward_call *call);
/* Copies the gradients of inputs from sums of the host. */
dil_status rank_gpu_store_inputs(const dil_rank *r,
                                 const dil_backward_call *call,
                                 const double *sums);

#endif
