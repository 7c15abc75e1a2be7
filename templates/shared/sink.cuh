/* sink.cuh - what a row's softmax begins with: the logarithm of the sum of its
 * sinks. It joins a row once: where the row is written first. */
#ifndef DIL_TEMPLATES_SHARED_SINK_H
#define DIL_TEMPLATES_SHARED_SINK_H
#include "templates/shared/softmax.cuh"
#include "templates/shared/walk.cuh"

/* The sinks of the row at position t, in natural units: the pattern's and those
 * of the branches of `among` that select the row. inf becomes NaN. */
DIL_INLINE float sink_of(const dil_pair &at, int t, unsigned long long among) {
#if SINKS
  float sum = dil_sink(BRANCHES, t, at);
#pragma unroll 1
  for (int b = 0; SINK_BRANCHES && b < BRANCHES; b++)
    if ((SINK_BRANCHES & among) >> b & 1 && serves(b, at.h) &&
        selects(b, at.h, t))
      sum = dil_sinks_add(dil_sink(b, t, at), sum);
  return sum == -DIL_NONE ? sum - sum : sum;
#else
  return DIL_NONE;
#endif
}

/* Which branches' sinks count in a pass: with `mean` and `sum` its own. pass -1:
 * none. */
DIL_INLINE unsigned long long sinks_among(int pass) {
  if (COMBINE < 2) return ~0ull;
  return pass < 0 ? 0 : dil_passes[pass].branches;
}

/* The lse that query row n of (b, h) starts a pass from. */
DIL_INLINE float row_start(const dil_params &p, int b, int n, int h, int pass) {
  int keys = batch_keys(p, b);
  int t = p.first - (p.M - keys) + n * query_step(p);
  dil_pair at = {b + p.batch, h, p.B, p.N, keys, p.input};
  return SINKS ? sink_of(at, t, sinks_among(pass)) : DIL_NONE;
}

#endif
