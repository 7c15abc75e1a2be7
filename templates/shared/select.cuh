/* select.cuh - which branches select a row, and the sinks that it has from
 * them. */
#ifndef DIL_TEMPLATES_SHARED_SELECT_H
#define DIL_TEMPLATES_SHARED_SELECT_H
#include "templates/shared/pair.cuh"
#include "templates/shared/plan.cuh"

DIL_INLINE bool serves(int branch, int head) {
  return BRANCH(branch).head_first <= head &&
         head <= BRANCH(branch).head_last;
}

/* Returns whether a branch that serves the head selects position t. */
DIL_INLINE bool selects(int branch, int head, int t) {
  const dil_branch_row &row = BRANCH(branch);
  if (t < 0 && row.segment) return false;
  if (EACH && row.shift >= 0) return true;
  int inside = row.segment ? dil_mod(t, row.segment) : t;
  return (inside - dil_phases[branch * HEADS + head]) % row.dilation == 0;
}

/* Returns the branches of `among` with sinks that select the row at position
 * t. */
DIL_INLINE unsigned long long sinks_of(int h, int t,
                                       unsigned long long among) {
  unsigned long long some = 0;
#pragma unroll 1
  for (int b = 0; SINK_BRANCHES && b < BRANCHES; b++)
    if ((SINK_BRANCHES & among) >> b & 1 && serves(b, h) && selects(b, h, t))
      some |= 1ull << b;
  return some;
}

/* Returns the sinks of the row at position t, in natural units: the pattern's
 * (own) and those of the branches of `among` that select the row. From 2.3e38 on
 * they are infinite, since their product with log2 e is. inf becomes NaN. */
DIL_INLINE float sink_of(const dil_pair &at, int t, bool own,
                         unsigned long long among) {
  const float none = __uint_as_float(0xff800000u);
#if SINKS
  float sum = own ? dil_sink(BRANCHES, t, at) : none;
#pragma unroll 1
  for (unsigned long long rest = sinks_of(at.h, t, among); rest;
       rest &= rest - 1)
    sum = dil_sinks_add(dil_sink(__ffsll((long long)rest) - 1, t, at), sum);
  float wide = sum * 1.44269504088896340736f;
  if (wide == none || wide == -none) sum = wide;
  return sum == -none ? sum - sum : sum;
#else
  return none;
#endif
}

#endif
