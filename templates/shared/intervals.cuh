/* intervals.cuh - for each element of the inputs that masks compare with
 * themselves, the range of the elements that equal it (spans.cuh), once a call.
 * An input is looked at row by row, where a row is its last axis. Where a row
 * is not sorted, its spans are not known, and pairs are asked one by one. */
#ifndef DIL_TEMPLATES_SHARED_INTERVALS_H
#define DIL_TEMPLATES_SHARED_INTERVALS_H
#include "templates/shared/bounds.cuh"

/* Whether a row of an input is sorted: each block rises, and begins with no less
 * than the block before ends with. */
DIL_INLINE bool is_sorted(const dil_device_input &in, dil_input_row kind,
                          long long row) {
  long long blocks = input_blocks(in, kind.rank), from = row * blocks;
  const unsigned *rises = input_rises(in, kind.rank) + from;
  const int *bounds = (const int *)in.bounds + 2 * from;
  bool sorted = true;
#pragma unroll 1
  for (long long n = threadIdx.x & 31; n < blocks; n += 32) {
    sorted = sorted && rises[n];
    if (n) sorted = sorted && bounds[2 * n - 1] <= bounds[2 * n];
  }
  return __all_sync(~0u, sorted);
}

/* The first element that is not below v, or with `above` the first above it. */
DIL_INLINE int first_not_below(const interval_row &x, int v, bool above) {
  int low = 0, high = x.size;
#pragma unroll 1
  while (low < high) {
    int middle = (low + high) / 2, e = row_element(x, middle);
    if (e < v || (above && e == v)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The spans of a block's elements. */
DIL_INLINE void find_spans(const dil_device_input &in, dil_input_row kind,
                           long long index) {
  long long blocks = input_blocks(in, kind.rank), row = index / blocks;
  interval_row x = interval_row_of(in, kind, row);
  dil_key_span *to = input_spans(in, kind.rank) + row * x.size;
  int first = (int)(index % blocks) * DIL_BOUNDS_BLOCK + (threadIdx.x & 31);
  bool sorted = is_sorted(in, kind, row);
#pragma unroll
  for (int n = 0; n < DIL_BOUNDS_BLOCK; n += 32) {
    int at = first + n;
    if (at >= x.size) continue;
    int v = sorted ? row_element(x, at) : 0;
    to[at] = sorted ? dil_key_span{first_not_below(x, v, false),
                               first_not_below(x, v, true) - 1}
                    : span_unknown();
  }
}

extern "C" __global__ void dil_intervals(const __grid_constant__ dil_params p) {
  if (p.only_if && !*p.only_if) return;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  long long warps = (long long)gridDim.x * blockDim.x / 32;
#pragma unroll 1
  for (int i = 0; i < INPUTS; i++) {
    const dil_device_input &in = p.input[i];
    if (!in.bounds || !dil_inputs[i].spans) continue;
    long long count = input_rows(in, dil_inputs[i].rank) *
                      input_blocks(in, dil_inputs[i].rank);
#pragma unroll 1
    for (long long at = warp; at < count; at += warps)
      find_spans(in, dil_inputs[i], at);
  }
}

#endif
