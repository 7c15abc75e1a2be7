/* crew_gpu.h - ranks on GPUs: each has a device, a kernel on it, and its own
 * rows there. */
#ifndef DIL_CREW_GPU_H
#define DIL_CREW_GPU_H

#include "cuda/cuda.h"
#include "ring.h"

/* What all ranks share. Borrowed: it must outlive the crew. */
typedef struct crew_gpu {
  const dil_cuda_module *cuda;
  const dil_cuda_code *codes; /* of the plan, of all heads */
  int32_t code_count;
  dil_cuda_code rows;         /* of templates/rows.cu */
  dil_dimension dimension;    /* NULL: the plan has no inputs */
  const void *context;
  int32_t first, devices;     /* ranks take them in turn, from the first on */
} crew_gpu;

/* A rank's part of a call, and where it stands in the whole of one. */
typedef struct resident_part {
  ring_rows rows;          /* views of the host's tensors, or without data; */
  dil_dtype dtype;         /* theirs may be wider than the kernel's */
  shard queries, keys;     /* positions */
  int64_t N, M;            /* of the whole */
  int32_t batch, head, kv_head, heads, kv_heads; /* first ones; of the whole */
  uint32_t seed;           /* of rows without data */
} resident_part;

/* One rank's device and what lies there. */
typedef struct resident {
  const crew_gpu *shared;
  dil_cuda *gpu;
  dil_cuda_kernel *kernel;
  ring_device *device;
  ring_rows rows;          /* on the device */
  dil_tensor inputs[DIL_INPUT_MAX];
  int64_t bytes;           /* of all that lies there */
  void *memory[5 * SHARD_COMBS + DIL_INPUT_MAX];
  int32_t memory_count;
} resident;

/* The device of a rank, and the plan on it; resident_close is due even after a
 * failure. */
dil_status resident_open(const crew_gpu *shared, const dil_table *table,
                         int32_t rank, resident *r);
void resident_close(resident *r);
/* Copies a rank's part of a call to its device, or makes it there; o and lse
 * are NaN. The former part is given up. */
dil_status resident_place(resident *r, const dil_call *call,
                          const resident_part *part);
/* o and lse back to the host's views. */
dil_status resident_fetch(resident *r, const ring_rows *host);

/* One row of them. */
dil_status resident_fetch_row(resident *r, const ring_rows *host, int32_t comb,
                              int64_t b, int64_t row, int32_t h);

/* crew_rows.c: which elements of q, k or v (0, 1, 2) a part's comb holds. */
dil_normal_place part_place(const resident_part *part, int32_t tensor,
                            int32_t comb);
/* Some of a comb's rows of o, and of lse. */
void rows_slice(const ring_rows *whole, int32_t comb, dil_comb these,
                dil_tensor *o, dil_tensor *lse);
/* Rows of all heads of a tensor [B, rows, H, D] to a message, or from it; as
 * rows of another dtype; an lse [B, H, N] in its own order. */
void rows_copy(const dil_tensor *t, char **message, bool unpack);
void rows_pack(const dil_tensor *t, dil_dtype dtype, char *to);
void lse_copy(dil_tensor t, char **message, bool unpack);

#endif
