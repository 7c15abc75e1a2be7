/* cuda.h - GPU kernels at run time: what dilrt-cuda.so offers, what a compiler
 * hands to it, and what a family of kernels has to bring.
 *
 * A GPU kernel is a dil_table (the plan as plain data) and one or more
 * dil_cuda_code (a cubin and how to launch it). Every pass of the plan goes to
 * the first code that can run it in this call; the choice is arithmetic on the
 * call's sizes and the device alone. Nothing here allocates per run beyond the
 * workspace that a run needs, waits for the device, or does work that grows
 * with N on the host. */
#ifndef DIL_CUDA_H
#define DIL_CUDA_H

#include "../rt.h"
#include "../../templates/launch.h"

enum { DIL_CUDA_KNOBS = 16, DIL_CUDA_ENTRIES = 8 };

/* One cubin, made by a family of templates for one plan and one chip. The
 * meaning of tile sizes and knobs is the family's; its half in compiler/gpu
 * writes them, its half in runtime/cuda reads them. */
typedef struct dil_cuda_code {
  const char *family;          /* "general", "hopper" */
  char variant[80];            /* for people: "general 64x64 d64" */
  int32_t arch;                /* 80, 86, 89, 90 */
  bool lenient;                /* the gate lets it spill */
  uint64_t passes;             /* bit p: pass p of the plan may use it */
  int32_t threads;             /* of a block */
  int32_t shared;              /* dynamic shared memory, bytes */
  int32_t tile_rows, tile_keys;
  int32_t knob[DIL_CUDA_KNOBS];
  void *cubin;                 /* malloced; whoever holds the code frees it */
  size_t size;
} dil_cuda_code;

/* ---- what the module dilrt-cuda.so exports ------------------------------- */

struct ring_device;      /* ../ring_device.h */
struct stream_lift;      /* ../stream_lift.h */
struct dil_normal_place;
typedef struct dil_cuda dil_cuda;               /* a device */
typedef struct dil_cuda_kernel dil_cuda_kernel; /* a plan on a device */

typedef struct dil_cuda_facts {
  char name[64];
  int32_t arch;          /* 90 for compute capability 9.0 */
  int32_t processors;    /* SMs */
  int64_t shared_block;  /* bytes of shared memory a block may have */
  int64_t memory;        /* bytes */
  int32_t driver;        /* 13000 */
} dil_cuda_facts;

/* What a pass of a call takes of a GPU. */
typedef struct dil_cuda_pass {
  int32_t code;          /* the index of its code; -1: none runs it */
  const char *left;      /* why codes before that leave it; NULL: none may */
  int32_t tile_rows;     /* at most */
  int32_t classes;       /* of rows that read the same runs of keys; 0: not
                            made, since rows are asked one by one */
  int64_t tiles;
  int32_t parts;         /* that the keys of a row are cut into */
  int32_t pack;          /* heads that share a tile, where rows are few */
  /* Blocks of keys: those that tiles visit, those of them that not all rows of
   * the tile see whole, and those that segments hold and no row sees; < 0: only
   * the kernel finds out. */
  double visited, masked, skipped;
  double saved;          /* pairs that a shared visit saves; likewise */
  bool estimated;        /* from some tiles of many */
  int64_t workspace;     /* bytes that it wants by itself */
} dil_cuda_pass;

typedef struct dil_cuda_forecast {
  bool stateful;         /* rows have a state that goes from pass to pass */
  int32_t opening;       /* the pass that comes first and begins them; -1: an
                            empty state stands for it */
  int64_t state;         /* bytes of those states */
  int64_t apart;         /* one row in so many has one */
  int64_t workspace;     /* of all that a run takes besides its tensors */
  dil_cuda_pass pass[DIL_BRANCH_MAX];
} dil_cuda_forecast;

/* Every function but `run` may wait for the device. Errors: DIL_ENVIRONMENT
 * with the driver's own text, DIL_USAGE and DIL_MEMORY. */
