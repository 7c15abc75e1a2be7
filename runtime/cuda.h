/* cuda.h - GPU kernels at run time: the interface of dilrt-cuda.so, and what a
 * code carries from the compiler to it. The module's inside is in runtime/cuda.
 *
 * A GPU kernel is a dil_table (the plan as plain data) and one or more
 * dil_cuda_code (a cubin and how to launch it). Every pass of the plan takes
 * the first code that can run it in this call. That choice depends on the
 * call's sizes and strides and on the device alone. A run allocates nothing but
 * its workspace, does not wait for the device, and does no host work that grows
 * with N. */
#ifndef DIL_RUNTIME_CUDA_H
#define DIL_RUNTIME_CUDA_H

#include "call.h"
#include "code.h"
#include "shard.h"

enum { DIL_CUDA_KNOBS = 16, DIL_CUDA_ENTRIES = 13 };

/* One cubin, made by a family of templates for one plan and one chip. Each
 * family gives tile sizes and knobs their meaning: its half in compiler/gpu
 * writes them, its half in runtime/cuda reads them. */
typedef struct dil_cuda_code {
  const char *family;          /* "general", "hopper", "decode", ... */
  char variant[80];            /* for people: "general 64x64 d64" */
  int32_t arch;                /* 80, 86, 89, 90 */
  bool lenient;                /* register spills are allowed */
  uint64_t passes;             /* bit p: pass p of the plan may use it */
  int32_t threads;             /* of a thread block */
  int32_t shared;              /* dynamic shared memory, bytes */
  int32_t tile_rows, tile_keys;
  int32_t knob[DIL_CUDA_KNOBS];
  void *cubin;                 /* malloced; the holder of the code frees it */
  size_t size;
} dil_cuda_code;

/* ---- exports of the module dilrt-cuda.so --------------------------------- */

struct ring_device;      /* runtime/ring/ring_device.h */
struct device_transfer;  /* runtime/ring/transfer.h */
struct dil_normal_place;
typedef struct dil_cuda dil_cuda;               /* a device */
typedef struct dil_cuda_kernel dil_cuda_kernel; /* a plan on a device */

typedef struct dil_cuda_facts {
  char name[64];
  int32_t arch;          /* 90 for compute capability 9.0 */
  int32_t processors;    /* SMs */
  int64_t shared_block;  /* most shared memory of a thread block, bytes */
  int64_t memory;        /* bytes */
  int32_t driver;        /* 13000 */
} dil_cuda_facts;

/* An estimate of one pass of a call on a GPU. */
typedef struct dil_cuda_pass {
  int32_t code;          /* the index of its code; -1: none runs it */
  const char *refusal;   /* why the code before it cannot run it; NULL: no other
                            code was asked */
  int32_t tile_rows;     /* at most */
  int32_t classes;       /* classes of rows that read the same ranges of keys;
                            0: the kernel has no classes */
  int64_t tiles;
  int32_t parts;         /* split-K: parts of the keys of a row */
  int32_t pack;          /* heads that share a tile (few rows) */
  int32_t patch[DIL_GRID_AXES]; /* cells of a tile along each axis of a grid; 0: a
                            * tile is no patch */
  /* Counts of key blocks: blocks that tiles visit; visited blocks that need
   * masking; blocks inside segments that no row sees. < 0: only the kernel
   * finds out. */
  double visited, masked, skipped;
  double saved;          /* pairs that shared visits save; < 0: as above */
  bool estimated;        /* counted from a sample of the tiles */
  int64_t workspace;     /* bytes for this pass alone */
} dil_cuda_pass;

typedef struct dil_cuda_estimate {
  bool stateful;         /* several passes share rows, which keep a running
                            state */
  int32_t opening;       /* the pass that runs first and needs no state before
                            it; -1: the run begins with an empty state */
  int64_t state;         /* bytes of the running state */
  int64_t state_stride;  /* state stride: one row in so many has a state */
  int32_t documents;     /* the code that takes the call where the input of its mask is
                            sorted and keeps documents apart; -1: there is none */
  int64_t workspace;     /* bytes that a run takes besides its tensors */
  dil_cuda_pass pass[DIL_BRANCH_MAX];
} dil_cuda_estimate;

/* Every function but `run` may wait for the device. Errors: DIL_ENVIRONMENT
 * with the driver's own text, DIL_USAGE and DIL_MEMORY. */
