/* ranks_gpu.h - ranks on GPUs: each rank has a device, a kernel on it, and its
 * own rows in the device's memory. */
#ifndef DIL_RUNTIME_RING_RANKS_GPU_H
#define DIL_RUNTIME_RING_RANKS_GPU_H

#include "ring.h"
#include "runtime/cuda.h"

/* All ranks share this. The rank group borrows it and all that it points to. */
typedef struct rank_group_gpu {
  const dil_cuda_module *cuda;
  const dil_cuda_code *codes; /* of the plan, for all heads */
  int32_t code_count;
  dil_cuda_code rows;         /* of templates/rows.cu */
  dil_dimension dimension;    /* NULL: the plan has no inputs */
  const void *context;        /* for `dimension` */
  int32_t first, devices;     /* rank r takes GPU first + r % devices */
} rank_group_gpu;

/* A rank's shard of a call, and its place in the whole call. */
typedef struct resident_shard {
  ring_rows rows;          /* views of the host's tensors; no data: the rows
                              are random numbers */
  dil_dtype dtype;         /* on the device; the host's may be another */
  positions queries, keys; /* positions */
  int64_t N, M;            /* of the whole */
  int32_t batch, head, kv_head, heads, kv_heads; /* batch, head, kv_head: the
                              first ones here; heads, kv_heads: of the whole */
  uint32_t seed;           /* of rows without data */
} resident_shard;

/* One rank's device and its tensors there. */
typedef struct resident {
  const rank_group_gpu *shared;
  dil_cuda *gpu;
  dil_cuda_kernel *kernel;
  ring_device *device;
  ring_rows rows;          /* on the device */
  dil_tensor inputs[DIL_INPUT_MAX];
  int64_t bytes;           /* of all these tensors */
  /* dO and dlse of a run backward; data NULL: dlse is 0. */
  dil_tensor output[PROGRESSIONS_MOST], lse[PROGRESSIONS_MOST];
  void *memory[7 * PROGRESSIONS_MOST + DIL_INPUT_MAX];
  int32_t memory_count, gradients; /* gradients: from here on, of dO and dlse */
} resident;

/* Opens the device of a rank and makes the plan's kernel there. The caller
 * calls resident_close even after a failure. */
dil_status resident_open(const rank_group_gpu *shared, const dil_table *table,
                         int32_t rank, resident *r);
void resident_close(resident *r);
/* Copies a rank's shard of a call to its device, or makes its random numbers
 * there, and fills o and lse with NaN. It frees the shard before. */
dil_status resident_place(resident *r, const dil_call *call,
                          const resident_shard *shard);
/* Copies dO and dlse of that shard to its device: the host's views of them. dO
 * without data stands for random numbers, of tensor `number`. The shard is there
 * already. */
dil_status resident_place_gradients(resident *r, const resident_shard *shard,
                                    uint32_t number, const dil_tensor *output,
                                    const dil_tensor *lse);
/* Copies o and lse back to the host's views. */
dil_status resident_fetch(resident *r, const ring_rows *host);

/* Copies one row of o and its lse back. */
dil_status resident_fetch_row(resident *r, const ring_rows *host,
                              int32_t progression, int64_t b, int64_t row,
                              int32_t h);

/* ranks_rows.c: the elements of q, k or v (tensor 0, 1, 2) that a progression
 * of a shard holds. */
dil_normal_place shard_normals(const resident_shard *shard, int32_t tensor,
                            int32_t progression);
/* Views of some rows of a progression: `these` counts rows from the
 * progression's first. */
void rows_slice(const ring_rows *whole, int32_t progression,
                dil_progression these, dil_tensor *o, dil_tensor *lse);
/* Copies a strided tensor [B, rows, H, D] to a contiguous message, or back, and
 * moves *message on. */
void rows_copy(const dil_tensor *t, char **message, bool unpack);
/* The same to a message of another dtype. */
void rows_pack(const dil_tensor *t, dil_dtype dtype, char *to);
/* The same as rows_copy for an lse [B, H, N]; no data: it does nothing. */
void lse_copy(dil_tensor t, char **message, bool unpack);

#endif
