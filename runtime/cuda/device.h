/* device.h - the functions that module.c lists, behind dil_cuda_module. */
#ifndef DIL_RUNTIME_CUDA_DEVICE_H
#define DIL_RUNTIME_CUDA_DEVICE_H

#include "runtime/cuda/launch/nvidia.h"

/* ---- device.c ------------------------------------------------------------ */

dil_status device_count(int32_t *count);
dil_status device_open(int32_t index, dil_cuda **device);
void device_close(dil_cuda *device);
struct pool *device_pool(const dil_cuda *device);
const dil_cuda_facts *device_facts(const dil_cuda *device);
dil_status device_take(dil_cuda *device, int64_t bytes, void **memory);
void device_give(dil_cuda *device, void *memory);
dil_status device_upload(dil_cuda *device, void *to, const void *from,
                         int64_t bytes);
dil_status device_download(dil_cuda *device, void *to, const void *from,
                           int64_t bytes);
dil_status device_fill(dil_cuda *device, void *to, uint8_t byte, int64_t bytes);
dil_status device_wait(dil_cuda *device, void *stream);

/* ---- kernel.c ------------------------------------------------------------ */

dil_status kernel_new(dil_cuda *device, const dil_table *table,
                      const dil_cuda_code *code, int32_t count, dil_more more,
                      dil_dimension dimension, const void *context,
                      dil_cuda_kernel **kernel);
void kernel_free(dil_cuda_kernel *kernel);
dil_status kernel_run(dil_cuda_kernel *kernel, const dil_call *call,
                      void *stream);
dil_status kernel_variants(dil_cuda_kernel *kernel, const dil_call *call,
                           const dil_shard *shard, char *text, size_t size);
int32_t kernel_states(const dil_cuda_kernel *kernel);
dil_status kernel_begin(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_shard *shard, void *stream);
dil_status kernel_advance(dil_cuda_kernel *kernel, const dil_call *call,
                          const dil_shard *shard, void *stream);
dil_status kernel_finish(dil_cuda_kernel *kernel, const dil_call *call,
                         const dil_shard *shard, void *stream);
dil_status kernel_opens(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_shard *shard, int64_t *state_stride);
dil_status kernel_open(dil_cuda_kernel *kernel, const dil_call *call,
                       const dil_shard *shard, void *stream);
int64_t kernel_workspace(const dil_cuda_kernel *kernel);

/* ---- backward.c ---------------------------------------------------------- */

dil_status kernel_backward(dil_cuda_kernel *kernel,
                           const dil_backward_call *call, void *stream);
int64_t kernel_saved_bytes(const dil_cuda_kernel *kernel, const dil_call *call);
dil_status kernel_backward_workspace(dil_cuda_kernel *kernel,
                                     const dil_backward_call *call,
                                     int64_t *bytes);
dil_status kernel_backward_time(dil_cuda_kernel *kernel,
                                const dil_backward_call *call,
                                double *seconds);

/* ---- backward_shard.c ---------------------------------------------------- */

/* Adds to dq, dk and dv of the call, which are f32, and to shard->inputs what the
 * shard's pairs give, on a stream: see cpu_kernel_backward_shard in cpu.h. All
 * memory is the device's. */
dil_status kernel_backward_shard(dil_cuda_kernel *kernel,
                                 const dil_backward_call *call,
                                 const dil_shard *shard, void *stream);
/* Writes the numbers of rows that travel: [B, N, heads][backward_states], each an
 * lse and a delta as kernels take them. See cpu_kernel_row_numbers. */
dil_status kernel_row_numbers(dil_cuda_kernel *kernel,
                              const dil_backward_call *call,
                              const dil_shard *shard, float *numbers,
                              void *stream);
/* See cpu_kernel_asks_states. */
bool kernel_asks_states(const dil_cuda_kernel *kernel);

/* ---- backward_estimate.c ------------------------------------------------- */

dil_status kernel_backward_describe(dil_cuda_kernel *kernel,
                                    const dil_backward_call *call,
                                    dil_backward_facts *out);
dil_status kernel_backward_estimate(const dil_cuda_facts *facts,
                                    const dil_table *table,
                                    const dil_cuda_code *code, int32_t count,
                                    const dil_backward_call *call,
                                    dil_backward_facts *out);

/* ---- kernel.c ------------------------------------------------------------ */

dil_status kernel_time(dil_cuda_kernel *kernel, const dil_call *call,
                       double *seconds);
/* Seconds on the device of the work that `work` puts on the default stream.
 * CLOCK_ALONE: as it comes. CLOCK_BEHIND: behind the same work once more, on a
 * device that is busy already. */
typedef enum cuda_clock { CLOCK_ALONE, CLOCK_BEHIND } cuda_clock;
dil_status cuda_time(const dil_cuda *device, cuda_clock clock,
                     dil_status (*work)(void *), void *context,
                     double *seconds);

/* ---- estimate.c ---------------------------------------------------------- */

dil_status kernel_estimate(const dil_cuda_facts *facts, const dil_table *table,
                           const dil_cuda_code *code, int32_t count,
                           const dil_call *call, const dil_shard *shard,
                           dil_cuda_estimate *out);

/* ---- codes.c ------------------------------------------------------------- */

/* The library and functions of a code; unloading takes half-made ones too. */
dil_status code_load(const dil_cuda *device, const dil_cuda_code *from,
                     cuda_code *code);
void code_unload(const dil_cuda *device, cuda_code *code);

/* ---- peak.c -------------------------------------------------------------- */

dil_status peak_measure(dil_cuda *device, const dil_cuda_code *code,
                        double seconds, double *rate);

#endif
