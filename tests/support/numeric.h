/* numeric.h - what the numeric suites and the pattern fuzzer share.
 *
 * A tested pattern is a checked pattern; data are the tensors of one call of it
 * with the oracle's answer beside them; a kernel is one way to compute it.
 * Inputs end at an unmapped page and cannot be written, outputs lie between
 * guard bytes and are full of NaN, and key and value rows that no query may see
 * are NaN. A problem is a text for the person who reads the failure. */
#ifndef DIL_TESTS_SUPPORT_NUMERIC_H
#define DIL_TESTS_SUPPORT_NUMERIC_H

#include "compiler/cli/rounding.h"
#include "compiler/codegen/cpu_backend.h"
#include "runtime/cpu/cpu.h"

/* ---- guard.c: memory whose misuse is noticed ----------------------------- */

typedef enum guard_layout {
  GUARD_PLAIN,    /* [B, N, H, D] without holes */
  GUARD_HEADS,    /* [B, H, N, D] in memory */
  GUARD_HOLES,    /* unused elements after every head and row */
  GUARD_BACKWARD, /* the last row first in memory */
  GUARD_LAYOUT_COUNT
} guard_layout;

typedef struct guard {
  unsigned char *map;      /* the whole mapping, unmapped pages at its ends */
  size_t map_size;
  unsigned char *bytes;    /* the tensor's own bytes */
  size_t size;
  unsigned char *snapshot; /* what the bytes were when they were closed */
} guard;

/* Writable memory that ends at an unmapped page (at_end), or begins after
 * one. Filled with guard bytes. Aborts when there is no memory. */
guard guard_new(size_t size, bool at_end);
void guard_free(guard *g);
/* A rank-4 tensor in guarded memory of its own, laid out as asked. */
dil_tensor guard_tensor(guard *g, dil_dtype dtype, const int64_t shape[4],
                        guard_layout layout, bool at_end);
/* From here on nothing can write to it. */
void guard_protect(guard *g);
/* Remembers all bytes; guard_intact then tells whether those that are no
 * element of the tensor are still the same. */
void guard_snapshot(guard *g);
bool guard_intact(const guard *g, const dil_tensor *tensor);

/* The bytes of a guard that can be written: the tensor and what surrounds it. */
unsigned char *guard_inner(const guard *g);
size_t guard_inner_size(const guard *g);

/* Index in elements of tensor[at...]. */
int64_t tensor_index(const dil_tensor *tensor, const int64_t *at);
/* Counts at[] up through the shape; false after the last. */
bool tensor_next(const dil_tensor *tensor, int64_t *at);

/* ---- tested_pattern.c: from text to a kernel ----------------------------- */

typedef struct tested_pattern {
  arena *memory;
  const pattern *pattern;
  char name[80];           /* as given */
  char problem[1500];      /* why there is no pattern; "" when there is */
} tested_pattern;

/* The first pattern of the text. Defines may be NULL. */
tested_pattern *tested_pattern_new(const char *name, const char *text,
                                   const define *defines, int32_t define_count);
tested_pattern *tested_pattern_read(const char *path, const define *defines,
                                    int32_t define_count);
/* The same pattern with q, k, v and o stored as another dtype. */
void tested_pattern_retype(tested_pattern *s, dil_dtype dtype);
void tested_pattern_free(tested_pattern *s);

/* The CPU back end beside this program; aborts with the reason if none. */
const cpu_backend *processor_backend(void);
/* Instruction sets that this host runs, or the GPU alone where it is asked
 * for; NULL-terminated. */
const char *const *cpu_isas(void);

typedef struct recipe { /* of computing */
  const char *isa;   /* NULL: the host's */
  unsigned force;    /* plan_force bits */
  int32_t threads;   /* 0: 2 */
  dil_direction direction;
} recipe;

typedef struct kernel_made {
  arena *memory;
  plan *plan;
  cpu_kernel *kernel;  /* NULL: see problem */
  struct dil_cuda_kernel *cuda; /* what runs in its place, see gpu.h */
  bool refused;        /* plan_make said no: nothing this build computes */
  int32_t compiled;    /* how often machine code was asked for */
  recipe way;
  char problem[1500];
} kernel_made;

kernel_made *kernel_make(const tested_pattern *s, recipe way);
void kernel_unmake(kernel_made *k);
/* Machine code of a plan, the context, for this host: what a rank group's
 * `make` asks for, from any thread. */
