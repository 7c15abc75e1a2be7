/* cpu_run.h - one run of a kernel on a processor: a call, from check to output.
 */
#ifndef DIL_RUNTIME_CPU_CPU_RUN_H
#define DIL_RUNTIME_CPU_CPU_RUN_H

#include "pack.h"
#include "runtime/call.h"
#include "runtime/code.h"
#include "runtime/pool/threads.h"

/* The ways in which a pass leaves the rows that it touches. */
typedef enum finish {
  FINISH_WRITE,  /* no other pass touches the head: the final output */
  FINISH_RESUME, /* state in f32: continue it, leave it advanced */
  FINISH_ADD     /* `mean` and `sum`: add the pass's softmax to the state */
} finish;

/* One run: the call, the facts that follow from it, and its memory. */
typedef struct cpu_run {
  const dil_table *table;
  const dil_code *code[DIL_VARIANT_COUNT];
  const dil_call *call;
  dil_threads *threads;
  const dil_shard *shard;  /* NULL: the call is the whole sequence */
  int64_t B, N, M;         /* rows of the call; of a packed one its documents,
                              and the rows of the longest */
  const struct cpu_run *packed; /* the packed call that this document is of */
  int64_t document;        /* its number there */
  float scale;
  float weight;            /* of a pass's own softmax: 1, or 1 / G (`mean`) */
  bool drop;
  dil_env_input inputs[DIL_INPUT_MAX];
  dil_tensor read[DIL_INPUT_MAX]; /* the inputs, and the tables made of them */
  int32_t *listed[DIL_INPUT_MAX]; /* the keys of tables of keys, see key_list.c */
  const struct input_bounds *bounds; /* of the inputs; see input.c */
  /* f32 state of the heads that several passes touch, [B, N, H, Dv] and
   * [B, N, H]; of a shard's every head, and then that of the pass under way.
   * NULL when no head needs it. */
  float *state_o, *state_lse;
  const bool *chained;     /* [heads]: touched by more than one pass */
  char *scratch;           /* 64-byte aligned */
  int64_t scratch_bytes;
} cpu_run;

static inline int64_t cpu_run_keys(const cpu_run *r, int64_t b) {
  return r->call->lengths ? r->call->lengths[b] : r->M;
}
/* The positions of the call's query rows, and of its key rows. */
static inline dil_progression cpu_run_queries(const cpu_run *r, int64_t b) {
  if (r->shard) return r->shard->queries;
  return (dil_progression){cpu_run_keys(r, b) - r->N, 1, r->N};
}
static inline dil_progression cpu_run_key_progression(const cpu_run *r,
                                                      int64_t b) {
  if (r->shard) return r->shard->keys;
  return (dil_progression){0, 1, cpu_run_keys(r, b)};
}
/* The query row at position t. */
static inline int64_t cpu_run_row(const cpu_run *r, int64_t b, int64_t t) {
  dil_progression c = cpu_run_queries(r, b);
  return c.step == 1 ? t - c.first : (t - c.first) / c.step;
}
/* The period of a pass's classes among the rows of this run, or their number
 * where there are fewer. */
int64_t cpu_run_period(const cpu_run *r, const dil_pass *pass);
/* Checks the call against the table; fills B, N, M, scale, weight, drop. */
DIL_API dil_status dil_run_check(cpu_run *r); /* dilrt-cuda.so calls it, too */
/* cpu_grid.c: of a plan with a grid, whether the call has its cells, and neither
 * lengths nor a part of them. */
dil_status cpu_run_check_grid(const cpu_run *r);
DIL_API dil_status dil_grid_check_lengths(const dil_table *table,
                                          const dil_call *call);
/* The same, and against r->shard, which is set. */
DIL_API dil_status dil_shard_check(cpu_run *r);
/* gradient_shard.c: the tensors of a call for the gradients of such a shard. */
DIL_API dil_status dil_gradient_shard_check(const cpu_run *r,
                                            const dil_backward_call *call);
/* DIL_USAGE unless the tensor has this shape and dtype, and memory that is
 * aligned, its last dimension contiguous. */
dil_status cpu_run_check_tensor(const char *name, const dil_tensor *t,
                                dil_dtype dtype, const int64_t want[4]);
/* The variant of code that a pass of this run takes. */
dil_variant cpu_run_variant(const cpu_run *r, const dil_pass *pass);
/* The variants of all passes, as bits. */
unsigned cpu_run_variants(const cpu_run *r);
/* Scratch bytes of the whole run, and the run in that much memory. */
int64_t cpu_run_bytes(const cpu_run *r);
dil_status cpu_run_passes(cpu_run *r, char *memory);
/* The same for a shard: begins its state, advances it, rounds it to the
 * output. */
dil_status cpu_run_begin(cpu_run *r);
dil_status cpu_run_advance(cpu_run *r, char *memory);
dil_status cpu_run_end(cpu_run *r);

finish cpu_run_finish(const cpu_run *r, int32_t head);
/* Return the place that query row n of (b, h) is written to, and that of its
 * lse (NULL: not wanted). */
