/* gradients.h - backward calls for the suites of kernels: a forward call with
 * the oracle's o and lse, random dO and dlse, places for gradients that are
 * full of NaN between guard bytes, and the oracle's gradients to compare with.
 */
#ifndef DIL_TESTS_SUPPORT_GRADIENTS_H
#define DIL_TESTS_SUPPORT_GRADIENTS_H

#include "numeric.h"
#include "compiler/oracle/oracle.h"

/* The tensors of a backward call that a test lays out. */
typedef enum gradient_tensor {
  GRADIENT_OUTPUT, GRADIENT_DQ, GRADIENT_DK, GRADIENT_DV, GRADIENT_TENSORS
} gradient_tensor;

typedef struct gradient_shape {
  call_shape call;
  guard_layout layout[GRADIENT_TENSORS]; /* each by itself */
  bool without_dlse;
  bool without_lse;   /* the run makes it again */
  bool wide;          /* dq, dk, dv are f32 whatever the pattern's dtype is */
  unsigned unwanted;  /* bits of gradient_tensor: the call has no place */
  bool without_inputs; /* nor one for the gradients of inputs */
  /* Rewrites an element of dO; NULL: as it is. */
  double (*element)(const int64_t *at, double value);
} gradient_shape;

/* A gradient that a run writes. */
typedef struct gradient_result {
  const char *name;
  dil_tensor *tensor;  /* of the call */
  const double *right; /* the oracle's, row-major */
  guard memory;
} gradient_result;

enum { GRADIENT_RESULTS = 3 + DIL_INPUT_MAX };

typedef struct gradient_data {
  data *forward;
  dil_backward_call call;
  oracle_gradients right;
  gradient_result result[GRADIENT_RESULTS];
  int32_t result_count;
  guard output, lse;
  oracle_scatter explained; /* what rounding explains; `judge` NULL until a
                             * bound is exceeded */
} gradient_data;

/* dO and dlse of rows without keys are NaN, unless the call is `clean` or the
 * pattern has sinks. Gradients of all inputs declared with one are wanted.
 * Aborts where the oracle refuses the call. */
gradient_data *gradient_data_new(const tested_pattern *s, gradient_shape shape);
void gradient_data_free(gradient_data *g);
/* The places for gradients full of NaN, and remembered with all that is around
 * them. */
void gradient_data_forget(gradient_data *g);
/* After a run: "", or what is wrong with guards, with numbers that must be
 * exactly 0 or finite, or with the L2 error of a gradient: it is within a
 * share of its size, or within what the rounding of each pair explains
 * (rounding.h). The text lives until the next call. */
const char *gradient_data_compare(gradient_data *g);
/* Runs the kernel and compares: "" or what is wrong. */
const char *gradient_data_problem(gradient_data *g, kernel_made *k);
/* The relative L2 error that a gradient in the pattern's dtype may have. */
double gradient_bound(const pattern *p);

/* ---- gradient_laws.c: laws that need no reference ------------------------ */

/* "", or the law that the gradients of a call break, for each batch row and
 * key/value head over its group:
 *   sum dq . q = sum dk . k, for any pattern, since both are the sum over pairs
 *     of dS0 scale q . k;
 *   sum dv . v = sum dO . o, for any pattern;
 *   sum dv = sum dO (1 - P of sinks), for `softmax` and `union` without
 *     dropout, over rows with keys or sinks;
 *   sum dk = scale sum q (dlse - d sinks), where every chain adds to `s` what
 *     does not depend on `s`, and no `mean`, `sum` or detached pattern has
 *     sinks; dlse and d sinks are 0 where a row has no lse.
 * A law is left out where a gradient that it needs has no place, or the call
 * has no lse that it needs. Rows and keys whose gradients are exactly 0 may
 * hold NaN. `tolerance` is relative to the sum of the sizes of the terms. The
 * text lives until the next call. */
const char *gradient_laws(const pattern *p, const dil_backward_call *call,
                          double tolerance);

#endif
