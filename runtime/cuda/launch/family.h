/* family.h - a family of kernels inside dilrt-cuda.so: a loaded code, a call on
 * a device, and the functions by which the families differ. In: calls that are
 * checked (kernel.c). Out: launches on a stream. */
#ifndef DIL_RUNTIME_CUDA_LAUNCH_FAMILY_H
#define DIL_RUNTIME_CUDA_LAUNCH_FAMILY_H

#include "runtime/cuda.h"
#include "templates/shared/launch.h"

typedef struct cuda_code {      /* a dil_cuda_code, loaded */
  dil_cuda_code about;          /* cubin NULL */
  const struct cuda_family *family;
  void *library;                /* CUlibrary */
  void *function[DIL_CUDA_ENTRIES]; /* CUfunction, by cuda_family.entry */
  void *memory;                 /* the family's cache between launches */
} cuda_code;

typedef struct cuda_run {       /* one call on one device */
  const dil_cuda *device;
  const dil_table *table;
  const dil_call *call;         /* checked */
  const dil_shard *shard;       /* NULL: the call is the whole sequence */
  void *stream;
  int64_t B, N, M;              /* rows of the call */
  int32_t opening;              /* the pass that runs first and needs no state;
                                   -1: the run begins with an empty state */
  bool opened;                  /* every pass leaves o and lse valid */
  bool resumes;                 /* every pass of a shard finds a state, in which
                                   its sinks are */
  int64_t state_stride;         /* state stride, see dil_shard; 1 unless
                                   `opened` */
  uint64_t later;               /* branches of the passes after this one */
  float scale, weight;          /* weight: factor of this pass's output */
  bool drop;
  bool turns;                   /* tables of bits get a copy turned round */
  bool lists_alone;             /* no pass reads the tables of lists */
  const bool *chained;          /* [heads]: more than one pass computes the
                                   head */
  /* f32 [B, cuda_state_rows, H, Dv] and [B, cuda_state_rows, H]; NULL: no head
   * is chained. In a shard of a sequence, all heads are chained, and with
   * `mean` and `sum` each pass resumes its own state. */
  float *state_o, *state_lse;
  char *bounds;                 /* of the inputs (input.c); NULL: none */
  /* Where a mask keeps documents apart (documents.h). Of the run of the packed call: the
   * input whose equal elements are a document, which the device looks at, and on the
   * device 1 where they are not sorted. Of the other run, behind it: that number. */
  const dil_tensor *alike;
  unsigned *mixed;
  const unsigned *only_if;      /* on the device: the pass runs only where it is not 0;
                                   NULL: always */
  char *documents;              /* memory of documents.h; NULL: the call has none */
  char *workspace;              /* as many bytes as cuda_family.workspace
                                   says */
} cuda_run;

/* The positions of the call's query rows, and of its key rows. */
static inline dil_progression cuda_queries(const cuda_run *r) {
  return r->shard ? r->shard->queries : (dil_progression){r->M - r->N, 1, r->N};
}
static inline dil_progression cuda_keys(const cuda_run *r) {
  return r->shard ? r->shard->keys : (dil_progression){0, 1, r->M};
}

/* Rows with a state in a batch row and head. */
static inline int64_t cuda_state_rows(const cuda_run *r) {
  return (r->N + r->state_stride - 1) / r->state_stride;
}

/* Query rows of all batch rows, or of a packed call's tensors. */
static inline int64_t cuda_rows(const cuda_run *r) {
  const dil_call *c = r->call;
  return c->packed.queries ? c->q.shape[0] * c->q.shape[1] : r->B * r->N;
}

