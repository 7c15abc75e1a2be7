/* gpu.h - see gpu.c: the numeric suites on a GPU. */
#ifndef DIL_TESTS_SUPPORT_GPU_H
#define DIL_TESTS_SUPPORT_GPU_H

#include "numeric.h"
#include "compiler/codegen/gpu_backend.h"
#include "runtime/ring/ranks.h"

/* Whether DIL_TEST_DEVICE asks for the GPU. */
bool gpu_wanted(void);
/* Whether kernels compute. DIL_TEST_TAKES=1 says that those of the GPU do not: a
 * test asks then only which of them take its cases (tests/counting/nvrtc.c). */
bool gpu_computes(void);
/* The GPU compiler beside this program; aborts with the reason if none. */
const gpu_backend *gpu_compiler(void);
/* The run time for GPUs and its first device; abort with the reason. */
const dil_cuda_module *gpu_module(void);
dil_cuda *gpu_device(void);
/* NULL with the reason in problem. `parts`: for calls that are parts of
 * sequences; of others half know of parts all the same, as a library's do. */
dil_cuda_kernel *gpu_kernel_make(const plan *p, bool parts, char *problem,
                                 size_t size);
/* The same for whole sequences alone. */
dil_cuda_kernel *gpu_kernel_make_whole(const plan *p, char *problem, size_t size);
/* The same with `gradient_order any`. */
dil_cuda_kernel *gpu_kernel_make_any_order(const plan *p, char *problem,
                                           size_t size);
void gpu_kernel_unmake(dil_cuda_kernel *made);
/* What ranks of a plan on GPUs share; it may be asked for once a process. */
const rank_group_gpu *gpu_rank_group(const plan *p);
/* Gradients of ranks on GPUs, with o and lse of their own run forward. */
dil_status gpu_ranks_backward(rank_group *ranks, const dil_backward_call *call);
/* Whether another process of the same test makes this comparison: DIL_TEST_SHARE
 * divides them, a few in turn that one source of kernels serves. */
bool gpu_leaves_out(void);
/* The same of a whole case, told by its name and number. A suite that asks this asks
 * it of each of its cases: their comparisons are not divided again. */
bool gpu_leaves_case(const char *name, int32_t number);
/* The tensors of a call, guards and all, copied to the device. */
typedef struct gpu_copy {
  void *memory[NUMERIC_GUARDS];
  dil_tensor inputs[DIL_INPUT_MAX], made[DIL_INPUT_MAX];
  dil_call call; /* there */
} gpu_copy;
void gpu_copy_up(const data *d, gpu_copy *to); /* which must not move */
/* Gives it back; `outputs`: o, lse and lists come into d's tensors. */
void gpu_copy_down(data *d, gpu_copy *from, bool outputs);
/* A copy of so many bytes on the device. */
void *gpu_memory(const void *from, size_t size);
/* The call of d on the device; its outputs come back into d's tensors. */
dil_status gpu_run(data *d, dil_cuda_kernel *made);
/* The variants that the call of d takes there, pass by pass. */
const char *gpu_variants(data *d, dil_cuda_kernel *made);

#endif