typedef struct dil_cuda_module {
  int32_t version;       /* DIL_INTERFACE, of interface.h */
  dil_status (*open)(int32_t index, dil_cuda **device);
  void (*close)(dil_cuda *device);
  const dil_cuda_facts *(*facts)(const dil_cuda *device);
  dil_status (*devices)(int32_t *count);
  /* `enter` makes the device's context current on this thread; `leave` restores
   * the previous one. */
  dil_status (*enter)(const dil_cuda *device);
  void (*leave)(const dil_cuda *device);

  /* Device memory and copies, for hosts without CUDA. */
  dil_status (*take)(dil_cuda *device, int64_t bytes, void **memory);
  void (*give)(dil_cuda *device, void *memory);
  dil_status (*upload)(dil_cuda *device, void *to, const void *from,
                       int64_t bytes);
  dil_status (*download)(dil_cuda *device, void *to, const void *from,
                         int64_t bytes);
  dil_status (*fill)(dil_cuda *device, void *to, uint8_t byte, int64_t bytes);

  /* Borrows table and context, and copies the codes. A code without a cubin
   * gets it from `more` (NULL: there is none) when a call first needs it.
   * Without inputs, the plan needs no `dimension`. */
  dil_status (*kernel)(dil_cuda *device, const dil_table *table,
                       const dil_cuda_code *code, int32_t count, dil_more more,
                       dil_dimension dimension, const void *context,
                       dil_cuda_kernel **kernel);
  void (*kernel_free)(dil_cuda_kernel *kernel);
  /* Enqueues the call on `stream` (a CUstream; NULL: the default one) and
   * returns. All data pointers of the call are device memory, lengths and
   * inputs included. A length outside 0..M is clamped. Threads may run one
   * kernel at the same time, and runs on different streams overlap. Runs may be
   * captured into a CUDA graph. Only one execution of a graph at a time may
   * write the call's outputs. */
  dil_status (*run)(dil_cuda_kernel *kernel, const dil_call *call,
                    void *stream);
  /* The variants that a call of this shape takes, pass by pass, or the advance
   * of a shard of this shape (NULL: no shard). Their cubins are loaded when it
   * returns. */
  dil_status (*variants)(dil_cuda_kernel *kernel, const dil_call *call,
                         const dil_shard *shard, char *text, size_t size);

  /* Gradients of a call, by a kernel of a backward plan, on a stream like `run`;
   * the bytes of workspace that such a call takes, with its codes there when it
   * returns; and the seconds that one takes on the device. */
  dil_status (*backward)(dil_cuda_kernel *kernel, const dil_backward_call *call,
                         void *stream);
  dil_status (*backward_workspace)(dil_cuda_kernel *kernel,
                                   const dil_backward_call *call,
                                   int64_t *bytes);
  dil_status (*backward_time)(dil_cuda_kernel *kernel,
                              const dil_backward_call *call, double *seconds);
  /* Bytes of what a run of such a call leaves for its gradients, in call->saved. */
  int64_t (*saved)(const dil_cuda_kernel *kernel, const dil_call *call);
  /* How that call runs, with its codes there; and how a call of these shapes
   * would run on a GPU that need not exist, as in `estimate` below. There, data
   * pointers say which tensors there are. */
  dil_status (*backward_describe)(dil_cuda_kernel *kernel,
                                  const dil_backward_call *call,
                                  dil_backward_facts *out);
  dil_status (*backward_estimate)(const dil_cuda_facts *facts,
                                  const dil_table *table,
                                  const dil_cuda_code *code, int32_t count,
                                  const dil_backward_call *call,
                                  dil_backward_facts *out);

  /* A shard of a sequence, as in cpu_kernel_begin and its neighbours (cpu.h),
   * on a stream like `run`. The state is device memory too. Inputs must be
   * complete and have the whole sequence's sizes. Of k and v, the shard's rows
   * are needed; rows that no query here sees may hold anything. `lengths` has
   * one entry for each batch row of the call. M of the shard is then the
   * longest, and the queries of a shorter row stand that much earlier. */
  int32_t (*states)(const dil_cuda_kernel *kernel);
  dil_status (*begin)(dil_cuda_kernel *kernel, const dil_call *call,
                      const dil_shard *shard, void *stream);
  dil_status (*advance)(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_shard *shard, void *stream);
  dil_status (*finish)(dil_cuda_kernel *kernel, const dil_call *call,
                       const dil_shard *shard, void *stream);
  /* Begin and first advance in one launch, cheaper than both, if one pass has
   * keys for every row. This launch and every later advance then write o and
   * lse, so that no finish is due. `opens` says whether that is possible and
   * sets `state_stride` of the shard for all later calls; 0: it is not
   * possible. */
  dil_status (*opens)(dil_cuda_kernel *kernel, const dil_call *call,
                      const dil_shard *shard, int64_t *state_stride);
  dil_status (*open_shard)(dil_cuda_kernel *kernel, const dil_call *call,
                           const dil_shard *shard, void *stream);

  int64_t (*workspace)(const dil_cuda_kernel *kernel);
  /* Estimates a call of these shapes on a GPU that need not exist. It reads the
   * codes but not their cubins, and opens no driver. For a call of a shard over
   * its own keys, only the fields about states are set. */
  dil_status (*estimate)(const dil_cuda_facts *facts, const dil_table *table,
                         const dil_cuda_code *code, int32_t count,
                         const dil_call *call, const dil_shard *shard,
                         dil_cuda_estimate *out);
  /* The device's memory pool; NULL: the driver's own pool is used. */
  struct pool *(*pool)(const dil_cuda *device);
  dil_status (*wait)(dil_cuda *device, void *stream);
  /* Seconds that one run takes on the device. */
  dil_status (*time)(dil_cuda_kernel *kernel, const dil_call *call,
                     double *seconds);
  /* Measures for about `seconds` how many operations a second the device
   * reaches with matrix products alone, with the code of templates/peak.cu. */
  dil_status (*peak)(dil_cuda *device, const dil_cuda_code *code,
                     double seconds, double *rate);

  /* Makes the device half of a rank in a ring, with its own streams. `rows` is
   * the code of templates/rows.cu. Borrows device and kernel. */
  dil_status (*ring)(dil_cuda *device, dil_cuda_kernel *kernel,
                     const dil_cuda_code *rows, struct ring_device **made);
  /* Fills a contiguous tensor [B, rows, H, D] of a rank with standard normal
   * numbers. Each depends on the element's index alone: see dil_normal. */
  dil_status (*normal)(struct ring_device *ring, const dil_tensor *tensor,
                       const struct dil_normal_place *place);
  /* Makes the transfers between host memory and the rank's device, which
   * overlap its passes: see runtime/ring/transfer.h. Borrows device and ring.
   * */
  dil_status (*transfer)(dil_cuda *device, struct ring_device *ring,
                         const dil_cuda_code *rows,
                         struct device_transfer **made);
} dil_cuda_module;

