/* forecast.h - what a plan becomes on a GPU, which need not be there.
 *
 * In: a plan made for GPUs, a chip or a device at hand, a call's sizes. Out:
 * the kernel that takes each pass and why, its tiles and what they visit, states
 * and workspace, a predicted time. The answers are the back end's and the run
 * time's own; neither NVRTC nor a driver is opened. */
#ifndef DIL_FORECAST_H
#define DIL_FORECAST_H

#include "bind.h"
#include "cost.h"
#include <jansson.h>

typedef struct forecast_pass {
  cover_count count;     /* of its branches alone, by its kernel's tiles */
  const char *reason;    /* why the fast kernel leaves it; NULL: it does not */
  span at;               /* what that is about, where it is the file's */
  double seconds;
} forecast_pass;

typedef struct forecast {
  const compilation *compilation;
  const char *name;      /* "sm_90a", "cuda:0" */
  const char *model;     /* a device that has this chip, or the one at hand */
  dil_cuda_facts facts;
  gpu_codes codes;
  dil_cuda_forecast run;
  forecast_pass pass[DIL_BRANCH_MAX];
  double states;         /* seconds that states take from pass to pass */
  int64_t rank_state;    /* bytes of states of a rank, at most; 0: no ranks */
  int64_t rank_apart;    /* one of its rows in so many has one */
  double seconds;
  double share;          /* of what the processors multiply in that time; < 0:
                            there are no figures of this chip */
} forecast;

/* The chip of `--cuda`, or the device of `--device cuda`, as a remembered
 * schedule turns the plan for it. DIL_USAGE: no figures of that chip. */
dil_status forecast_chip(const options *o, forecast *f);
dil_status forecast_device(const binding *b, compilation *c, forecast *f);
/* All of it, `name`, `model` and `facts` being there. */
dil_status forecast_make(const binding *b, const compilation *c, double flops,
                         forecast *f);

/* ---- forecast_print.c ---------------------------------------------------- */

void forecast_print(arena *a, const forecast *f, FILE *out);
json_t *forecast_json(arena *a, const forecast *f);

#endif
