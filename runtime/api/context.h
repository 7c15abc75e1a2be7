/* context.h - what a context is made of, and what a kind of device brings. */
#ifndef DIL_RUNTIME_API_CONTEXT_H
#define DIL_RUNTIME_API_CONTEXT_H

#include "kernel.h"
#include "runtime/cuda.h"
#include "runtime/observe/log.h"
#include "runtime/pool/pool.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* A kind of device: how a context opens one and what it does with a kernel. */
typedef struct device_kind {
  const char *name;
  /* Fills the context's fields of this kind. */
  dil_status (*open)(dil_context *c, const dil_context_options *options);
  void (*close)(dil_context *c);
  dil_status (*wait)(dil_context *c, void *stream);
  dil_status (*take)(dil_context *c, int64_t bytes, void **memory);
  void (*give)(dil_context *c, void *memory);
  dil_status (*copy)(dil_context *c, void *to, const void *from, int64_t bytes,
                     bool upwards); /* to the device */
  /* Returns whether a call may read and write memory of this DLPack device. */
  bool (*reaches)(const dil_context *c, DLDevice device);

  dil_status (*kernel)(dil_kernel *k);
  void (*kernel_free)(dil_kernel *k);
  dil_status (*run)(dil_kernel *k, const dil_call *call, void *stream);
  /* These three get a call whose tensors have shapes and no memory. */
  dil_status (*prepare)(dil_kernel *k, const dil_call *call);
  dil_status (*workspace)(dil_kernel *k, const dil_call *call, int64_t *bytes);
  dil_status (*variant)(dil_kernel *k, const dil_call *call, char *text,
                        size_t room);
  dil_status (*time)(dil_kernel *k, const dil_call *call, double *seconds);

  /* Gradients; all NULL on a kind of device that has none. The bytes are those
   * of the call's own shapes, types and tensors that are there. */
  dil_status (*backward)(dil_kernel *k, const dil_backward_call *call,
                         void *stream);
  dil_status (*backward_prepare)(dil_kernel *k, const dil_backward_call *call);
  dil_status (*backward_workspace)(dil_kernel *k, const dil_backward_call *call,
                                   int64_t *bytes);
  /* Bytes of the call's `saved`; NULL: such a device saves nothing. */
  int64_t (*saved)(const dil_kernel *k, const dil_call *call);
  dil_status (*backward_time)(dil_kernel *k, const dil_backward_call *call,
                              double *seconds);
  dil_status (*backward_describe)(dil_kernel *k, const dil_backward_call *call,
                                  dil_backward_facts *facts);
} device_kind;

extern const device_kind device_cpu, device_cuda;

/* The cache of kernels, once a compiler has asked for it; behind pointers, so
 * that a run time without a compiler has none of it. */
typedef struct cache_slot {
  pthread_mutex_t lock;
  struct dil_cache *cache;
  void (*free)(struct dil_cache *cache);
  void (*stats)(struct dil_cache *cache, dil_stats *stats);
} cache_slot;

/* A kernel of a library, made for the context and kept by it, unchanged, until
 * the host gives the context back. The key is where the library has it. */
typedef struct attached {
  struct attached *next;
  const void *key;
  uint64_t hash;
  dil_kernel *kernel;
} attached;

struct dil_context {
  atomic_int uses;         /* the host's, and one a kernel or program */
  pid_t process;           /* nothing of it works in another */
  const device_kind *kind;
  int32_t index;           /* of the device */
  char device[24];         /* "cuda:1" */
  char reason[256];        /* why it is that; "": the host said so */
  log_target log;
  cache_slot cache;
  pool *pool;              /* the processor's scratch memory */
  dil_threads *threads;    /* on the processor */
  const dil_cuda_module *cuda; /* on a GPU */
  dil_cuda *gpu;
  pthread_mutex_t attached_lock; /* of adding; reading takes none */
  _Atomic(attached *) attached;
  pthread_mutex_t taken_lock; /* of the next */
  void *taken;             /* tsearch: what dil_memory_take has handed out */
  atomic_llong kernels, calls, compiles, compile_nanoseconds,
      open_nanoseconds;
};

struct dil_kernel {
  dil_context *context;
  dil_kernel_source source;
  struct cpu_kernel *cpu;  /* on the processor */
  dil_cuda_kernel *gpu;    /* on a GPU */
};

/* ---- arguments.c: from a host's tensors to a call ------------------------ */

/* A call with the tensors that it points to. */
typedef struct arguments {
  dil_call call;
  dil_tensor inputs[DIL_INPUT_MAX];
  dil_tensor made[DIL_INPUT_MAX]; /* places for lists, where the host wants any */
  void *stream;
} arguments;

