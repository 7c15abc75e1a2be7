/* walk.h - how a run moves over a plan: what kernel.c, walk.c, pack.c, tile.c,
 * visit.c, tiles.c and rows.c share.
 *
 * Positions are cut into cells: stretches in which no branch of the pass
 * changes its segment. Inside a cell the rows that the same branches select
 * form a class: a few residues of the pass's period. Keys are packed cell by
 * cell and class by class, so that whatever a class of queries sees is a list
 * of contiguous runs. */
#ifndef DIL_WALK_H
#define DIL_WALK_H

#include "arithmetic.h"
#include "rt.h"

/* ---- walk.c: cells, classes, rows ---------------------------------------- */

/* The classes of one cell and head. Rows are counted from the cell's start:
 * class c has the offsets offset[first[c]] .. offset[first[c + 1] - 1] of each
 * period, rising. A class with branches 0 holds the rows nobody selects. */
typedef struct shape {
  int64_t period;
  int64_t step, origin; /* only positions origin + i * step are there */
  int64_t phase;     /* offset of the first such position */
  uint64_t served;   /* branches that live in this cell for this head */
  int64_t *residue;  /* [DIL_BRANCH_MAX] first selected offset, by branch */
  int32_t count;     /* classes */
  uint64_t *branches; /* [period] by class */
  int32_t *first;     /* [period + 1] */
  int32_t *offset;    /* [period] */
} shape;

typedef struct cell {
  int64_t low, high; /* positions, high not included */
} cell;

/* What stays the same for one batch row and head of a pass. */
typedef struct walk {
  const dil_table *table;
  const dil_pass *pass;
  uint64_t served;    /* branches of the pass that serve the head */
  int32_t head;
  int32_t round;      /* runs of packed rows start at a multiple of this */
  int64_t keys;       /* M of this batch row */
} walk;

size_t shape_size(int64_t period);
/* period: a multiple of the comb's step, and of the pass's period unless no
 * cell is longer. */
void shape_init(shape *s, int64_t period, void *memory);
/* Forgets the cell; from now on the rows are those of the comb. */
void shape_reset(shape *s, const dil_comb *comb);
/* The branches of the pass that serve a head. */
uint64_t walk_served(const dil_table *table, const dil_pass *pass,
                     int32_t head);
/* The cell at position t, clipped to `high`. */
cell walk_cell(const walk *w, int64_t t, int64_t high);
/* Fills s for a cell; quick when it is like the one before. */
void walk_shape(const walk *w, cell c, shape *s);
/* Branches in `among` whose segment holds both cells. */
uint64_t walk_together(const walk *w, cell a, cell b, uint64_t among);
/* Rows of class c at offsets below `length`, and the offset of row n. */
int64_t shape_rows(const shape *s, int32_t c, int64_t length);
int64_t shape_row(const shape *s, int32_t c, int64_t n);
/* Packed rows of a whole cell. */
int64_t walk_slots(const walk *w, cell c, const shape *s);

/* ---- pack.c: between the caller's rows and the kernel's layouts ---------- */

/* How one tensor's rows lie, for one batch row and head: position first + i *
 * step is at base + i * stride bytes. */
typedef struct rows {
  const char *base;
  int64_t stride;
  int64_t first, step;
  dil_dtype dtype;
  int32_t width;  /* elements a row */
} rows;

static inline const char *rows_at(const rows *r, int64_t position) {
  int64_t n = position - r->first;
  return r->base + (r->step == 1 ? n : n / r->step) * r->stride;
}

/* Packed bytes of one key row, for a pack factor (see dil_code). */
int64_t pack_key_bytes(int32_t width, int32_t pack);
int64_t pack_value_bytes(int32_t width, int32_t pack);
/* Key rows to slots: row n of class c for n in n0..n1-1, at out + n rows. */
void pack_keys(const rows *from, const shape *s, int32_t c, int64_t low,
               int64_t n0, int64_t n1, int32_t pack, char *out);
/* Value rows likewise; with pack 2, n0 is even and an odd end is padded with
 * a zero row. True when every element is finite. */
