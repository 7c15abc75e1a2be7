/* gradient_inputs.cuh - gradients of the inputs that scores read: the pairs of
 * a visit, each with its score before the chain and the gradient of its score
 * behind it. A thread's pairs go through shared memory, so that one copy of the
 * expressions serves all. */
#pragma once

struct dil_kept_pair {
  float score, gradient;
};
#define PAIRS ((dil_kept_pair *)(shared + SHARED_PAIRS) + threadIdx.x)

DIL_INLINE void keep_pairs(const float (&s)[SCORE_TILES][4],
                           const float (&d)[SCORE_TILES][4]) {
#pragma unroll
  for (int e = 0; e < 4 * SCORE_TILES; e++)
    PAIRS[e * THREADS] = {s[e >> 2][e & 3], d[e >> 2][e & 3]};
}

DIL_INLINE dil_adder adder_of(const dil_gradient_params &g) {
  const dil_input_sums &to = g.input;
  int list = (int)(blockIdx.x % (unsigned)to.lists);
  int warp = to.copies > 1 ? (int)threadIdx.x >> 5 : 0;
  return {to, (list * to.copies + warp) * to.count, g.of.weight, {}};
}

/* A row of a thread at a time, and its pairs one by one. */
DIL_INLINE void add_inputs(const dil_gradient_params &g, const dil_tile &t,
                           const dil_visit &v) {
  const dil_params &p = g.of;
  int first = 16 * (threadIdx.x >> 5) + (threadIdx.x & 31) / 4;
  int chain = BRANCH(v.keys.branch).chain;
  dil_adder to = adder_of(g);
#pragma unroll 1
  for (int r = 0; r < 2; r++) {
    int i, h;
    find_row(p, t, first + 8 * r, &i, &h);
    dil_pair at = pair_of(p, t, h);
    to.begin_rows();
#pragma unroll 1
    for (int n = 0; n < 2 * SCORE_TILES; n++) {
      int e = 4 * (n >> 1) + 2 * r + (n & 1);
      int j = column_position(v, column_of(e));
      dil_kept_pair pair = PAIRS[e * THREADS];
      dil_chain_reads(chain, pair.score, i, j, at, pair.gradient, to);
    }
    dil_chain_rows(chain, i, at, to);
  }
}
