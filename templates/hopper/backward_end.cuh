// backward_end.cuh - the end of a tile of gradients, by one consumer warpgroup,
// and the rows that no tile holds.
#pragma once

#define SETTLES (SUMS && !MARKS && !GATHERS) // some rows end with the first pass

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

// Where a thread puts 16-bit elements of a warp's rows, but for the row.
DEVICE unsigned short *element_of(const hopper_gradient &to,
                                  const tile_rows_message &t) {
  int lane = thread_index() % 4;
  return (unsigned short *)to.data + t.batch * to.batch + t.head * to.head +
         lane % 2 * 8 + lane / 2 * 4;
}

// Stores the thread's row `half` straight from registers, if it is there. Two
// neighbouring threads exchange words, so that each holds 8 bytes of one of two groups
// of columns. The four threads of a row then write 32 bytes together.
template <int count>
DEVICE void round_row(unsigned short *here, const float (&x)[count], int half,
                      bool there, float factor, int columns) {
  int lane = thread_index() % 4;
  bool odd = lane & 1;
#pragma unroll
  for (int g = 0; g < count / 4; g += 2) {
    const float *v = x + 4 * g + half * 2;
    u32 first = pack(v[0] * factor, v[1] * factor);
    u32 second = pack(v[4] * factor, v[5] * factor);
    u32 other = __shfl_xor_sync(~0u, odd ? first : second, 1);
    store_if(there && 8 * g + odd * 8 + lane / 2 * 4 < columns, here + 8 * g,
             odd ? other : first, odd ? second : other);
  }
}

#if SUMS
// Whether all sums of a row are finite, of which four threads have a part each.
DEVICE bool all_finite(bool finite) {
#if MARKS
  finite &= __shfl_xor_sync(~0u, (int)finite, 1);
  finite &= __shfl_xor_sync(~0u, (int)finite, 2);
#endif
  return finite;
}

DEVICE void add_two(float *to, float a, float b) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b)
               : "memory");
}

// Whether no later pass has row n of a head, so that the first one rounds it.
DEVICE bool ends_at_once(const hopper_backward_launch &run, int n, int head) {
  int phase = run.of.live_phase[head];
  unsigned from = n + run.of.first + run.apart - phase;
  return phase < 0 || from % (unsigned)run.apart;
}

// Adds a warp's rows to the sums of earlier passes, or writes them where there are
// none; a row that is marked gains nothing. The four threads of a row write 32 bytes
// together. One tile of a pass has a row, so that the order of additions is that of
// the passes; the memory adds, and no thread waits for what the sums were.
template <int count>
DEVICE bool put_gradient(const hopper_backward_launch &run,
                         const hopper_gradient &to, const hopper_gradient &end,
                         float (&x)[count], const tile_rows_message &t, float factor,
                         int columns, unsigned char *marks) {
  u32 thread = thread_index();
  int column = thread % 4 * 2, row = warp_row(thread) + thread % 32 / 4;
  bool finite = true;
  float *out = (float *)to.data + t.batch * to.batch + t.head * to.head;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8, n = target_row(t, at);
    bool good = all_finite(are_finite(x, half)), ends = false;
    if (SETTLES && run.apart) {
      ends = ends_at_once(run, n, t.head);
      round_row(element_of(end, t) + n * end.row, x, half, ends && at < t.rows,
                factor, columns);
    }
    if (at >= t.rows) continue;
    float *here = out + n * to.row + column;
    finite &= good;
    bool marked = MARKS && !good;
    if (marked) marks[n] = 1;
    if (ends || (marked && !run.opens)) continue;
#pragma unroll
    for (int g = 0; g < count / 4; g++) {
      float a = x[4 * g + 2 * half] * factor, b = x[4 * g + 2 * half + 1] * factor;
      if (8 * g + column >= columns) continue;
      if (!run.opens) add_two(here + 8 * g, a, b);
      else *(float2 *)(here + 8 * g) = marked ? make_float2(0, 0) : make_float2(a, b);
    }
  }
  return finite;
}
#else
template <int count>
DEVICE bool put_gradient(const hopper_backward_launch &,
                         const hopper_gradient &to, const hopper_gradient &,
                         float (&x)[count], const tile_rows_message &t, float factor,
                         int columns, unsigned char *) {
  u32 thread = thread_index();
  int row = warp_row(thread) + thread % 32 / 4;
  bool finite = true;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    bool there = has_row(t, at);
    finite &= !there || are_finite(x, half);
    round_row(element_of(to, t) + target_row(t, at) * to.row, x, half, there, factor,
              columns);
  }
  return finite;
}
#endif

