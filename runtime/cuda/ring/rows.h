/* rows.h - launches of templates/rows.cu: rows of keys into messages and back,
 * and random rows. */
#ifndef DIL_RUNTIME_CUDA_RING_ROWS_H
#define DIL_RUNTIME_CUDA_RING_ROWS_H

#include "runtime/cuda/device.h"
#include "runtime/ring/ring_device.h"
#include "templates/rows.h"

/* The device and the stream that a launch goes to. The device's context is this
 * thread's. */
typedef struct rows_target {
  dil_cuda *device;
  const cuda_code *code;
  void *stream;
} rows_target;

/* Moves the rows of a route; `how` is DIL_ROWS_... of templates/rows.h. Makes the
 * route's copy when it has none yet, which may wait for the device. */
dil_status rows_move(const rows_target *to, route *r, const ring_keys *keys,
                     void *message, int32_t how);
/* The copy's bytes, for a caller that brings the copy to the device itself. */
int64_t rows_list_bytes(const route *r);
void rows_list(const route *r, void *out);
void rows_forget(dil_cuda *device, route *r);
/* Standard normals into a contiguous tensor [B, rows, H, D]. */
dil_status rows_random(const rows_target *to, const dil_tensor *tensor,
                       const dil_normal_place *place);

#endif
