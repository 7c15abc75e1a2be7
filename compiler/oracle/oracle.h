/* oracle.h - the definition of a pattern in float64, and of its gradients. */
#ifndef DIL_COMPILER_ORACLE_ORACLE_H
#define DIL_COMPILER_ORACLE_ORACLE_H

#include "compiler/pattern/pattern.h"
#include "runtime/call.h"

/* O and lse of query row n of head h, batch row b, straight from the formulas.
 * o[value_dim]; lse is -inf for a row without keys and NaN where the pattern
 * has none. Tensors are read in their stored dtype. */
void oracle_row(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                int64_t h, double *o, double *lse);
/* With choices of blocks, the call has their lists: here, and in
 * oracle_gradient_query and its like. That row into call->o and, where it is wanted, call->lse. */
void oracle_store(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                  int64_t h);
/* All rows, of a call that is checked first. The lists of choices are made here,
 * and written where the call wants them. */
dil_status oracle_run(const pattern *p, const dil_call *call);

/* ---- oracle_choice.c: blocks chosen by their scores ---------------------- */

/* Where estimates come from: q, k and inputs; or, where a call has only sizes,
 * numbers in their place, for which any order of blocks is as likely. */
typedef enum oracle_source { ORACLE_NUMBERS, ORACLE_EXPECTED } oracle_source;

/* A key block as a query block sees it, of one head or of heads that choose
 * together. */
typedef struct oracle_block {
  double estimate, error; /* and how far rounding in f32 may move it */
  int32_t block;
  bool reached;           /* by the head looked at last */
  bool candidate;
  bool always;            /* a candidate on the diagonal, which is kept */
} oracle_block;

/* One choice of a call. Close it in any case. */
typedef struct oracle_choice oracle_choice;
dil_status oracle_choice_open(const pattern *p, const dil_call *call,
                              int32_t branch, oracle_source source,
                              oracle_choice **made);
void oracle_choice_close(oracle_choice *x);
/* Heads that choose together; blocks of queries and of keys. */
int64_t oracle_choice_group(const oracle_choice *x);
int64_t oracle_choice_queries(const oracle_choice *x);
int64_t oracle_choice_keys(const oracle_choice *x);
/* All key blocks, as query block bi of head h sees them. */
void oracle_choice_blocks(oracle_choice *x, int64_t b, int64_t bi, int64_t h,
                          oracle_block *blocks);
/* The blocks that are chosen of these, in their order; returns their number. */
int64_t oracle_choice_take(oracle_choice *x, const oracle_block *blocks,
                           int32_t *out);
/* The weight of a block in `keep mass`, relative to the best one's. */
double oracle_choice_weight(double estimate, double best);
/* Room for the lists of all choices, where the call has none: call->made is set,
 * or stays NULL where the pattern has no choice. */
typedef struct oracle_lists {
  dil_tensor made[DIL_INPUT_MAX];
  void *memory[DIL_INPUT_MAX];
  int32_t count;
} oracle_lists;
dil_status oracle_lists_open(const pattern *p, dil_call *call,
                             oracle_lists *lists);
void oracle_lists_free(oracle_lists *lists);
/* The lists of all choices of a call, at the places of dil_call.made. */
dil_status oracle_choose(const pattern *p, const dil_call *call,
                         oracle_source source, const dil_tensor *made);

/* ---- oracle_gradient.c: gradients ---------------------------------------- */

/* Which o and lse the formulas take. */
typedef enum oracle_forward {
  ORACLE_DEFINED, /* the definition's */
  ORACLE_SAVED    /* those of the call, where a row has one softmax and the call
                   * has an lse: for long sequences */
} oracle_forward;

/* Sums in float64, row-major; NULL: not wanted. */
typedef struct oracle_gradients {
  double *dq; /* [B, N, H, D] */
  double *dk; /* [B, M, Hkv, D] */
  double *dv; /* [B, M, Hkv, Dv] */
  double *inputs[DIL_INPUT_MAX]; /* in the shapes of the inputs */
} oracle_gradients;

