/* keep.h - machine code from the cache or, where it has none, from a compiler
 * that is opened only then. */
#ifndef DIL_KEEP_H
#define DIL_KEEP_H

#include "driver.h"
#include <limits.h>

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

/* ---- keep_shelf.c -------------------------------------------------------- */

/* Cubins by their sources, for a request. */
typedef struct keep_shelf {
  gpu_shelf calls;
  const compilation *c;
  char origin[PATH_MAX]; /* the NVRTC whose cubins these are; "": not known, or
                            that of the first that is found */
} keep_shelf;
/* `origin`: of the NVRTC that compiles what is not there; NULL: none does, or
 * it cannot be told, and nothing is kept. The shelf must not be moved. */
void keep_shelf_open(keep_shelf *shelf, const compilation *c, bool only,
                     const char *origin);

/* ---- keep.c, for these parts --------------------------------------------- */

typedef enum keep_module { KEEP_CPU, KEEP_GPU, KEEP_MODULES } keep_module;
/* A key, begun with what tells its back end: to be written on and closed.
 * NULL: it cannot be told, or there is no memory. */
FILE *keep_open_key(keep_module module, char **bytes, size_t *size);
/* The path from the root: loaders tell it as it was given to them. NULL: it
 * cannot be told. */
const char *keep_whole_path(const char *path, char room[PATH_MAX]);

/* The steps of keep_codes: all of them by their list, if it is kept; from the
 * shelf or else the compiler, with a list; and a list with this key, malloced
 * (NULL: there is none), of codes that are on the shelf, where all are. Only
 * the last may be done while others use `c`. */
dil_status keep_find_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes, bool *found);
dil_status keep_make_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes);
char *keep_key(const compilation *c, const gpu_request *request, size_t *size);
void keep_list_codes(const compilation *c, const gpu_request *request,
                     char *key, size_t size, double seconds);

/* ---- late.c -------------------------------------------------------------- */

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
