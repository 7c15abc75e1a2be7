/* pattern.h - the meaning of a pattern: branches as sets of rows and
 * predicates. */
#ifndef DIL_COMPILER_PATTERN_PATTERN_H
#define DIL_COMPILER_PATTERN_PATTERN_H

#include "expr.h"

typedef enum phase_kind {
  PHASE_CYCLE, PHASE_BLOCK, PHASE_BRANCH, PHASE_KV, PHASE_EXPR, PHASE_EACH
} phase_kind;

typedef enum keep_kind { KEEP_EXPR, KEEP_TOP, KEEP_MASS } keep_kind;

typedef struct keep {
  keep_kind kind;
  expr *condition;     /* over i and j (bi is i / S); what KEEP_TOP and KEEP_MASS
                        * choose stands in a table, which it reads */
  const char *table;   /* `from` that input, interned; condition is then what
                        * it stands for, which the oracle does not rely on.
                        * Of lists: that of their rows */
  const char *cols;    /* `from rows, cols`: that input; NULL: a table */
  double amount;       /* KEEP_TOP and KEEP_MASS: blocks, at most */
  double share;        /* KEEP_MASS */
  dil_estimate estimate; /* of both */
  int32_t gate;        /* DIL_ESTIMATE_INPUT: that input */
  int32_t chosen;      /* of both: the first of three made inputs, that is the
                        * lists `rows` and `cols`, and their table */
  span at;
} keep;

enum { GRID_AXES = DIL_GRID_AXES };
typedef dil_grid grid;

/* The reach of a branch along a grid's axes. The branch's first masks, `mask_count`
 * of them, and its window say the same; the oracle does not rely on them. Distances
 * of a window are in cells, of a neighborhood in cells of the query's residue. */
typedef struct grid_reach {
  int64_t left[GRID_AXES], right[GRID_AXES]; /* DIL_ENDLESS: no bound */
  int64_t kernel[GRID_AXES];   /* of a neighborhood; DIL_ENDLESS: no bound */
  int64_t dilation[GRID_AXES];
  bool causal[GRID_AXES];
  int32_t mask_count;
} grid_reach;

typedef struct keeps { /* those of one level: they unite */
  int64_t block;       /* S; 0 when there is none */
  int64_t query_block; /* SQ, which is S unless both are given */
  int64_t cell[GRID_AXES]; /* of blocks of cells, their extents; else 0 */
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
  int32_t *phase;        /* [heads]; of PHASE_EACH all 0 */
  int64_t shift;         /* PHASE_EACH: a query sees the keys that stand shift
                          * + n * dilation before it, for any n */
  int32_t head_first, head_last; /* inclusive */
  bool causal;
  int64_t left, right;   /* the window; DIL_ENDLESS: no bound. Not yet causal */
  grid_reach reach;      /* where the pattern has a grid */
  int32_t mask_count, score_count;
  expr **mask;           /* all must hold; those of reach first, then the
                          * pattern's */
  expr **score;          /* in order; the pattern's first */
  keeps keeps[2];        /* pattern's and branch's; the two intersect. At most
                          * one of all is KEEP_TOP or KEEP_MASS */
  bool shared;           /* heads of a key/value head choose blocks together */
  int32_t sink_count;
  expr **sink;           /* its own; each adds e^sink to the denominator of the
                          * rows that it selects */
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
  bool detached;         /* `gradient detached`, where it differs from exact */
  int32_t sink_count;
  expr **sink;           /* of every row: once under softmax and union, once in
                          * each branch's softmax under mean and sum */
  grid grid;
  int32_t input_count, branch_count;
  int32_t made_count;    /* tables made of lists, and lists that are chosen: they
                          * follow the inputs */
  dil_input input[DIL_INPUT_MAX];
  expr *dimension[DIL_INPUT_MAX][DIL_RANK_MAX];
  branch *branch;
} pattern;

/* grid.c: positions from a cell to the next along an axis. */
int64_t grid_stride(const grid *g, int32_t axis);
/* The extent of an axis where there are M positions. */
int64_t grid_extent(const grid *g, int32_t axis, int64_t M);
/* "z", "y" or "x". */
const char *grid_axis_name(const grid *g, int32_t axis);

