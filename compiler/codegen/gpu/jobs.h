/* jobs.h - the compilations of a request: one for each variant of a strategy. */
#ifndef DIL_COMPILER_CODEGEN_GPU_JOBS_H
#define DIL_COMPILER_CODEGEN_GPU_JOBS_H

#include "gpu.h"
#include <pthread.h>

/* The compilation of one variant of a strategy. It has a thread of its own,
 * since NVRTC takes long and runs mostly on one thread. */
typedef struct gpu_job {
  gpu_request request;      /* its streams write to `text` below */
  const gpu_strategy *strategy;
  int32_t variant;
  bool deferred;      /* it may come after the kernel */
  dil_cuda_code code; /* of the preferred configuration, until one
                         succeeds */
  dil_status status;
  char problem[2048];       /* dil_last_error of its thread */
  char *text[2];
  size_t length[2];
  pthread_t thread;
  bool running;
} gpu_job;

typedef struct gpu_jobs {
  int32_t count;
  gpu_job job[GPU_CODES_MAX];
} gpu_jobs;

/* Lists a strategy's variants, one job each. */
dil_status jobs_list(const gpu_request *r, const gpu_strategy *s, gpu_jobs *jobs);
/* Compiles all jobs but deferred ones, at the same time. Codes that the gate accepted, and
 * deferred ones without a cubin, go to `out`. */
dil_status jobs_run(const gpu_request *request, gpu_jobs *jobs, gpu_codes *out);
/* Compiles the first configuration that passes the gate, on this thread. */
void job_run(gpu_job *j);
/* Adds the code of job number `index` as it is now. */
void job_put_code(const gpu_job *j, int32_t index, gpu_codes *out);

#endif
