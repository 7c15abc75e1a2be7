/* cpu.h - what the files of the LLVM back end share: the instruction sets, one
 * build (a plan becoming a module), and who writes which function of dil_code.
 *
 * Queries are in the vector lanes: `registers` vectors of `width` floats make
 * the `lanes` of a tile; keys and dimensions are counted loops. */
#ifndef DIL_COMPILER_CODEGEN_CPU_CPU_H
#define DIL_COMPILER_CODEGEN_CPU_CPU_H

#include "compiler/codegen/cpu/emit/arch.h"
#include "compiler/codegen/cpu_backend.h"

/* ---- isa.c --------------------------------------------------------------- */

const isa *isa_find(const char *name); /* NULL: unknown */
const char *const *isa_list(void); /* weakest first; NULL ends them */

/* ---- object.c, cpu.c ----------------------------------------------------- */

typedef struct build {
  emit emit;
  const isa *isa;
  struct isa own; /* what isa is for the patches of a grid, and with tiles */
  const plan *plan;
  int lanes, pack;
  bool tiles; /* products of pairs are by tiles: matrix.c */
  int exp_degree; /* of the polynomial behind softmax weights */
  LLVMTargetMachineRef machine;
  LLVMTargetDataRef layout;
  char *complaint; /* LLVM's first error; NULL: none */
} build;

/* Opens a context and a module; build_close drops all. `set` NULL: code of
 * its own, outside of any plan, runs on every machine of the architecture. */
dil_status build_open(build *b, const char *name, const isa *set);
void build_close(build *b);
/* Code that is emitted from here on is for this plan and instruction set. */
void build_aim(build *b, const plan *p, const isa *set);
/* With line tables, from the plan's pattern on. */
void build_lines(build *b);
/* Code that is emitted from here on has this place of the .dil file. */
void build_locate(build *b, span at);
/* Verifies the module and turns it into out->bytes (out NULL: not that); its
 * texts go where they are wanted (NULL: nowhere). */
dil_status build_object(build *b, FILE *ir, FILE *assembly, cpu_code *out);
/* Writes the functions of a variant, and says how they want their data. */
void build_variant(build *b, dil_variant variant, dil_code *code);

/* ---- library.c ----------------------------------------------------------- */

dil_status library_build(const backend_library *library, cpu_code *out);

/* ---- tile.c, softmax.c, row.c: the phases -------------------------------- */

enum { REGISTERS_MAX = 4, CELL = DIL_CODE_CELL };

/* A row of lanes in memory: its size, and its registers in and out. */
int64_t tile_row_bytes(const build *b);
ref tile_row_at(const build *b, ref rows, ref index);
void tile_load_row(const build *b, ref_type type, ref place, ref *row);
void tile_store_row(const build *b, ref const *row, ref place);

/* The products of dil_code by name; `width` elements a row. */
void tile_qk(build *b, const char *name, int64_t width);
void tile_pv(build *b, const char *name, int64_t width);
void tile_outer(build *b, const char *name, int64_t width);
void tile_softmax(build *b, bool drop);
/* The keys first..end-1 of tile_outer, in blocks of `keys`. */
void tile_outer_keys(build *b, int64_t row_bytes, ref first, ref end, int keys);
/* mx of the scores of keys first..n-1, which have been stored. */
void tile_tail_maximum(build *b, ref s, ref first, ref n, ref *mx);

/* matrix.c: the same products where the build has tiles */
bool matrix_fits(const plan *p, const isa *set);
void matrix_qk(build *b, const char *name, int64_t width);
void matrix_pv(build *b, const char *name, int64_t width);
void matrix_outer(build *b, const char *name, int64_t width);

void row_qk(build *b);
void row_pv(build *b);
void row_softmax(build *b, bool drop);
/* Which lanes come before `count` of them. */
ref lanes_before(build *b, ref count);

/* From the running maximum and the tile's: the new one, the factor alpha for
 * what was summed before, and how scores become powers of 2. */
typedef struct softmax_turn {
  ref maximum, alpha;
  ref base;         /* the maximum, or 0 while that is -inf */
  ref scale, shift; /* c2 and bias - base; bias is log2 of a key's count */
} softmax_turn;
softmax_turn softmax_turn_of(build *b, ref before, ref mx, ref c2, ref bias);
/* Weight of a score: 2^(scale * score + shift). */
ref softmax_weight(build *b, ref score, const softmax_turn *turn);
/* Lanes whose base is too large for one multiply-add, and whether some of
 * `registers` vectors has one. Their scores become large_score first; then
 * large_settle leaves nothing to do for the multiply-add. */
