/* finish.cuh - the end of a row by a whole warp. In: its largest score, its sum of
 * weights and its sums. Out: the row of o, lse or the state (epilogue.cuh). */
#ifndef DIL_TEMPLATES_SHARED_FINISH_H
#define DIL_TEMPLATES_SHARED_FINISH_H
#include "templates/shared/epilogue.cuh"
#include "templates/shared/sink.cuh"

/* The end of row `row` of the state's and the output's order, (b, n, h). Its
 * sums are sum(d); their weights add up to l and belong to m. The state that an
 * earlier pass or shard has left joins them, or else the row's sinks. Without a
 * key the state stays. */
template <class Sum>
DIL_INLINE void finish_row(const dil_params &p, long long row, int b, int n,
                           int h, float m, float l, Sum sum) {
  int how = finish_of(p, h), lane = threadIdx.x & 31;
  bool resumes = how == FINISH_RESUME;
  float before = resumes ? p.state_lse[row] : row_start(p, b, n, h, p.pass);
  before *= DIL_LOG2_E;
  if (resumes && l == 0) return;
  float base = fmaxf(m, before);
  if (base == DIL_NONE) base = 0;
  float theirs = power_of_2(before - base), mine = power_of_2(m - base);
  l = theirs + l * mine;
  float factor = row_factor(p, l);
  __syncwarp(); /* all have read the lse */
  if (lane == 0) finish_lse(p, how, b, n, h, row_lse(base, l));
#pragma unroll 1
  for (int d = lane; d < VALUE_DIM; d += 32) {
    float x = sum(d) * mine;
    if (resumes && theirs != 0) x += p.state_o[row * VALUE_DIM + d] * theirs;
    finish_element(p, how, b, n, h, d, l == 0 ? 0.0f : x * factor);
  }
}

#endif
