/* oracle_dual.h - values and derivatives of expressions together. */
#ifndef DIL_COMPILER_ORACLE_ORACLE_DUAL_H
#define DIL_COMPILER_ORACLE_ORACLE_DUAL_H

#include "compiler/pattern/expr.h"

typedef struct dual {
  double value, slope; /* slope: the derivative */
} dual;

/* The point at which an expression is evaluated, and the variable of its slope.
 */
typedef struct dual_point {
  expr_point point; /* s is the value of the score so far */
  double slope;     /* of s */
  const expr *read; /* the read of an input whose slope is 1; NULL: none */
} dual_point;

dual dual_eval(const expr *e, const dual_point *at);
/* The product of a factor and a slope; 0 where either is exactly 0, whatever
 * the other one is. */
double dual_product(double factor, double slope);

#endif
