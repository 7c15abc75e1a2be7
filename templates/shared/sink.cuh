/* sink.cuh - what a row's softmax begins with: the logarithm of the sum of its
 * sinks. It joins a row once: where the row is written first. */
#ifndef DIL_TEMPLATES_SHARED_SINK_H
#define DIL_TEMPLATES_SHARED_SINK_H
#include "templates/shared/softmax.cuh"
#include "templates/shared/walk.cuh"

/* Which branches' sinks count in a pass: with `mean` and `sum` its own. pass -1:
 * none. */
DIL_INLINE unsigned long long sinks_among(int pass) {
  if (COMBINE < 2) return ~0ull;
  return pass < 0 ? 0 : PASS(pass).branches;
}

/* The position of query row n, and what its sinks read. */
DIL_INLINE int row_position(const dil_params &p, int b, int n) {
  if (is_packed(p)) return batch_keys(p, b) - batch_rows(p, b) + n;
  return p.first - (p.M - batch_keys(p, b)) + n * query_step(p);
}
DIL_INLINE dil_pair row_pair(const dil_params &p, int b, int h) {
  return {b + p.batch, h, p.B, batch_queries(p, b), batch_keys(p, b), p.input};
}

/* The lse that query row n of (b, h) starts a pass from. With DIL_ALONE the
 * state is of pass p.pass alone, in which the pattern's sinks have no part. */
DIL_INLINE float row_start(const dil_params &p, int b, int n, int h, int pass) {
  bool alone = p.flags & DIL_ALONE;
  unsigned long long among =
      alone ? PASS(p.pass).branches : sinks_among(pass);
  if (!SINKS) return DIL_NONE;
  return sink_of(row_pair(p, b, h), row_position(p, b, n), !alone, among);
}

#endif
