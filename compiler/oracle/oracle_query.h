/* oracle_query.h - a query row of a call, as the files of the oracle see it:
 * its keys by geometry and conditions, its scores, the pairs that dropout
 * drops. */
#ifndef DIL_COMPILER_ORACLE_ORACLE_QUERY_H
#define DIL_COMPILER_ORACLE_ORACLE_QUERY_H

#include "compiler/pattern/pattern.h"
#include "runtime/call.h"
#include <fenv.h>

typedef struct oracle_query {
  const pattern *pattern;
  const dil_call *call;
  int64_t b, n, h, kv; /* batch row, query row, head, key/value head */
  int64_t t, M;        /* the row's position; keys of the batch row */
  int64_t N;           /* queries of the batch row, or of the document */
  int64_t number;      /* the batch row in expressions: the document's number */
  int64_t first_key;   /* row of k and v that has key 0 */
  bool of_nobody;      /* no document has the row */
  double scale;
  bool drops;          /* dropout applies */
  uint32_t row_word;   /* of dropout */
  double *q;           /* [head_dim], of the caller */
  double *key;         /* scratch, as long as a row of K or V */
  expr_point point;
  uint8_t *held[DIL_INPUT_MAX]; /* [M], of an input that lists keys: whether it
                                   holds a key; NULL: nobody has asked */
  int64_t held_line[DIL_INPUT_MAX]; /* where the entries of that line begin */
} oracle_query;

/* Keys first, first + step, ... up to `last`; none when last < first. */
typedef struct oracle_range { int64_t first, last, step; } oracle_range;

/* Rows of the call that belong together with row `row` of q, or of k where
 * `keys`: those of its document or its batch row. */
typedef struct oracle_document {
  int64_t number;           /* -1: no document has the row */
  int64_t first_query, end_query, first_key, end_key;
} oracle_document;
oracle_document query_document(const dil_call *call, int64_t b, int64_t row,
                               bool keys);

/* Reads row q into `q`, unless that is NULL. `key` is scratch for the longer of a row of K and V.
 * The query is its own context of `point`: it must not be copied. */
void query_open(oracle_query *r, const pattern *p, const dil_call *call,
                const int64_t at[3], double *q, double *key);
/* Frees what the query keeps of its lists. */
void query_close(oracle_query *r);
/* The query's row of a tensor [B, N, H, D]. A tensor without data is made
 * here. */
void query_read(const oracle_query *r, const dil_tensor *x, double *to);
/* Row j of K or V, for the row's head, into r->key. */
void query_read_key(oracle_query *r, const dil_tensor *x, int64_t j);

/* Returns whether branch `index` has the row's head and selects the row. */
bool query_serves(const oracle_query *r, int32_t index);
bool query_selects(const oracle_query *r, int32_t index);
/* The keys of the row's segment that branch `index` selects and its window lets
 * through; none when the branch does not serve the head or select the row. */
oracle_range query_range(const oracle_query *r, int32_t index);
/* Returns whether the branch's conditions keep a key of that range; in `union`,
 * also whether no branch before it has the key as well. */
bool query_keeps(oracle_query *r, int32_t index, int64_t j);
/* scale q . k, before the branch's chain. Leaves row j of K in r->key. */
double query_dot(oracle_query *r, int64_t j);
/* The score as it counts: infinite beyond 2.3e38, where it has no f32 in units of
 * log 2, which softmaxes are in (grammar/README.md, "Scores and masks"). */
double query_counted(double score);
/* The score of a key after the branch's chain. Leaves row j of K in r->key, and
 * j and the score in the point. */
double query_score(oracle_query *r, int32_t index, int64_t j);
bool query_drops(const oracle_query *r, int64_t j);
/* Returns whether some keep of a level holds the pair of the point, leaving out
 * a choice of blocks. */
bool query_level_holds(const oracle_query *r, const keeps *level);

/* ---- oracle_grid.c: grids ------------------------------------------------ */

/* Returns whether the reach of a branch lets the cell of position t see that of
 * position j. */
bool oracle_grid_sees(const grid *g, const grid_reach *r, int64_t M, int64_t t,
                      int64_t j);
/* The number of the block of `size` cells that a position's cell is in. */
int64_t oracle_grid_block(const grid *g, const int64_t *size, int64_t position);

/* ---- oracle.c: softmaxes of the row -------------------------------------- */

typedef struct oracle_branches {
  int32_t first, end;  /* branches first..end - 1 */
  bool pattern_sinks;  /* with the sinks of the pattern */
} oracle_branches;

/* One softmax over the keys of these branches: o[value_dim], and its lse. */
double query_softmax(oracle_query *r, oracle_branches of, double *o);
/* The row's output by the pattern's way to combine branches; its lse is NaN
 * where it has none. */
double query_output(oracle_query *r, double *o);

/* Threads of a pool take subnormal numbers for 0; the definition does not. The
 * caller restores the mode. */
void oracle_take_subnormals(fenv_t *before);

#endif