typedef const dil_cuda_module *(*dil_cuda_init)(void);
#define DIL_CUDA_SYMBOL "dil_cuda_module_init"

/* ---- knobs of the families: dil_cuda_code.knob ---------------------------- */

/* The knob of "peak": the operations that a thread block does in one round. */
enum { CUDA_PEAK_OPERATIONS };
/* Of every family: 1 + the input that tells documents apart. Such a code is one of the
 * plan without its mask (runtime/tables/documents_table.h), for packed calls. It runs
 * beside the code of a pass, and takes none itself. 0: it is a code of the plan. */
enum { CUDA_KNOB_DOCUMENTS_OF = DIL_CUDA_KNOBS - 1 };
/* Knobs of the general family. PARTS: split-K, the parts into which the keys of
 * a row are cut; 0: the call decides. MANY: the code is for many rows and
 * leaves calls with few rows to the next code. WHOLE: the code takes no parts
 * of sequences. */
enum { GENERAL_KNOB_PARTS, GENERAL_KNOB_MANY, GENERAL_KNOB_WHOLE };
/* Knobs of the families of gradients. MAKES: which ones, as bits of MAKES in
 * templates/general/gradient.cu. DROPS: a code of the fast family takes the calls
 * with dropout, and no others. SHARDS: a code of that family takes the calls of
 * shards, and no others. */
enum {
  GRADIENT_KNOB_PARTS = GENERAL_KNOB_PARTS,
  GRADIENT_KNOB_MAKES,
  GRADIENT_KNOB_DROPS,
  GRADIENT_KNOB_SHARDS,
  GRADIENT_KNOB_DOCUMENTS
};
enum { GRADIENT_Q = 1, GRADIENT_K = 2, GRADIENT_V = 4, GRADIENT_INPUTS = 8 };
/* Knobs of the Hopper family. WHOLE: the code has no running state; it takes
 * only whole sequences of a plan with one pass. DROPS: the code takes the calls
 * with dropout, and no others. SCORES: scores are rewritten, but nothing else
 * decides over pairs. FORM: the form of scores; CUDA_SCORE_LINEAR keeps the
 * scale of products. DOCUMENTS: the code takes packed calls, too. LISTS: how many
 * lists of kept blocks a call makes first. Of each list: the sizes of its blocks of
 * queries and of keys; as bits whether heads and batch rows have their own; and 1
 * more than the number of the table of bits that is the same list, or 0. */
enum {
  HOPPER_KNOB_WHOLE,
  HOPPER_KNOB_DROPS,
  HOPPER_KNOB_SCORES,
  HOPPER_KNOB_FORM,
  HOPPER_KNOB_DOCUMENTS,
  HOPPER_KNOB_LISTS,
  HOPPER_KNOB_LIST /* the first of HOPPER_LIST_KNOBS numbers of each */
};
enum { HOPPER_LIST_QUERIES, HOPPER_LIST_KEYS, HOPPER_LIST_LINES,
       HOPPER_LIST_TABLE, HOPPER_LIST_KNOBS };
enum { HOPPER_LIST_HEADS = 1, HOPPER_LIST_BATCHES = 2 };
enum { CUDA_SCORE_ANY, CUDA_SCORE_LINEAR, CUDA_SCORE_CAPPED };
/* Knobs of the Hopper family for grids, which has the others, too: cells of a
 * warpgroup along z and y, of a box of keys along y and x. */
enum { GRID_KNOB_Z = HOPPER_KNOB_LIST, GRID_KNOB_Y, GRID_KNOB_BOX_Y, GRID_KNOB_BOX_X };

#endif
