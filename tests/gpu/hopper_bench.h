/* hopper_bench.h - what the files of hopper_bench share: a case as the plan's
 * table and as the reference reads it, kernels as files, one device. Whatever
 * goes wrong besides results ends the program with status 3. */
#ifndef DIL_TESTS_GPU_HOPPER_BENCH_H
#define DIL_TESTS_GPU_HOPPER_BENCH_H

#include "runtime/cuda/device.h"
#include "runtime/cuda/hopper/hopper.h"
#include "hopper_cases.h"
#include "hopper_reference.h"
#include <stdio.h>

enum {
  SAMPLES = 256,
  ROW = 257,            /* numbers of a sample: O and lse */
  VARIANTS = 24,
  BENCH_GUARD = 1 << 16 /* elements before the output, and behind */
};

/* Ends the program with dil's own text. */
void must(dil_status status);

/* ---- hopper_problem.c ---------------------------------------------------- */

typedef struct plan_data {
  dil_table table;
  dil_branch branch[BRANCHES];
  dil_predicate predicate;
  dil_pass pass;
  int32_t phase[BRANCHES][HEADS];
} plan_data;

void plan_fill(const bench_case *c, plan_data *p);
void problem_fill(const bench_case *c, problem *p);
/* Pairs that the definition sums, a key once for each branch. */
double count_pairs(const bench_case *c, const problem *p);
/* Rows that are compared, as (b, n, h): half of them near the ends and the
 * borders of segments. */
void choose_samples(const bench_case *c, int sample[3 * SAMPLES]);

/* ---- hopper_variant.c ---------------------------------------------------- */

typedef struct variant {
  char name[48];
  int width, element;
  cuda_code code;
} variant;

/* Compiles variants by their names, and the reference, into the folder. */
void variants_make(const char *folder, char **names, int count);

typedef struct bench {
  dil_cuda *device;
  const cuda_driver *driver;
  cu_function fill, inspect, reference, spoil, gather; /* of the reference */
  variant variant[VARIANTS];
  int variants, wrong;
  void *flush;
  unsigned long long *counts;  /* two */
  int *sample;
  double *exact;
  float *found;
} bench;

/* Loads all that the folder holds. */
void bench_open(bench *x, const char *folder);
void bench_close(bench *x);
void *bench_take(const bench *x, uint64_t bytes); /* until device_give */
/* Launches a function of the reference's, with its one parameter. */
void bench_launch(const bench *x, cu_function f, unsigned blocks,
                  unsigned threads, void *job);
enum { FLUSHED = 256 << 20 }; /* bytes that empty the caches */

/* ---- hopper_setup.c ------------------------------------------------------ */

typedef struct setup {
  const bench_case *c;
  plan_data plan;
  problem problem;
  dil_call call;
  cuda_run run;
  uint16_t *room, *o;           /* o within room, between two guards */
  float *lse;
  uint64_t count[3], o_count, lse_count; /* elements; of q, k and v */
  int sample[3 * SAMPLES];
  double exact[SAMPLES * ROW];
} setup;

/* A case on the device: its tensors, and the exact rows that are compared. */
void setup_open(bench *x, const bench_case *c, setup *s);
void setup_close(bench *x, setup *s);
/* Random q, k and v, the same each time; `from`: other keys and values from
 * this row on. */
void setup_fill(bench *x, setup *s, int from);
void setup_run(bench *x, setup *s, const variant *v);

/* ---- hopper_check.c ------------------------------------------------------ */

/* Whether a variant takes the case and does it right; tells what is wrong. */
bool check_variant(bench *x, setup *s, variant *v);

#endif
