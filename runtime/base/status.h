/* status.h - the failures of the run time and their texts. */
#ifndef DIL_RUNTIME_BASE_STATUS_H
#define DIL_RUNTIME_BASE_STATUS_H

#include "runtime/dilrt.h"
#include <stdbool.h>

#pragma GCC visibility push(default)

/* Records the text of a failure for dil_last_error and returns `status`. */
dil_status dil_fail(dil_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a text that is ready and may be long. */
dil_status dil_fail_text(dil_status status, const char *text);
/* The body of a public function stands between these two. Where the function
 * recovers from a failure inside, dil_last_error keeps the failure of an earlier
 * call. */
void dil_call_begin(void);
dil_status dil_call_end(dil_status status); /* returns it */

#pragma GCC visibility pop
#endif
