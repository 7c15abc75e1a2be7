/* bounds.cuh - the smallest and largest element of every block of the inputs
 * that masks read, once a call, for the ranges of cover.cuh. One warp makes
 * one block; where some element is NaN, both are. Of inputs with spans
 * (spans.cuh) it also notes whether the block rises. */
#ifndef DIL_TEMPLATES_SHARED_BOUNDS_H
#define DIL_TEMPLATES_SHARED_BOUNDS_H
#include "templates/shared/plan.cuh"
#include "templates/shared/spans.cuh"

/* Returns the offset at which row `row` begins, where all axes but the last are
 * flattened. */
DIL_INLINE long long row_offset(const dil_device_input &in, int rank,
                                long long row) {
  long long offset = 0;
#pragma unroll
  for (int axis = 2; axis >= 0; axis--) {
    if (axis >= rank - 1) continue;
    offset += row % in.dim[axis] * in.stride[axis];
    row /= in.dim[axis];
  }
  return offset;
}

DIL_INLINE int lesser(int a, int b) { return dil_min(a, b); }
DIL_INLINE int greater(int a, int b) { return dil_max(a, b); }
DIL_INLINE float lesser(float a, float b) { return dil_minf(a, b); }
DIL_INLINE float greater(float a, float b) { return dil_maxf(a, b); }

/* Of the `count` elements from `at` on, `stride` apart, as they are stored. */
template <class Stored, class Value, class Widen>
DIL_INLINE void bound_block(const void *data, long long at, long long stride,
                            int count, void *bounds, Widen widen) {
  const Stored *from = (const Stored *)data + at;
  int lane = threadIdx.x & 31;
  Value low = widen(from[dil_min(lane, count - 1) * stride]);
  Value second = widen(from[dil_min(lane + 32, count - 1) * stride]);
  Value high = greater(low, second);
  low = lesser(low, second);
#pragma unroll 1
  for (int away = 16; away > 0; away >>= 1) {
    low = lesser(low, __shfl_xor_sync(0xffffffffu, low, away));
    high = greater(high, __shfl_xor_sync(0xffffffffu, high, away));
  }
  if (lane == 0) ((Value *)bounds)[0] = low;
  if (lane == 0) ((Value *)bounds)[1] = high;
}

/* Block `index` of all blocks of an input. */
DIL_INLINE void bound_input(const dil_device_input &in, dil_input_row kind,
                            long long index) {
  long long stride = in.stride[kind.rank - 1], size = in.dim[kind.rank - 1];
  long long blocks = (size - 1) / DIL_BOUNDS_BLOCK + 1;
  long long first = index % blocks * DIL_BOUNDS_BLOCK;
  long long at = row_offset(in, kind.rank, index / blocks) + first * stride;
  int count = (int)(size - first);
  char *out = (char *)in.bounds + DIL_BOUND_BYTES * index;
  if (count > DIL_BOUNDS_BLOCK) count = DIL_BOUNDS_BLOCK;
  switch (kind.dtype) {
  case DIL_INPUT_F32:
    bound_block<float, float>(in.data, at, stride, count, out,
                              [](float x) { return x; });
    break;
  case DIL_INPUT_BF16:
    bound_block<unsigned short, float>(in.data, at, stride, count, out,
                                       dil_from_bf16);
    break;
  case DIL_INPUT_F16:
    bound_block<unsigned short, float>(in.data, at, stride, count, out,
                                       dil_from_f16);
    break;
  case DIL_INPUT_I32:
    bound_block<int, int>(in.data, at, stride, count, out,
                          [](int x) { return x; });
    break;
  case DIL_INPUT_U8:
    bound_block<unsigned char, int>(in.data, at, stride, count, out,
                                    [](int x) { return x; });
    break;
  }
}

/* ---- inputs that are compared with themselves ----------------------------- */

/* One row of an input of integers. */
struct interval_row {
  const void *data;
  bool bytes;
  long long stride;
  int size;
};
DIL_INLINE interval_row interval_row_of(const dil_device_input &in,
                                        dil_input_row kind, long long row) {
  bool bytes = kind.dtype == DIL_INPUT_U8;
  long long at = row_offset(in, kind.rank, row);
  return {(const char *)in.data + at * (bytes ? 1 : 4), bytes,
          in.stride[kind.rank - 1], (int)in.dim[kind.rank - 1]};
}
DIL_INLINE int row_element(const interval_row &x, int at) {
  long long place = at * x.stride;
  return x.bytes ? ((const unsigned char *)x.data)[place]
                 : ((const int *)x.data)[place];
}

/* Notes whether a block rises: a part of dil_bounds. */
DIL_INLINE void note_rise(const dil_device_input &in, dil_input_row kind,
                          long long index) {
  long long blocks = input_blocks(in, kind.rank);
  interval_row x = interval_row_of(in, kind, index / blocks);
  int lane = threadIdx.x & 31, first = (int)(index % blocks) * DIL_BOUNDS_BLOCK;
  int end = dil_min(x.size, first + DIL_BOUNDS_BLOCK);
  bool rises = true;
#pragma unroll
  for (int n = 0; n < DIL_BOUNDS_BLOCK; n += 32) {
    int at = first + lane + n;
    if (at + 1 < end) rises = rises && row_element(x, at) <= row_element(x, at + 1);
  }
  rises = __all_sync(~0u, rises);
  if (lane == 0) input_rises(in, kind.rank)[index] = rises;
}

extern "C" __global__ void dil_bounds(const __grid_constant__ dil_params p) {
  if (p.only_if && !*p.only_if) return;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  long long warps = (long long)gridDim.x * blockDim.x / 32;
#pragma unroll 1
  for (int i = 0; i < INPUTS; i++) {
    const dil_device_input &in = p.input[i];
    bool table = dil_inputs[i].rows != dil_inputs[i].cols;
    if (!in.bounds || table) continue;
    int rank = dil_inputs[i].rank;
    long long count = input_rows(in, rank) * input_blocks(in, rank);
#pragma unroll 1
    for (long long at = warp; at < count; at += warps) {
      bound_input(in, dil_inputs[i], at);
      if (dil_inputs[i].spans) note_rise(in, dil_inputs[i], at);
    }
  }
}

#endif
