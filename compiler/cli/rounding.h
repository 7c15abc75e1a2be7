/* rounding.h - how far f32 rounding of scores may take a row of o and its lse
 * from the definition. A check adds it to what a storage type allows. */
#ifndef DIL_COMPILER_CLI_ROUNDING_H
#define DIL_COMPILER_CLI_ROUNDING_H

#include "compiler/front/program.h"
#include "compiler/oracle/oracle.h"
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

/* Returns a bound on the error of a sum of `count` products whose sizes add up
 * to `sizes`. */
double rounding_of_dot(dot_error exactness, int64_t count, double sizes);
#define ROUNDING_ADDITION  0x1p-24 /* relative error of a sum */
#define ROUNDING_REWRITING 0x1p-22 /* relative error of a step of `score` */
#define ROUNDING_SURENESS 2 /* standard deviations, about */

/* The difference of a stored number from the right one, beyond what storing the
 * right one loses: f16 has numbers below 2^-14 in steps of 2^-24, which rows come
 * down to where a sink takes nearly all the weight. */
double rounding_beyond_storage(dil_dtype dtype, double stored, double right);

/* Of query row n and head h. `point` holds the batch row, the sizes and the
 * inputs; `exactness` says how the device makes q . k. */
rounding rounding_of_row(const pattern *p, const dil_call *call,
                         const expr_point *point, int64_t n, int64_t h,
                         dot_error exactness);

/* ---- rounding_pair.c: of gradients --------------------------------------- */

/* The rounding of gradients, as rounding_of_pair needs it. */
typedef struct pair_rounding {
  const pattern *p;
  dot_error exactness;
  double terms; /* pairs that a sum of a gradient adds; 0: unknown */
  bool stored;  /* delta comes from an o in the storage type, which the oracle
                 * does not know */
  bool remade;  /* lse, and o where branches have their own, are made again */
  bool inputs;  /* of inputs, which take dS as it is, before it is stored */
} pair_rounding;

/* A rounding to a storage type is off by at most this share: of P and dS, which
 * kernels store to multiply them. */
extern const double rounding_unit[DIL_DTYPE_COUNT];
/* An oracle_judge: how far rounding may move P and dS of a pair. The context is
 * a pair_rounding. */
oracle_error rounding_of_pair(const void *context, const oracle_pair *pair);

#endif
