/* gradient_sinks.cuh - gradients of the inputs that sinks read, a row a thread;
 * and the ends of the sums of all inputs. */
#pragma once
#include "templates/shared/sink.cuh"

/* Rows 32 * chunk .. of a head; a row that is not there adds nothing. */
DIL_INLINE void add_sinks(const dil_gradient_params &g, int b, int h, int chunk,
                          dil_adder &to) {
  const dil_params &p = g.of;
  int n = 32 * chunk + (int)threadIdx.x;
  bool there = n < batch_rows(p, b);
  dil_facts row = {__int_as_float(0x7f800000), 0.0f};
  if (there) row = facts_of(g, b, n, h);
  int t = row_position(p, b, n);
  dil_sink_reads(g.input.own && there,
                 sinks_of(h, t, there ? g.input.among : 0), t,
                 row_pair(p, b, h), row.lse, row.delta, to);
}

/* Blocks of one warp, a copy of the sums each. */
extern "C" __global__ void
dil_sink_inputs(const __grid_constant__ dil_gradient_params g) {
  const dil_params &p = g.of;
  const dil_input_sums &sums = g.input;
  dil_items items = {
      {((unsigned)p.rows + 31) / 32, (unsigned)p.heads, (unsigned)p.batches}};
  unsigned copies = (unsigned)(sums.lists * sums.copies);
  unsigned copy = blockIdx.x % copies;
  unsigned turns = items_together(sums, items);
  dil_adder to = {sums, copy * sums.count, p.weight, {}};
#pragma unroll 1
  for (unsigned turn = copy; turn < turns; turn += copies) {
    unsigned item = item_of(sums, items, blockIdx.x / copies, turn);
    int chunk = take_digit(item, (int)items.size[0]);
    int h = p.head + take_digit(item, (int)items.size[1]);
    add_sinks(g, (int)item, h, chunk, to);
  }
}

/* Element `index` of the gradient, counted row by row. */
DIL_INLINE long long gradient_place(const dil_input_sums &to, long long index) {
  long long place = 0;
#pragma unroll 1
  for (int k = 3; k >= 0; k--) {
    place += index % to.dim[k] * to.gradient_stride[k];
    index /= to.dim[k];
  }
  return place;
}

DIL_INLINE void put_input(const dil_input_sums &to, long long place,
                          double sum) {
#if SHARDS
  if (to.gradient_type == DIL_INPUT_SUM) {
    ((double *)to.gradient)[place] += sum;
    return;
  }
#endif
  float x = (float)sum;
  if (to.gradient_type == DIL_INPUT_F32) {
    ((float *)to.gradient)[place] = x;
    return;
  }
  unsigned bits =
      to.gradient_type == DIL_INPUT_F16 ? pack_f16(x, 0) : pack_bf16(x, 0);
  ((unsigned short *)to.gradient)[place] = (unsigned short)bits;
}

/* Many copies are added up by a warp, in order by lanes and then the lanes; few
 * by a thread. */
extern "C" __global__ void
dil_input_end(const __grid_constant__ dil_gradient_params g) {
  const dil_input_sums &to = g.input;
  int copies = to.lists * to.copies, lanes = copies < 32 ? 1 : 32;
  long long step = (long long)gridDim.x * blockDim.x / lanes;
  long long index = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
#pragma unroll 1
  for (; index < to.count; index += step) {
    double sum = 0;
#pragma unroll 4
    for (int k = (int)threadIdx.x % lanes; k < copies; k += lanes)
      sum += ((const double *)to.data)[k * to.count + index];
#pragma unroll
    for (int away = 16; lanes > 1 && away; away >>= 1)
      sum += __shfl_xor_sync(0xffffffffu, sum, away);
    if (threadIdx.x % lanes == 0)
      put_input(to, gradient_place(to, index), sum);
  }
}
