/* query_tile.h - tiles of queries over their keys. */
#ifndef DIL_RUNTIME_CPU_QUERY_TILE_H
#define DIL_RUNTIME_CPU_QUERY_TILE_H

#include "run.h"

enum { TILE_GROUP = 8 }; /* tiles that take turns on a range of keys */

/* The query rows of one tile and their running state. */
typedef struct queries {
  int32_t *t;              /* [lanes] positions */
  float *qt, *o, *m, *l;   /* as in dil_code */
} queries;

/* Buffers of one worker, cut from its scratch. */
typedef struct query_tile {
  const run *run;
  const dil_code *code;
  run_env env;
  walk walk;
  class_table query, key;
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
} query_tile;

int64_t query_tile_bytes(const run *r, const dil_pass *pass);
void query_tile_init(query_tile *tl, const run *r, const dil_pass *pass,
                     char *memory);
/* Runs rows n0..n1-1 (at most TILE_GROUP * lanes) of class c of the query
 * cell. */
void query_tile_run(query_tile *tl, segment_cell query, int32_t c, int64_t n0,
                    int64_t n1, int64_t b);

/* ---- key_visit.c: a run of keys for a group of tiles --------------------- */

/* Part of a run of packed keys: rows n0..n1-1 of class c of a cell. */
typedef struct key_range {
  segment_cell cell;
  int32_t c;
  int64_t slot;       /* of the run's row 0 */
  int64_t n0, n1;
} key_range;

/* Advances every tile of tl->group over a run that `branches` reach. */
void key_visit_run(query_tile *tl, uint64_t branches, key_range keys);

#endif
