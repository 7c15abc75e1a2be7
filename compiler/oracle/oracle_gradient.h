/* oracle_gradient.h - a row under way, and one of its pairs, as the files of
 * the oracle's gradients see them. */
#ifndef DIL_COMPILER_ORACLE_ORACLE_GRADIENT_H
#define DIL_COMPILER_ORACLE_ORACLE_GRADIENT_H

#include "oracle.h"
#include "oracle_dual.h"
#include "oracle_query.h"

/* The sums that a pair's parts go to; NULL: not wanted. */
typedef struct gradient_sums {
  double *dq, *dk, *dv;   /* of the pair's row and key */
  double *const *inputs;  /* [DIL_INPUT_MAX], each row-major */
  oracle_scatter *scatter;
} gradient_sums;

/* The numbers of a softmax that weigh its keys. */
typedef struct gradient_softmax {
  double lse, delta;
  double deltas;  /* the sum of the sizes that delta is summed from */
  double squares; /* and of the squares of those of o */
} gradient_softmax;

typedef struct gradient_row {
  oracle_query query;
  const dil_backward_call *call;
  oracle_forward forward;
  double q[DIL_HEAD_DIM_MAX], key[DIL_HEAD_DIM_MAX];
  double output[DIL_HEAD_DIM_MAX]; /* dO, by branches under `mean` */
  double dlse;
  uint64_t known;           /* branches whose softmax is known */
  bool joint_known;
  oracle_shared shared; /* what its keys share in the error of dQ */
  gradient_softmax joint;   /* of all branches */
  gradient_softmax branch[DIL_BRANCH_MAX];
} gradient_row;

/* A key of the row, or a sink: a key without q . k and without a value. */
typedef struct gradient_pair {
  expr *const *chain; /* the steps of its score */
  int32_t steps;
  int64_t j;
  double s0;     /* scale q . k */
  double weight; /* P */
  double kept;   /* W */
  double slope;  /* dS */
  oracle_error error; /* where a judge was asked */
  int32_t copies; /* then, how many branches have the key: each has these errors,
                   * with the same signs */
} gradient_pair;

/* The score of a pair, and its derivative: by s0 itself where `slope` is 1, by
 * a read of an input where one is given. */
dual gradient_chain(const gradient_row *g, const gradient_pair *pair,
                    double slope, const expr *read);
/* Returns how far that derivative moves while the rounding of a judged pair
 * moves s0. */
double gradient_chain_bend(const gradient_row *g, const gradient_pair *pair,
                           double slope, const expr *read);
/* Returns by how much a square of errors grows with a part that the row shares. */
double gradient_share(const gradient_row *g, oracle_shared *of, double part);
/* The softmax of all branches, and the one that a branch's keys are in. */
const gradient_softmax *gradient_joint(gradient_row *g);
const gradient_softmax *gradient_of_branch(gradient_row *g, int32_t index);
bool gradient_has_own_softmaxes(const pattern *p);

/* oracle_gradient_input.c: the parts of inputs, of a pair whose dS is known and
 * of the row's sinks. */
void gradient_add_inputs(const gradient_row *g, const gradient_pair *pair,
                         const gradient_sums *to);
void gradient_add_sinks(gradient_row *g, const gradient_sums *to);

#endif
