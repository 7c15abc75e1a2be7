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

/* Errors of q . k beside those of f32 additions that round to nearest: both 0
 * where f32 sums take exact products. */
typedef struct dot_error {
  double product; /* relative, of a product before it is added */
  double sum;     /* always towards 0, relative to the sum of the sizes */
} dot_error;

/* Of a processor, or of a GPU's matrix units. */
dot_error dot_error_of(const pattern *p, bool gpu);

/* How far a score may be off: of a product summed from parts that come to
 * `sizes`, a chain of slope `chain` that rewrites it, and the score itself.
 * Usual scores stand still. */
double rounding_of_score(const pattern *p, dot_error exactness, double sizes,
                         double chain, double score);
#define ROUNDING_SURENESS 2 /* standard deviations, about */

/* Of query row n and head h. `point` holds the batch row, the sizes and the
 * inputs; `exactness` says how the device makes q . k. */
rounding rounding_of_row(const pattern *p, const dil_call *call,
                         const expr_point *point, int64_t n, int64_t h,
                         dot_error exactness);

#endif
