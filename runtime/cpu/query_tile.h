/* query_tile.h - tiles of query rows over the keys that they see. */
#ifndef DIL_RUNTIME_CPU_QUERY_TILE_H
#define DIL_RUNTIME_CPU_QUERY_TILE_H

#include "cpu_run.h"

enum {
  TILE_GROUP = 8,       /* tiles that share a range of keys in the cache */
  RANGE_BYTES = 1 << 18 /* of such a range */
};

/* The query rows of one tile and their running state. */
typedef struct query_tile {
  int32_t *t;              /* [lanes] positions */
  float *qt, *o, *m, *l;   /* as in dil_code */
  uint32_t *words;         /* [lanes] of dropout */
} query_tile;

/* Packed rows n0..n1-1 of class c of a cell. */
typedef struct packed_range {
  segment_cell cell;
  int32_t c;
  int64_t base;       /* index in the block of the class's packed row 0 */
  int64_t n0, n1;
} packed_range;

/* Keys of a visit that are neighbours: n packed rows from `row` on, whose scores
 * stand from key `at` of the visit on. */
typedef struct key_piece {
  int64_t row, at, n;
} key_piece;
enum { KEY_PIECES = 16 };

struct tile_worker;
typedef struct patch_tile patch_tile; /* patch_tile.h */
/* The kernels over one key tile, for the query tile wk->q. predicates 0: every
 * pair is kept. copies: the number of branches that the visit stands for. */
typedef void (*key_visit)(struct tile_worker *wk, const packed_range *keys,
                          uint64_t predicates, int32_t chain, int32_t copies);

/* Buffers of one worker, cut from its scratch. */
typedef struct tile_worker {
  const cpu_run *run;
  const dil_code *code;
  cpu_run_env env;
  walk walk;
  class_table held, streamed; /* of query rows, of key rows */
  finish finish;
  key_visit visit;
  /* Called before a range of keys is visited, and may shorten it (that of a
   * patch at both ends); false: it is left out. NULL: all ranges are visited as
   * they are. */
  bool (*enter)(struct tile_worker *wk, packed_range *keys);
  /* Where the walk is over patches of a grid. NULL: it is over classes. */
  const patch_tile *patch;
  const uint32_t *kept;     /* of the keys of a visit: bits of the lanes that see
                             * them; NULL: all do, but for masks */
  /* With a patch, the keys of a visit; their positions are in `j`. */
  key_piece piece[KEY_PIECES];
  int32_t piece_count;
  int64_t piece_keys;
  /* the packed block */
  const char *k, *v;
  int64_t packed_first;     /* index in the block of their first row */
  const uint8_t *unpacked;  /* of each tile of keys: it is left out, since no query
                             * of the block sees it; NULL: there is none */
  bool finite;              /* no NaN or Inf among the block's values */
  int64_t k_bytes, v_bytes; /* of one packed row */
  int64_t range_rows;       /* keys that stay in the cache while a group of
                             * tiles passes over them */
  int64_t low, high;        /* positions of the block's keys */
  query_tile group[TILE_GROUP];
  int32_t group_count;
  const query_tile *q;      /* the tile of the group that is advanced now */
  uint64_t visited;         /* the branches that the visit stands for */
  float *s, *p, *mx, *alpha, *ones, *spare;
  int32_t *j;
  uint32_t *words;          /* of dropout, for the packed rows of the range that
                               is visited now, from row words_first on */
  int64_t words_first;
  char *v_clean;            /* a copy of a value tile without bad rows */
} tile_worker;

int64_t tile_worker_bytes(const cpu_run *r, const dil_pass *pass);
void tile_worker_init(tile_worker *wk, const cpu_run *r, const dil_pass *pass,
                      char *memory);
/* Computes rows n0..n1-1 (at most TILE_GROUP * lanes) of class c of the held
 * cell, over all keys of the block. With a patch they are its rows, all of them
 * of class 0. */
void query_tile_run(tile_worker *wk, segment_cell held, int32_t c, int64_t n0,
                    int64_t n1, int64_t b);

/* The two halves of that: loads the rows, and takes the tiles of the group over
 * all keys of the block that `branches` reach. */
void query_tile_begin(tile_worker *wk, segment_cell held, int32_t c, int64_t n0,
                      int64_t n1, int64_t b);
void query_tile_visit(tile_worker *wk, segment_cell held, uint64_t branches);

/* ---- key_visit.c: a range of keys for a group of tiles ------------------- */

/* Advances every tile of wk->group over keys that `branches` reach. */
void key_visit_range(tile_worker *wk, uint64_t branches, packed_range keys);
/* The visit that advances m, l and o of wk->q. */
void key_visit_forward(tile_worker *wk, const packed_range *keys,
                       uint64_t predicates, int32_t chain, int32_t copies);
/* The pieces of a visit; `one` is the room for a visit without a patch. */
const key_piece *key_visit_pieces(const tile_worker *wk,
                                  const packed_range *keys, key_piece *one,
                                  int32_t *count);
/* The scores of a visit, from the products of its pieces. */
void key_visit_scores(tile_worker *wk, const packed_range *keys, const void *k);
/* The positions of the keys of a visit, in wk->j. */
void key_visit_positions(tile_worker *wk, const packed_range *keys);
/* The position of row n of the range's class. */
int32_t key_position(const tile_worker *wk, const packed_range *keys,
                     int64_t n);

#endif