typedef struct dil_cuda_module {
  int32_t version;       /* DIL_INTERFACE, of interface.h */
  dil_status (*open)(int32_t index, dil_cuda **device);
  void (*close)(dil_cuda *device);
  const dil_cuda_facts *(*facts)(const dil_cuda *device);
  dil_status (*devices)(int32_t *count);
  /* Makes the device's context this thread's, and gives back the former. */
  dil_status (*enter)(const dil_cuda *device);
  void (*leave)(const dil_cuda *device);

  /* Memory of the device and copies of it, for hosts without CUDA. */
  dil_status (*take)(dil_cuda *device, int64_t bytes, void **memory);
  void (*give)(dil_cuda *device, void *memory);
  dil_status (*upload)(dil_cuda *device, void *to, const void *from,
                       int64_t bytes);
  dil_status (*download)(dil_cuda *device, void *to, const void *from,
                         int64_t bytes);
  dil_status (*fill)(dil_cuda *device, void *to, uint8_t byte, int64_t bytes);

  /* Borrows table and context; copies what it needs of the codes. Those without
   * a cubin come from `more` (NULL: there are none) when a call needs them. A
   * plan without inputs needs no dimension. */
  dil_status (*kernel)(dil_cuda *device, const dil_table *table,
                       const dil_cuda_code *code, int32_t count, dil_more more,
                       dil_dimension dimension, const void *context,
                       dil_cuda_kernel **kernel);
  void (*kernel_free)(dil_cuda_kernel *kernel);
  /* Puts the call on `stream` (a CUstream; NULL: the default one) and returns.
   * All data pointers of the call, lengths and inputs included, are device
   * memory; a length outside 0..M counts as the nearer of the two. Threads may
   * run one kernel at once, and runs on different streams overlap. Runs may be
   * captured into a graph, of which one execution at a time writes the call's
   * outputs. */
  dil_status (*run)(dil_cuda_kernel *kernel, const dil_call *call,
                    void *stream);
  /* The variants that a call of this shape, or the advance of a part of this
   * shape (NULL: none), takes, pass by pass; they are there when it returns. */
  dil_status (*variants)(dil_cuda_kernel *kernel, const dil_call *call,
                         const dil_part *part, char *text, size_t size);

  /* A part of a sequence, as cpu_kernel_begin and on (cpu.h) have it, on a
   * stream as `run`; the state is device memory too. Inputs must be there
   * whole, with the whole's sizes; of k and v the rows of the part's keys, of
   * which those that no query here reaches may hold anything. `lengths`, of the
   * call's batch rows, count as ever: M of the part is then the longest, and
   * the queries of a shorter row stand as much earlier. */
  int32_t (*states)(const dil_cuda_kernel *kernel);
  dil_status (*begin)(dil_cuda_kernel *kernel, const dil_call *call,
                      const dil_part *part, void *stream);
  dil_status (*advance)(dil_cuda_kernel *kernel, const dil_call *call,
                        const dil_part *part, void *stream);
  dil_status (*finish)(dil_cuda_kernel *kernel, const dil_call *call,
                       const dil_part *part, void *stream);
  /* Begin and first advance in one, at less than the cost of both, where one
   * pass has keys for every row: then o and lse are written at once, and again
   * by every advance that follows, so that no finish is due. `opens` says
   * whether that can be, and what `apart` of the part must be from then on; 0:
   * it cannot. */
  dil_status (*opens)(dil_cuda_kernel *kernel, const dil_call *call,
                      const dil_part *part, int64_t *apart);
  dil_status (*open_part)(dil_cuda_kernel *kernel, const dil_call *call,
                          const dil_part *part, void *stream);

  int64_t (*workspace)(const dil_cuda_kernel *kernel);
  /* What a call of these shapes takes of a GPU that need not be there: by the
   * codes, whose cubins are not looked at. Opens no driver. Of the call of a
   * part over its own keys only what is said of states. */
  dil_status (*foresee)(const dil_cuda_facts *facts, const dil_table *table,
                        const dil_cuda_code *code, int32_t count,
                        const dil_call *call, const dil_part *part,
                        dil_cuda_forecast *out);
  /* Of the device's pool; NULL: its memory is the driver's to keep. */
  struct pool *(*pool)(const dil_cuda *device);
  dil_status (*wait)(dil_cuda *device, void *stream);
  /* Seconds on the device of one run. */
  dil_status (*time)(dil_cuda_kernel *kernel, const dil_call *call,
                     double *seconds);
  /* Operations a second that the device reaches with nothing but products, by
   * the code of templates/peak.cu, in about `seconds`. */
  dil_status (*peak)(dil_cuda *device, const dil_cuda_code *code,
                     double seconds, double *rate);

  /* A rank of a ring on this device, with streams of its own; `rows` is the
   * code of templates/rows.cu. Borrows device and kernel. */
  dil_status (*ring)(dil_cuda *device, dil_cuda_kernel *kernel,
                     const dil_cuda_code *rows, struct ring_device **made);
  /* Fills a contiguous tensor [B, rows, H, D] of such a rank with standard
   * normals by the numbers of their elements: see dil_normal. */
  dil_status (*normal)(struct ring_device *ring, const dil_tensor *tensor,
                       const struct dil_normal_place *place);
  /* Between memory of the host and of such a rank's device, beside its passes:
   * see ../stream_lift.h. Borrows both. */
  dil_status (*lift)(dil_cuda *device, struct ring_device *ring,
                     const dil_cuda_code *rows, struct stream_lift **made);
} dil_cuda_module;

