// gather_merge.cuh - the sums of each row's entries. In: o of a block of keys for each
// entry, and what its softmax left. Out: O and lse of every row.
#pragma once

// Four neighbouring values of a row are a lane's own.
struct merge_sums {
  float peak, sum; // of the row
  float4 o;
};

DEVICE merge_sums add_entries(const gather_launch &run, const gather_end *ends,
                              const float *partial, entry_range own) {
  int column = threadIdx.x % 32 * 4;
  merge_sums m = {LOWEST, 0, make_float4(0, 0, 0, 0)};
#pragma unroll 1
  for (int e = own.first; e < own.end; e++) m.peak = fmaxf(m.peak, ends[e].peak);
#pragma unroll 2
  for (int e = own.first; e < own.end; e++) {
    gather_end end = ends[e];
    float weight = exp2_fast((end.peak - m.peak) * run.scale) * end.sum;
    if (weight == 0) continue; // the values of rows without keys are 0
    m.sum += weight;
    if (column >= VALUE_DIM) continue;
    float4 x = *(const float4 *)(partial + (long long)e * VALUE_DIM + column);
    m.o.x = fmaf(weight, x.x, m.o.x);
    m.o.y = fmaf(weight, x.y, m.o.y);
    m.o.z = fmaf(weight, x.z, m.o.z);
    m.o.w = fmaf(weight, x.w, m.o.w);
  }
  return m;
}

// A warp for each row of this launch's lines.
extern "C" __global__ void
gather_merge(const __grid_constant__ gather_launch run) {
  const gather_call &call = run.call;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (warp >= (long long)call.lines * call.of.N) return;
  int number = (int)(warp / call.of.N), row = (int)(warp % call.of.N);
  int line = call.first_line + number, batch = line / HEADS, head = line % HEADS;
  long long first = (long long)number * call.entry_room;
  int column = threadIdx.x % 32 * 4;
  merge_sums m = add_entries(run, run.ends + first, run.partial + first * VALUE_DIM,
                             entries_of(list_of(call, line), row));
  const long long *o = call.of.o_stride, *lse = call.of.lse_stride;
  float factor, whole; // of the sums; lse
  end_row(m.peak, m.sum, run.scale, call.of.weight, whole, factor);
  join_sinks(call.of, batch, batch_keys(call, batch), row, head, whole, factor);
  if (call.of.lse && column == 0)
    call.of.lse[batch * lse[0] + row * lse[1] + head * lse[2]] = whole;
  if (column >= VALUE_DIM) return;
  unsigned short *to = (unsigned short *)call.of.o + batch * o[0] + row * o[1] +
                       head * o[2] + column;
  store_if(true, to, pack(m.o.x * factor, m.o.y * factor),
           pack(m.o.z * factor, m.o.w * factor));
}
