/* random_expr.h - random expressions, and a place to evaluate them in. */
#ifndef DIL_TESTS_SUPPORT_RANDOM_EXPR_H
#define DIL_TESTS_SUPPORT_RANDOM_EXPR_H

#include "patterns.h"

typedef struct tree_maker {
  arena *memory;
  uint64_t state;
  bool exact; /* leave s, exp, log, sqrt and tanh out, as masks must */
} tree_maker;

/* A tree of that type, at most about `depth` deep, over the inputs
 * whole : i32[8], part : f32[8], table : i32[4, 8]. */
expr *tree_random(tree_maker *m, expr_type type, int depth);
extern const dil_input tree_inputs[3];

/* Batch row 1 of 2, head 5, N 9, M 11, s 0.75, and the inputs. */
expr_point tree_point(int32_t i, int32_t j);
/* The bounds of an input, for expr_box. */
interval tree_range(void *context, int32_t index, int32_t axis,
                    const int32_t *at, int32_t first, int32_t last);
/* Its canonical text; the caller's to free. */
char *tree_text(const expr *e);

#endif
