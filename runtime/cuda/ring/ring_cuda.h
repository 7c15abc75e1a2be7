/* ring_cuda.h - the functions of a rank on a GPU that module.c lists, behind
 * dil_cuda_module. */
#ifndef DIL_RUNTIME_CUDA_RING_RING_CUDA_H
#define DIL_RUNTIME_CUDA_RING_RING_CUDA_H

#include "runtime/cuda.h"

/* ---- ring_cuda.c --------------------------------------------------------- */

dil_status ring_cuda_new(dil_cuda *gpu, dil_cuda_kernel *kernel,
                         const dil_cuda_code *rows,
                         struct ring_device **device);
void *ring_cuda_passes(struct ring_device *ring); /* the stream of its passes */
dil_status ring_cuda_normal(struct ring_device *ring, const dil_tensor *tensor,
                            const struct dil_normal_place *place);

/* ---- transfer.c ---------------------------------------------------------- */

dil_status cuda_transfer_new(dil_cuda *gpu, struct ring_device *rank,
                             const dil_cuda_code *rows,
                             struct device_transfer **made);

#endif