/* Reads the arguments that a host gave, and checks device, element types,
 * strides, read-only and overlapping outputs. Shapes are the run's own to
 * check. */
dil_status arguments_read(const dil_kernel *k, const dil_arguments *given,
                          arguments *out);
/* The same for a call that ran before: its outputs are read and not written. */
dil_status arguments_read_again(const dil_kernel *k, const dil_arguments *given,
                                arguments *out);
/* A call of these sizes with row-major tensors that have no memory: nothing
 * may look at their elements. DIL_USAGE: no memory could hold them. */
dil_status arguments_of_sizes(const dil_kernel *k, const dil_sizes *sizes,
                              arguments *out);
/* arguments_saved.c: the call's `saved`, with the places of lists that it holds; its
 * bytes; and what it holds as a tensor, without data: nothing. */
dil_status arguments_read_saved(const dil_kernel *k, const dil_arguments *g,
                                arguments *a);
int64_t arguments_saved_bytes(const dil_kernel *k, const dil_call *call);
dil_tensor arguments_saved(const dil_kernel *k, const dil_call *call);
DLDataType arguments_type(dil_dtype dtype);
/* Tensor `index` of a call (DIL_TENSOR_...): its type and shape. */
dil_tensor arguments_tensor(const dil_kernel *k, int32_t index,
                            const dil_sizes *sizes);

/* One tensor of a host: its device, element type, place. `want` is the type
 * that a message asks for; the caller compares. */
dil_status arguments_read_tensor(const dil_context *c, const char *name,
                                 dil_dtype want, const DLTensor *from,
                                 dil_tensor *to);
/* Check that an output is not read-only and has memory of its own for each
 * element; and that it is apart from another tensor. */
dil_status arguments_check_output(const char *name, const dil_tensor *t,
                                  uint64_t flags);
dil_status arguments_check_apart(const char *name, const dil_tensor *output,
                                 const char *other, const dil_tensor *t);
/* Checks that an output is apart from all that the call reads. */
dil_status arguments_check_overlap(const dil_kernel *k, const arguments *a,
                                   const char *name, const dil_tensor *output);
enum { INPUT_NAME = 96 };
/* "input 'doc'", for messages; returns the text. */
const char *arguments_input_name(const dil_kernel *k, int32_t index,
                                 char text[INPUT_NAME]);
/* The lengths of a call, as a tensor; empty where there are none. */
dil_tensor arguments_lengths(const dil_call *call);
/* The words of a call's seed tensor; of no elements where it has none. */
dil_tensor arguments_seed(const dil_call *call);

/* Its offsets of queries, or of keys; of no elements where it is not packed. */
dil_tensor arguments_offsets(const dil_call *call, bool keys);
/* packed.c: the documents of a call. */
dil_status packed_read(const dil_kernel *k, const dil_arguments *g,
                       dil_call *call);

/* ---- arguments_pages.c ---------------------------------------------------- */

/* The pages of a call whose q and lengths are read; NULL: none. */
dil_status arguments_read_pages(const dil_kernel *k, const DLTensor *pages,
                                dil_call *call);
/* Their numbers as a tensor; data NULL: none. */
dil_tensor arguments_pages(const dil_call *call);

/* ---- arguments_selection.c ------------------------------------------------ */

/* The places for the lists that choices make; the rest of the call is read. */
dil_status arguments_read_selection(const dil_kernel *k, const dil_arguments *g,
                                    arguments *a);
/* Checks them as outputs. */
dil_status arguments_check_selection(const dil_kernel *k, const dil_arguments *g,
                                     const arguments *a);

/* ---- gradients.c: from a host's tensors to a call for gradients ---------- */

/* A call with what it points to. */
typedef struct gradients {
  dil_backward_call call;
  arguments forward;
} gradients;

/* Reads the gradients that a host gave, and checks the same and their shapes
 * and types, and that no output shares memory with any other tensor. */
dil_status gradients_read(const dil_kernel *k, const dil_gradients *given,
                          gradients *out);
/* The call of these sizes that takes the most memory: all gradients in the
 * kernel's types, no lse. Nothing may look at elements. */
dil_status gradients_of_sizes(const dil_kernel *k, const dil_sizes *sizes,
                              gradients *out);

/* ---- overlap.c: who shares memory ---------------------------------------- */

/* Returns whether two elements of the tensor may lie in the same memory. */
bool overlap_within(const dil_tensor *t);
/* Returns whether an element of one may lie in memory of the other. Never a
 * wrong no; a wrong yes only for tensors woven into each other in an unusual
 * way. */
bool overlap_between(const dil_tensor *a, const dil_tensor *b);

#endif
