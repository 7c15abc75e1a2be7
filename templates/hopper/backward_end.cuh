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

// Adds a warp's rows to the sums of earlier passes, or writes them where there are
// none; a row that is marked gains nothing. The four threads of a row write 32 bytes
// together. One tile of a pass has a row, so that the order of additions is that of
// the passes; the memory adds, and no thread waits for what the sums were.
template <int count>
DEVICE bool put_gradient(const hopper_backward_launch &run,
                         const hopper_gradient &to, float (&x)[count],
                         const tile_rows_message &t, float factor,
                         int columns, unsigned char *marks) {
  u32 thread = thread_index();
  int column = thread % 4 * 2, row = warp_row(thread) + thread % 32 / 4;
  bool finite = true;
  float *out = (float *)to.data + t.batch * to.batch + t.head * to.head;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int at = row + half * 8;
    bool good = all_finite(are_finite(x, half));
    if (at >= t.rows) continue;
    float *here = out + target_row(t, at) * to.row + column;
    finite &= good;
    bool marked = MARKS && !good;
    if (marked) marks[target_row(t, at)] = 1;
    if (marked && !run.opens) continue;
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
// Stores a warp's rows straight from registers. Two neighbouring threads
// exchange words, so that each holds 8 bytes of one of two groups of columns.
// The four threads of a row then write 32 bytes together.
template <int count>
DEVICE bool put_gradient(const hopper_backward_launch &,
                         const hopper_gradient &to, float (&x)[count],
                         const tile_rows_message &t, float factor,
                         int columns, unsigned char *) {
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
                           int columns, unsigned char *marks) {
  if (MARKS)
    marks += ((long long)t.batch * run.of.heads + t.head) * run.held_rows;
  if (to.data && !put_gradient(run, to, x, t, factor, columns, marks))
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
    for (int i = 2 * half; i < HEAD_WIDTH / 2; i += 4)
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
  store_gradient(run, run.scored, f.scored, t,
                 run.scored_factor * SLOPE_UNIT * scored, HEAD_DIM,
                 run.scored_marks);
#endif
#if MAKES_WEIGHTED
  store_gradient(run, run.weighted, f.weighted, t,
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

