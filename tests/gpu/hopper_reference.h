/* hopper_reference.h - parameters of the kernels of hopper_reference.cu, which
 * is compiled behind it; the host (C) reads it too. */
#ifndef DIL_TESTS_GPU_HOPPER_REFERENCE_H
#define DIL_TESTS_GPU_HOPPER_REFERENCE_H

enum { BRANCHES = 8, HEADS = 128 };

typedef struct reference_branch {
  long long segment, dilation, left, right; /* 0: no segment; < 0: no bound */
  int head_first, head_last;
  int phase[HEADS];
} reference_branch;

/* Elements: 1 bf16, 2 f16. */
typedef struct problem {
  unsigned short *q, *k, *v;
  int B, N, M, H, group, D, Dv, element, combine_union, branches;
  double scale;
  reference_branch branch[BRANCHES];
} problem;

/* The rows `sample` (b, n, h) of a problem, a block each, by the definition. */
typedef struct reference_job {
  problem of;
  const int *sample;
  double *scratch;   /* [blocks, M] */
  double *to;        /* [blocks, Dv + 1]: O and lse */
} reference_job;

/* The same rows of a kernel's result. */
typedef struct gather_job {
  const unsigned short *o;
  const float *lse;
  const int *sample;
  float *to;
  int N, H, Dv, element;
} gather_job;

/* Standard normals by the numbers of their elements. */
typedef struct fill_job {
  unsigned short *to;
  unsigned long long count, seed;
  int element;
} fill_job;

/* Elements equal to `what`, and a sum that any changed bit changes. */
typedef struct inspect_job {
  const unsigned short *from;
  unsigned long long count;
  unsigned long long *found, *sum;
  unsigned short what;
} inspect_job;

#endif
