/* place.h - who owns which rows of a sequence, and which rows travel.
 *
 * In: a plan's table, the shape of a ring, N and M. Out: combs of positions a
 * rank owns, and for each pair of ranks the key rows that some query of the
 * receiver needs: exact for segments, dilations, phases and windows, from
 * global positions, by arithmetic on cells. Sender and receiver compute the
 * same list, so that no index ever travels. */
#ifndef DIL_PLACE_H
#define DIL_PLACE_H

#include "rt.h"

typedef enum dil_layout {
  DIL_CONTIGUOUS, DIL_ZIGZAG, DIL_STRIPED, DIL_LAYOUT_COUNT
} dil_layout;

enum { SHARD_COMBS = 2 }; /* a zigzag shard has two ends */

/* The rows 0..count-1, shifted by `origin`, that a rank owns; count may be 0. */
typedef struct shard {
  int32_t count;
  dil_comb comb[SHARD_COMBS]; /* rising */
} shard;

shard place_shard(dil_layout layout, int64_t count, int64_t origin,
                  int32_t ranks, int32_t rank);
int64_t shard_rows(const shard *s);

/* ---- rows that travel ---------------------------------------------------- */

/* What is known of a plan's masks without their inputs. All ranks ask alike. */
typedef struct place_mask {
  /* What the mask of a predicate, its window aside, makes of the box of
   * positions t0..t1 x j0..j1 (inclusive) for a head of the whole; DIL_PARTIAL
   * where it cannot tell. Any number of threads may ask. */
  dil_cover (*judge)(const void *context, int32_t predicate, int32_t head,
                     int64_t t0, int64_t t1, int64_t j0, int64_t j1);
  const void *context;
  uint64_t judged, exact; /* predicates: that can be asked about, and whose
                             every pair is settled */
  bool by_head;           /* some mask differs from head to head */
  int32_t head;           /* number in the whole of the table's first */
} place_mask;

/* Which of the rows that a rank needs: those of branches that gather come first
 * and all at once, the rest step by step. A row that both want comes first. */
typedef enum place_part { PLACE_FIRST, PLACE_REST, PLACE_PARTS } place_part;

/* One sequence on a ring. */
typedef struct ring_shape {
  const dil_table *table;
  dil_layout layout;
  int32_t ranks;
  int64_t N, M;
  const place_mask *mask; /* NULL: masks are not looked at */
  uint64_t gathered;      /* branches whose rows come first, as bits */
} ring_shape;

/* Whether all branches gather. */
bool place_gathers(const ring_shape *r);

shard place_queries(const ring_shape *r, int32_t rank); /* positions t */
shard place_keys(const ring_shape *r, int32_t rank);    /* positions j */

/* Called for each stretch of travelling rows, rising: positions low + offset[i]
 * + n * period below `high`. */
typedef struct stretch_of_rows {
  int32_t comb;            /* of the sender's shard */
  int64_t low, high, period;
  const int32_t *offset;
  int32_t count;
} stretch_of_rows;
typedef void (*place_visit)(void *context, const stretch_of_rows *rows);

/* The rows of `kv_head` among `owned` keys that some query of `asking` reaches,
 * each once. DIL_MEMORY; DIL_UNSUPPORTED when a common period of dilations is
 * above DIL_PERIOD_MAX. */
dil_status place_reach(const dil_table *table, const shard *owned,
                       const shard *asking, int32_t kv_head,
                       place_visit visit, void *context);
/* A part of those that rank `from` owns and rank `to` asks for. */
dil_status place_rows(const ring_shape *r, int32_t from, int32_t to,
                      int32_t kv_head, place_part part, place_visit visit,
                      void *context);
/* How many they are, and whether these are the least that the pattern needs;
 * else some are there that a mask may keep from being seen. */
dil_status place_count(const ring_shape *r, int32_t from, int32_t to,
                       int32_t kv_head, place_part part, int64_t *count,
                       bool *exact);
int64_t stretch_count(const stretch_of_rows *rows);

#endif
