/* dil.h - the compiler of dil for hosts: programs, and kernels of them.
 *
 * What dilrt.h says of threads, errors and structs holds here too. A host
 * reads a program once, makes kernels of it, and runs them (dilrt.h):
 *
 *   dil_context *context;
 *   dil_program *program;
 *   dil_kernel *kernel;
 *   if (dil_context_new(NULL, &context) ||
 *       dil_program_read(context, "longnet.dil", NULL, &program) ||
 *       dil_program_kernel(program, NULL, NULL, &kernel))
 *     fputs(dil_last_error(), stderr);
 */
#ifndef DIL_H
#define DIL_H

#include "dilrt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- programs ------------------------------------------------------------ */

/* The checked text of a .dil file and all that it imports. */
typedef struct dil_program dil_program;

typedef struct dil_define {
  const char *name, *value; /* as `-D name=value` has them */
} dil_define;

typedef struct dil_program_options {
  size_t size;
  const dil_define *defines; /* replace the values of `let` lines */
  int32_t define_count;
  int32_t json; /* not 0: diagnostics are JSON objects, one a line: file, line,
                   column, end_column, severity, message, hint */
} dil_program_options;
#define DIL_PROGRAM_OPTIONS_INIT {sizeof(dil_program_options), 0, 0, 0}

/* Reads a file ("-": standard input) and its imports. DIL_INPUT: it is wrong,
 * and dil_last_error() has every diagnostic with its place and caret line;
 * DIL_ENVIRONMENT: a file cannot be read. options may be NULL. */
DIL_API dil_status dil_program_read(dil_context *context, const char *path,
                                    const dil_program_options *options,
                                    dil_program **program);
/* The same from `length` bytes in memory, which diagnostics call `name`;
 * imports are relative to the folder in `name`. */
DIL_API dil_status dil_program_parse(dil_context *context, const char *name,
                                     const char *text, size_t length,
                                     const dil_program_options *options,
                                     dil_program **program);
/* Kernels of it live on. */
DIL_API void dil_program_free(dil_program *program);
/* The warnings of reading it, "" for none; valid as long as the program. */
DIL_API const char *dil_program_warnings(const dil_program *program);
DIL_API int32_t dil_program_kernel_count(const dil_program *program);
/* NULL when there is none of that index. */
DIL_API const char *dil_program_kernel_name(const dil_program *program,
                                            int32_t index);

/* ---- compilation --------------------------------------------------------- */

/* Takes choices of the plan away from the compiler: see `dil help explain`. */
enum {
  DIL_FORCE_FUSE = 1, DIL_FORCE_CHAIN = 2, DIL_FORCE_DEDUP = 4,
  DIL_FORCE_MULTISET = 8, DIL_FORCE_GENERAL = 16
};

typedef struct dil_kernel_options {
  size_t size;
  const char *isa; /* of the processor: "avx2", "avx512" or "avx512bf16"; NULL:
                      the best it has */
  uint32_t force;  /* DIL_FORCE_... */
  int32_t json;    /* diagnostics as in dil_program_options */
} dil_kernel_options;
#define DIL_KERNEL_OPTIONS_INIT {sizeof(dil_kernel_options), 0, 0, 0}

/* A kernel of the program for its context's device; name NULL: the only one.
 * On the processor machine code is made when a call first needs it, on a GPU
 * here. DIL_INPUT: the pattern asks for what this build does not run, the text
 * says where; DIL_ENVIRONMENT: the device or its compiler is lacking. */
DIL_API dil_status dil_program_kernel(dil_program *program, const char *name,
                                      const dil_kernel_options *options,
                                      dil_kernel **kernel);

#ifdef __cplusplus
}
#endif
#endif