bool pack_values(const rows *from, const shape *s, int32_t c, int64_t low,
                 int64_t n0, int64_t n1, int32_t pack, char *out);
/* `lanes` query rows at positions t[] to the transposed layout. Here and
 * below, spare is room for `lanes` rows of f32. */
void pack_queries(const rows *from, const int32_t *t, int32_t lanes,
                  int32_t pack, void *qt, float *spare);
/* Asks for rows that will be packed soon. */
void fetch_queries(const rows *from, const int32_t *t, int32_t lanes);
/* Rows of f32 sums o[width][lanes], each times factor[lane], to memory; or
 * added to what is there (f32 only). out[lane] NULL skips a lane. */
void unpack_rows(const float *o, int32_t width, int32_t lanes,
                 const float *factor, char *const *out, dil_dtype dtype,
                 bool add, float *spare);
/* One row of `width` elements to f32, and back. */
void row_to_f32(const void *from, dil_dtype dtype, int32_t width, float *out);
void row_from_f32(const float *from, dil_dtype dtype, int32_t width, void *out);

/* ---- run.c: one run --------------------------------------------------- */

/* How a pass leaves the rows it touches. */
typedef enum finish {
  FINISH_WRITE,   /* nobody else touches the head: the final output */
  FINISH_RESUME,  /* state in f32: continue it, leave it advanced */
  FINISH_ADD      /* `mean` and `sum`: add the own softmax to the state */
} finish;

/* One cpu_kernel_run: the call, what follows from it, and its memory. */
typedef struct run {
  const dil_table *table;
  const dil_code *code[DIL_VARIANT_COUNT];
  const dil_call *call;
  dil_threads *threads;
  const dil_part *part;    /* NULL: the call is the whole sequence */
  int64_t B, N, M;         /* rows of the call */
  float scale;
  float weight;            /* of a pass's own softmax: 1, or 1 / G (`mean`) */
  bool drop;
  dil_env_input inputs[DIL_INPUT_MAX];
  const struct bounds *bounds; /* of the inputs; see input.c */
  /* f32 state of the heads that several passes touch, [B, N, H, Dv] and
   * [B, N, H]; of a part's every head, and then that of the pass under way.
   * NULL when no head needs it. */
  float *state_o, *state_lse;
  const bool *chained;     /* [heads]: touched by more than one pass */
  char *scratch;           /* 64-byte aligned */
  int64_t scratch_bytes;
} run;

static inline int64_t run_keys(const run *r, int64_t b) {
  return r->call->lengths ? r->call->lengths[b] : r->M;
}
/* The positions of the call's query rows, and of its key rows. */
static inline dil_comb run_queries(const run *r, int64_t b) {
  if (r->part) return r->part->queries;
  return (dil_comb){run_keys(r, b) - r->N, 1, r->N};
}
static inline dil_comb run_key_comb(const run *r, int64_t b) {
  if (r->part) return r->part->keys;
  return (dil_comb){0, 1, run_keys(r, b)};
}
/* One past the last position. */
static inline int64_t comb_end(dil_comb c) {
  return c.count ? c.first + (c.count - 1) * c.step + 1 : c.first;
}
/* The query row at position t. */
static inline int64_t run_row(const run *r, int64_t b, int64_t t) {
  dil_comb c = run_queries(r, b);
  return c.step == 1 ? t - c.first : (t - c.first) / c.step;
}
/* The period of a pass's classes among the rows of this run, or their number
 * where there are fewer. */
int64_t run_period(const run *r, const dil_pass *pass);
/* Checks the call against the table; fills B, N, M, scale, weight, drop. */
DIL_API dil_status dil_run_check(run *r); /* dilrt-cuda.so has use for it */
/* The same where r->part is set, against that too. */
DIL_API dil_status dil_part_check(run *r);
/* What a pass of this run takes. */
dil_variant run_variant(const run *r, const dil_pass *pass);
/* Scratch bytes of the whole run, and the run in that much memory. */
int64_t run_bytes(const run *r);
dil_status run_passes(run *r, char *memory);
/* Whether passes have a softmax each, and their outputs are added. */
static inline bool run_apart(const dil_table *table) {
  return table->combine == DIL_COMBINE_MEAN ||
         table->combine == DIL_COMBINE_SUM;
}
/* States that a row of a part has. */
static inline int32_t run_states(const dil_table *table) {
  return run_apart(table) ? table->pass_count : 1;
}
/* The same for a part: its state begun, advanced, rounded to the output. */
dil_status run_begin(run *r);
dil_status run_advance(run *r, char *memory);
dil_status run_end(run *r);