/* The keep of a branch that chooses blocks by their scores; NULL: none does. */
const keep *branch_choice(const branch *b);
/* The same as data: the branch chooses. */
dil_choice pattern_choice(const pattern *p, int32_t branch);
bool pattern_same(const pattern *a, const pattern *b);
/* Returns whether a row has one lse: `softmax`, `union`, or one branch a head.
 */
bool pattern_has_lse(const pattern *p);
/* Returns whether branches share the softmax of a head, where each key counts
 * as often as it is reached: only then `gradient detached` differs from
 * `exact`. */
bool pattern_mixes_branches(const pattern *p);
/* Counts the arrays that expressions read: inputs, and the tables made of them. */
static inline int32_t pattern_reads(const pattern *p) {
  return p->input_count + p->made_count;
}
/* Returns whether the pattern or one of its branches has a sink. */
bool pattern_has_sinks(const pattern *p);
void pattern_print(const pattern *p, FILE *out); /* canonical .dil text */
/* The same; what it needs meanwhile is taken from the arena. */
void pattern_print_within(arena *a, const pattern *p, FILE *out);
/* Returns the reach of a branch as text: "neighborhood 13 x 13, causal y", or
 * "the whole grid". */
char *pattern_reach_text(arena *a, const pattern *p, int32_t branch);
/* The dimensions of input `index`: "B, M". */
void pattern_print_shape(const pattern *p, int32_t index, FILE *out);
const char *pattern_combine_text(dil_combine combine);
void pattern_verify(const pattern *p);           /* aborts: our bug */

/* Positions first <= x < end; end 0: all from `first` on. */
typedef struct position_range {
  int64_t first, end;
} position_range;

/* The pairs -left <= j - i <= right (DIL_ENDLESS: no bound) of a range of keys
 * and a range of rows, which has rows before position 0 where `first` is 0. A
 * bound may be negative: then the window does not hold the row itself. */
typedef struct pair_bounds {
  int64_t left, right;
  position_range keys, rows;
} pair_bounds;

/* Returns whether every position has a phase of the branch. */
static inline bool branch_has_each(const branch *b) {
  return b->phase_kind == PHASE_EACH && b->dilation > 1;
}
/* Returns whether the branch selects every position of its segments. */
static inline bool branch_selects_all(const branch *b) {
  return b->dilation == 1 || b->phase_kind == PHASE_EACH;
}
/* each.c: the pattern with a branch of each phase in place of a branch with
 * `phase each`; NULL: it would have more than `most` branches. */
const pattern *pattern_spell_each(arena *a, const pattern *p, int32_t most);
/* The pattern with a mask in place of a shift of phases. */
const pattern *pattern_spell_shifts(arena *a, const pattern *p);

/* pieces_read.c: returns whether a condition compares i, j, or a distance of
 * both with a constant, so that bounds say it, and narrows *to by it. */
bool pair_bounds_take(const expr *e, pair_bounds *to);
/* Replaces each branch by its pieces (pieces.c), where its masks are nothing
 * but windows, ranges of keys and residues. Returns whether any branch changed.
 */
bool pattern_cut(arena *a, pattern *p);

/* part_keys.c: returns whether a mask is what `keys NAME` stands for,
 * TABLE[.., h, j] != 0. */
bool pattern_is_key_list(const pattern *p, const expr *mask);
/* The mask by which a branch sees a list of keys that its pass may walk; -1: there
 * is none. */
int32_t pattern_key_list(const pattern *p, const branch *b);
/* Makes a union with lists of keys a softmax of branches that have no pair in
 * common. Returns whether it did. */
bool pattern_part_keys(arena *a, pattern *p);

/* normalise.c: the same attention with branches in place of masks that say what
 * a branch can say; the pattern itself where there are none. */
const pattern *pattern_normalise(arena *a, const pattern *p);
/* Returns whether branch b of the pattern reaches key j from position t in head
 * h. */
bool pattern_reaches(const pattern *p, int32_t branch, int64_t h, int64_t t,
                     int64_t j, const expr_point *point);

#endif
