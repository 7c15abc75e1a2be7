/* library.h - what a library built ahead of time holds of each kernel: data
 * that its compiler writes and the run time reads, and the functions that its
 * own functions call. See compiler/library/library.c and runtime/api/library.c.
 * */
#ifndef DIL_RUNTIME_API_LIBRARY_H
#define DIL_RUNTIME_API_LIBRARY_H

#include "kernel.h"
#include "runtime/cuda.h"

/* Counts the layouts of everything below, of dil_code, dil_env, the images of
 * plans, dil_cuda_code and what launches tell kernels (templates): another
 * number, another library. */
enum { DIL_LIBRARY_ABI = 29 };
/* The section with the library's description, JSON. */
#define DIL_LIBRARY_SECTION ".dil.library"

typedef struct dil_library_code {
  const char *isa;
  const dil_code *variant[DIL_VARIANT_COUNT];
} dil_library_code;

typedef struct dil_library_kernel {
  int32_t abi;              /* DIL_LIBRARY_ABI */
  int32_t isa_count, cuda_count;
  int32_t direction;        /* a dil_direction */
  uint64_t hash;            /* of the library and the kernel's place in it */
  uint64_t plan_hash;
  const char *name;
  const void *image;        /* of the plan, see plan_serial.c */
  size_t image_size;
  const dil_code *questions; /* `dimension` alone, for every machine; NULL: the
                               plan has no inputs */
  const dil_library_code *isas; /* each after those it holds */
  const dil_cuda_code *cuda;    /* a chip's together, most specific first */
} dil_library_kernel;

/* The generated struct of a kernel's arguments consists of words of eight
 * bytes, in this order. Words from DIL_WORD_RESERVED up to the inputs are 0:
 * later versions have a use for them. Pointers to declared inputs follow, then
 * a scale (double) where the pattern takes one, then seed and train where it
 * has dropout. */
typedef enum dil_library_word {
  DIL_WORD_SIZE, DIL_WORD_Q, DIL_WORD_K, DIL_WORD_V, DIL_WORD_O, DIL_WORD_LSE,
  DIL_WORD_LENGTHS, DIL_WORD_STREAM, DIL_WORD_OFFSETS_Q, DIL_WORD_OFFSETS_K,
  DIL_WORD_LONGEST_Q, DIL_WORD_LONGEST_K, DIL_WORD_PAGES, DIL_WORD_SELECTION,
  DIL_WORD_SAVED, DIL_WORD_SAVED_BYTES, DIL_WORD_RESERVED,
  DIL_WORD_INPUTS = 32
} dil_library_word;

/* The same of the generated struct of gradients. The gradients of inputs that
 * have one follow the reserved words. */
typedef enum dil_library_gradient {
  DIL_GRADIENT_SIZE,
  DIL_GRADIENT_FORWARD,
  DIL_GRADIENT_DO,
  DIL_GRADIENT_DLSE,
  DIL_GRADIENT_DQ,
  DIL_GRADIENT_DK,
  DIL_GRADIENT_DV,
  DIL_GRADIENT_WORKSPACE,
  DIL_GRADIENT_WORKSPACE_BYTES,
  DIL_GRADIENT_RESERVED,
  DIL_GRADIENT_INPUTS = 32
} dil_library_gradient;

/* Functions that generated libraries call, and no host. */

/* A kernel's function: `arguments` is its generated struct. context NULL: one
 * for the device that q is on, made at the first such call. */
DIL_API int32_t dil_library_run(const dil_library_kernel *kernel,
                                dil_context *context, const void *arguments);
/* The same of a packed call: DIL_USAGE without offsets. */
DIL_API int32_t dil_library_packed(const dil_library_kernel *kernel,
                                   dil_context *context, const void *arguments);
/* Makes and allocates all that a call of these sizes needs. context NULL: that
 * of the processor. */
DIL_API int32_t dil_library_prepare(const dil_library_kernel *kernel,
                                    dil_context *context, int64_t batch,
                                    int64_t queries, int64_t keys);
/* The gradients of a kernel that was built with them: `gradients` is its
 * generated struct. context as of dil_library_run. */
DIL_API int32_t dil_library_backward(const dil_library_kernel *kernel,
                                     dil_context *context,
                                     const void *gradients);
/* Bytes of workspace that are enough for gradients of these sizes. context
 * NULL: that of the processor. */
DIL_API int32_t dil_library_backward_workspace(const dil_library_kernel *kernel,
                                               dil_context *context,
                                               int64_t batch, int64_t queries,
                                               int64_t keys, int64_t *bytes);
/* Bytes of `saved` in the arguments of a call of these sizes. context NULL: that of the
 * processor. */
DIL_API int32_t dil_library_saved(const dil_library_kernel *kernel,
                                  dil_context *context, int64_t batch,
                                  int64_t queries, int64_t keys, int64_t *bytes);
/* A context of the processor, for a library that carries the run time. */
DIL_API int32_t dil_library_context(int32_t threads, dil_context **context);

#endif