typedef const dil_cuda_module *(*dil_cuda_init)(void);
#define DIL_CUDA_SYMBOL "dil_cuda_module_init"
/* The module's table, opened once (device_cuda.c), or the reason why not. */
DIL_API dil_status dil_cuda_module_open(const dil_cuda_module **module);
/* module->peak on a context's device. */
DIL_API dil_status dil_cuda_peak(dil_context *context,
                                 const dil_cuda_code *code, double seconds,
                                 double *rate);

/* ---- inside the module: what a family brings ----------------------------- */

typedef struct cuda_code {      /* a dil_cuda_code, loaded */
  dil_cuda_code about;          /* cubin NULL */
  const struct cuda_family *family;
  void *library;                /* CUlibrary */
  void *function[DIL_CUDA_ENTRIES]; /* CUfunction, by the family's entry names */
  struct cuda_memory *memory;   /* what the family keeps between launches */
} cuda_code;

typedef struct cuda_run {       /* one call on one device */
  const dil_cuda *device;
  const dil_table *table;
  const dil_call *call;         /* checked */
  const dil_part *part;         /* NULL: the call is the whole sequence */
  void *stream;
  int64_t B, N, M;              /* rows of the call */
  int32_t opening;              /* the pass that comes first and begins all
                                 * rows; -1: an empty state stands for it */
  bool opened;                  /* o and lse are up to date between passes */
  int64_t apart;                /* 1, or of opened rows: see dil_part */
  uint64_t later;               /* branches of the passes behind this one */
  float scale, weight;          /* weight: of a pass's own softmax */
  bool drop;
  const bool *chained;          /* [heads]: touched by more than one pass */
  /* [B, cuda_state_rows, H, Dv], [B, cuda_state_rows, H]; NULL: no chain. Of a
   * part all heads are chained, and `mean` and `sum` resume a state for each
   * pass. */
  float *state_o, *state_lse;
  char *bounds;                 /* of the inputs; NULL: none, see input.c */
  char *workspace;              /* as many bytes as the pass asked for */
} cuda_run;

/* The positions of the call's query rows, and of its key rows. */
static inline dil_comb cuda_queries(const cuda_run *r) {
  return r->part ? r->part->queries : (dil_comb){r->M - r->N, 1, r->N};
}
static inline dil_comb cuda_keys(const cuda_run *r) {
  return r->part ? r->part->keys : (dil_comb){0, 1, r->M};
}

