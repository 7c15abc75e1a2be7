/* dil.h - the compiler of dil for hosts: programs, and kernels of them.
 *
 * The rules of dilrt.h on threads, errors and structs hold here too, but for
 * one handler: a thread may compile code of a GPU's kernel after the kernel is
 * made, and exit() or the unloading of this library stops and joins it. A host
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
  int32_t define_count; /* 0 to 4096 */
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
 * imports are relative to the folder in `name`, which may be NULL. */
DIL_API dil_status dil_program_parse(dil_context *context, const char *name,
                                     const char *text, size_t length,
                                     const dil_program_options *options,
                                     dil_program **program);
/* Kernels of it live on. */
DIL_API void dil_program_free(dil_program *program);
/* The warnings of reading it, "" for none; valid as long as the program. Of
 * NULL "". */
DIL_API const char *dil_program_warnings(const dil_program *program);
/* Of NULL 0. */
DIL_API int32_t dil_program_kernel_count(const dil_program *program);
/* NULL when there is none of that index, or no program. */
DIL_API const char *dil_program_kernel_name(const dil_program *program,
                                            int32_t index);

/* A topology of the program, as dil_rank_new wants it. */
typedef struct dil_topology_info {
  size_t size;
  const char *name;               /* as long as the program lives */
  int64_t devices;
  int32_t ring, heads, batch;     /* their product is `devices` */
  int32_t layout;                 /* DIL_RANKS_...; where the file leaves it open,
                                     what suits the first kernel's pattern */
  int32_t gather;                 /* `exchange gather` */
  double timeout;                 /* seconds */
} dil_topology_info;
#define DIL_TOPOLOGY_INFO_INIT \
  {sizeof(dil_topology_info), 0, 0, 0, 0, 0, 0, 0, 0}
/* name NULL: the only one. DIL_INPUT: the program has none of that name. */
DIL_API dil_status dil_program_topology(const dil_program *program,
                                        const char *name,
                                        dil_topology_info *info);

/* ---- compilation --------------------------------------------------------- */

/* The host makes these choices of the plan: see `dil help explain`. */
enum {
  DIL_FORCE_FUSE = 1, DIL_FORCE_CHAIN = 2, DIL_FORCE_DEDUP = 4,
  DIL_FORCE_MULTISET = 8, DIL_FORCE_GENERAL = 16
};

typedef struct dil_kernel_options {
  size_t size;
  const char *isa; /* of the processor: "avx2", "avx512", "avx512bf16" or "amx"; NULL:
                      the best it has */
  uint32_t force;  /* DIL_FORCE_...; FUSE and CHAIN, and DEDUP and MULTISET,
                      exclude each other */
  int32_t json;    /* diagnostics as in dil_program_options */
  const char *dtype; /* of q, k, v and o: "f32", "bf16" or "f16"; NULL: what
                        the pattern says */
  const dil_sizes *sizes; /* of the calls to come, for schedules that `dil tune`
                             remembers; NULL: not known, the largest tuned */
  int32_t backward; /* not 0, or a kernel that the program calls `backward`:
                       the kernel takes dil_kernel_backward as well as
                       dil_kernel_run. DIL_UNSUPPORTED where this build has no
                       gradients on the context's device */
  int32_t heads;       /* in place of the pattern's, as if the file said so: 0
                          is what the pattern says. DIL_INPUT where a branch
                          names heads beyond them */
  int32_t kv_heads;    /* 0: as many as heads where the pattern has as many,
                          else what it says */
  int32_t head_dim;
  int32_t value_dim;   /* 0: head_dim where the pattern has it so, else what it
                          says */
  int64_t ranks;       /* not 0: dil_rank_new may take the kernel. On a GPU this
                          makes code for parts of sequences, all of it at once;
                          on the processor it says nothing */
} dil_kernel_options;
#define DIL_KERNEL_OPTIONS_INIT \
  {sizeof(dil_kernel_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* A kernel of the program for its context's device; name NULL: the only one.
 * The kernel takes the schedule that `dil tune` remembered for pattern and
 * device, unless the program has one, `force` is set or DIL_WISDOM is `off`;
 * dil_kernel_describe says which schedule it has.
 * On the processor the first call that needs machine code makes it; for a GPU
 * this function makes it. Code in the cache (DIL_CACHE in dil(1)) is not made
 * again; the context's log hook hears of trouble with the cache. Few calls of a
 * GPU need more code: fewer than 64 queries where the Hopper kernel runs, very
 * many rows where it does not. A thread goes on to compile that code, and
 * such a call waits for it, or fails with the compiler's error. Prepare a call
 * before it is captured into a graph. DIL_INPUT: this build cannot run the
 * pattern, and the text says where; DIL_ENVIRONMENT: the device or its compiler
 * is lacking. */
DIL_API dil_status dil_program_kernel(dil_program *program, const char *name,
                                      const dil_kernel_options *options,
                                      dil_kernel **kernel);

/* ---- without a file ------------------------------------------------------ */

/* Patterns that come with dil: dil_program_read takes "preset:NAME" for a
 * path, as `dil run` does. Their lets are what a caller may define. */
DIL_API int32_t dil_preset_count(void);
/* In the order of the alphabet; NULL when there is none of that index. */
DIL_API const char *dil_preset_name(int32_t index);
/* The preset as a .dil file; NULL when there is none of that name. name may be
 * NULL. */
DIL_API const char *dil_preset_text(const char *name);

typedef struct dil_attention_options {
  size_t size;
  const char *preset;  /* NULL: the branches below */
  int32_t heads;       /* 0: the preset's; so the rest, as in
                          dil_kernel_options */
  int32_t kv_heads;    /* of branches 0: as many as heads */
  int32_t head_dim;
  int32_t value_dim;   /* of branches 0: head_dim */
  const char *dtype;   /* "f32", "bf16" or "f16"; NULL: the preset's, or f32 */
  int32_t causal;      /* refused where a preset has no `ahead` to set */
  int32_t branch_count; /* 0: dense attention */
  const int64_t *segments, *dilations; /* [branch_count], LongNet's w and r; a
                                          segment of 0: the whole sequence */
  const int64_t *window; /* [2]: keys seen before and after a query, -1: all;
                            NULL: no window */
  const char *combine; /* "softmax", "union", "mean" or "sum"; NULL: softmax */
  const dil_define *defines; /* of a preset's lets */
  int32_t define_count;
  int32_t backward;    /* as in dil_kernel_options */
} dil_attention_options;
#define DIL_ATTENTION_OPTIONS_INIT \
  {sizeof(dil_attention_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
   0}

/* A kernel in one call: the pattern that these options describe, on the
 * context's device; context NULL: the first GPU, or where there is none the
 * processor (dil_kernel_describe tells which and why, as does the log at level
 * info). Refuses what it cannot do, with the
 * reason; nothing is left out. */
DIL_API dil_status dil_attention(dil_context *context,
                                 const dil_attention_options *options,
                                 dil_kernel **kernel);

#ifdef __cplusplus
}
#endif
#endif
