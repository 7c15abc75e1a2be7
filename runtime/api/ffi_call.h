/* ffi_call.h - calling functions whose types are known at run time only. */
#ifndef DIL_RUNTIME_API_FFI_CALL_H
#define DIL_RUNTIME_API_FFI_CALL_H

#include "runtime/dilrt.h"

enum { CALL_MAX = 8 }; /* parameters */

/* Calls it. Letters of types: p pointer, w i32, l i64, d double, v nothing.
 * arguments[i] points to argument i; `out` to room for what comes back. */
dil_status call_function(void *function, char result, const char *parameters,
                         void **arguments, void *out);

#endif
