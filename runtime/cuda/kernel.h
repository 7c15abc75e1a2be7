/* kernel.h - a plan on a device, which may be absent. Running the plan
 * (kernel.c) and foreseeing a run (estimate.c) share these declarations. */
#ifndef DIL_RUNTIME_CUDA_KERNEL_H
#define DIL_RUNTIME_CUDA_KERNEL_H

#include "codes.h"

struct dil_cuda_kernel {
  dil_cuda *device;
  const dil_table *table;
  dil_dimension dimension;
  const void *context;
  cuda_codes codes;
  bool *chained;           /* [heads]: touched by more than one pass */
  bool stateful;           /* some head is chained */
  bool leaves_out;         /* some head is served by no pass */
  atomic_llong workspace;  /* bytes of the last run */
};

/* Bytes of [state o][state lse][bounds of inputs][the neediest pass][documents]. */
typedef struct kernel_layout {
  int64_t state_lse, bounds, pass, documents, end;
} kernel_layout;

/* Fills `chained`, `stateful` and `leaves_out`. */
void kernel_count_passes(dil_cuda_kernel *k);
/* Finds the pass that opens the rows, if there is one, and the least distance
 * of rows that have a state. */
void kernel_find_opening(const dil_cuda_kernel *k, cuda_run *r);
/* The checks of every device; fills the run. */
dil_status kernel_check_call(const dil_cuda_kernel *k, const dil_call *call,
                        const dil_shard *shard, cuda_run *r);
/* The code of each pass of a forward run, there. */
dil_status kernel_load_passes(dil_cuda_kernel *k, cuda_run *r);
/* Seconds that work on the default stream takes on the device. */
dil_status kernel_time_work(const dil_cuda *device,
                            dil_status (*work)(void *context), void *context,
                            double *seconds);
/* Makes a kernel of codes without their device, for estimates; the caller closes
 * it after a failure, too. */
dil_status kernel_estimate_open(dil_cuda_kernel *k, const dil_table *table,
                                const dil_cuda_code *code, int32_t count);
void kernel_estimate_close(dil_cuda_kernel *k);
/* The run of a call that is not checked, on a device of which there are facts
 * alone. */
cuda_run kernel_estimate_run(const dil_cuda_kernel *k, const dil_cuda *device,
                             const dil_call *call, const dil_shard *shard);
int64_t kernel_rows_of_state(const cuda_run *r);
/* For saved.c: a run of a shard of which all rows are the call's; the begin and the end
 * of its states. */
dil_status kernel_run_on_stream(dil_cuda_kernel *k, cuda_run *r);
dil_status kernel_begin_states(dil_cuda_kernel *k, cuda_run *r);
dil_status kernel_end_states(dil_cuda_kernel *k, cuda_run *r);

/* saved.c: what a run leaves for its gradients, the outputs of all passes with their
 * lse, as states of f32. */
typedef struct saved_states {
  float *o, *lse; /* of the first pass; [passes][B, N, H, Dv], [passes][B, N, H] */
} saved_states;
saved_states kernel_saved(const dil_cuda_kernel *k, const dil_call *call);
/* Runs a call that has memory for them. */
dil_status kernel_run_saving(dil_cuda_kernel *k, cuda_run *r);
dil_status kernel_lay_out(const dil_cuda_kernel *k, const cuda_run *r,
                          kernel_layout *at);

#endif
