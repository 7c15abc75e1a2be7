/* dilrt.h - the run time of dil: tensors, kernels, calls and threads.
 *
 * All that a host of a ready-made kernel needs. No function prints, exits or
 * installs a handler; each returns a dil_status, and the text of the last
 * failure of this thread is at dil_last_error(). */
#ifndef DILRT_H
#define DILRT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIL_VERSION "0.1.0"

typedef enum dil_status {
#define X(name, number, text) DIL_##name = number,
#include "status.def"
#undef X
} dil_status;

/* The general text of a status; never NULL. */
const char *dil_status_text(dil_status status);
/* What this thread's last failing call had to say; "" before any. Valid until
 * the next failing call of this thread. */
const char *dil_last_error(void);

typedef enum dil_dtype {
  DIL_F32, DIL_BF16, DIL_F16, DIL_I32, DIL_U8, DIL_DTYPE_COUNT
} dil_dtype;

size_t dil_dtype_size(dil_dtype dtype);      /* bytes an element */
const char *dil_dtype_name(dil_dtype dtype); /* "f32", ... */

enum { DIL_RANK_MAX = 4 };

/* A strided view of memory that the caller owns. Strides count elements and
 * may be any for the outer dimensions; the last dimension of q, k, v and o
 * must be contiguous (stride 1). */
typedef struct dil_tensor {
  void *data;
  dil_dtype dtype;
  int32_t rank;
  int64_t shape[DIL_RANK_MAX];
  int64_t stride[DIL_RANK_MAX];
} dil_tensor;

/* A row-major tensor over `data`; rank at most DIL_RANK_MAX. */
dil_tensor dil_tensor_make(void *data, dil_dtype dtype, int32_t rank,
                           const int64_t *shape);
/* Elements; -1 when an extent is negative or the product does not fit. */
int64_t dil_tensor_count(const dil_tensor *tensor);

/* One attention call. B batch rows, N query rows, M key rows; the heads and
 * head sizes are the kernel's. Everything is read-only but o and lse. */
typedef struct dil_call {
  size_t size;              /* sizeof(dil_call) */
  dil_tensor q;             /* [B, N, H, D] */
  dil_tensor k;             /* [B, M, Hkv, D] */
  dil_tensor v;             /* [B, M, Hkv, Dv] */
  dil_tensor o;             /* [B, N, H, Dv] */
  dil_tensor lse;           /* f32 [B, H, N]; data NULL: not wanted */
  const dil_tensor *inputs; /* the pattern's inputs in its own order */
  int32_t input_count;
  int32_t train;            /* not 0: dropout applies */
  uint64_t seed;            /* of the dropout */
  double scale;             /* read when the pattern says `scale runtime` */
  const int32_t *lengths;   /* [B], each row's own M_b <= M; NULL: M */
} dil_call;

/* A pool of worker threads; the calling thread is one of them. Runs of one
 * pool are serialised. count 0 takes DIL_THREADS, or else the processors that
 * this process may use. NULL when memory or threads are lacking or DIL_THREADS
 * is not a number; the reason is at dil_last_error(). */
typedef struct dil_threads dil_threads;
dil_threads *dil_threads_new(int32_t count);
void dil_threads_free(dil_threads *threads);
int32_t dil_threads_count(const dil_threads *threads);

/* A compiled kernel. Running it is thread-safe and plans nothing anew. */
typedef struct dil_kernel dil_kernel;
void dil_kernel_free(dil_kernel *kernel);

/* Writes o and lse. The result does not depend on the threads. Errors:
 * DIL_USAGE (shape, dtype, stride or a missing input, named in the text),
 * DIL_MEMORY. */
dil_status dil_kernel_run(dil_kernel *kernel, dil_threads *threads,
                          const dil_call *call);
/* Bytes of scratch memory that the kernel holds after its last run. */
int64_t dil_kernel_workspace(const dil_kernel *kernel);

#ifdef __cplusplus
}
#endif
#endif