/* A pair of a row and a key, for a judge of rounding. */
typedef struct oracle_pair {
  double sizes;   /* scale sum |q_d k_d|: what the product is summed from */
  double score;   /* after the chain */
  double chain;   /* d score / d (scale q . k) */
  double below;   /* score - lse */
  double product; /* dP */
  double products; /* W sum |dO_d v_d|: what dP is summed from */
  double delta;   /* of the row */
  double deltas;  /* sum |dO_d o_d| + |dlse|: what delta is summed from */
  double squares; /* sum (dO_d o_d)^2 */
  bool sink;      /* a key that no other row has, without a value */
} oracle_pair;
/* Bounds on how far rounding may move P, dS and scale q . k of a pair. The
 * derivatives of its chain move with the last. */
typedef struct oracle_error {
  double weight, slope, score;
  double shared; /* of dS, beside `slope`: with one sign for all keys of a row,
                  * as the row's delta is one number */
  double noise;  /* the part of `slope` that a dS of 0 has, too: of f32 sums that
                  * cancel; all of `shared` is such */
} oracle_error;
typedef oracle_error oracle_judge(const void *context, const oracle_pair *pair);
/* The error of one number that the keys of a row share, summed so far. */
typedef struct oracle_shared {
  int64_t row; /* counted from 1; 0: of no row yet */
  double sum;
} oracle_shared;
/* The errors that a judge's numbers give gradients: sums of squares, of L2 norms
 * of rows and of elements of inputs. Each pair's own error has a sign of its
 * own, which it has in all branches; what a row's keys share has one for each row.
 * Pairs of weight 0 count, too: rounding may give them one. */
typedef struct oracle_scatter {
  oracle_judge *judge;
  const void *context;
  double dq, dk, dv;
  double dq_noise, dk_noise; /* the same, of noise alone */
  double *inputs[DIL_INPUT_MAX]; /* as those of oracle_gradients */
  oracle_shared *shared[DIL_INPUT_MAX]; /* beside them; zeros at first */
} oracle_scatter;

/* The gradients of dO . o + dlse . lse, dO being call->output and dlse
 * call->lse; the call's own places for gradients are not looked at.
 * Inputs that are integers have none: NULL. */
dil_status oracle_gradient_run(const pattern *p, const dil_backward_call *call,
                               oracle_forward forward,
                               const oracle_gradients *to);
/* dQ of batch row at[0], query row at[1], head at[2]: dq[head_dim]. The call
 * must have passed oracle_check_backward. `scatter`, with its sums added to,
 * may be NULL here and below. */
void oracle_gradient_query(const pattern *p, const dil_backward_call *call,
                           oracle_forward forward, const int64_t at[3],
                           double *dq, oracle_scatter *scatter);
/* Adds what the row's pairs make of the gradients of inputs. */
void oracle_gradient_inputs(const pattern *p, const dil_backward_call *call,
                            oracle_forward forward, const int64_t at[3],
                            double *const inputs[DIL_INPUT_MAX],
                            oracle_scatter *scatter);
/* dK and dV of batch row at[0], key at[1], key/value head at[2], over all rows
 * that see the key: dk[head_dim], dv[value_dim]. */
void oracle_gradient_key(const pattern *p, const dil_backward_call *call,
                         oracle_forward forward, const int64_t at[3],
                         double *dk, double *dv, oracle_scatter *scatter);

/* ---- what the files of the oracle share ---------------------------------- */

/* Why the oracle does not compute this pattern, or NULL when it does. */
const char *oracle_refusal(const pattern *p);
/* DIL_OK, or what is wrong with the call for this pattern. */
dil_status oracle_check(const pattern *p, const dil_call *call);
/* The same of a call of gradients, as far as the oracle reads it. */
dil_status oracle_check_backward(const pattern *p,
                                 const dil_backward_call *call);

#endif
