/* cover.h - counts the pairs and tiles of a pattern by arithmetic. */
#ifndef DIL_COMPILER_ANALYSIS_COVER_H
#define DIL_COMPILER_ANALYSIS_COVER_H

#include "compiler/pattern/pattern.h"
#include "runtime/call.h"

/* Keys that a walk on a processor settles at once where masks decide
 * (runtime/cpu/key_visit.c). */
enum { COVER_SUBTILE = DIL_SUBTILE_KEYS };

typedef struct cover_count {
  double pairs;       /* summed over heads; a key counts once for each branch
                         that reaches it, once in `union` */
  double distinct;    /* pairs reached at least once */
  double uncovered;   /* (row, head) cells without any key */
  double empty, partial, full; /* tiles of the boxes given */
  /* For tiles of COVER_SUBTILE keys: how many boxes a walk examines by masks to
   * find them, and how many of the full ones it settles four at a time. */
  double asked, together;
  double boxes;       /* examined to count pairs and tiles: what it took */
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
/* The same without tiles. */
void cover_rows(const pattern *p, int64_t N, int64_t M, const dil_call *call,
                int64_t b, cover_count *count);
/* Counts nothing but `pairs`, in a fraction of the time. */
void cover_pairs(const pattern *p, int64_t N, int64_t M, const dil_call *call,
                 int64_t b, cover_count *count);
/* Counts the tiles of rows x keys that are not empty, of N queries and keys. No
 * condition of the pattern may read inputs. */
double cover_kept_tiles(const pattern *p, int64_t N, int32_t rows,
                        int32_t keys);

#endif