ref large_of(build *b, const softmax_turn *turn);
ref large_any(build *b, ref const *large, int registers);
ref large_score(build *b, ref score, ref large, const softmax_turn *turn,
                ref bias);
void large_settle(build *b, ref large, softmax_turn *turn);

/* ---- math.c: functions over lanes ---------------------------------------- */

ref math_power(build *b, ref x, int degree); /* 2^x; relative error below 3e-7
                                                with degree 5, 4e-6 with 4 */
ref math_exp(build *b, ref x);               /* these: about 2 ulp */
ref math_log(build *b, ref x);
ref math_tanh(build *b, ref x);

/* ---- expr.c: expressions at a pair of positions -------------------------- */

typedef struct site_input {
  ref data, dim[DIL_RANK_MAX], stride[DIL_RANK_MAX];
} site_input;

enum { SITE_READY_MAX = 32 };

/* The values of the leaves of an expression: i32 but score, which is f32. */
typedef struct site {
  ref env, i, j, score;
  ref b, h, batch, queries, keys;
  site_input input[DIL_INPUT_MAX];
  struct {
    const expr *x;
    ref value;
  } ready[SITE_READY_MAX];
  int ready_count;
} site;

void site_open(build *b, site *s, ref env);
/* Afterwards, where expressions may read inputs. */
void site_open_inputs(build *b, site *s);
void site_hoist(build *b, site *s, const expr *x, expr_op leaf);
/* i1, i32 or f32 by the expression's type, as lanes where a leaf has them. */
ref expression_value(build *b, site *s, const expr *x);
/* hash(): a start, a step for each argument, an end; all i32. */
ref hash_start(const build *b);
ref hash_step(const build *b, ref h, ref argument);
ref hash_end(const build *b, ref h);
int element_bytes(dil_dtype dtype);

/* ---- dropout.c ----------------------------------------------------------- */

/* Writes the function of random words. */
void dropout_words(build *b);
/* A weight where the pair of these words stays, divided by 1 - P; else 0. */
ref dropout_weight(build *b, ref row, ref key, ref weight);

/* ---- sink.c -------------------------------------------------------------- */

/* The logarithm of the sum of sinks of rows, `name` of dil_code; unless `all`,
 * those of the branches alone. */
void sink_function(build *b, const char *name, bool all);
/* A sink in all lanes of rows. */
ref sink_value(build *b, site *s, const expr *x);

/* ---- exact.c ------------------------------------------------------------- */

typedef struct exact {
  ref before, during;
} exact; /* stack places */

exact exact_open(build *b); /* in a function's first block */
void exact_begin(build *b, const exact *x);
void exact_end(build *b, const exact *x);

/* ---- modify.c: final scores and predicates ------------------------------- */

/* `slopes`: under the name slope%d, with the derivatives of the chain. */
void tile_modify(build *b, int chain, bool slopes);
void row_modify(build *b, int chain);
/* Writes the function that hides pairs of a grid by bits. */
void tile_hide(build *b);
/* The value of a score expression at a site, as lanes of f32. */
ref score_value(build *b, site *s, const expr *x);

/* ---- gradient.c, gradient_inputs.c --------------------------------------- */

void tile_ds(build *b, bool drop);
/* The product of dS and a derivative; 0 where a factor is 0, whatever the other
 * one is. */
ref slope_product(const emit *e, ref a, ref b);
/* The value of a derivative at a site, as lanes of f32; NULL is 0. */
ref score_slope(build *b, site *s, const expr *slope);
void tile_inputs(build *b, int chain);
void sink_inputs(build *b);
/* Stack places for lanes that go to elements of their own; in a function's first
 * block. */
typedef struct lanes_room {
  ref part, number, inside;
} lanes_room;
lanes_room lanes_room_open(build *b);
/* sums[input][element] += part, lane by lane, for the element that each lane
 * reads; lanes that read one element are added up first. */
void element_add(build *b, site *s, const lanes_room *room, const expr *read,
                 ref sums, ref part);

/* ---- bounds.c, cover.c: what a box of pairs may hold --------------------- */

/* Of i64 or f32 values; of conditions, whether all hold and whether some do. */
typedef struct bounds {
  ref low, high;
  ref nan; /* i1: a value may be NaN */
} bounds;

typedef struct interval_box {
  site site; /* its i and j are not used */
  bounds i, j;
  ref at, low, high; /* stack places for calls of dil_env.range */
  exact mode;
} interval_box;

bounds bounds_of(build *b, interval_box *x, const expr *tree);
bounds input_bounds(build *b, interval_box *x, const expr *tree);
void cover_function(build *b);
void dimension_function(build *b);
void keeps_function(build *b);

#endif
