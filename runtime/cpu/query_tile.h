/* query_tile.h - tiles of query rows over the keys that they see. */
#ifndef DIL_RUNTIME_CPU_QUERY_TILE_H
#define DIL_RUNTIME_CPU_QUERY_TILE_H

#include "run.h"

enum { TILE_GROUP = 8 }; /* tiles that share a range of keys in the cache */

/* The query rows of one tile and their running state. */
typedef struct query_tile {
  int32_t *t;              /* [lanes] positions */
  float *qt, *o, *m, *l;   /* as in dil_code */
} query_tile;

/* Buffers of one worker, cut from its scratch. */
typedef struct tile_worker {
  const run *run;
  const dil_code *code;
  run_env env;
  walk walk;
  class_table held, streamed; /* of query rows, of key rows */
  finish finish;
  /* the packed block */
  const char *k, *v;
  bool finite;              /* no NaN or Inf among the block's values */
  int64_t k_bytes, v_bytes; /* of one packed row */
  int64_t low, high;        /* positions of the block's keys */
  query_tile group[TILE_GROUP];
  int32_t group_count;
  const query_tile *q;      /* the tile of the group that is advanced now */
  float *s, *p, *mx, *alpha, *spare;
  int32_t *j;
  char *v_clean;            /* a copy of a value tile without bad rows */
} tile_worker;

int64_t tile_worker_bytes(const run *r, const dil_pass *pass);
void tile_worker_init(tile_worker *wk, const run *r, const dil_pass *pass,
                      char *memory);
/* Computes rows n0..n1-1 (at most TILE_GROUP * lanes) of class c of the held
 * cell, over all keys of the block. */
void query_tile_run(tile_worker *wk, segment_cell held, int32_t c, int64_t n0,
                    int64_t n1, int64_t b);

/* ---- key_visit.c: a range of keys for a group of tiles ------------------- */

/* Packed rows n0..n1-1 of class c of a cell. */
typedef struct packed_range {
  segment_cell cell;
  int32_t c;
  int64_t base;       /* index in the block of the class's packed row 0 */
  int64_t n0, n1;
} packed_range;

/* Advances every tile of wk->group over keys that `branches` reach. */
void key_visit_range(tile_worker *wk, uint64_t branches, packed_range keys);

#endif
