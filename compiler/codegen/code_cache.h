/* code_cache.h - the code cache: machine code from the cache, or else from a
 * compiler that is loaded only then. */
#ifndef DIL_COMPILER_CODEGEN_CODE_CACHE_H
#define DIL_COMPILER_CODEGEN_CODE_CACHE_H

#include "codegen.h"
#include <limits.h>

/* The object of a variant for the processor. On success code->bytes is malloced
 * and the caller's. */
dil_status code_cache_object(const code_request *of, dil_variant variant,
                             cpu_code *code);
/* The codes of a plan for a GPU; their cubins are malloced and the caller's. */
dil_status code_cache_codes(const code_request *of, const gpu_request *request,
                            gpu_codes *codes);

/* ---- the steps of code_cache_codes, for deferred.c ----------------------- */

/* Looks the whole list of codes up under its key. */
dil_status code_cache_find_codes(const code_request *of,
                                 const gpu_request *request, gpu_codes *codes,
                                 bool *found);
/* Takes the codes from the cubin cache, or else from the compiler, and then
 * stores their list. */
dil_status code_cache_make_codes(const code_request *of,
                                 const gpu_request *request, gpu_codes *codes);
/* The key of the list, malloced; NULL: there is none. */
char *code_cache_key(const code_request *of, const gpu_request *request,
                     size_t *size);
/* Stores, under that key, the list of codes whose cubins are all in the cubin
 * cache. It alone may run while other threads use the plan. */
void code_cache_list_codes(const code_request *of, const gpu_request *request,
                           char *key, size_t size, double seconds);

/* ---- code_cache_key.c: keys, for the files of both caches ---------------- */

typedef enum code_module { MODULE_CPU, MODULE_GPU, MODULE_COUNT } code_module;
/* Opens a cache key that begins with the back end's identity; the caller writes
 * the rest and closes it. NULL: the back end's file cannot be read, or memory
 * is lacking. */
FILE *code_cache_open_key(code_module module, char **bytes, size_t *size);
typedef struct code_bytes {
  char *bytes; /* malloced; NULL: no key or value, or no memory */
  size_t size;
} code_bytes;
/* The key of a plan's code. `target`: "avx512 tiles" or "sm_90 general". */
code_bytes code_cache_key_of(const code_request *of, code_module m,
                             const char *target);
/* Makes a path absolute, since loaders report it as it was given to them.
 * Returns `room`, or NULL: it is too long, or there is no current folder. */
const char *code_cache_absolute(const char *path, char room[PATH_MAX]);

#endif
