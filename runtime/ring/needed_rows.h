/* needed_rows.h - row_needs: the keys that one progression of the receiver's
 * queries needs through one branch and phase. Internal to the files behind
 * partition.h.
 *
 * Where rows of queries travel, the two change places: `queries` are then the
 * receiver's keys, and the keys that they need are the queries that reach them.
 * The window, the ranges and the shift are turned around with them. */
#ifndef DIL_RUNTIME_RING_NEEDED_ROWS_H
#define DIL_RUNTIME_RING_NEEDED_ROWS_H

#include "partition.h"
#include "runtime/plan_table.h"
#include "runtime/shard.h"

typedef struct row_need {
  const dil_branch *branch;
  int64_t phase;        /* of its queries */
  int64_t shift;        /* its keys have the phase that is so much less */
  int64_t left, right;  /* the window; DIL_ENDLESS: none */
  int64_t first, end;   /* the range of keys; DIL_ENDLESS: no end */
  int64_t row_first, row_end; /* the range of rows; INT64_MIN, DIL_ENDLESS: no
                                 bound */
  bool masked;          /* the mask may hide keys, and its bounds are known */
  bool gathered;        /* the branch gathers (partition.h) */
  int32_t head;         /* the first head that has these keys */
  dil_progression queries;
} row_need;

/* The keys of a row_need from one position up to `until`. */
typedef struct needed_keys {
  bool some;            /* false: it needs none of them */
  bool inside;          /* the keys stand among the receiver's queries, or the
                           window does not hold the row, so that each key is
                           checked against the queries */
  int64_t residue;      /* it needs keys j = residue mod the dilation */
  int64_t until;
  int64_t query, every, last; /* the queries that need the keys: query + i *
                                 every <= last */
} needed_keys;

/* The mask over a range of keys: no query reaches any key, some query reaches
 * each key, or the caller has to cut the range. */
typedef enum mask_answer { MASK_NONE, MASK_ALL, MASK_MIXED } mask_answer;

/* A search with a budget: once `left` questions are asked, it takes the
 * remaining keys as needed. */
typedef struct mask_search {
  const partition_mask *mask;
  bool turned;          /* queries and keys have changed places */
  int64_t left;
  bool exact;           /* it has taken no key as needed without proof */
} mask_search;

/* Returns whether queries of `w` reach keys low..high-1 under the row_need's
 * window and mask. */
mask_answer mask_ask(mask_search *s, const row_need *d, const needed_keys *w,
                     int64_t low, int64_t high);

#endif