finish run_finish(const run *r, int32_t head);
/* Where query row n of (b, h) is written, and its lse (NULL: not wanted). */
char *run_output(const run *r, int64_t b, int64_t n, int32_t h);
float *run_lse(const run *r, int64_t b, int64_t n, int32_t h);
rows run_rows(const dil_tensor *tensor, int64_t b, int32_t head,
              dil_comb comb);

/* An environment for expressions that also finds the bounds of inputs. */
typedef struct run_env {
  dil_env env; /* first: the generated code sees only this */
  const run *run;
} run_env;
void run_env_init(const run *r, int64_t b, int32_t h, run_env *env);

/* ---- input.c: declared inputs at a call ---------------------------------- */

/* Binds and checks the call's inputs; needs r->call, B, N, M and a `dimension`
 * function of the kernel. */
dil_status input_bind(run *r, const dil_code *code);
/* Blockwise bounds along the last axis, once a call. */
int64_t input_bounds_bytes(const run *r);
void input_bounds_fill(run *r, void *memory);
void input_range(const dil_env *env, int32_t index, int32_t axis,
                 const int32_t *at, int32_t first, int32_t last, double *low,
                 double *high);

/* ---- tile.c: tiles of queries over their keys ---------------------------- */

enum { TILE_GROUP = 8 }; /* tiles that take turns on a stretch of keys */

/* The query rows of one tile and their running state. */
typedef struct queries {
  int32_t *t;              /* [lanes] positions */
  float *qt, *o, *m, *l;   /* as in dil_code */
} queries;

/* Buffers of one worker, cut from its scratch. */
typedef struct tile {
  const run *run;
  const dil_code *code;
  run_env env;
  walk walk;
  shape query, key;
  finish finish;
  /* the packed block */
  const char *k, *v;
  bool finite;              /* no NaN or Inf among the block's values */
  int64_t k_bytes, v_bytes; /* of one packed row */
  int64_t low, high;        /* positions of the block's keys */
  queries group[TILE_GROUP];
  int32_t group_count;
  const queries *q;         /* the one whose turn it is */
  float *s, *p, *mx, *alpha, *spare;
  int32_t *j;
  char *v_clean;            /* a copy of a value tile without bad rows */
} tile;

int64_t tile_bytes(const run *r, const dil_pass *pass);
void tile_init(tile *tl, const run *r, const dil_pass *pass, char *memory);
/* Runs rows n0..n1-1 (at most TILE_GROUP * lanes) of class c of the query
 * cell. */
void tile_run(tile *tl, cell query, int32_t c, int64_t n0, int64_t n1,
              int64_t b);

/* ---- visit.c: a run of keys for a group of tiles ------------------------- */

/* Part of a run of packed keys: rows n0..n1-1 of class c of a cell. */
typedef struct stretch {
  cell cell;
  int32_t c;
  int64_t slot;       /* of the run's row 0 */
  int64_t n0, n1;
} stretch;

/* Advances every tile of tl->group over a run that `branches` reach. */
void visit_run(tile *tl, uint64_t branches, stretch keys);

/* ---- tiles.c and rows.c: the two ways to run a pass ---------------------- */

/* Scratch bytes for a pass, and the pass itself. */
int64_t tiles_bytes(const run *r, const dil_pass *pass);
dil_status tiles_run(run *r, const dil_pass *pass);
int64_t rows_bytes(const run *r, const dil_pass *pass);
dil_status rows_run(run *r, const dil_pass *pass);
/* The call's watch grows by this with each run of the pass. */
int64_t tiles_rows(const run *r, const dil_pass *pass);
int64_t rows_rows(const run *r, const dil_pass *pass);

#endif
