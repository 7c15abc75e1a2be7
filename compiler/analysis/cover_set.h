/* cover_set.h - what the files of cover share.
 *
 * The pairs that several branches reach together are, again, segments with a
 * residue, a window and conditions: a cover_set. Between two borders of its
 * segments lies a cover_subrange: rows and keys on one lattice of positions
 * origin + step * index, a band of differences, and conditions. */
#ifndef DIL_COMPILER_ANALYSIS_COVER_SET_H
#define DIL_COMPILER_ANALYSIS_COVER_SET_H

#include "compiler/pattern/pattern.h"
#include "runtime/call.h"

/* A mask, or one level of keeps. */
typedef struct cover_condition {
  const expr *mask;   /* NULL: a level */
  const keeps *level;
} cover_condition;

typedef struct cover_set {
  uint64_t branches;   /* a bit each; at least one */
  int64_t left, right; /* the window, causal included */
  int64_t turns;       /* phases of those with every phase, together */
  int64_t turn;        /* that of a subrange; less than turns */
  bool segmented;
  int64_t period;     /* positions after which all repeats; 0: never */
  bool relative;      /* conditions see i - j, and neither i nor j alone */
  int32_t condition_count;
  cover_condition *conditions;
} cover_set;

/* Smallest and largest of CHUNK elements along a line of an input. */
typedef struct cover_chunk {
  int64_t line;       /* known for the line of this number */
  interval of;
} cover_chunk;

typedef struct cover_line {
  int64_t number;     /* 0: none was asked for yet */
  int32_t axis, at[DIL_RANK_MAX];
  cover_chunk *chunks;
} cover_line;

struct cover_cursor;

typedef struct cover {
  arena *arena;
  const pattern *pattern;
  const dil_call *call;
  int64_t first, M;   /* position of row 0, and the number of keys */
  int64_t head;
  expr_box box;       /* all but i and j filled */
  cover_line lines[DIL_INPUT_MAX];
  cover_condition *room[DIL_BRANCH_MAX]; /* for sets of so many branches + 1 */
  uint8_t *marks;     /* of rows; NULL: not made yet, as are those below */
  struct cover_cursor *cursors; /* [branches]: see cover_sweep.c */
  uint64_t *bits;     /* of keys */
  int64_t left;       /* boxes that may still be examined to count exactly */
  double grain;       /* pairs of a box that is sampled, once none are left */
  int64_t work;       /* steps that counts may still take; below 0: they end
                         at once, and mean nothing */
  int64_t sets_work;  /* of these for sets of branches, of all heads */
  double sweep_work;  /* likewise for sweeps */
  int64_t samples;    /* pairs that may still be drawn, of all heads */
  bool sampled;       /* some union was: see cover_sweep.c */
} cover;

/* The branches of one head, short segments and small dilations first. */
typedef struct cover_order {
  int32_t count;
  int32_t branch[DIL_BRANCH_MAX];
} cover_order;

/* Indices are inclusive; none when last < first. A pair (u, v) is within the
 * band when -left <= v - u <= right. */
typedef struct cover_subrange {
  cover *cover;
  const cover_set *set;
  int64_t origin, step;
  int64_t u0, u1, v0, v1;
  int64_t left, right;
} cover_subrange;

typedef struct cover_tiles { double empty, partial, full; } cover_tiles;

/* ---- cover_set.c --------------------------------------------------------- */

/* Its conditions last until the next set of as many branches is made. */
void cover_set_make(cover *c, uint64_t branches, cover_set *set);
/* Returns whether every pair of the set is one of the branch too, as far as
 * that can be told from their descriptions. */
bool cover_set_within(const cover *c, const cover_set *set, int32_t branch);
/* The subrange whose first row is at position x or later. Returns where the
 * next one begins. */
int64_t cover_subrange_at(cover *c, const cover_set *set, int64_t x,
                          cover_subrange *subrange);
/* Every subrange with a row, and how often it stands there. */
typedef void cover_visitor(void *context, const cover_subrange *subrange,
                           int64_t times);
void cover_set_walk(cover *c, const cover_set *set, cover_visitor *visit,
                    void *context);

/* ---- cover_box.c --------------------------------------------------------- */

/* Pairs of the subrange, and of all subranges of a set. */
double cover_set_count(cover *c, const cover_set *set);
double cover_subrange_count(const cover_subrange *subrange);
/* Returns whether row u and key v of the subrange are one of them. */
bool cover_subrange_holds(const cover_subrange *subrange, int64_t u, int64_t v);
/* covered[u - u0] becomes 1 for every row that has a key. */
void cover_subrange_mark(const cover_subrange *subrange, uint8_t *covered);
/* The subrange cut into tiles of rows x keys. */
void cover_subrange_tiles(const cover_subrange *subrange, int64_t rows,
                          int64_t keys, cover_tiles *tiles);

/* ---- cover_grid.c -------------------------------------------------------- */

/* Pairs of a branch over a grid, and rows that see a key. False: not the axes alone
 * decide. */
bool cover_grid_count(const cover *c, int32_t branch, double *pairs, double *seeing);

/* ---- cover_union.c ------------------------------------------------------- */

/* Pairs that some branch of the order reaches; own[k] are those of its branch
 * number k. Exact, or else c->sampled is set. */
double cover_union(cover *c, const cover_order *all, const double *own);

/* ---- cover_sweep.c ------------------------------------------------------- */

/* The same, row by row. False: that would take longer than c->sweep_work. */
bool cover_sweep(cover *c, const cover_order *all, double *distinct);
/* An estimate. */
double cover_union_sample(cover *c, const cover_order *all, const double *own);

/* ---- cover_separable.c --------------------------------------------------- */

/* Pairs of the box of rows first[0]..last[0] and keys first[1]..last[1], which
 * lies inside the band and whose positions `at` holds. False: its conditions
 * are not separable. */
bool cover_separable_count(const cover_subrange *subrange, const expr_box *at,
                           const int64_t first[2], const int64_t last[2],
                           double *count);
/* Likewise: covered[u - u0] becomes 1 for every row that has a key there. */
bool cover_separable_mark(const cover_subrange *subrange, const expr_box *at,
                          const int64_t first[2], const int64_t last[2],
                          uint8_t *covered);

/* ---- cover_input.c ------------------------------------------------------- */

value cover_input(void *context, int32_t index, const int32_t *at);
interval cover_range(void *context, int32_t index, int32_t axis,
                     const int32_t *at, int32_t first, int32_t last);

#endif
