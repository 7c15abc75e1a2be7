/* tile_block.h - a pass cut into blocks of positions and strips of queries.
 *
 * A block is a range of positions that no segment of the pass leaves, for one
 * batch row and one head (or one K/V head, when all query heads of it select the
 * same rows). All follows from the shape of the call alone. */
#ifndef DIL_RUNTIME_CPU_TILE_BLOCK_H
#define DIL_RUNTIME_CPU_TILE_BLOCK_H

#include "cpu_run.h"
#include "runtime/rowset/patch.h"

enum { STRIP = 1024 }; /* query rows of a strip, at dilation 1 */

typedef struct tile_blocks {
  const cpu_run *run;
  const dil_pass *pass;
  bool shared;            /* query heads of a K/V head share packed rows */
  bool backwards;         /* later strips are longer: hand them out first */
  int64_t units;          /* heads or K/V heads */
  int64_t length;         /* positions of a block */
  int64_t span;           /* positions from a block's first to its last key */
  int64_t block_first;    /* number of the first block, counted from 0 */
  int64_t blocks_a_unit, blocks;
  int64_t strip;          /* positions a strip */
  int64_t strips;         /* of one head of a block, at most */
  int64_t rows;           /* that branches select in a block, at most */
  int64_t packed_rows;    /* the same with what rounding adds */
  int64_t packed_classes; /* the runs of them that are rounded up, at most */
  bool patched;           /* a block is the whole of a grid, cut by `patches`;
                           * strips are then of patches */
  patch_plan patches;
} tile_blocks;

tile_blocks tile_blocks_plan(const cpu_run *r, const dil_pass *pass);

/* One block, found by arithmetic from its number. */
typedef struct tile_block {
  int64_t b, low, high;   /* keys: positions low..high-1 */
  int64_t first, last;    /* queries: positions first..last-1 */
  int32_t head, heads;    /* query heads head..head+heads-1 */
} tile_block;

/* Whether the pass goes over patches of a grid. */
bool tile_blocks_patched(const cpu_run *r, const dil_pass *pass);

tile_block tile_block_find(const tile_blocks *of, int64_t index);
walk tile_blocks_walk(const tile_blocks *of, int32_t head);
/* Positions from..to-1 of a strip: borders move up to the begin of the next
 * cell where that is less than a strip away. */
void tile_block_strip(const tile_blocks *of, const tile_block *bk,
                      const walk *w, int64_t strip, int64_t *from, int64_t *to);

#endif
