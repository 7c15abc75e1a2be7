/* all.h - the compiler's one internal header, in the order of the pipeline:
 * text -> ast -> program of patterns -> plan -> code. See driver.c for the way
 * through and runtime/rt.h for what the plan becomes. */
#ifndef DIL_ALL_H
#define DIL_ALL_H

#include "../runtime/arithmetic.h"
#include "../runtime/rt.h"
#include "dil.h"
#include <setjmp.h>
#include <stdio.h>

/* ---- util.c: memory by lifetime, growing text, interned names ------------ */

/* One arena a compilation, dropped whole. arena_new returns NULL without
 * memory; taking never does: out of memory jumps to arena_catch's `out` with
 * 1, or aborts when there is none. Memory is zeroed. */
typedef struct arena arena;
arena *arena_new(void);
jmp_buf *arena_catch(arena *a, jmp_buf *out); /* what stood there before */
/* Memory is lacking elsewhere: goes where arena_take would. */
_Noreturn void arena_lack(arena *a);
void arena_free(arena *a);
void *arena_take(arena *a, size_t count, size_t size); /* overflow-checked */
char *arena_copy(arena *a, const char *bytes, size_t length); /* NUL added */
char *arena_print(arena *a, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *arena_name(arena *a, const char *bytes, size_t length); /* interned:
                                          equal names are equal pointers */
#define ARENA_NEW(a, type) ((type *)arena_take((a), 1, sizeof(type)))
#define ARENA_ARRAY(a, type, count) \
  ((type *)arena_take((a), (size_t)(count), sizeof(type)))

/* ---- diag.c: located messages -------------------------------------------- */

typedef struct source {
  const char *path;  /* as the user wrote it */
  const char *text;
  size_t length;
  int32_t index;     /* in the order of reading */
} source;

/* A byte range of a source; source NULL: no place (command line). */
typedef struct span {
  const source *source;
  int32_t start, end;
} span;

typedef enum severity { SEVERITY_ERROR, SEVERITY_WARNING } severity;

/* Gathers messages; at most 20 errors are kept, then `full`. */
typedef struct diag diag;
diag *diag_new(arena *a);
/* hint may be NULL. Messages: lower case, no full stop, the value in them. */
void diag_report(diag *d, severity level, span at, const char *hint,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
int diag_errors(const diag *d);
bool diag_full(const diag *d);
/* "longnet.dil:12:5"; "" where there is no place. */
const char *diag_place(arena *a, span at);
/* Writes all messages, in order of place: text with caret lines, or one JSON
 * object a line. */
void diag_print(const diag *d, FILE *out, bool json);
/* The nearest of count names within a third of its length, or NULL. */
const char *diag_nearest(const char *name, const char *const *names,
                         int32_t count);
/* "x, y, z", as many as there is room for. */
enum { DIAG_LIST = 140 };
const char *diag_list(const char *const *names, int32_t count,
                      char text[DIAG_LIST]);
/* For the end of a message: ", did you mean 'x'?", or where none is near
 * "; it has x, y". */
enum { DIAG_GUESS = DIAG_LIST + 12 };
const char *diag_guess(const char *name, const char *const *names,
                       int32_t count, char text[DIAG_GUESS]);
/* A text for JSON: null for NULL; bytes that are not UTF-8 become '?'. */
struct json_t *diag_json(const char *text);

/* ---- expr.c: mask and score expressions ---------------------------------- */

typedef enum expr_op {
#define OP(id, text, arguments, rule) EXPR_##id,
#include "ops.def"
#undef OP
  EXPR_OP_COUNT
} expr_op;

typedef enum expr_type { TYPE_CONDITION, TYPE_I32, TYPE_F32 } expr_type;

/* A typed tree. bi, bj, nb, S, H, HKV, D and the named predicates are gone:
 * check has spelled them out (bi is i / S, nb is (M + S - 1) / S). */
typedef struct expr {
  expr_op op;
  expr_type type;
  span at;
  int64_t integer;      /* INT, TRUTH: value; INPUT: index of the input */
  double real;          /* REAL */
  int32_t count;        /* arguments */
  struct expr **arg;
} expr;

typedef struct value { /* by the expression's type */
  int64_t integer;     /* condition: 0 or 1; i32: wrapped to 32 bits */
  double real;
} value;

/* What an expression sees at one pair. input() reads one element, 0 outside. */
typedef struct expr_point {
  int32_t b, h, i, j, B, N, M;
  double s;
  value (*input)(void *context, int32_t index, const int32_t *at);
  void *context;
} expr_point;

/* wide: float64 arithmetic (scores in the oracle); else every float operation
 * is one IEEE f32 rounding (mask and keep, all targets). */
value expr_eval(const expr *e, const expr_point *point, bool wide);

/* Interval of values over a box of (i, j); low > high never. */
typedef struct interval {
  double low, high;
  bool nan;            /* the value may also be NaN */
} interval;

typedef struct expr_box {
  expr_point point;    /* i, j unused; s is any number */
  int32_t i0, i1, j0, j1; /* inclusive */
  /* bounds of an input whose index `axis` runs over first..last */
  interval (*range)(void *context, int32_t index, int32_t axis,
                    const int32_t *at, int32_t first, int32_t last);
} expr_box;

/* A condition's interval is within [0, 1]. Never too narrow. */
interval expr_bounds(const expr *e, const expr_box *box);
bool expr_uses(const expr *e, expr_op leaf);
bool expr_same(const expr *a, const expr *b); /* structural equality */
expr *expr_fold(arena *a, expr *e);           /* constants evaluated */
/* Canonical source text, with just the parentheses that are needed. */
void expr_print(const expr *e, const dil_input *inputs, FILE *out);
const char *expr_op_text(expr_op op);

/* ---- pattern.c: the meaning ---------------------------------------------- */

typedef enum phase_kind {
  PHASE_CYCLE, PHASE_BLOCK, PHASE_BRANCH, PHASE_KV, PHASE_EXPR
} phase_kind;

typedef enum keep_kind { KEEP_EXPR, KEEP_TOP, KEEP_MASS } keep_kind;

typedef struct keep {
  keep_kind kind;
  expr *condition;     /* KEEP_EXPR, over i and j (bi is i / S) */
  const char *table;   /* `from` that input, interned; condition is then what
                        * it stands for, which the oracle does not rely on */
  double amount;       /* KEEP_TOP: blocks; KEEP_MASS: share */
  span at;
} keep;

typedef struct keeps { /* those of one level: they unite */
  int64_t block;       /* S; 0 when there is none */
  int32_t count;
  keep *keep;
} keeps;

/* Everything of the pattern that a branch inherits is already in it. */
typedef struct branch {
  const char *name;      /* NULL: unnamed */
  span at;
  int64_t segment;       /* 0: the whole sequence */
  int64_t dilation;
  span dilation_at;
  phase_kind phase_kind;
  expr *phase_expr;      /* over h; before `mod dilation` */
  int32_t *phase;        /* [heads] */
  int32_t head_first, head_last; /* inclusive */
  bool causal;
  int64_t left, right;   /* the window; DIL_ENDLESS: no bound. Not yet causal */
  int32_t mask_count, score_count;
  expr **mask;           /* all must hold; the pattern's first */
  expr **score;          /* in order; the pattern's first */
  keeps keeps[2];        /* pattern's and branch's; the two intersect */
} branch;

typedef enum scale_kind {
  SCALE_DEFAULT, SCALE_FIXED, SCALE_RUNTIME
} scale_kind;

typedef struct pattern {
  const char *name;
  span at;
  int64_t heads, kv_heads, head_dim, value_dim;
  span head_dim_at, value_dim_at;
  dil_dtype dtype;
  bool fast;             /* `dtype f32 fast` */
  scale_kind scale_kind;
  double scale;          /* SCALE_DEFAULT: 1 / sqrt(head_dim) */
  dil_combine combine;
  double dropout;
  bool detached;         /* `gradient detached` */
  int32_t input_count, branch_count;
  dil_input input[DIL_INPUT_MAX];
  expr *dimension[DIL_INPUT_MAX][DIL_RANK_MAX];
  branch *branch;
} pattern;

bool pattern_same(const pattern *a, const pattern *b);
/* Whether lse may be asked for (page 1 section 3, combine). */
bool pattern_has_lse(const pattern *p);
void pattern_print(const pattern *p, FILE *out); /* canonical .dil text */
/* The same; what it needs meanwhile is taken from the arena. */
void pattern_print_within(arena *a, const pattern *p, FILE *out);
/* The dimensions of input `index`: "B, M". */
void pattern_print_shape(const pattern *p, int32_t index, FILE *out);
const char *pattern_combine_text(dil_combine combine);
void pattern_verify(const pattern *p);           /* aborts: our bug */

/* ---- check.c: from ast to program ---------------------------------------- */

typedef enum layout_kind {
  LAYOUT_DEFAULT, LAYOUT_CONTIGUOUS, LAYOUT_ZIGZAG, LAYOUT_STRIPED
} layout_kind;
typedef enum link_kind {
  LINK_DEFAULT, LINK_THREAD, LINK_MPI, LINK_PROCESS, LINK_NCCL
} link_kind;
typedef enum exchange_kind {
  EXCHANGE_AUTO, EXCHANGE_RING, EXCHANGE_GATHER
} exchange_kind;

typedef struct topology {
  const char *name;
  span at;
  int64_t devices, ring, heads, batch;
  double timeout;        /* seconds */
  layout_kind layout;
  link_kind link;
  exchange_kind exchange;
} topology;

typedef struct knob {
  const char *name;
  span at;
  int32_t count;
  int64_t value[8];
} knob;

typedef struct schedule {
  const char *name;
  span at;
  int32_t knob_count;
  knob *knob;
} schedule;

typedef struct kernel {
  const char *name;
  span at;
  const pattern *pattern;
  const topology *topology; /* NULL: one device */
  const schedule *schedule; /* NULL: chosen */
  bool backward;
} kernel;

typedef struct program {
  int32_t pattern_count, topology_count, schedule_count, kernel_count;
  pattern **pattern;
  topology **topology;
  schedule **schedule;
  kernel **kernel;       /* implicit ones included */
  int32_t file_count;    /* what it was read from: the file, then imports */
  const char **file;
} program;

typedef dil_define define; /* -D name=value */
enum { DEFINE_MAX = 4096 };  /* of these that a host may give */

/* Reads `path` ("-": standard input) and its imports, parses and checks. NULL
 * when there were errors (they are in d); DIL_ENVIRONMENT through *status when
 * a file cannot be read, else DIL_INPUT. Unknown -D names are errors. */
program *program_read(arena *a, diag *d, const char *path,
                      const define *defines, int32_t define_count,
                      dil_status *status);
/* The same from text in memory; `path` only names it. */
program *program_parse(arena *a, diag *d, const char *path, const char *text,
                       size_t length, const define *defines,
                       int32_t define_count);
/* Opens a file that the user has named, never to wait for a pipe that has no
 * writer. NULL with the reason. */
FILE *program_open(const char *path, const char **reason);
/* dil print --after tokens | ast */
dil_status program_print_tokens(const char *path, FILE *out, diag *d, arena *a);
dil_status program_print_ast(const char *path, FILE *out, diag *d, arena *a);

/* ---- oracle.c: the definition in float64 --------------------------------- */

/* O and lse of query row n of head h, batch row b, straight from the formulas.
 * o[value_dim]; lse is -inf for a row without keys and NaN where the pattern
 * has none. Tensors are read in their stored dtype. */
void oracle_row(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                int64_t h, double *o, double *lse);
/* That row into call->o and, where it is wanted, call->lse. */
void oracle_store(const pattern *p, const dil_call *call, int64_t b, int64_t n,
                  int64_t h);
/* All rows, of a call that is checked first. */
dil_status oracle_run(const pattern *p, const dil_call *call);

/* ---- cover.c: what a pattern costs, by arithmetic ------------------------ */

/* Keys that a walk on a processor settles at once where masks decide
 * (runtime/visit.c). */
enum { COVER_PIECE = 32 };

typedef struct cover_count {
  double pairs;       /* summed over heads; a key counts once for each branch
                         that reaches it, once in `union` */
  double distinct;    /* pairs reached at least once */
  double uncovered;   /* (row, head) cells without any key */
  double empty, partial, full; /* tiles of the boxes given */
  /* For tiles of COVER_PIECE keys: how many boxes a walk judges by masks to
   * find them, and how many of the full ones it settles four at a time. */
  double asked, together;
  bool estimated;     /* exact would have taken long: see cover_box.c and
                         cover_union.c */
} cover_count;

/* Counts for batch row b, N queries, M keys; tiles are tile_rows query
 * rows by tile_keys key rows of each branch. Inputs: `input` as in expr_point
 * and `range` as in expr_box read the given tensors; NULL where the pattern
 * has none. */
void cover_pattern(const pattern *p, int64_t N, int64_t M, int32_t tile_rows,
                   int32_t tile_keys, const dil_call *call, int64_t b,
                   cover_count *count);
/* Counts nothing but `pairs`, in a fraction of the time. */
void cover_pairs(const pattern *p, int64_t N, int64_t M, const dil_call *call,
                 int64_t b, cover_count *count);
/* Whether branch b of the pattern reaches key j from position t in head h. */
bool pattern_reaches(const pattern *p, int32_t branch, int64_t h, int64_t t,
                     int64_t j, const expr_point *point);

/* ---- plan.c: a chain of passes ------------------------------------------- */

typedef enum plan_force {
  FORCE_FUSE = DIL_FORCE_FUSE, FORCE_CHAIN = DIL_FORCE_CHAIN,
  FORCE_DEDUP = DIL_FORCE_DEDUP, FORCE_MULTISET = DIL_FORCE_MULTISET,
  FORCE_GENERAL = DIL_FORCE_GENERAL
} plan_force;
enum { FORCE_ALL = 2 * FORCE_GENERAL - 1 };

/* "fuse and chain" of a set that asks for two things at once; NULL: it does
 * not. */
const char *plan_force_clash(unsigned set);

/* Rows of one period that the same branches of a pass select. */
typedef struct plan_class {
  uint64_t branches;
  int64_t rows;          /* of the period */
} plan_class;

typedef struct plan {
  arena *arena;          /* that it lies in */
  const pattern *pattern;
  unsigned force;        /* plan_force bits */
  dil_table table;       /* what the run time walks */
  /* expressions behind the table's numbers */
  expr **predicate;      /* [table.predicate_count]; NULL: window only */
  expr ***chain;         /* [table.chain_count], NULL-terminated lists */
} plan;

/* NULL when the pattern has what no back end runs yet; the reason is in d.
 * plan_make_for: `gpu` alone will run it, which decides what shares a pass. */
plan *plan_make(arena *a, diag *d, const pattern *p, unsigned force);
plan *plan_make_for(arena *a, diag *d, const pattern *p, unsigned force,
                    bool gpu);
void plan_print(const plan *p, FILE *out);
/* The same, by any number of threads at once; false when memory was lacking,
 * and then the text is cut short. */
bool plan_write(const plan *p, FILE *out);
void plan_verify(const plan *p);
/* Text form in; errors located in d. */
plan *plan_parse(arena *a, diag *d, const char *path, const char *text,
                 size_t length);
uint64_t plan_hash(const plan *p);

#endif
