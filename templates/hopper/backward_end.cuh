// backward_end.cuh - the end of a tile of gradients, by one consumer warpgroup,
// and the rows that no tile holds.
#pragma once

// Returns whether all sums of the thread's row `half` are finite.
template <int count>
DEVICE bool are_finite(const float (&x)[count], int half) {
  float none = 0;
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    none = fmaf(x[i + 2 * half], 0, none);
    none = fmaf(x[i + 2 * half + 1], 0, none);
  }
  return none == 0;
}

#if SUMS
// Adds a warp's rows to the sums of earlier passes. The four threads of a row
// write 32 bytes together.
template <int count>
DEVICE bool put_gradient(const hopper_gradient &to, float (&x)[count],
                         const tile_rows_message &t, float factor,
                         int columns) {
  u32 thread = thread_index();
  int column = thread % 4 * 2, row = warp_row(thread) + thread % 32 / 4;
  bool finite = true;
  float *out = (float *)to.data + t.batch * to.batch + t.head * to.head;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    float *here = out + (t.first + at * t.step) * to.row + column;
    if (at >= t.rows) continue;
    finite &= are_finite(x, half);
#pragma unroll
    for (int g = 0; g < count / 4; g++) {
      float2 *sum = (float2 *)(here + 8 * g);
      if (8 * g + column >= columns) continue;
      float2 now = *sum;
      now.x += x[4 * g + 2 * half] * factor;
      now.y += x[4 * g + 2 * half + 1] * factor;
      *sum = now;
    }
  }
  return finite;
}
#else
// Stores a warp's rows straight from registers. Two neighbouring threads
// exchange words, so that each holds 8 bytes of one of two groups of columns.
// The four threads of a row then write 32 bytes together.
template <int count>
DEVICE bool put_gradient(const hopper_gradient &to, float (&x)[count],
                         const tile_rows_message &t, float factor,
                         int columns) {
  u32 thread = thread_index();
  int lane = thread % 4, row = warp_row(thread) + thread % 32 / 4;
  bool odd = lane & 1, finite = true;
  unsigned short *out = (unsigned short *)to.data + t.batch * to.batch +
                        t.head * to.head + odd * 8 + lane / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    unsigned short *here = out + (t.first + at * t.step) * to.row;
    finite &= at >= t.rows || are_finite(x, half);
#pragma unroll
    for (int g = 0; g < count / 4; g += 2) {
      const float *v = x + 4 * g + half * 2;
      u32 first = pack(v[0] * factor, v[1] * factor);
      u32 second = pack(v[4] * factor, v[5] * factor);
      u32 other = __shfl_xor_sync(~0u, odd ? first : second, 1);
      store_if(at < t.rows && 8 * g + odd * 8 + lane / 2 * 4 < columns,
               here + 8 * g, odd ? other : first, odd ? second : other);
    }
  }
  return finite;
}
#endif

template <int count>
DEVICE void store_gradient(const hopper_backward_launch &run,
                           const hopper_gradient &to, float (&x)[count],
                           const tile_rows_message &t, float factor,
                           int columns) {
  if (to.data && !put_gradient(to, x, t, factor, columns))
    *(volatile unsigned *)run.spoiled = 1;
}

DEVICE void end_tile(const hopper_backward_launch &run, const consumer &,
                     fragments &f, const tile_rows_message &t) {
  store_gradient(run, run.scored, f.scored, t, run.of.natural, HEAD_DIM);
#if HOLDS_KEYS
  store_gradient(run, run.weighted, f.weighted, t, 1, VALUE_DIM);
#endif
}

// Writes 0 to all rows of a gradient, before the tiles write theirs. Sixteen
// bytes a thread.
DEVICE void clear_gradient(const hopper_launch &run, const hopper_gradient &to,
                           int columns) {
  const int bytes = SUMS ? 4 : 2, units = columns * bytes / 16;
  long long count = (long long)run.batches * run.queries * run.heads * units;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (!to.data) return;
  for (; i < count; i += (long long)gridDim.x * blockDim.x) {
    int unit = (int)(i % units), head = (int)(i / units % run.heads);
    long long row = i / units / run.heads;
    long long at = row / run.queries * to.batch +
                   row % run.queries * to.row + head * to.head;
    *(int4 *)((char *)to.data + at * bytes + unit * 16) =
        make_int4(0, 0, 0, 0);
  }
}

extern "C" __global__ void
hopper_clear(const __grid_constant__ hopper_backward_launch run) {
  clear_gradient(run.of, run.scored, HEAD_DIM);
  clear_gradient(run.of, run.weighted, VALUE_DIM);
}

// ---- facts -----------------------------------------------------------------

// Lanes of a warp that share a row: sixteen bytes of o and of dO each.
#define FACT_UNITS (VALUE_DIM / 8)
#define FACT_LANES                                                             \
  (FACT_UNITS <= 1 ? 1 : FACT_UNITS <= 2 ? 2 : FACT_UNITS <= 4 ? 4             \
   : FACT_UNITS <= 8 ? 8 : 16)

DEVICE long long offset_of(const long long (&stride)[3], int b, int n, int h) {
  return b * stride[0] + n * stride[1] + h * stride[2];
}

DEVICE float dot_units(const void *a, const void *b, long long i, long long j) {
  int4 x = *(const int4 *)((const unsigned short *)a + i);
  int4 y = *(const int4 *)((const unsigned short *)b + j);
  const u32 u[4] = {(u32)x.x, (u32)x.y, (u32)x.z, (u32)x.w};
  const u32 v[4] = {(u32)y.x, (u32)y.y, (u32)y.z, (u32)y.w};
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
    sum = fmaf(high_half(u[k]), high_half(v[k]),
               fmaf(low_half(u[k]), low_half(v[k]), sum));
  return sum;
}

// The facts of all query rows, a row for each FACT_LANES threads. Rows of all
// heads at a position follow one another, as they do in memory.
extern "C" __global__ void
hopper_facts(const __grid_constant__ hopper_facts_launch run) {
  const float log2_e = 1.44269504088896340736f;
  long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  long long row = thread / FACT_LANES, count = (long long)run.batches * run.rows;
  int lane = (int)(thread % FACT_LANES);
  int h = (int)(row % run.heads), b, n;
  bool there = row < count * run.heads;
  float sum = 0;
  row = there ? row / run.heads : 0;
  b = (int)(row / run.rows);
  n = (int)(row % run.rows);
  if (thread == 0) *run.spoiled = 0;
  if (there && lane < FACT_UNITS)
    sum = dot_units(run.o, run.do_,
                    offset_of(run.o_stride, b, n, h) + lane * 8,
                    offset_of(run.do_stride, b, n, h) + lane * 8);
#pragma unroll
  for (int away = FACT_LANES / 2; away; away >>= 1)
    sum += __shfl_xor_sync(~0u, sum, away);
  if (!there || lane) return;
  float lse = run.lse[offset_of(run.lse_stride, b, n, h)];
  if (run.dlse) sum -= run.dlse[offset_of(run.dlse_stride, b, n, h)];
  float2 facts = {lse == MINUS_INFINITY ? INFINITE_LSE : lse * log2_e, sum};
  ((float2 *)run.facts)[((long long)b * run.heads + h) * run.rows + n] = facts;
}
