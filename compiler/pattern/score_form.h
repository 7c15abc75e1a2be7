/* score_form.h - score chains that kernels have special code for.
 *
 * In: a chain of typed trees and the widest window of the pairs that it
 * rewrites. Out: its form. A form computes the same scores as the chain, up to
 * the rounding of f32. */
#ifndef DIL_COMPILER_PATTERN_SCORE_FORM_H
#define DIL_COMPILER_PATTERN_SCORE_FORM_H

#include "expr.h"

typedef enum score_kind {
  SCORE_ANY,    /* no special form */
  SCORE_LINEAR, /* s + slope * distance + row */
  SCORE_CAPPED  /* cap * tanh(rate * s) */
} score_kind;

/* What a slope multiplies. */
typedef enum score_distance {
  DISTANCE_KEY,  /* j */
  DISTANCE_AWAY, /* j - i */
  DISTANCE_SIZE  /* |j - i| */
} score_distance;

typedef struct score_form {
  score_kind kind;
  /* linear: */
  score_distance distance;
  expr *slope; /* without i, j and s; NULL: 0 */
  expr *row;   /* without j and s, and finite; NULL: 0. The same for all
                  keys of a row, so that it cancels in the softmax */
  /* capped, both positive: */
  double cap, rate;
} score_form;

/* What is known of the pairs of a chain: `i - j` is at most `left` and `j - i`
 * at most `right`; the pattern has `heads` heads. */
typedef struct score_pairs {
  int64_t left, right;
  int32_t heads;
} score_pairs;

score_form score_form_of(arena *a, expr *const *chain,
                         const score_pairs *pairs);

#endif
