/* code_cache.h - the code cache: machine code from the cache, or else from a
 * compiler that is loaded only then. */
#ifndef DIL_COMPILER_CODEGEN_CODE_CACHE_H
#define DIL_COMPILER_CODEGEN_CODE_CACHE_H

#include "compiler/driver.h"
#include <limits.h>

/* The object of a variant for the processor, by the cache of c->context. On
 * success code->bytes is malloced and the caller's. */
dil_status keep_object(const compilation *c, dil_variant variant,
                       backend_code *code);
/* The codes of a plan for a GPU; their cubins are malloced and the caller's. */
dil_status keep_codes(const compilation *c, const gpu_request *request,
                      gpu_codes *codes);
/* A helper kernel beside the plan's own: templates/peak.cu for the plan's
 * dtype, or templates/rows.cu. Its cubin is malloced and the caller's. */
typedef enum keep_helper { KEEP_PEAK, KEEP_ROWS } keep_helper;
dil_status keep_beside(const compilation *c, int32_t arch, keep_helper which,
                       dil_cuda_code *code);

/* ---- cubin_cache.c ------------------------------------------------------- */

/* The cubin cache for one request: its key is the source and NVRTC's options,
 * so that plans with one source share a cubin. */
typedef struct keep_shelf {
  gpu_shelf calls;
  const compilation *c;
  char origin[PATH_MAX]; /* path of the NVRTC that made the cubins; "": not yet
                            known, the first cubin found sets it */
} keep_shelf;
/* `only`: the caller compiles nothing that the shelf lacks. `origin`: the path
 * of the NVRTC that compiles; NULL: there is none, or its path is unknown, and
 * the shelf stores nothing until a find has set the origin. The shelf points to
 * itself, so it must not be moved. */
void keep_shelf_open(keep_shelf *shelf, const compilation *c, bool only,
                     const char *origin);

/* ---- code_cache.c, for cubin_cache.c and deferred.c ---------------------- */

typedef enum keep_module { KEEP_CPU, KEEP_GPU, KEEP_MODULES } keep_module;
/* Opens a cache key that begins with the back end's identity; the caller writes
 * the rest and closes it. NULL: the back end's file cannot be read, or memory
 * is lacking. */
FILE *keep_open_key(keep_module module, char **bytes, size_t *size);
/* Makes a path absolute, since loaders report it as it was given to them.
 * Returns `room`, or NULL: it is too long, or there is no current folder. */
const char *keep_whole_path(const char *path, char room[PATH_MAX]);

/* The steps of keep_codes. keep_find_codes looks the whole list of codes up
 * under its key. keep_make_codes takes the codes from the shelf, or else from
 * the compiler, and then stores their list. keep_key returns the key of the
 * list, malloced; NULL: there is none. keep_list_codes stores, under that key,
 * the list of codes whose cubins are all on the shelf; it alone may run while
 * other threads use `c`. */
dil_status keep_find_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes, bool *found);
dil_status keep_make_codes(const compilation *c, const gpu_request *request,
                           gpu_codes *codes);
char *keep_key(const compilation *c, const gpu_request *request, size_t *size);
void keep_list_codes(const compilation *c, const gpu_request *request,
                     char *key, size_t size, double seconds);

/* ---- deferred.c ---------------------------------------------------------- */

/* The codes of a plan for a kernel that is made now. Codes that few calls need
 * may still lack their cubin: a thread compiles them. *late is NULL when no
 * code is deferred; else it borrows `c` until late_end. The codes made at once
 * are cached on their own, so that their work outlives a process that ends
 * before the thread does. */
dil_status late_begin(const compilation *c, const gpu_request *request,
                      gpu_codes *codes, struct late **late);
/* Waits for code number `index`; its cubin is malloced and the caller's. Each
 * call reports the compiler's failure anew. */
dil_status late_wait(struct late *late, int32_t index, dil_cuda_code *code);
/* Stops and joins the thread, and frees what it made. A compilation that cannot
 * be interrupted is waited for. */
void late_end(struct late *late);

#endif