typedef struct cuda_family {
  const char *name;
  bool few;                     /* it is for calls with few rows alone */
  bool lists_alone;             /* it reads the lists of a choice, and not the table
                                   that is made of them */
  const char *entry[DIL_CUDA_ENTRIES]; /* names of the cubin's functions; NULL
                                          ends the list */
  int32_t beside; /* bytes of shared memory that entries behind the first may take */
  /* Make and free cuda_code.memory; NULL: the family has none. */
  dil_status (*open)(const dil_table *table, cuda_code *code);
  void (*close)(cuda_code *code);
  /* NULL: this code can run the pass in this call; else the reason why not. */
  const char *(*refusal)(const cuda_run *r, int32_t pass,
                         const cuda_code *code);
  /* Estimates the pass: all fields of `out` but code and left. */
  void (*estimate)(const cuda_run *r, int32_t pass, const cuda_code *code,
                   dil_cuda_pass *out);
  /* Bytes of workspace that the pass needs. */
  int64_t (*workspace)(const cuda_run *r, int32_t pass, const cuda_code *code);
  /* The state stride of a run with an opening pass. NULL: the family's kernels do
   * not know of opening passes, and such a run takes none of them. */
  int64_t (*state_stride)(const cuda_run *r);
  /* Enqueues the pass. Rows of a chained head resume from state_o and state_lse
   * and leave their new state there. With `mean` and `sum` they are added to
   * it, except in a shard. Rows of other heads go to the call's o and lse; rows
   * that no branch of the pass selects become 0 and -infinity. */
  dil_status (*launch)(const cuda_run *r, int32_t pass, const cuda_code *code);
} cuda_family;

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
/* The number of passes that compute a head. */
static inline int32_t cuda_passes(const dil_table *table, int32_t head) {
  int32_t passes = 0;
  for (int32_t p = 0; p < table->pass_count; p++)
    passes += cuda_served(table, p, head) != 0;
  return passes;
}
/* Launches a function of a code with a one-dimensional grid and one parameter,
 * a struct. */
dil_status cuda_launch(const cuda_run *r, const cuda_code *code, int32_t entry,
                       int64_t blocks, int32_t threads, int32_t shared,
                       void *parameters);
/* choose_sizes.c: where the arrays of one choice stand behind each other, means of
 * key blocks first. */
typedef struct cuda_choose_layout {
  int64_t query_means, coarse, lost, list, length, own, end;
  bool has_query_means, is_coarse; /* else these have no room */
  int64_t blocks; /* thread blocks of dil_choose, or of dil_choose_coarse */
} cuda_choose_layout;
/* The sizes of a choice, without the call and without memory. */
dil_choose_params cuda_choose_sizes(const cuda_run *r, int32_t choice);
/* Bytes of shared memory that a thread block of dil_choose or dil_choose_coarse has. */
int32_t cuda_choose_shared(const dil_table *t, const dil_choose_params *p);
cuda_choose_layout cuda_choose_lay_out(const cuda_run *r,
                                       const dil_choose_params *p);
/* The bytes that making the lists of choices needs beside them. */
int64_t cuda_choose_bytes(const cuda_run *r);
/* input.c: the bytes for lists of choices, for the tables that are made of lists,
 * for what makes them, and for bounds
 * (smallest and largest elements) of the inputs that masks read. The rows of
 * these tables; `own`: of those whose lists the call brings. And the kernel's view of
 * the inputs, which points into r->bounds. */
int64_t cuda_bounds_bytes(const cuda_run *r);
int64_t cuda_table_rows(const cuda_run *r, bool own);
/* key_lists.c: the most keys that a pass walks of its list; -1: it walks none.
 * `held`: by tiles that hold the keys of a K/V head. */
int64_t cuda_list_room(const cuda_run *r, int32_t pass, bool held);
/* Whether a list has so few of all keys that it is faster to walk the list, as the
 * general kernels do, than to ask a mask of all keys. */
bool cuda_list_is_short(const cuda_run *r, int32_t pass);
/* The memory of the sorted lists of table `index`. */
int64_t cuda_list_bytes(const cuda_run *r, int32_t index, const dil_tensor *list);
/* The space of tiles of so many rows that hold the keys of the pass's list. False:
 * it has none. */
bool cuda_list_space(const cuda_run *r, int32_t pass, int32_t tile_rows,
                     dil_params *p);
void cuda_list_estimate(const cuda_run *r, int32_t pass, const cuda_code *code,
                        dil_cuda_pass *out);
/* The blocks that have bounds; `spans`: of inputs that have spans. */
int64_t cuda_bounds_blocks(const cuda_run *r, bool spans);
void cuda_inputs_fill(const cuda_run *r, dil_device_input *out);
/* The squares of 32 x 32 bits of the tables that get a copy turned round. */
int64_t cuda_turned_squares(const cuda_run *r);
/* input.c: dil_choice_check (runtime/base/lists.h) of all lists. */
dil_status cuda_choices_check(const cuda_run *r);

#endif