dil_status plan_variant(void *plan, dil_variant variant, void **bytes,
                        size_t *size, dil_code *code);

/* The ways of planning that tests force, with names; ended by name NULL. The
 * first is the plan's own choice. */
typedef struct forced {
  const char *name;
  unsigned force;
} forced;
extern const forced force_all[];
enum { FORCES_MOST = 6 };
/* Lists the forces whose plans for the pattern differ, in their order: equal
 * plans are the same code. On a GPU the list has all forces that plan at all,
 * since there a force chooses among kernels, too. The plan's own choice stands
 * in the list even when it is refused. */
void forces_of(const tested_pattern *s, forced list[FORCES_MOST]);

/* ---- numeric.c: one call and its answer ---------------------------------- */

typedef struct call_shape {
  int64_t batch, queries, keys;
  uint32_t seed;           /* of the tensors */
  double size;             /* q is multiplied by it; 0: 1 */
  guard_layout layout;     /* of q, k, v and o */
  bool at_start;           /* guard pages before the data, not after */
  bool clean;              /* no NaN in unseen rows */
  bool whole;              /* on a GPU: of a kernel that knows of no parts of sequences */
  bool train;
  uint64_t dropout_seed;
  double scale;            /* for `scale runtime` */
  const int32_t *lengths;  /* [batch] or NULL */
  const int32_t *told;     /* what the call says in their place; NULL: them */
  /* [documents + 1], of a packed call, which is `clean` and of batch 1;
   * key_offsets NULL: offsets. */
  const int32_t *offsets, *key_offsets;
  int64_t documents;
  /* Values of a declared input; NULL: small numbers of each kind. */
  double (*input)(int32_t index, const int64_t *at, const int64_t *shape);
  /* Rewrites an element of q, k or v (tensor 0, 1, 2); NULL: as it is. */
  double (*element)(int32_t tensor, const int64_t *at, double value);
} call_shape;

enum { NUMERIC_GUARDS = 12 + 2 * DIL_INPUT_MAX };

typedef struct data {
  const pattern *pattern;
  char name[80]; /* of the tested_pattern */
  call_shape shape;
  dil_call call;
  dil_tensor inputs[DIL_INPUT_MAX];
  guard guards[NUMERIC_GUARDS];
  int32_t guard_count;
  struct oracle_lists *lists; /* of choices of blocks; NULL: none */
  double *o, *lse;         /* the oracle's [B, N, H, Dv] and [B, H, N] */
  rounding *explained;     /* [B, N, H] what the rounding of scores explains;
                              NULL until a bound is exceeded */
  int64_t lse_row;         /* whose lse is farthest beyond that */
} data;

data *data_new(const tested_pattern *s, call_shape shape);
void data_free(data *d);

/* The lists that the definition chooses, and the oracle's answer with them: for
 * runs that read lists and choose nothing, as gradients do. */
void data_choose(data *d);

/* documents.c: makes of a call one of the shape's documents, with inputs in their
 * sizes and the oracle's answer. */
void documents_pack(data *d);
/* Gives it other offsets, of which the oracle has not heard. */
void documents_tell(data *d, const int32_t *offsets);

/* Runs the kernel; "" or what is wrong with guards, o or lse. The text lives
 * until the next call. */
const char *data_problem(data *d, kernel_made *k);
/* All elements, whatever the strides. */
void tensor_fill_nan(const dil_tensor *t);
/* o and lse full of NaN, as data_run leaves them to the kernel. */
void data_forget(data *d);
/* Runs the kernel and leaves o and lse in the call, uncompared. */
dil_status data_run(data *d, kernel_made *k);
/* The gradients of a call by a kernel of direction DIL_BACKWARD. */
dil_status data_run_backward(kernel_made *k, const dil_backward_call *call);
/* Fills `explained`: what the rounding of scores explains of each row. */
void data_explain(data *d);

/* ---- numeric_error.c: the comparison -------------------------------------- */

/* Tells how a run differs from the answer; "" where it does not. */
const char *data_compare(data *d);
/* The relative L2 error of o as it stands, and the error of the lse that is
 * farthest beyond what is explained. */
double data_error(data *d, double *lse_error);
/* The largest error of an element of o, less what is explained, of its size and
 * its row's. */
double data_element_error(const data *d);
double o_bound(const data *d);
double lse_bound(const data *d);

#endif
