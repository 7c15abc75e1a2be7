/* keep.h - machine code from the cache or, where it has none, from a compiler
 * that is opened only then. */
#ifndef DIL_KEEP_H
#define DIL_KEEP_H

#include "driver.h"

/* The object of a variant on the processor; made for the context of `c`. */
dil_status keep_object(const compilation *c, dil_variant variant,
                       backend_code *code);
/* The codes of a plan on a GPU. */
dil_status keep_codes(const compilation *c, const gpu_request *request,
                      gpu_codes *codes);

#endif