template <int count>
DEVICE void store_gradient(const hopper_backward_launch &run,
                           const hopper_gradient &to, const hopper_gradient &end,
                           float (&x)[count], const tile_rows_message &t,
                           float factor, int columns, unsigned char *marks) {
  if (MARKS)
    marks += ((long long)t.batch * run.of.heads + t.head) * run.held_rows;
  if (to.data && !put_gradient(run, to, end, x, t, factor, columns, marks))
    *(volatile unsigned *)run.spoiled = 1;
}

#if !HOLDS_KEYS
// The dO of a row without keys may be NaN, and 0 * NaN is NaN: the row's dQ
// is 0.
DEVICE void clear_rows_without_keys(fragments &f) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (f.row[half].lse < INFINITE_LSE) continue;
#pragma unroll
    for (int i = 2 * half; i < HEAD_COLUMNS / 2; i += 4)
      f.scored[i] = f.scored[i + 1] = 0;
  }
}
#endif

DEVICE void end_tile(const hopper_backward_launch &run, const consumer &,
                     fragments &f, const tile_rows_message &t) {
#if !HOLDS_KEYS
  clear_rows_without_keys(f);
#endif
#if MAKES_SCORED
  float scored = power_of_2(-(WEIGHT_BITS + unit_bits(run)));
  store_gradient(run, run.scored, run.scored_end, f.scored, t,
                 run.scored_factor * SLOPE_UNIT * scored, HEAD_DIM,
                 run.scored_marks);
#endif
#if MAKES_WEIGHTED
  store_gradient(run, run.weighted, run.weighted_end, f.weighted, t,
                 run.weighted_factor * power_of_2(-WEIGHT_BITS), VALUE_DIM,
                 run.weighted_marks);
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

#if SETTLES
// Rounds the sums of the rows that came again, eight columns a thread.
DEVICE void settle_gradient(const hopper_backward_launch &run,
                            const hopper_gradient &from, const hopper_gradient &to,
                            int columns) {
  const int units = columns / 8;
  int rows = (run.of.queries + run.apart - 1) / run.apart; // at most, of a head
  long long count = (long long)run.of.batches * rows * run.of.heads * units;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (!to.data) return;
  for (; i < count; i += (long long)gridDim.x * blockDim.x) {
    int unit = (int)(i % units), head = (int)(i / units % run.of.heads);
    int number = (int)(i / units / run.of.heads % rows);
    long long batch = i / units / run.of.heads / rows;
    int phase = run.of.live_phase[head];
    int first = (phase - run.of.first % run.apart + run.apart) % run.apart;
    int n = first + number * run.apart;
    if (phase < 0 || n >= run.of.queries) continue;
    const float4 *sums = (const float4 *)((const float *)from.data + batch * from.batch +
                                          n * from.row + head * from.head + unit * 8);
    float4 x = sums[0], y = sums[1];
    *(int4 *)((unsigned short *)to.data + batch * to.batch + n * to.row +
              head * to.head + unit * 8) =
        make_int4((int)pack(x.x, x.y), (int)pack(x.z, x.w), (int)pack(y.x, y.y),
                  (int)pack(y.z, y.w));
  }
}
#endif

#if !GATHERS && !OWN_TILES
// Kernels of plans of one pass have no sums.
extern "C" __global__ void
hopper_settle(const __grid_constant__ hopper_backward_launch run) {
#if SETTLES
  settle_gradient(run, run.scored, run.scored_end, HEAD_DIM);
  settle_gradient(run, run.weighted, run.weighted_end, VALUE_DIM);
#endif
}
#endif