char *cpu_run_output(const cpu_run *r, int64_t b, int64_t n, int32_t h);
float *cpu_run_lse(const cpu_run *r, int64_t b, int64_t n, int32_t h);
row_view cpu_run_row_view(const dil_tensor *tensor, int64_t b, int32_t head,
                          dil_progression progression);
/* The keys of batch row b, of k or v, in pages or not. */
row_view cpu_run_key_view(const cpu_run *r, const dil_tensor *tensor, int64_t b,
                          int32_t head);

/* Hands out 64-byte aligned memory; where base is NULL it only counts. */
typedef struct cutter {
  char *base;
  int64_t used;
} cutter;

static inline void *cutter_cut(cutter *c, int64_t bytes) {
  char *at = c->base ? c->base + c->used : NULL;
  c->used += (bytes + 63) / 64 * 64;
  return at;
}

/* An environment for expressions that also finds the bounds of inputs. */
typedef struct cpu_run_env {
  dil_env env; /* first: the generated code sees only this */
  const cpu_run *run;
} cpu_run_env;
void cpu_run_env_init(const cpu_run *r, int64_t b, int32_t h, cpu_run_env *env);

/* ---- packed.c: calls of documents ---------------------------------------- */

/* A run of document b, on the threads of the packed run. `call` gets its call. */
cpu_run packed_document(const cpu_run *r, int64_t b, dil_call *call);
unsigned packed_variants(const cpu_run *r);
int64_t packed_bytes(const cpu_run *r);
dil_status packed_passes(cpu_run *r, char *memory);
/* Does `work` once for each document that is not empty, of a run that is packed:
 * those with much work one after the other on all threads, the others one a
 * thread. `bytes` says how much memory work on a document needs on its
 * threads; `memory` holds packed_share_bytes. */
typedef struct packed_work {
  const cpu_run *run;
  const void *context;
  bool in_turn; /* all documents are, in their order, on all threads */
  int64_t (*bytes)(const struct packed_work *w, cpu_run *document, int64_t b);
  dil_status (*work)(const struct packed_work *w, cpu_run *document, int64_t b,
                     char *memory);
} packed_work;
int64_t packed_share_bytes(const packed_work *w);
dil_status packed_share(const packed_work *w, char *memory);
/* Rows behind the last document, of o, of lse or of a gradient. */
dil_status packed_clear_rows(const cpu_run *r, const dil_tensor *t,
                             int64_t from);
void packed_clear_lse(const dil_tensor *t, int64_t from);

/* ---- sink.c: what rows begin with ---------------------------------------- */

/* The state of a row whose lse so far is this: m (log2) and l. */
static inline void state_begin(float lse, float *m, float *l) {
  *m = lse * DIL_LOG2_E;
  *l = *m == -__builtin_inff() ? 0 : 1;
  if (*m < __builtin_inff()) return;
  *m = 0; /* NaN or too large: the row is NaN */
  *l = __builtin_nanf("");
}
/* The sinks of n rows at positions t, which these branches select. */
void cpu_run_sinks(const cpu_run *r, const dil_env *env, uint64_t branches,
                   const int32_t *t, int64_t n, float *s);
/* Those of query row n of (b, h), of the branches in `among`. */
float cpu_run_row_sink(const cpu_run *r, int64_t b, int64_t n, int32_t h,
                       uint64_t among);
/* A row without a key: 0 or NaN, and its lse (NULL: not wanted). */
void cpu_run_bare_row(const cpu_run *r, dil_dtype dtype, float sink, char *o,
                      float *lse);

/* ---- input.c: declared inputs at a call ---------------------------------- */

/* Binds and checks the call's inputs; needs r->call, B, N, M and a `dimension`
 * function of the kernel. */
dil_status input_bind(cpu_run *r, const dil_code *code);
/* Once a call: tables made of lists, and blockwise bounds along the last axis.
 * DIL_USAGE where lists hold what is no block. */
int64_t input_bounds_bytes(const cpu_run *r);
dil_status input_bounds_fill(cpu_run *r, void *memory);
void input_range(const dil_env *env, int32_t index, int32_t axis,
                 const int32_t *at, int32_t first, int32_t last, double *low,
                 double *high);

/* ---- tile_pass.c and row_pass.c: the two ways to run a pass -------------- */

/* Scratch bytes for a pass, and the pass itself. */
int64_t tile_pass_bytes(const cpu_run *r, const dil_pass *pass);
dil_status tile_pass_run(cpu_run *r, const dil_pass *pass);
int64_t row_pass_bytes(const cpu_run *r, const dil_pass *pass);
dil_status row_pass_run(cpu_run *r, const dil_pass *pass);
/* The call's watch grows by this with each run of the pass. */
int64_t tile_pass_watch_rows(const cpu_run *r, const dil_pass *pass);
int64_t row_pass_watch_rows(const cpu_run *r, const dil_pass *pass);

#endif
