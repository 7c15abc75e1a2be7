/* nvidia.h - the part of the CUDA driver that the run time uses, declared here
 * so that no CUDA header is needed, and the device behind a dil_cuda. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_NVIDIA_H
#define DIL_RUNTIME_CUDA_LAUNCH_NVIDIA_H

#include "family.h"
#include <stdatomic.h>

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_library *cu_library;
typedef struct cu_kernel *cu_kernel;
typedef struct cu_function *cu_function;
typedef struct cu_graph *cu_graph;
typedef struct cu_object *cu_object;
typedef unsigned long long cu_pointer;

/* X(name here, symbol of libcuda.so.1, arguments) */
#define CUDA_FUNCTIONS(X)                                                      \
  X(init, cuInit, (unsigned))                                                  \
  X(version, cuDriverGetVersion, (int *))                                      \
  X(error_text, cuGetErrorString, (cu_result, const char **))                  \
  X(device_count, cuDeviceGetCount, (int *))                                   \
  X(device, cuDeviceGet, (cu_device *, int))                                   \
  X(device_name, cuDeviceGetName, (char *, int, cu_device))                    \
  X(device_memory, cuDeviceTotalMem_v2, (size_t *, cu_device))                 \
  X(attribute, cuDeviceGetAttribute, (int *, int, cu_device))                  \
  X(retain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))               \
  X(release, cuDevicePrimaryCtxRelease_v2, (cu_device))                        \
  X(push, cuCtxPushCurrent_v2, (cu_context))                                   \
  X(pop, cuCtxPopCurrent_v2, (cu_context *))                                   \
  X(take, cuMemAlloc_v2, (cu_pointer *, size_t))                               \
  X(give, cuMemFree_v2, (cu_pointer))                                          \
  X(take_ordered, cuMemAllocAsync, (cu_pointer *, size_t, cu_stream))          \
  X(give_ordered, cuMemFreeAsync, (cu_pointer, cu_stream))                     \
  X(upload, cuMemcpyHtoD_v2, (cu_pointer, const void *, size_t))               \
  X(download, cuMemcpyDtoH_v2, (void *, cu_pointer, size_t))                   \
  X(upload_ordered, cuMemcpyHtoDAsync_v2,                                      \
    (cu_pointer, const void *, size_t, cu_stream))                             \
  X(download_ordered, cuMemcpyDtoHAsync_v2,                                    \
    (void *, cu_pointer, size_t, cu_stream))                                   \
  X(pin, cuMemHostAlloc, (void **, size_t, unsigned))                          \
  X(unpin, cuMemFreeHost, (void *))                                            \
  X(fill, cuMemsetD8_v2, (cu_pointer, unsigned char, size_t))                  \
  X(fill_ordered, cuMemsetD8Async,                                             \
    (cu_pointer, unsigned char, size_t, cu_stream))                            \
  X(library_load, cuLibraryLoadData,                                           \
    (cu_library *, const void *, int *, void **, unsigned, int *, void **,     \
     unsigned))                                                                \
  X(library_unload, cuLibraryUnload, (cu_library))                             \
  X(library_kernel, cuLibraryGetKernel,                                        \
    (cu_kernel *, cu_library, const char *))                                   \
  X(kernel_function, cuKernelGetFunction, (cu_function *, cu_kernel))          \
  X(function_set, cuFuncSetAttribute, (cu_function, int, int))                 \
  X(launch, cuLaunchKernel,                                                    \
    (cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
     unsigned, cu_stream, void **, void **))                                   \
  X(copy_peer, cuMemcpyPeerAsync,                                              \
    (cu_pointer, cu_context, cu_pointer, cu_context, size_t, cu_stream))       \
  X(peer_can, cuDeviceCanAccessPeer, (int *, cu_device, cu_device))            \
  X(peer_enable, cuCtxEnablePeerAccess, (cu_context, unsigned))                \
  X(stream_new, cuStreamCreateWithPriority,                                    \
    (cu_stream *, unsigned, int))                                              \
  X(stream_free, cuStreamDestroy_v2, (cu_stream))                              \
  X(wait, cuStreamSynchronize, (cu_stream))                                    \
  X(stream_number, cuStreamGetId, (cu_stream, unsigned long long *))           \
  X(capture, cuStreamGetCaptureInfo_v2,                                        \
    (cu_stream, int *status, unsigned long long *number, cu_graph *,           \
     const void **nodes, size_t *count))                                       \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))              \
  X(object_new, cuUserObjectCreate,                                            \
    (cu_object *, void *, void (*)(void *), unsigned, unsigned))               \
  X(object_free, cuUserObjectRelease, (cu_object, unsigned))                   \
  X(graph_keep, cuGraphRetainUserObject,                                       \
    (cu_graph, cu_object, unsigned, unsigned))                                 \
  X(event_new, cuEventCreate, (cu_event *, unsigned))                          \
  X(event_free, cuEventDestroy_v2, (cu_event))                                 \
  X(event_record, cuEventRecord, (cu_event, cu_stream))                        \
  X(event_wait, cuEventSynchronize, (cu_event))                                \
  X(event_query, cuEventQuery, (cu_event))                                     \
  X(stream_wait, cuStreamWaitEvent, (cu_stream, cu_event, unsigned))           \
  X(event_time, cuEventElapsedTime, (float *, cu_event, cu_event))             \
  X(tensor_map, cuTensorMapEncodeTiled,                                        \
    (void *map, int type, unsigned rank, void *data, const uint64_t *size,     \
     const uint64_t *stride, const unsigned *box, const unsigned *step,        \
     int interleave, int swizzle, int promotion, int fill))

typedef struct cuda_driver {
#define X(name, symbol, arguments) cu_result(*name) arguments;
  CUDA_FUNCTIONS(X)
#undef X
} cuda_driver;

struct dil_cuda {
  const cuda_driver *driver;
  dil_cuda_facts facts;
  cu_device device;
  cu_context context;
  struct cuda_counters *counters; /* NULL where no family counts tiles */
  struct pool *pool;       /* of workspace; NULL: the driver's */
  struct cuda_spans *spans; /* NULL: nothing is traced */
  atomic_bool lost;         /* a kernel's fault has ended the context */
};

/* The opened driver, or DIL_ENVIRONMENT with the reason; tried once. */
dil_status cuda_driver_open(const cuda_driver **driver);
/* DIL_OK for 0, else the driver's own words; out of memory is DIL_MEMORY. A
 * fault that no context outlives is noted with the device that is entered. */
dil_status cuda_check(const cuda_driver *driver, cu_result result,
                      const char *doing);
/* Whether work on a stream is captured into a graph, which runs it later. */
dil_status cuda_is_captured(const cuda_driver *driver, void *stream,
                            bool *captured);
/* Makes the device's context this thread's, and gives back the former. One that
 * is lost is not entered again: the fault was told where it happened. */
dil_status cuda_enter(const dil_cuda *device);
void cuda_leave(const dil_cuda *device);

#endif
