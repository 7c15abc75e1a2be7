/* gpu_estimate.h - a dry run of a plan on a GPU, which need not be present.
 *
 * In: a plan made for GPUs, a chip or a present device, a call's sizes. Out:
 * for each pass its kernel and why, its tiles and the key blocks that they
 * visit; states, workspace, and a predicted time. The back end and the run time
 * give these answers themselves, without NVRTC and without a driver. Only
 * gpu_estimate_device opens the device, to ask for its facts. */
#ifndef DIL_COMPILER_CLI_GPU_ESTIMATE_H
#define DIL_COMPILER_CLI_GPU_ESTIMATE_H

#include "call_setup.h"
#include "compiler/analysis/cost.h"
#include <jansson.h>

typedef struct gpu_estimate_pass {
  cover_count count;     /* of its branches alone, in its kernel's tiles */
  const char *reason;    /* the Hopper kernel's refusal; NULL: none */
  span at;               /* of the reason in the .dil file; or no place */
  double seconds;
} gpu_estimate_pass;

typedef struct gpu_estimate {
  const compilation *compilation;
  const char *name;      /* "sm_90a", "cuda:0" */
  const char *model;     /* a device with this chip, or the present device */
  dil_cuda_facts facts;
  gpu_codes codes;
  dil_cuda_estimate run;
  gpu_estimate_pass pass[DIL_BRANCH_MAX];
  double choices;        /* seconds to choose blocks, before the passes */
  double states;         /* seconds to move states between passes */
  int64_t rank_state;    /* most bytes of states on one rank; 0: no ranks */
  int64_t rank_state_stride; /* the states' stride in rows, on that rank */
  double seconds;
  double share;          /* of the chip's peak FLOP/s in that time; < 0: there
                            are no figures of this chip */
} gpu_estimate;

/* Fill name, model and facts: of the chip of `--cuda`, or of the device of
 * `--device cuda`. gpu_estimate_device also applies the device's remembered
 * schedule to the plan. DIL_USAGE: the chip is not among those known. */
dil_status gpu_estimate_chip(arena *a, const options *o, gpu_estimate *f);
dil_status gpu_estimate_device(const call_setup *b, compilation *c,
                               gpu_estimate *f);
/* Fills all the rest; `name`, `model` and `facts` are set before. flops: of the
 * whole call. */
dil_status gpu_estimate_make(const call_setup *b, const compilation *c,
                             double flops, gpu_estimate *f);

/* ---- gpu_estimate_print.c ------------------------------------------------ */

void gpu_estimate_print(arena *a, const gpu_estimate *f, FILE *out);
json_t *gpu_estimate_json(arena *a, const gpu_estimate *f);

#endif