/* Rows that have a state, of a batch row and head. */
static inline int64_t cuda_state_rows(const cuda_run *r) {
  return (r->N + r->apart - 1) / r->apart;
}

typedef struct cuda_family {
  const char *name;
  const char *entry[DIL_CUDA_ENTRIES]; /* functions of the cubin; NULL ends
                                        * them */
  /* What a loaded code keeps between launches; NULL: nothing. */
  dil_status (*open)(const dil_table *table, cuda_code *code);
  void (*close)(cuda_code *code);
  /* NULL: this code runs pass `pass` in this call; else why it does not. */
  const char *(*leaves)(const cuda_run *r, int32_t pass,
                        const cuda_code *code);
  /* What the pass comes to, but for its code. */
  void (*foresee)(const cuda_run *r, int32_t pass, const cuda_code *code,
                  dil_cuda_pass *out);
  /* Bytes of workspace that the pass needs. */
  int64_t (*workspace)(const cuda_run *r, int32_t pass, const cuda_code *code);
  /* Puts the pass on the stream. A chained head's rows are resumed from and
   * left in state_o and state_lse (`mean` and `sum`: added to them, but in a
   * part); all others are written to the call's o and lse, rows that no branch
   * of the pass selects as 0 and -infinity. */
  dil_status (*launch)(const cuda_run *r, int32_t pass, const cuda_code *code);
} cuda_family;

extern const cuda_family cuda_general, cuda_hopper;
/* hopper.c: `apart` of a run whose rows its opening pass opens. */
int64_t hopper_apart(const cuda_run *r);
/* No pass takes it: a measure of the device. Its knob: operations of a block in
 * one round. */
extern const cuda_family cuda_peak;
/* Nor this: what ranks of a ring do with rows (rows.c). */
extern const cuda_family cuda_rows;
enum { CUDA_PEAK_OPERATIONS };
/* Knobs of the general family: how many parts the keys of a row are cut into;
 * 0: as many as the call wants. Whether the code is for many rows, and gives
 * way to the next where a call has few. And whether it knows no parts of
 * sequences. */
enum { GENERAL_KNOB_PARTS, GENERAL_KNOB_MANY, GENERAL_KNOB_WHOLE };
/* Of the Hopper family: the code has no states, for whole calls of one pass. */
enum { HOPPER_KNOB_WHOLE };

/* The branches of a pass that serve a head. */
static inline uint64_t cuda_served(const dil_table *table, int32_t pass,
                                   int32_t head) {
  uint64_t served = 0;
  for (int32_t b = 0; b < table->branch_count; b++)
    if ((table->passes[pass].branches >> b & 1) &&
        table->branches[b].head_first <= head &&
        head <= table->branches[b].head_last)
      served |= 1ull << b;
  return served;
}
/* How many passes touch a head. */
static inline int32_t cuda_passes(const dil_table *table, int32_t head) {
  int32_t passes = 0;
  for (int32_t p = 0; p < table->pass_count; p++)
    passes += cuda_served(table, p, head) != 0;
  return passes;
}
/* Launches a function of a code: one-dimensional grid, one struct. */
dil_status cuda_launch(const cuda_run *r, const cuda_code *code, int32_t entry,
                       int64_t blocks, int32_t threads, int32_t shared,
                       void *parameters);
/* input.c: bytes of the bounds of the inputs that masks read; and the inputs
 * as kernels see them, with r->bounds handed out among them. */
int64_t cuda_bounds_bytes(const cuda_run *r);
void cuda_inputs_fill(const cuda_run *r, dil_device_input *out);
/* Before the first pass: the bounds that cuda_inputs_fill points to. */
dil_status general_bounds(const cuda_run *r, const cuda_code *code);
/* Before the first pass: an empty state for chained heads. After the last:
 * their state to o and lse, and 0 for heads that no pass serves. Of a part: for
 * all heads, and all states as one. */
dil_status general_begin(const cuda_run *r, const cuda_code *code);
dil_status general_end(const cuda_run *r, const cuda_code *code);

#endif
