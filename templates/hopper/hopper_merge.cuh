// hopper_merge.cuh - the end of a row's softmax, and how two parts of it become one: an
// earlier state joins, or the row's sinks do.
#pragma once

// The end of a row whose weights add up to `sum`, below its peak: `mine` becomes the
// factor of its sums, and `lse` the natural logarithm of its denominator. log2 0 is
// -infinity.
DEVICE void end_row(float peak, float sum, float scale, float weight, float &lse,
                    float &mine) {
  mine = sum == 0 ? 0 : __fdividef(weight, sum);
  lse = (peak * scale + log2_fast(sum)) * 0.69314718055994530942f;
}

// Merges a row with its earlier state by their lse. Returns the factor of the
// earlier state; `mine` is multiplied by the factor of the new sums, and `lse`
// becomes the merged one. Either side may have seen no key. An earlier state that
// has seen none has the factor 0, whatever the new sums are: nobody has written its
// sums, and a NaN times these would take their bits.
DEVICE float merge_row(float before, float &lse, float &mine) {
  const float log2_e = 1.44269504088896340736f;
  float top = fmaxf(before, lse);
  if (before == MINUS_INFINITY && lse == MINUS_INFINITY) top = 0;
  float a = exp2_fast((before - top) * log2_e);
  float b = exp2_fast((lse - top) * log2_e);
  float both = a + b;
  lse = top + log2_fast(both) * 0.69314718055994530942f;
  mine = both == 0 ? 0 : mine * __fdividef(b, both);
  return before == MINUS_INFINITY ? 0 : __fdividef(a, both);
}

// Joins a row of a whole call with its sinks, if the pattern has any. In: the call, the
// batch row and its number of keys, the query row and its head. `lse` and `mine` as above.
DEVICE void join_sinks(const dil_params &of, int batch, int keys, int n, int head,
                       float &lse, float &mine) {
#if SINKS
  const dil_pair at = {batch + of.batch, of.head + head, of.B, of.N, keys, of.input};
  merge_row(sink_of(at, of.first - (of.M - keys) + n, true, ~0ull), lse, mine);
#endif
}
