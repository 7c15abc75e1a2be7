/* few.cuh - how many keys the rows of a call with few rows reach, and their splits
 * (splits.h). general.c of the run time has the same sum. */
#ifndef DIL_TEMPLATES_SHARED_FEW_H
#define DIL_TEMPLATES_SHARED_FEW_H
#include "templates/shared/splits.h"
#include "templates/shared/walk.cuh"

/* The most keys that the rows of a batch row with so many keys see together. */
DIL_INLINE long long few_reach(const dil_params &p, int keys) {
  long long sum = 0, span = (long long)(p.rows - 1) * query_step(p);
#pragma unroll 1
  for (int b = 0; b < BRANCHES; b++) {
    const dil_branch_row &row = BRANCH(b);
    if (!(PASS(p.pass).branches >> b & 1)) continue;
    long long reach = row.segment ? least(row.segment, keys) : keys;
    if (row.predicate >= 0) {
      const dil_predicate_row &w = PREDICATE(row.predicate);
      long long wide = (long long)w.left + w.right + 1 + span;
      long long held = (long long)least(w.end, keys) - w.first;
      if (w.left != DIL_FAR && w.right != DIL_FAR && wide < reach) reach = wide;
      if (held < reach) reach = held;
    }
    if (reach > 0) sum += (unsigned)(reach - 1) / (unsigned)row.dilation + 1;
  }
  return sum;
}

/* Tiles of rows that read the keys of a K/V head. */
DIL_INLINE int few_tiles(const dil_params &p) {
  return p.cells * p.parts * p.residues * p.blocks * (GROUP / p.pack);
}

/* The splits of the keys of a batch row with so many. */
DIL_INLINE int splits_of(const dil_params &p, int keys) {
  if (!(p.flags & DIL_FEW)) return p.splits;
  return few_splits(few_reach(p, keys), few_tiles(p));
}

#endif
