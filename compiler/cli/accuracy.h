/* accuracy.h - whether a call's o and lse agree with the oracle's. */
#ifndef DIL_COMPILER_CLI_ACCURACY_H
#define DIL_COMPILER_CLI_ACCURACY_H

#include "call_setup.h"
#include "compiler/front/program.h"

typedef struct accuracy_element { /* one element that differs */
  int64_t b, n, h, d;          /* d -1: the lse */
  double got, want;
} accuracy_element;

/* Lists of the choices of blocks. */
typedef struct choice_accuracy {
  int64_t lists, total; /* checked, in all; total 0: there is no choice */
  bool good;
  char fault[200];      /* the first, when not good */
} choice_accuracy;

typedef struct accuracy {
  int64_t rows, total;  /* (batch row, query, head) rows: checked, in all */
  int64_t nan_rows;     /* checked, where both have the same NaN somewhere */
  double rel_error;     /* relative L2 of o, at most 0.5 */
  double unexplained;   /* the same, of the error that the rounding of each
                           row's scores does not explain */
  double lse_error;     /* absolute, of the row that is farthest beyond what the
                           rounding of its scores explains; NaN: the pattern
                           has no lse */
  double bound, lse_bound; /* of unexplained and lse_error */
  bool torn;               /* a NaN or infinity stands on one side only */
  bool good;
  accuracy_element worst; /* farthest out of bounds, when not good */
  choice_accuracy chosen;
} accuracy;

/* choice_accuracy.c: the lists of a call that ran, as many as `budget` seconds
 * allow. The rows are compared with these lists. */
dil_status choice_accuracy_check(const pattern *p, const dil_call *call,
                                 double budget, choice_accuracy *v);
void choice_accuracy_print(const choice_accuracy *v, FILE *out);

/* The errors of the rows of a tensor [B, N, H, D]. */
typedef struct accuracy_sum {
  double difference, reference; /* sums of squares */
  bool torn;                    /* a NaN or infinity on one side only */
  bool nan;                     /* a NaN on both */
  accuracy_element worst;
} accuracy_sum;
/* Adds the row at `at`. */
void accuracy_compare(const dil_tensor *x, accuracy_element at,
                      const double *want, accuracy_sum *sum);
/* The largest relative L2 error that a storage type allows an output. */
double accuracy_bound(const call_setup *b);
/* An error beyond this share of the output is bad, even where rounding
 * explains it. */
#define ACCURACY_EXPLAINED 0.5
/* Pairs that an oracle looks at, and seconds that it takes for one. */
double accuracy_looks(const call_setup *b);
#define ACCURACY_LOOK_SECONDS 12e-9

/* Oracle operations that a check may take when nothing else is said. */
#define ACCURACY_BUDGET 2.0 /* seconds of one thread */

/* Checks every row where the oracle would take less than `budget` seconds of
 * one thread, else as many as it can, one at random from each of as many equal
 * stretches of all rows (always the same). pairs: as cover counts them. */
dil_status accuracy_check(const call_setup *b, double pairs, double budget,
                          accuracy *v);
/* Rows and lists of blocks. */
bool accuracy_is_good(const accuracy *v);
/* The number of such rows, and the index-th of them. Every process that has the
 * call's sizes gets the same. */
int64_t accuracy_rows(const call_setup *b, double pairs, double budget);
/* The index-th of `count` numbers out of 0..total - 1, one at random from each
 * of as many equal stretches; always the same. */
int64_t accuracy_sample(int64_t total, int64_t count, int64_t index);
accuracy_element accuracy_row(const call_setup *b, int64_t rows, int64_t index);
/* Lines for people, or nothing when json is on and it is good. */
void accuracy_print(const accuracy *v, FILE *out);

#endif
