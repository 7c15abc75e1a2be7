/* expr.h - mask and score expressions. */
#ifndef DIL_COMPILER_PATTERN_EXPR_H
#define DIL_COMPILER_PATTERN_EXPR_H

#include "compiler/base/diag.h"
#include "runtime/plan_table.h"
#include <stdio.h>

typedef enum expr_op {
#define OP(id, text, arguments, rule, derivative) EXPR_##id,
#include "ops.def"
#undef OP
  EXPR_OP_COUNT
} expr_op;

typedef enum expr_type { TYPE_CONDITION, TYPE_I32, TYPE_F32 } expr_type;

/* A typed tree. bi, bj, nb, S, H, HKV, D and the named predicates are gone:
 * check has spelled them out (bi is i / S, nb is (M + S - 1) / S). */
typedef struct expr {
  expr_op op;
  expr_type type;
  span at;
  int64_t integer;      /* INT, TRUTH: value; INPUT: index of the input */
  double real;          /* REAL */
  int32_t count;        /* arguments */
  struct expr **arg;
} expr;

typedef struct value { /* by the expression's type */
  int64_t integer;     /* condition: 0 or 1; i32: wrapped to 32 bits */
  double real;
} value;

/* The values of one pair. input() reads one element of an input, 0 outside. */
typedef struct expr_point {
  int32_t b, h, i, j, B, N, M;
  double s;
  value (*input)(void *context, int32_t index, const int32_t *at);
  void *context;
} expr_point;

/* wide: float64 arithmetic (scores in the oracle); else every float operation
 * is one IEEE f32 rounding (mask and keep, all targets). */
value expr_eval(const expr *e, const expr_point *point, bool wide);

/* Interval of values over a box of (i, j); low > high never. */
typedef struct interval {
  double low, high;
  bool nan;            /* the value may also be NaN */
} interval;

typedef struct expr_box {
  expr_point point;    /* i, j unused; s is any number */
  int32_t i0, i1, j0, j1; /* inclusive */
  /* bounds of an input whose index `axis` runs over first..last */
  interval (*range)(void *context, int32_t index, int32_t axis,
                    const int32_t *at, int32_t first, int32_t last);
} expr_box;

/* A condition's interval is within [0, 1]. Never too narrow. */
interval expr_bounds(const expr *e, const expr_box *box);
bool expr_uses(const expr *e, expr_op leaf);
bool expr_same(const expr *a, const expr *b); /* structural equality */
expr *expr_fold(arena *a, expr *e);           /* constants evaluated */
/* An integer or a position, and an operator with two operands. */
expr *expr_leaf(arena *a, expr_op op, int64_t integer, span at);
expr *expr_pair(arena *a, expr_op op, expr_type type, expr *left, expr *right);
/* The derivative of a tree by `leaf`, which is `s` or a read of an input; all
 * reads that are the same as it count together. Folded; NULL where it is 0
 * everywhere. abs'(0) is 0; min and max have one half each at ties; floor,
 * ceil, int, hash and conditions have 0; a % b has 1 and -floor(a / b); `?:`
 * has that of the side it takes. */
expr *expr_derivative(arena *a, const expr *e, const expr *leaf);
/* Canonical source text, with just the parentheses that are needed. */
void expr_print(const expr *e, const dil_input *inputs, FILE *out);
const char *expr_op_text(expr_op op);

#endif
