/* rounding.h - how far f32 rounding of scores may take a row of o and its lse
 * from the definition. A check adds it to what a storage type allows. */
#ifndef DIL_COMPILER_CLI_ROUNDING_H
#define DIL_COMPILER_CLI_ROUNDING_H

#include "compiler/front/program.h"
#include "runtime/call.h"

typedef struct rounding {
  double
      output; /* L2 norm of the difference of a row of o; it may be infinite */
  double lse; /* absolute */
} rounding;

/* Of query row n and head h. `point` holds the batch row, the sizes and the
 * inputs; `product` is the relative error of a product in q . k before it is
 * added: 0 where f32 sums take exact products. */
rounding rounding_of_row(const pattern *p, const dil_call *call,
                         const expr_point *point, int64_t n, int64_t h,
                         double product);

#endif
