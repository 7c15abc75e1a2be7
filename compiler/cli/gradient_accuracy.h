/* gradient_accuracy.h - whether a call's gradients agree with the oracle's. */
#ifndef DIL_COMPILER_CLI_GRADIENT_ACCURACY_H
#define DIL_COMPILER_CLI_GRADIENT_ACCURACY_H

#include "accuracy.h"

/* Rows of dq, dk or dv, or elements of an input. */
typedef struct gradient_error {
  const char *name;
  int64_t rows, total; /* checked, 0: none, since it would take too long */
  double rel_error;    /* relative L2 norm of the rows */
  double unexplained;  /* the same, of what rounding does not explain */
  double bound;        /* of that; of an input, of `difference` */
  double difference;   /* of an input: of the element that is nearest to its
                          bound, or farthest beyond */
  bool is_input, torn, good;
  accuracy_element worst; /* not good: of an input, n is the element */
} gradient_error;

typedef struct gradient_accuracy {
  bool saved; /* the oracle took the call's own o and lse */
  bool good;
  int32_t count;
  gradient_error error[3 + DIL_INPUT_MAX];
} gradient_accuracy;

/* Checks rows of dq and rows of dk and dv, chosen as accuracy_check chooses
 * them, and all elements of the gradients of inputs, unless their sums would
 * take too long; o and lse are those of the call, where a row has one softmax.
 */
dil_status gradient_accuracy_check(const call_setup *b,
                                   const dil_backward_call *call, double pairs,
                                   double budget, gradient_accuracy *v);
/* The largest relative error of dq, dk and dv. */
double gradient_accuracy_error(const gradient_accuracy *v);
/* Lines for people, one a gradient. */
void gradient_accuracy_print(const gradient_accuracy *v, FILE *out);
struct json_t *gradient_accuracy_json(const gradient_accuracy *v);

#endif
