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
/* What goes beside them: templates/peak.cu for the plan's dtype, or
 * templates/rows.cu. */
typedef enum keep_helper { KEEP_PEAK, KEEP_ROWS } keep_helper;
dil_status keep_beside(const compilation *c, int32_t arch, keep_helper which,
                       dil_cuda_code *code);
/* The steps of that: from the cache, where they are found there; from the
 * compiler; and, made, into the cache by their key, malloced (NULL: what cannot
 * be told is not kept). Only the last may be done while others use `c`. */
dil_status keep_find_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes, bool *found);
dil_status keep_make_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes);
char *keep_key(const compilation *c, const gpu_request *request, size_t *size);
void keep_put_codes(const compilation *c, const gpu_request *request, char *key,
                    size_t size, const gpu_codes *codes, double seconds);

/* ---- late.c --------------------------------------------------------------- */

/* The codes of a plan for a kernel that is made of them now: those that few of
 * its calls take may still be without cubin, and are compiled in a thread.
 * *late: NULL when none is; else it borrows `c` until late_end. What is made is
 * kept, what is made first by itself, so that a process that ends early has not
 * worked for nothing. */
dil_status late_begin(const compilation *c, const gpu_request *request,
                      gpu_codes *codes, struct late **late);
/* Waits for code number `index`; its cubin is malloced and the caller's. What
 * went wrong is told each time. */
dil_status late_wait(struct late *late, int32_t index, dil_cuda_code *code);
/* Ends the thread, and what it compiles with it, where the compiler can be
 * stopped. */
void late_end(struct late *late);

#endif
