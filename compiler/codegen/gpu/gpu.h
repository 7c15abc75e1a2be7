/* gpu.h - dil-gpu.so: compiles plans to CUDA C, from templates/, and to cubins.
 *
 * This module is the only user of NVRTC and opens it at run time. In: a plan
 * and a chip. Out: one dil_cuda_code for each kernel that passes the gate
 * (nvrtc.c), a check of what ptxas reports.
 *
 * A *strategy* is one way to write kernels for a plan (general.c, hopper.c). It
 * has *variants*: kernel variants for different calls, all of which are
 * compiled. Each variant has *configurations* of tiles in order of preference:
 * when the gate refuses one, the next is tried. `fallback` numbers them; 0 is
 * the preferred one. */
#ifndef DIL_COMPILER_CODEGEN_GPU_GPU_H
#define DIL_COMPILER_CODEGEN_GPU_GPU_H

#include "compiler/codegen/gpu/emit/emit.h"
#include "compiler/codegen/gpu/emit/strategy.h"

/* ---- gpu.c --------------------------------------------------------------- */

/* Row `index` of the fast families; NULL: there are fewer. */
const gpu_fast *gpu_fast_row(int32_t index);
/* The fast family of a chip; NULL: it has none. */
const gpu_fast *gpu_fast_of(int32_t arch);
/* The shared memory that a thread block may have, by chip, in bytes. */
int64_t gpu_shared_limit(int32_t arch);

/* ---- general.c: what gradients share with it ----------------------------- */

bool general_can(const gpu_request *r, char *reason, size_t size);
/* An upper bound for the size of dil_scratch, the scratch memory of
 * templates/general/general_visit.cuh. */
int64_t general_scratch_bytes(const dil_table *t);
/* Tables of patches add so many bytes to it, for tiles of so many rows and keys. */
int64_t general_patch_bytes(const dil_table *t, int32_t rows, int32_t keys);
/* The plan's tables for kernels that walk lists: where all branches of a pass see
 * the keys of one list, their predicates are what is left of them, and LISTED says
 * so (key_list.cuh). Where tiles hold keys (`holds_keys`), a list for each head
 * keeps its table, since heads of one K/V head list other keys. */
void general_put_tables(source_text *text, const plan *p, bool holds_keys);
/* Says whether tiles may be patches. */
void general_put_patches(source_text *text, const dil_table *t);
/* Bytes from one row of so many elements to the next, in shared memory. */
int64_t general_pitch(const dil_table *t, int64_t width);

/* ---- peak.c -------------------------------------------------------------- */

dil_status peak_compile(const plan *p, int32_t arch,
                        const gpu_cubin_cache *cubins, dil_cuda_code *code);

/* ---- rows.c -------------------------------------------------------------- */

dil_status rows_compile(int32_t arch, const gpu_cubin_cache *cubins,
                        dil_cuda_code *code);

/* ---- nvrtc.c: compile and gate ------------------------------------------- */

/* Compiles one source to the cubin of `code`, whose variant, chip and `lenient`
 * are set. The cubin comes from the cache `cubins` (or NULL) if it is there.
 * Setting *stop (or NULL) cancels the compilation with DIL_INTERNAL. Errors:
 * DIL_UNSUPPORTED (the gate refused ptxas' result; dil_last_error has the
 * reason), DIL_ENVIRONMENT (the cache has no such cubin and compilation is not
 * allowed). */
dil_status nvrtc_compile(const source_text *text, dil_cuda_code *code,
                         FILE *report, const atomic_bool *stop,
                         const gpu_cubin_cache *cubins);
const char *nvrtc_version(void);
const char *nvrtc_origin(void); /* the path of its library file, or NULL */

#endif
