// gather_add.cuh - adds up the parts of dQ. In: dQ of a block of keys for each entry.
// Out: dQ of every row.
#pragma once

// A warp for each row of this launch's lines.
extern "C" __global__ void
gather_add(const __grid_constant__ gather_backward_launch run) {
  const gather_call &call = run.call;
  long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (warp >= (long long)call.lines * call.of.N) return;
  int number = (int)(warp / call.of.N), row = (int)(warp % call.of.N);
  int line = call.first_line + number, column = threadIdx.x % 32 * 4;
  if (column >= HEAD_DIM) return;
  entry_range own = entries_of(list_of(call, line), row);
  const float *partial =
      run.partial + (long long)number * call.entry_room * HEAD_DIM + column;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 2
  for (int e = own.first; e < own.end; e++) {
    float4 x = *(const float4 *)(partial + (long long)e * HEAD_DIM);
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  }
  if (!((sum.x + sum.y) * 0 + (sum.z + sum.w) * 0 == 0))
    *(volatile unsigned *)run.back.spoiled = 1;
  unsigned short *to = (unsigned short *)run.queries.data +
                       line / HEADS * run.queries.batch + row * run.queries.row +
                       line % HEADS * run.queries.head + column;
  store_if(true, to, pack(sum.x, sum.y), pack(sum.z, sum.w));
}
