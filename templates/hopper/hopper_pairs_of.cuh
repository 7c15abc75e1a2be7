// hopper_pairs_of.cuh - what expressions read of a launch.
#pragma once

#if PAIRWISE || SCORED || SINKS
// The values that expressions read besides positions.
DEVICE dil_pair pair_at(const hopper_launch &run, int batch, int head,
                        int away) {
  return {batch + run.batch, head + run.head,  run.all_batches,
          run.all_queries,   run.keys - away, run.input};
}
#endif

#if SCORE_SLOPES
// The slope of a linear form in units of products, where a finite one stays
// finite.
DEVICE float slope_of_products(const hopper_launch &run, const dil_pair &at) {
  float slope = dil_slope(at);
  bool finite = fabsf(slope) <= -LOWEST;
  slope /= run.natural;
  return finite ? fminf(fmaxf(slope, LOWEST), -LOWEST) : slope;
}
#endif
