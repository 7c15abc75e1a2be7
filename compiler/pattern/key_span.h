/* key_span.h - comparisons that keep a range of the keys of each row. */
#ifndef DIL_COMPILER_PATTERN_KEY_SPAN_H
#define DIL_COMPILER_PATTERN_KEY_SPAN_H

#include "expr.h"

typedef enum span_kind {
  SPAN_NONE,   /* the keys that it keeps need not be a range */
  SPAN_ALIKE, /* `x[b, i] == x[b, j]`: a range where the input is sorted */
  SPAN_BESIDE, /* `j < f(i)` and its like: always a range */
  SPAN_SEGMENT, /* `(i + c) / S == (j + c) / S`: a segment with an offset */
  SPAN_GUARD   /* neither i nor j: all keys, or none */
} span_kind;

typedef struct key_span {
  span_kind kind;
  const expr *row; /* SPAN_ALIKE: the element of the row; SPAN_BESIDE: f(i), an
                    * integer */
  expr_op op;      /* SPAN_BESIDE: j op f(i) */
  int64_t segment, offset; /* SPAN_SEGMENT: S and c */
} key_span;

/* The kind of a condition. */
key_span key_span_of(const expr *e);

#endif
