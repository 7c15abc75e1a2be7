/* oracle.h - the definition of a pattern in float64. */
#ifndef DIL_COMPILER_ORACLE_ORACLE_H
#define DIL_COMPILER_ORACLE_ORACLE_H

#include "compiler/pattern/pattern.h"
#include "runtime/call.h"

/* O and lse of query row n of head h, batch row b, straight from the formulas.
 * o[value_dim]; lse is -inf for a row without keys and NaN where the pattern
 * has none. Tensors are read in their stored dtype. */
void oracle_row(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                int64_t h, double *o, double *lse);
/* That row into call->o and, where it is wanted, call->lse. */
void oracle_store(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                  int64_t h);
/* All rows, of a call that is checked first. */
dil_status oracle_run(const pattern *p, const dil_call *call);

/* ---- what the files of the oracle share ---------------------------------- */

/* Why the oracle does not compute this pattern, or NULL when it does. */
const char *oracle_refusal(const pattern *p);
/* DIL_OK, or what is wrong with the call for this pattern. */
dil_status oracle_check(const pattern *p, const dil_call *call);

#endif
