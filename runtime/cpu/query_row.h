/* query_row.h - single query rows over the keys that they see. */
#ifndef DIL_RUNTIME_CPU_QUERY_ROW_H
#define DIL_RUNTIME_CPU_QUERY_ROW_H

#include "cpu_run.h"
#include "paged_rows.h"
#include "runtime/rowset/walk.h"

enum {
  ROW_BATCH = 16, /* rows a work item */
  ROW_KEYS = 256  /* keys of one branch a step */
};

/* One query row and its running state; acc is [value_dim]. */
typedef struct query_row {
  int64_t n, t;
  int32_t head;
  uint64_t selected; /* branches that select it */
  uint32_t word;     /* of dropout */
  float state[2];    /* m in units of log2, l */
  int64_t settled;   /* keys of the step of which masks told all or none */
  uint8_t vain[DIL_PART_MAX], rest[DIL_PART_MAX]; /* steps without asking a
                      * predicate: after it was asked in vain, and still to go */
  float *q, *acc;
} query_row;

/* Keys first, first + step, ... below `end`, under these predicates: a key is kept
 * where one of them holds. 0: all are kept. */
typedef struct key_sequence {
  int64_t first, step, end;
  uint64_t predicates;
  int32_t chain;
} key_sequence;

typedef struct row_worker {
  query_row row[ROW_BATCH];
  float *s;
  int32_t *j;
  uint32_t *words;      /* of dropout, for the keys j */
  class_table streamed; /* of key rows */
  paged_rows gathered;  /* from pages of a cache */
  key_sequence waiting; /* found, and not yet visited; none where end is first */
} row_worker;

typedef struct row_pass {
  const cpu_run *run;
  const dil_pass *pass;
  const dil_code *code;
  int64_t group;          /* query heads a K/V head */
  int64_t batches, splits;
  int64_t chunk;          /* positions a step */
  int64_t state_floats;   /* of one row's state: 2 + value_dim, rounded */
  float *states;          /* [splits][rows of the call]; splits > 1 only */
  char *workers;
  int64_t worker_bytes;
} row_pass;

typedef struct row_source { /* the keys and values of a work item */
  row_view k, v;
  cpu_run_env env;
} row_source;

/* ---- row_visit.c: the keys of one row ------------------------------------ */

/* Widens *low..*high - 1 to the positions that the row's branches can reach at
 * all. */
void row_reach(const row_pass *w, const query_row *q, int64_t *low,
               int64_t *high);
/* Advances the row over the keys at positions low..high - 1 that it sees. The
 * environment has the row's head. */
void row_visit_keys(const row_pass *w, row_worker *wk, query_row *q,
                    const row_source *at, int64_t low, int64_t high);

#endif
