/* oracle.h - what the oracle's two files share. */
#ifndef DIL_ORACLE_H
#define DIL_ORACLE_H

#include "all.h"

/* Why the oracle does not compute this pattern, or NULL when it does. */
const char *oracle_refusal(const pattern *p);
/* DIL_OK, or what is wrong with the call for this pattern. */
dil_status oracle_check(const pattern *p, const dil_call *call);

#endif
